"""Two processes learn what one learns from the joint batch.

The test starts this file itself with torchrun, and there every way of sharing the work is run in turn:
DistributedDataParallel, FSDP2 (`fully_shard`) and Trainer. What the processes saved is compared with what one process
computes here. Rows have the same number of labels, so the mean over the processes is the mean over the joint batch.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")

sys.path.insert(0, str(Path(__file__).parent))
import tiny  # noqa: E402

import rosatune.hf as hf  # noqa: E402
from rosatune import Pointer  # noqa: E402

STEPS, ROWS = 3, 4
CLOSE = dict(rtol=1e-4, atol=1e-5)


KINDS = {
    "": dict(v_from="layer"),
    "-distinct": dict(seen=4),  # values of distinct tokens, each process's own, and a seen-token head
}


def learner(kind=""):
    made = tiny.model(num_hidden_layers=2, tie_word_embeddings=True)
    source = "tokens+layer 0"  # token ids for all layers, and the q and k of layer 0 for both
    made = hf.attach(made, source=source, window=4, sinks=1, bits=16, stage="all", e_start=0.1, chain=2, **KINDS[kind])
    hf.attach_pointer(made, Pointer([[-1.0] * 13] * 2, 4), learn=True)
    return made.train()


def batches() -> list:
    """One joint batch a step: a text twice."""
    texts = [tiny.tokens(ROWS, 12, seed) for seed in range(STEPS)]
    return [torch.cat([text, text], 1) for text in texts]


def learn(model, mine=slice(None)) -> list:
    """Losses of a few steps on the given rows."""
    optimizer = torch.optim.AdamW(hf.parameter_groups(model, adapter_lr=1e-3, backbone_lr=1e-3))
    losses = []
    for ids in batches():
        loss = model(input_ids=ids[mine], labels=ids[mine], use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return losses


def trainer(folder: Path, rows: int):
    """The same steps by Trainer; the rows of a step are shared out by it."""
    from transformers import Trainer, TrainingArguments

    data = [{"input_ids": row, "labels": row} for row in torch.cat(batches())]
    options = TrainingArguments(
        output_dir=str(folder),
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        save_strategy="no",
        per_device_train_batch_size=rows,
        max_steps=STEPS,
        learning_rate=1e-3,
        lr_scheduler_type="constant",
        logging_steps=1,
        dataloader_pin_memory=False,
    )
    model = learner()
    made = Trainer(model, options, train_dataset=data)
    made.train()
    return model, [torch.tensor(line["loss"]) for line in made.state.log_history if "loss" in line]


def whole(model) -> dict:
    """All parameters, gathered from the processes where they are sharded."""
    gathered = {}
    for name, weight in model.state_dict().items():
        weight = weight.full_tensor() if hasattr(weight, "full_tensor") else weight
        gathered[name.removeprefix("module.")] = weight.detach().clone()
    return gathered


def worker(folder: Path) -> None:
    """What each of the two processes runs."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, count = dist.get_rank(), dist.get_world_size()
    mine = slice(rank * ROWS // count, (rank + 1) * ROWS // count)

    def keep(name: str, model, losses: list) -> None:
        losses = torch.stack(losses)
        dist.all_reduce(losses)
        weights = whole(model)
        if rank == 0:
            torch.save({"losses": losses / count, "weights": weights}, folder / f"{name}.pt")

    mesh = init_device_mesh("cpu", (count,))
    for kind in KINDS:
        model = DistributedDataParallel(learner(kind))
        keep("ddp" + kind, model, learn(model, mine))

        model = learner(kind)
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        keep("fsdp" + kind, model, learn(model, mine))
        hf.save_adapter(model, folder / ("adapter" + kind))

    keep("trainer", *trainer(folder / "trainer", ROWS // count))
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def shared(tmp_path_factory) -> Path:
    """The folder where two processes left their results."""
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("this PyTorch has no gloo")
    folder = tmp_path_factory.mktemp("shared")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += [__file__, str(folder)]
    paths = [path for path in sys.path if path]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


@pytest.mark.parametrize("way", ["ddp", "fsdp", "trainer", "ddp-distinct", "fsdp-distinct"])
def test_two_processes_learn_what_one_does(shared, tmp_path, way):
    found = torch.load(shared / f"{way}.pt", weights_only=True)
    kind = way.removeprefix("ddp").removeprefix("fsdp")
    if way == "trainer":
        kind, (model, losses) = "", trainer(tmp_path, ROWS)
    else:
        model = learner(kind)
        losses = learn(model)
    torch.testing.assert_close(found["losses"], torch.stack(losses), **CLOSE)
    expected = whole(model)
    assert found["weights"].keys() == expected.keys()
    start = learner(kind).state_dict()
    for name, weight in expected.items():
        torch.testing.assert_close(
            found["weights"][name], weight, **CLOSE, msg=lambda text, name=name: f"{name}: {text}"
        )
        assert not torch.equal(weight, start[name]), name


def test_adapter_of_a_sharded_model_is_saved_whole(shared):
    weights = torch.load(shared / "fsdp.pt", weights_only=True)["weights"]
    model = hf.load_adapter(tiny.model(num_hidden_layers=2, tie_word_embeddings=True), shared / "adapter")
    for name, weight in model.state_dict().items():
        if "rosa" in name:
            assert torch.equal(weight, weights[name]), name


if __name__ == "__main__":
    worker(Path(sys.argv[1]))
    # All is on disk. gloo's threads may still hold tensors, and one that lets go of them while the
    # interpreter is taken down aborts the process (pytorch/pytorch#179291): it has nothing left to take down.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
