"""The C trainer against PyTorch: the same batches, the same steps, the same weights; and what it saves is loaded."""

from __future__ import annotations

import inspect
import json
import math
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import program
import pytest
import tiny
import torch
from transformers import AutoModelForCausalLM

import rosatune.hf

LENGTH, STEPS, WARMUP = 40, 6, 2
ADAPTER, BACKBONE = (3e-3, 3e-4), (1e-3, 1e-4)


def shard(path: Path, tokens: np.ndarray) -> Path:
    """A token shard of one document; its checksum is looked at on request only."""
    body = tokens.astype("<u2").tobytes()
    body += bytes(-len(body) % 8)
    header = b"rosatok\n" + struct.pack("<IIQQQQQQ", 2, 2, len(tokens), 1, tiny.VOCABULARY, 0, 0, 0)
    path.write_bytes(header + body + struct.pack("<QQ", 0, len(tokens)))
    return path


def rate(step: int, limits: tuple[float, float]) -> float:
    """Warm-up in a straight line, then half a cosine to the minimum at the last step."""
    highest, lowest = limits
    if step < WARMUP:
        return highest * (step + 1) / WARMUP
    share = (step - WARMUP + 1) / (STEPS - WARMUP)
    return lowest + (highest - lowest) * (1 + math.cos(math.pi * share)) / 2


def config(folder: Path, kind: str, v_grad: str = "straight", qk_factor: float = 1.0, **adapter: Any) -> Path:
    """A run of one stage on one sequence, over and over."""
    stage = dict(kind=kind, data=str(folder / "text.tokens"), length=LENGTH, batch=1, tokens=STEPS * LENGTH)
    stage |= dict(warmup=WARMUP, weight_decay=0.1, clip=0.5, beta2=0.99, qk_factor=qk_factor)
    stage |= dict(adapter_rate=dict(zip(("max", "min"), ADAPTER)), backbone_rate=dict(zip(("max", "min"), BACKBONE)))
    whole = dict(model=str(folder / "model"), out=str(folder / "run"), threads=1, adapter=adapter, stages=[stage])
    whole |= dict(learning=dict(v_grad=v_grad))
    (folder / "config.json").write_text(json.dumps(whole))
    return folder / "config.json"


def train(model: Any, tokens: np.ndarray, kind: str, qk_factor: float) -> list[float]:
    """The same in PyTorch; gives the losses."""
    rosatune.hf.set_stage(model, kind)
    model.train()
    groups = rosatune.hf.parameter_groups(model, adapter_lr=1, backbone_lr=1, weight_decay=0.1, qk_factor=qk_factor)
    factors = {group["name"]: group["lr"] for group in groups}  # 5 for vectors; less in a seen-token head, and of q and k
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.99), eps=1e-8)
    ids = torch.from_numpy(tokens[None].astype(np.int64))
    losses = []
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = rate(step, ADAPTER if group["name"].startswith("adapter") else BACKBONE)
            group["lr"] *= factors[group["name"]]
        optimizer.zero_grad()
        logits = model(ids[:, :-1], use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[0, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_([w for w in model.parameters() if w.requires_grad], 0.5)
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("kind", ("adapter", "all"))
@pytest.mark.parametrize("architecture", tiny.KINDS)
@pytest.mark.parametrize("start", ("paper", "slow q and k", "layer", "embeddings", "tokens seen"))
def test_steps_of_pytorch(start: str, architecture: str, kind: str, tmp_path: Path) -> None:
    """The paper's arrangement, also with q and k slow; ours with values of either kind, and with a seen-token head
    after a large norm."""
    qk_factor = 0.2 if start == "slow q and k" else 1.0
    tokens = tiny.tokens(1, LENGTH + 1)[0].numpy()
    tokens[20:40] = tokens[:20]  # something to retrieve
    shard(tmp_path / "text.tokens", tokens)
    model = tiny.model(architecture)
    options: dict[str, Any] = dict(window=8, bits=8, first_global_layers=1, e_start=0.1)
    if start == "tokens seen":
        model.model.norm.weight.data *= 2000 / model.model.norm.weight.sum()
        model.lm_head.weight.data *= 0.01  # likewise smaller, so that logits stay what they were
        options |= dict(seen=4)
    elif start in ("layer", "embeddings"):
        options |= dict(v_from=start)
    model.save_pretrained(tmp_path / "model")
    made = (rosatune.RosaConfig.paper if start in ("paper", "slow q and k") else rosatune.RosaConfig)(**options)
    rosatune.hf.attach(model, made)
    rosatune.hf.save_adapter(model, tmp_path / "start")
    v_grad = rosatune.hf.attachment(model).config.v_grad
    program.succeed("tune", config(tmp_path, kind, v_grad, qk_factor, path=str(tmp_path / "start")))
    losses = train(model, tokens, kind, qk_factor)

    log = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    np.testing.assert_allclose([entry["loss"] for entry in log], losses, rtol=2e-4)
    assert [entry["rate"] for entry in log] == pytest.approx([rate(step, ADAPTER) for step in range(STEPS)])
    saved = tmp_path / "run" / "checkpoints" / f"step-{STEPS:08}"
    ours = rosatune.hf.load_adapter(
        AutoModelForCausalLM.from_pretrained(saved if kind == "all" else tmp_path / "model"), saved
    )
    theirs = dict(model.named_parameters())
    for name, weight in ours.named_parameters():
        # Adam divides by the gradient's size: where that is rounding alone, so is the step
        moved = (weight - theirs[name]).abs()
        assert moved.mean() < 2e-5, name
        assert moved.max() < 4e-3, name


def test_default_rates_are_the_same() -> None:
    text = program.succeed("tune", "--help").decode()
    told = dict(re.findall(r"^ +([\w.]+) \[(.+?)\] ", text, re.M))
    ours = {name: value.default for name, value in inspect.signature(rosatune.hf.parameter_groups).parameters.items()}
    assert float(told["adapter_rate.max"]) == ours["adapter_lr"]
    assert float(told["backbone_rate.max"]) == ours["backbone_lr"]
    assert float(told["weight_decay"]) == ours["weight_decay"]
    assert float(told["qk_factor"]) == ours["qk_factor"]
    assert ours["vector_lr"] is None and told["vector_factor"] == "5"  # which is what None means


@pytest.mark.parametrize("fusion", ("post", "pre"))
@pytest.mark.parametrize("qk", ("aligned", "separate", "shared"))
def test_checkpoints_are_loaded(fusion: str, qk: str, tmp_path: Path) -> None:
    tokens = tiny.tokens(1, LENGTH + 1)[0].numpy()
    shard(tmp_path / "text.tokens", tokens)
    tiny.model("qwen3").save_pretrained(tmp_path / "model")
    options = dict(fusion=fusion, qk=qk, v_from="layer" if qk == "separate" else "embeddings", window=8, sinks=2,
                   bits=4, policy="inclusive", max_match=3, e_start=0.2, layers=[0, 2], source="tokens+own", delay=None, chain=2, gain=True, gate=True)  # fmt: skip
    program.succeed("tune", config(tmp_path, "all", **options))
    saved = tmp_path / "run" / "checkpoints" / f"step-{STEPS:08}"
    model = AutoModelForCausalLM.from_pretrained(saved)
    rosatune.hf.load_adapter(model, saved)
    model.eval()
    written = json.loads((saved / "adapter_config.json").read_text())
    assert {*written["options"], "scales"} == set(model.config.rosatune) and written["format"] == 2
    for name, value in options.items():
        assert model.config.rosatune[name] == (pytest.approx(value) if name == "e_start" else value)
    ids = tiny.tokens(1, 60, seed=8)
    with torch.no_grad():
        theirs = model(ids, use_cache=False).logits.numpy()
    ours = program.logits(tmp_path, saved, ids.numpy(), "--adapter", saved)
    assert np.linalg.norm(ours - theirs) < 1e-4 * np.linalg.norm(theirs)
