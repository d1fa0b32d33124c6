"""rosatune tune on a tiny model, from outside. The first argument is the program.

The model is that of tiny_model.py. What is tested most is what users cannot try out themselves: that a run which
is killed, interrupted, damaged, out of disk or spread over several processes ends with the weights of one that was not.
"""
import contextlib
import fcntl
import json
import math
import os
import pty
import random
import re
import resource
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import unittest

sys.dont_write_bytecode = True
from tiny_model import PROGRAM, is_far, losses, put, write_model

SHIPPED = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "configs")
LIMIT = 300  # seconds until a run counts as hung
TENSORS = ("adapter_model.safetensors", "model.safetensors", "optimizer.safetensors")
ENDED = "step-00000024"
duration = 0.0  # seconds of a run that nothing happens to

STAGES = [
    dict(name="warm", kind="adapter", data="text.tokens", valid="valid.tokens", length=48, batch=4, tokens=12 * 4 * 48,
         warmup=3, adapter_rate=dict(max=1e-2, min=1e-3), save_every=5, valid_every=8, valid_samples=5),
    dict(name="full", kind="all", data=["text.tokens"], length=48, batch=4, micro_batch=3, tokens=12 * 4 * 48, warmup=2,
         adapter_rate=dict(max=3e-4, min=5e-5), backbone_rate=dict(max=1e-3, min=1e-4), weight_decay=0.1, save_every=4,
         keep=2),
]
CONFIG = dict(model="model.gguf", out="nowhere", seed=3, threads=1, stages=STAGES,
              adapter=dict(bits=4, window=16, first_global_layers=1, source="tokens+own", delay=None, chain=2,
                           gain=True, gate=True, units=0.3, v_start="identity", seen=3),
              learning=dict(explore=0.1, v_grad="straight"))


def words(count, seed):
    source = random.Random(seed)
    known = ["".join(source.choice("abcdefghij") for _ in range(source.randint(2, 6))) for _ in range(40)]
    return " ".join(source.choice(known) for _ in range(count))


def run(*arguments, code=0, prefix=(), **more):
    result = subprocess.run([*prefix, PROGRAM, *arguments], capture_output=True, timeout=LIMIT, text=True, **more)
    if code is not None and result.returncode != code:
        raise AssertionError(f"exit code {result.returncode}, not {code}: {arguments}\n{result.stderr}{result.stdout}")
    return result


def tune(out, *arguments, **more):
    return run("tune", "config.json", "--out", out, *arguments, **more)


# The paper's adapter, whose q and k learn.
PAPER = [word for setting in ("source=own", "delay=0", "gain=false", "gate=false", "units=0", "v_start=xavier", "sinks=0")
         for word in ("--set", f"adapter.{setting}")] + ["--set", "learning.v_grad=sigmoid"]


def refusal(*arguments, code=2, **more):
    result = run("tune", *arguments, code=code, **more)
    return result.stderr


def checkpoints(out):
    return sorted(os.listdir(f"{out}/checkpoints"))


def content(path):
    with open(path, "rb") as file:
        return file.read()


def tensors(path):
    """A safetensors file: for each name its type, its shape and its numbers."""
    data = content(path)
    start = 8 + struct.unpack("<Q", data[:8])[0]
    found = {}
    for name, entry in json.loads(data[8:start]).items():
        if name == "__metadata__":
            continue
        raw = data[start + entry["data_offsets"][0]:start + entry["data_offsets"][1]]
        if entry["dtype"] == "BF16":  # the upper half of a float32
            raw = b"".join(b"\0\0" + raw[i:i + 2] for i in range(0, len(raw), 2))
        found[name] = (entry["dtype"], entry["shape"], [x for x, in struct.iter_unpack("<f", raw)])
    return found


def log(out, timed=False):
    with open(f"{out}/log.jsonl") as file:
        entries = [json.loads(line) for line in file]
    return [{k: v for k, v in e.items() if timed or k not in ("seconds", "tokens_per_second")} for e in entries]


def change(path, at):
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 4]))


class Case(unittest.TestCase):
    def same(self, out, wanted="whole"):
        """The run ended with the bits of the one that nothing happened to, and logged the same."""
        for name in TENSORS:
            self.assertEqual(content(f"{out}/checkpoints/{ENDED}/{name}"),
                             content(f"{wanted}/checkpoints/{ENDED}/{name}"), f"{out}: {name}")
        self.assertEqual(log(out), log(wanted))
        self.assertEqual([name for name in checkpoints(out) if name.startswith("step-")], checkpoints(wanted))

    def close(self, ours, theirs):
        """The same steps, but for the order in which floats were added. That may turn a value bit whose number is next
        to 0, and then a step differs by more than rounding."""
        self.assertEqual(len(log(ours)), len(log(theirs)))
        apart = []
        for a, b in zip(log(ours), log(theirs)):
            self.assertEqual((a["step"], a["tokens"], a["rate"]), (b["step"], b["tokens"], b["rate"]))
            for key in ("loss", "valid_loss"):
                self.assertEqual(key in a, key in b)
                apart.append(abs((a.get(key) or 0) - (b.get(key) or 0)))
        self.assertLess(max(apart), 1e-3)
        self.assertLessEqual(sum(x > 1e-5 for x in apart), 1)


# ------------------------------------------------------------------------------------------------------------- training


class Training(Case):
    def test_what_a_run_leaves(self):
        self.assertEqual(checkpoints("whole"), ["step-00000020", ENDED])
        entries = log("whole", timed=True)
        self.assertEqual([e["step"] for e in entries], list(range(25)))
        self.assertEqual([e["stage"] for e in entries], ["warm"] * 13 + ["full"] * 12)
        self.assertEqual([e["step"] for e in entries if "valid_loss" in e], [0, 8, 12])
        self.assertEqual([entries[0][key] for key in ("loss", "grad_norm", "rate", "tokens")], [None, None, 0, 0])
        self.assertLess(entries[12]["valid_loss"], entries[0]["valid_loss"])
        entries = entries[1:]
        self.assertEqual(entries[-1]["tokens"], 24 * 4 * 48)
        self.assertTrue(all(e["backbone_rate"] == 0 for e in entries[:12]))
        self.assertAlmostEqual(entries[2]["rate"], 1e-2)
        self.assertAlmostEqual(entries[11]["rate"], 1e-3)
        self.assertAlmostEqual(entries[12]["backbone_rate"], 5e-4)
        for key in ("grad_norm", "seconds", "tokens_per_second"):
            self.assertTrue(all(e[key] > 0 for e in entries), key)
        self.assertLess(entries[-1]["loss"], entries[0]["loss"])
        last = json.loads(content(f"whole/checkpoints/{ENDED}/tune.json"))
        self.assertEqual(last["stages"][0]["name"], "warm")
        self.assertEqual(json.loads(content(f"whole/checkpoints/{ENDED}/state.json"))["step"], 24)

    def test_far_tokens_are_judged(self):
        """With what was found, at random and off; against the losses of single tokens, by definition."""
        stage = {**STAGES[0], "valid_every": 0, "valid_samples": 1000, "micro_batch": 3}
        put("far.json", json.dumps({**CONFIG, "stages": [stage]}))
        run("tune", "far.json", "--out", "far")
        entries = log("far")
        first, last = entries[0], entries[-1]
        self.assertEqual([e["step"] for e in entries if "far_loss" in e], [0, 12])
        # an adapter that injects nothing yet: no read makes a difference
        self.assertEqual(first["far_loss"], first["far_off_loss"])
        self.assertEqual(first["far_loss"], first["far_random_loss"])
        self.assertEqual(len({last[key] for key in ("far_loss", "far_random_loss", "far_off_loss")}), 3)
        tokens = [*content("valid.txt"), 256]
        attention = ("--window", "16", "--sinks", "4", "--global-layers", "1")
        for wanted, options in (
            (last["far_loss"], ("--adapter", "far/checkpoints/step-00000012")),
            (last["far_off_loss"], attention),
        ):
            far, every = [], []
            for at in range(0, len(tokens) - 1, 48):
                text = tokens[at : at + 49]
                each = losses(text, *options, model="model.gguf")
                every += each
                far += [each[t - 1] for t in range(2, len(text)) if is_far(text, t, 16)]
            self.assertGreater(len(far), 30)
            self.assertAlmostEqual(wanted, statistics.fmean(far), places=4)
        if shutil.which("gnuplot"):
            self.assertIn("reading at random", run("plot", "far/log.jsonl").stdout)

    def test_what_is_printed(self):
        lines = tune("printed", "--set", "stage.*.tokens=800").stdout.splitlines()
        self.assertIn("stage 1 of 2, warm: 5 steps of 4 x 48 tokens", lines[0])
        self.assertIn("saved printed/checkpoints/step-00000005", lines)
        self.assertRegex(lines[1], r"^before training: valid [0-9.]+, far [0-9.]+ \(random [0-9.]+, off [0-9.]+\)$")
        self.assertTrue(lines[-3].startswith("done after step 10 of 10: loss "), lines[-3])
        self.assertEqual(lines[-2:], ["checkpoint: printed/checkpoints/step-00000010", "adapter: printed/final"])
        self.assertIn("nothing left to do", tune("printed", "--set", "stage.*.tokens=800", "--resume").stdout)
        result = json.loads(tune("object", "--json", "--set", "stage.*.tokens=100").stdout)
        self.assertEqual((result["steps"], result["stopped"]), (2, False))
        self.assertEqual((result["checkpoint"], result["adapter"]), ("object/checkpoints/step-00000002", "object/final"))
        self.assertTrue(math.isfinite(result["loss"]) and math.isfinite(result["valid_loss"]))

    def test_the_program_loads_it(self):
        adapter = run("info", "model.gguf", "--adapter", "whole/checkpoints/" + ENDED).stdout
        self.assertIn("adapter", adapter)
        words = ("--prompt", "abc ", "--tokens", "4", "--temperature", "0")
        folder = "whole/checkpoints/" + ENDED
        one = run("generate", "--model", "model.gguf", "--adapter", folder, *words).stdout
        two = run("generate", "--model", folder, "--adapter", folder, *words).stdout
        self.assertTrue(one and two)

    def test_a_final_adapter(self):
        """In bfloat16 and without the optimiser; a run's folder stands for it."""
        self.assertEqual(sorted(os.listdir("whole/final")), ["adapter_config.json", "adapter_model.safetensors",
                                                             "config.json", "model.safetensors", "tokenizer.gguf"])
        exact, narrow = (tensors(f"whole/{folder}/adapter_model.safetensors")
                         for folder in (f"checkpoints/{ENDED}", "final"))
        self.assertEqual(exact.keys(), narrow.keys())
        for name, (kind, shape, numbers) in narrow.items():
            self.assertEqual((kind, shape), ("BF16", exact[name][1]))
            for a, b in zip(exact[name][2], numbers):
                self.assertLessEqual(abs(a - b), abs(a) / 256, name)
        self.assertEqual(json.loads(content("whole/final/config.json"))["torch_dtype"], "bfloat16")
        words = ("--prompt", "abc ", "--tokens", "4", "--temperature", "0")
        for model in ("model.gguf", "whole/final"):
            found = [run("generate", "--model", model, "--adapter", folder, *words)
                     for folder in ("whole", "whole/final")]
            self.assertEqual(found[0].stdout, found[1].stdout)
            self.assertEqual(found[0].stderr, "")

    def test_describing_adapters(self):
        words = run("adapter", "info", "whole").stdout
        for line in ("adapter     whole/final\n", "base model  model.gguf: llama, width 32, 2 layers\n",
                     "layers      1\n", "BF16", "trained     24 steps\n", "explore              0.1\n"):
            self.assertIn(line, words)
        found = json.loads(run("adapter", "info", "--json", f"whole/checkpoints/{ENDED}").stdout)
        self.assertEqual((found["type"], found["steps"], found["layers"]), ("F32", 24, [1]))
        self.assertEqual((found["options"]["bits"], found["options"]["max_match"]), (4, None))
        known = json.loads(run("adapter", "options", "--json").stdout)["options"]
        self.assertEqual({option["name"] for option in known}, found["options"].keys())
        self.assertIn("has no adapter_config.json", run("adapter", "info", "model.gguf", code=1).stderr)

    def test_exporting_adapters(self):
        run("adapter", "export", "whole", "exported", "--type", "f32")
        original = f"whole/checkpoints/{ENDED}/adapter_model.safetensors"
        self.assertNotEqual(tensors("exported/adapter_model.safetensors"), tensors(original))  # from the final one
        run("adapter", "export", f"whole/checkpoints/{ENDED}", "--out", "again", "--type", "f32")
        self.assertEqual(tensors("again/adapter_model.safetensors"), tensors(original))
        self.assertEqual(tensors("again/model.safetensors"), tensors(f"whole/checkpoints/{ENDED}/model.safetensors"))
        run("adapter", "export", f"whole/checkpoints/{ENDED}", "narrow")
        for name in os.listdir("narrow"):
            self.assertEqual(content(f"narrow/{name}"), content(f"whole/final/{name}"), name)
        self.assertIn("has an adapter already", run("adapter", "export", "whole", "again", code=1).stderr)
        self.assertIn("give two folders", run("adapter", "export", "whole", code=2).stderr)
        self.assertIn("give two folders", run("adapter", "export", "whole", "here", "--out", "there", code=2).stderr)
        run("adapter", "export", "whole", "no/such")
        self.assertEqual(content("no/such/adapter_config.json"), content("whole/final/adapter_config.json"))
        self.assertIn("cannot make the folder model.gguf: there is a file of that name",
                      run("adapter", "export", "whole", "model.gguf", code=1).stderr)

    def test_adapters_of_others(self):
        shutil.copy("model.gguf", "stranger.gguf")
        words = ("--prompt", "abc ", "--tokens", "1")
        note = run("generate", "--model", "stranger.gguf", "--adapter", "whole", *words).stderr
        self.assertIn("note: whole/final was trained with model.gguf, and this is stranger.gguf", note)
        os.makedirs("lora")
        put("lora/adapter_config.json", json.dumps({"peft_type": "LORA", "r": 8, "base_model_name_or_path": "model"}))
        error = run("generate", "--model", "model.gguf", "--adapter", "lora", *words, code=1).stderr
        self.assertIn("this is a PEFT adapter (LORA)", error)

    def test_benchmarks_take_it(self):
        """That they run and say what they did; what they measure is no matter for a test."""
        cost = json.loads(run("bench", "adapter", "--model", "model.gguf", "--adapter", "whole", "--file", "text.txt",
                              "--prompt", "100", "--tokens", "20", "--context", "200", "--json").stdout)
        self.assertTrue(all(cost[key] > 0 for key in ("read_ratio", "write_ratio", "late_ratio", "index_bytes")))
        self.assertEqual((cost["window"], cost["tokens"], cost["value_bytes"] >= 32 / 8), (16, 32, True))
        words = ("bench", "train", "--model", "model.gguf", "--beside", "--batch", "1", "--length", "64", "--repeat", "1")
        speed = json.loads(run(*words, "--rosa", "--window", "16", "--file", "text.txt", "--json").stdout)
        self.assertEqual((speed["source"], speed["text"], speed["window"]), ("tokens", "text.txt", 16))
        self.assertTrue(all(speed[key] > 0 for key in ("tokens_per_second", "window_per_second", "ratio")))
        self.assertIn("add --rosa or --adapter", run(*words, code=1).stderr)
        self.assertIn("leave out --freeze", run(*words, "--rosa", "--freeze", code=1).stderr)

    def test_micro_batches_change_nothing_but_rounding(self):
        for learning in ("explore=0.3", "qk_grad=flips"):  # lots of either kind
            # few steps: in the end a float that is rounded otherwise turns a symbol or a value bit
            more = ("--set", f"learning.{learning}", "--set", "learning.flip_share=0.5", "--set", "stage.*.tokens=800",
                    *PAPER)
            for size in (1, 2, 4):
                tune(f"micro{size}-{learning}", *more, "--set", f"stage.*.micro_batch={size}")
                self.close(f"micro{size}-{learning}", f"micro1-{learning}")

    def test_an_adapter_goes_on_elsewhere(self):
        begin = json.dumps({**CONFIG, "adapter": {"path": f"whole/checkpoints/{ENDED}"}})
        put("from_adapter.json", begin)
        run("tune", "from_adapter.json", "--out", "adapted", "--set", "stage.*.tokens=100")
        options = json.loads(content("adapted/checkpoints/step-00000002/adapter_config.json"))["options"]
        self.assertEqual((options["bits"], options["window"], options["layers"]), (4, 16, [1]))

    def test_some_layers(self):
        """Trained, resumed, exported and read with an adapter in one of several layers."""
        config = {**CONFIG, "adapter": {**CONFIG["adapter"], "first_global_layers": 0, "layers": [0]}}
        put("layers.json", json.dumps(config))
        arguments = ("tune", "layers.json", "--set", "stage.*.tokens=768")
        run(*arguments, "--out", "layered")
        adapter = f"layered/checkpoints/{checkpoints('layered')[-1]}"
        names = {name.split(".")[1] for name in tensors(f"{adapter}/adapter_model.safetensors") if "layers." in name}
        self.assertEqual(names, {"0"})
        self.assertEqual(json.loads(content(f"{adapter}/tune.json"))["adapter"]["layers"], [0])
        self.assertEqual(json.loads(content(f"{adapter}/adapter_config.json"))["options"]["layers"], [0])
        self.assertIn("layers      0\n", run("adapter", "info", "layered").stdout)
        run("adapter", "export", "layered", "layered-export")
        self.assertEqual(json.loads(content("layered-export/adapter_config.json"))["options"]["layers"], [0])
        words = ("--prompt", "abc ", "--tokens", "4", "--temperature", "0")
        self.assertEqual(*(run("generate", "--model", model, "--adapter", "layered", *words).stdout
                           for model in ("model.gguf", adapter)))
        # resumed from the first stage: the same weights
        shutil.copytree("layered", "layered-again")
        for name in checkpoints("layered-again")[1:]:
            shutil.rmtree(f"layered-again/checkpoints/{name}")
        run(*arguments, "--out", "layered-again", "--resume")
        for name in TENSORS:
            self.assertEqual(content(f"{adapter.replace('layered', 'layered-again', 1)}/{name}"),
                             content(f"{adapter}/{name}"))
        self.assertIn("adapter.layers was [0] when the run began and is \"all\" now",
                      refusal("layers.json", "--out", "layered", "--resume", "--set", "adapter.layers=all", code=1))

    def test_q_and_k_that_stay(self):
        """Aligned they begin with the same numbers, so with a rate of 0 they end so."""
        for factor, same in ("0", True), ("0.5", False):
            out = f"paced{factor}"
            tune(out, "--set", f"stage.*.qk_factor={factor}", "--set", "stage.*.tokens=600")
            found = tensors(f"{out}/checkpoints/{checkpoints(out)[-1]}/adapter_model.safetensors")
            self.assertEqual(found["layers.1.q_proj.weight"] == found["layers.1.k_proj.weight"], same)

    def test_answers_alone_count(self):
        run("tune", "chat.json", "--out", "chatted")
        self.assertEqual([e["stage"] for e in log("chatted")], ["sft"] * 6)
        self.assertIn("model.safetensors", os.listdir("chatted/checkpoints/step-00000006"))

    def test_answers_that_are_cut_off(self):
        stage = dict(kind="sft", data="long.tokens", valid="long.tokens", length=24, batch=1, tokens=6 * 24)
        put("long.json", json.dumps({**CONFIG, "stages": [stage]}))
        result = run("tune", "long.json", "--out", "long")
        self.assertIn("3 conversations of stage sft are longer than 24 tokens", result.stderr)
        self.assertIn("2 of them lose all answers", result.stderr)
        losses = [e["loss"] for e in log("long")[1:]]
        self.assertEqual(sorted(loss is None for loss in losses), [False] * 2 + [True] * 4)  # two epochs
        self.assertTrue(math.isfinite(log("long")[-1]["valid_loss"]))
        numbers = content("long/checkpoints/step-00000006/model.safetensors")
        start = 8 + struct.unpack("<Q", numbers[:8])[0]
        self.assertTrue(all(math.isfinite(x) for x, in struct.iter_unpack("<f", numbers[start:])))
        self.assertIn("not one answer", refusal("long.json", "--out", "short", "--set", "stage.1.length=2", code=1))


# ------------------------------------------------------------------------------------------------------------- planning


class Planning(Case):
    """--dry-run."""

    def plan(self, *arguments):
        return json.loads(tune("planned", "--dry-run", "--json", *arguments).stdout)

    def test_what_would_be_done(self):
        plan = self.plan()
        self.assertEqual((plan["steps"], plan["tokens"], plan["resumed"]), (24, 24 * 4 * 48, None))
        warm, full = plan["stages"]
        self.assertEqual((warm["name"], warm["kind"], warm["steps"]), ("warm", "adapter", 12))
        self.assertEqual((warm["trained"], full["trained"]), (plan["adapter"], plan["parameters"]))
        self.assertEqual((warm["valid_samples"], full["valid_samples"]), (5, 0))
        self.assertGreater(full["memory"], warm["memory"] + 12 * (plan["parameters"] - plan["adapter"]))
        self.assertEqual(plan["memory"], full["memory"])
        self.assertAlmostEqual(plan["seconds"], warm["seconds"] + full["seconds"])
        for stage in plan["stages"]:
            self.assertAlmostEqual(stage["tokens"] / stage["seconds"], stage["tokens_per_second"], delta=1)
        self.assertFalse(os.path.exists("planned"))

    def test_it_is_what_is_done_then(self):
        tune("first", "--set", "stage.2.tokens=1")
        folders = ("first/checkpoints/step-00000012", f"whole/checkpoints/{ENDED}")
        for folder, stage in zip(folders, self.plan()["stages"]):
            tensors = sum(os.path.getsize(f"{folder}/{name}") for name in os.listdir(folder) if name in TENSORS)
            self.assertAlmostEqual(tensors / stage["checkpoint"], 1, delta=0.2)  # names and shapes come on top

    def test_words(self):
        words = tune("planned", "--dry-run").stdout
        self.assertIn("stage 2 of 2, full (all): 12 steps of 4 x 48 tokens, 2,304 in all", words)
        self.assertIn("in all 24 steps, 4,608 tokens", words)
        words = tune("whole", "--dry-run", "--resume").stdout
        self.assertIn("to continue after step 24", words)
        self.assertIn("stage 2 of 2, full (all): done", words)
        self.assertIn("in all 0 steps, 0 tokens", words)
        self.assertEqual(len(log("whole")), 25)

    def test_it_refuses_what_a_run_would(self):
        for setting, wanted in (
            ("model=missing.gguf", "model: there is no missing.gguf; name a GGUF file or a model's folder with --set model="),
            ("stage.2.data=missing.tokens", "stage.2.data: there is no missing.tokens; make it with "
             "'rosatune data pack --model model.gguf --out missing.tokens FILE...'"),
            ("stage.1.valid=gone.tokens", "FILE...', or leave this key out"),
            ("adapter.source=layer 9", "adapter.source: is layer 9; the model has layers 0 to"),
            ("out=model.gguf/run", "cannot"),
            ("out=whole", "continue with --resume"),
        ):
            self.assertIn(wanted, refusal("config.json", "--dry-run", "--set", setting, code=1))
        put("begin.json", json.dumps({**CONFIG, "adapter": {"path": "none"}}))
        self.assertIn("adapter.path: there is no none; name an adapter's folder with --set adapter.path=DIR",
                      refusal("begin.json", "--dry-run", code=1))
        self.assertIn("did you mean", refusal("config.json", "--dry-run", "--set", "stage.1.tokns=1"))
        self.assertFalse(os.path.exists("nowhere"))

    def test_it_goes_on_as_a_run_would(self):
        both = ("config.json", "--out", "half", "--dry-run", "--resume")
        tune("half", "--set", "stage.2.tokens=1")
        os.rename("half/checkpoints/step-00000013", "half/checkpoints/damaged-later")
        plan = json.loads(run("tune", *both, "--json", "--set", "stage.1.data=missing.tokens").stdout)
        self.assertEqual((plan["resumed"], plan["steps"]), (12, 12))
        self.assertEqual([stage["steps"] for stage in plan["stages"]], [0, 12])
        self.assertIn("adapter.bits was", refusal(*both, "--set", "adapter.bits=8", code=1))
        for name in os.listdir("half/checkpoints"):
            with open(f"half/checkpoints/{name}/state.json", "r+b") as file:
                file.write(b"X")
        before = sorted(os.listdir("half/checkpoints"))
        self.assertIn("none of its", refusal(*both, code=1))
        self.assertEqual(sorted(os.listdir("half/checkpoints")), before)


# ------------------------------------------------------------------------------------------------------------ survival


class Survival(Case):
    def test_killed_at_any_moment(self):
        source, kills = random.Random(os.environ.get("ROSATUNE_SEED", "1")), 0
        for trial in range(int(os.environ.get("ROSATUNE_KILLS", "3"))):
            out, longest = f"killed{trial}", duration / 2
            while True:
                command = [PROGRAM, "tune", "config.json", "--out", out, "--resume"]
                process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
                try:
                    _, errors = process.communicate(timeout=source.uniform(0, longest))
                    self.assertEqual(process.returncode, 0, errors)
                    break
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.communicate()
                    kills += 1
                    longest *= 1.1  # so that a machine that has become slower gets there, too
            self.same(out)
        self.assertGreater(kills, 0)

    def test_interrupted(self):
        for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)):
            out = f"interrupted{code}"
            process = subprocess.Popen([PROGRAM, "tune", "config.json", "--out", out, "--set", "stage.1.tokens=1M"],
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                       preexec_fn=lambda: signal.signal(number, signal.SIG_DFL))
            self.assertIn("stage 1", process.stdout.readline())
            self.assertIn("before training", process.stdout.readline())  # it is training now
            process.send_signal(number)
            output, errors = process.communicate(timeout=LIMIT)
            self.assertEqual(process.returncode, code, errors)
            self.assertIn("--resume", output)
            self.assertRegex(errors, r"^rosatune tune: finishing step \d+, with its validation if one is due, then "
                                     r"saving; Ctrl-C again ends without saving\n$")
            stopped = json.loads(content(f"{out}/checkpoints/{checkpoints(out)[-1]}/state.json"))
            self.assertEqual(log(out)[-1]["step"], stopped["step"])

    def test_interrupted_before_the_first_step(self):
        """In the middle of the first validation, which may take long: nothing is lost, and the run can be begun."""
        long = ["--set", "stage.1.valid=held.tokens", "--set", "stage.1.valid_samples=100000"]
        process = subprocess.Popen([PROGRAM, "tune", "config.json", "--out", "early", *long], text=True,
                                   stdout=subprocess.PIPE,
                                   preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
        self.assertIn("stage 1", process.stdout.readline())
        process.send_signal(signal.SIGINT)
        output = process.communicate(timeout=LIMIT)[0]
        self.assertEqual(process.returncode, 130)
        self.assertIn("stopped before the first step\nnothing was trained, and nothing is saved\n", output)
        self.assertEqual((checkpoints("early"), log("early")), ([], []))
        tune("early")
        self.same("early")

    def test_progress(self):
        """On a terminal: no estimate before there is a step, and what the readings of a validation are."""
        long = ["--set", "stage.1.valid=many.tokens", "--set", "stage.1.valid_samples=100000"]
        put("many.txt", words(100_000, 4))  # so that the bar is drawn, and the run stopped, before the first step
        run("data", "pack", "--model", "model.gguf", "--out", "many.tokens", "many.txt")
        terminal, theirs = pty.openpty()
        process = subprocess.Popen([PROGRAM, "tune", "config.json", "--out", "shown", *long], stdout=subprocess.PIPE,
                                   stderr=theirs, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
        os.close(theirs)
        shown = b""
        while b"per control" not in shown:
            shown += os.read(terminal, 4096)
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(OSError):  # the end of a terminal
            while more := os.read(terminal, 4096):
                shown += more
        os.close(terminal)
        process.communicate(timeout=LIMIT)
        self.assertEqual(process.returncode, 130)
        readings, samples = map(int, re.search(rb"validation, \d+ of (\d+) \((\d+) samples, once per control\)",
                                               shown).groups())
        self.assertEqual(readings, 3 * samples)
        self.assertNotIn(b"left", shown)
        self.assertNotIn(b"finishing", shown)  # before the first step there is nothing to finish

    def test_interrupted_and_resumed(self):
        process = subprocess.Popen([PROGRAM, "tune", "config.json", "--out", "stopped"], stdout=subprocess.PIPE,
                                   text=True)
        process.stdout.readline()
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=LIMIT)
        if process.returncode == 130:
            tune("stopped", "--resume")
        self.same("stopped")

    def test_damage_is_passed_over(self):
        shutil.copytree("whole", "damaged")
        change(f"damaged/checkpoints/{ENDED}/optimizer.safetensors", 5000)
        errors = tune("damaged", "--resume").stderr
        self.assertIn(f"{ENDED}/optimizer.safetensors: is not what was written", errors)
        self.same("damaged")
        self.assertIn("damaged-" + ENDED, checkpoints("damaged"))

    def test_nothing_whole_is_an_error(self):
        shutil.copytree("whole", "ruined")
        for step in checkpoints("ruined"):
            change(f"ruined/checkpoints/{step}/state.json", 40)
        self.assertIn("none of its 2 checkpoints is whole", refusal("config.json", "--out", "ruined", "--resume", code=1))

    def test_shards_changed_in_place(self):
        """Other samples would follow those that the run has read; nothing else would tell."""
        shutil.copytree("whole", "changed")
        shutil.rmtree(f"changed/checkpoints/{ENDED}")
        before = content("text.tokens")
        try:
            shutil.copyfile("valid.tokens", "text.tokens")
            errors = refusal("config.json", "--out", "changed", "--resume", code=1)
            self.assertIn("stage.2.data: the shards are not those that the run has been reading", errors)
            self.assertIn("stage.2.data", refusal("config.json", "--out", "changed", "--resume", "--dry-run", code=1))
            put("text.tokens", before)
            change("text.tokens", 64 + 2 * 100)
            errors = refusal("config.json", "--out", "changed", "--resume", code=1)
            self.assertIn("text.tokens: is damaged", errors)
            shutil.copyfile("valid.tokens", "other.tokens")
            errors = tune("changed", "--resume", "--set", "stage.2.data=other.tokens").stderr
            self.assertIn("stage.2.data was", errors)
        finally:
            put("text.tokens", before)
        shutil.rmtree("changed")
        shutil.copytree("whole", "changed")
        shutil.rmtree(f"changed/checkpoints/{ENDED}")
        tune("changed", "--resume")  # written again, but the same
        self.same("changed")

    def test_a_full_disk(self):
        def limit():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

        errors = tune("full", code=1, preexec_fn=limit).stderr
        self.assertIn("step 16 could not be saved, the checkpoint of step 12 is still good", errors)
        self.assertIn(os.strerror(27), errors)  # EFBIG
        self.assertEqual(checkpoints("full"), ["step-00000005", "step-00000010", "step-00000012"])
        tune("full", "--resume")
        self.same("full")

    def test_a_loss_that_is_no_number(self):
        write_model("broken.gguf", end_row=math.nan)
        errors = refusal("config.json", "--out", "broken", "--set", "model=broken.gguf", code=1)
        self.assertIn("step 1 (stage warm, step 1): the loss is not finite", errors)
        self.assertIn("of the batch of samples 0 to 3", errors)
        self.assertEqual(checkpoints("broken"), [])


# ------------------------------------------------------------------------------------------------------------ refusals


class Refusals(Case):
    def test_names_that_could_not_be_read_back(self):
        """A checkpoint holds the configuration as JSON, which has no place for other bytes than UTF-8."""
        for arguments in (["--out", b"caf\xe9"], ["--out", "new", "--set", b"stage.1.data=caf\xe9.tokens"],
                          ["--out", "new", "--set", b"stage.1.name=caf\xe9"], ["--out", "new", "--set", b"model=\xe9"]):
            errors = refusal("config.json", *arguments)
            self.assertIn("byte 0xe9 is not UTF-8, and the run could not be resumed", errors)
        self.assertFalse(os.path.exists("new") or os.path.exists(b"caf\xe9"))

    def test_the_log_is_written_through_no_link(self):
        os.mkdir("linked")
        put("precious", "stays")
        os.symlink("../precious", "linked/log.jsonl.new")
        tune("linked", "--set", "stage.1.tokens=192", "--set", "stage.2.tokens=192")
        self.assertEqual(content("precious"), b"stays")
        self.assertGreater(len(log("linked")), 0)

    def test_mistakes_are_explained(self):
        for setting, wanted in (
            ("stage.1.tokns=1M", "did you mean tokens?"),
            ("adapter.bits=33", "it must be a whole number from 1 to 16"),
            ("nothing", "give key=value"),
        ):
            self.assertIn(wanted, refusal("config.json", "--set", setting))
        self.assertIn("CONFIG is missing", refusal())
        self.assertIn("No such file", refusal("missing.json", code=1))
        for setting, wanted in (
            ("model=missing.gguf", "missing.gguf"),
            ("stage.1.data=missing.tokens", "missing.tokens"),
            ("adapter.source=layer 9", "adapter.source: is layer 9; the model has layers 0 to"),
            ("adapter.layers=1,2", "adapter.layers: names layer 2; the model has layers 0 to 1"),
            ("adapter.first_global_layers=9", "first_global_layers is 9"),
        ):
            self.assertIn(wanted, refusal("config.json", "--out", "refused", "--set", setting, code=1))

    def test_shipped_configurations_are_read(self):
        names = sorted(name for name in os.listdir(SHIPPED) if name.endswith(".json"))
        self.assertTrue(names)
        for name in names:  # what is missing is the model
            errors = refusal(os.path.join(SHIPPED, name), "--out", "shipped", code=1)
            self.assertIn("models/", errors, name)

    def test_shipped_configurations_are_what_they_say(self):
        """The paper's have its adapter and nothing of ours; all others have the default, whatever that becomes."""
        known = {o["name"]: o["default"] for o in json.loads(run("adapter", "options", "--json").stdout)["options"]}
        ours = {key: known[key] for key in ("source", "delay", "chain", "gain", "gate", "units", "v_start", "v_from",
                                          "v_grad")}
        paper = {"source": "own", "delay": 0, "chain": 1, "gain": False, "gate": False, "units": 0, "bits": 4,
                 "v_start": "xavier", "v_from": "layer", "sinks": 0, "qk": "separate", "first_global_layers": 1,
                 "fusion": "post", "qk_grad": "flips", "key_credit": "destination", "v_grad": "sigmoid", "seen": 0}
        for name in os.listdir(SHIPPED):
            out = f"shipped-{name}"
            small = [f"model={os.path.abspath('model.gguf')}", "stage.*.data=chat.tokens", "stage.*.length=80",
                     "stage.*.batch=1", "adapter.window=16"]
            with open(os.path.join(SHIPPED, name)) as file:
                shipped = json.load(file)
            stages = shipped["stages"]
            if "seen" in shipped["adapter"]:  # at most the width of a model that is small
                small += ["adapter.seen=8"]
            if "layers" in shipped["adapter"]:  # of those that it has
                small += ["adapter.layers=0"]
            for i, stage in enumerate(stages, 1):
                if stage["kind"] == "pointer":
                    small += [f"stage.{i}.data=held.tokens", f"stage.{i}.pointer.positions=1200"]
                else:
                    small += [f"stage.{i}.{key}={value}" for key, value in (("tokens", 0), ("steps", 1))]
                if "valid" in stage:
                    small += [f"stage.{i}.valid=valid.tokens"]
            settings = [word for setting in small for word in ("--set", setting)]
            plan = run("tune", os.path.join(SHIPPED, name), *settings, "--out", out, "--dry-run").stdout
            run("tune", os.path.join(SHIPPED, name), *settings, "--out", out)
            options = json.loads(run("adapter", "info", "--json", out).stdout)["options"]
            wanted = paper if "paper" in name else ours
            self.assertEqual({key: options[key] for key in wanted}, wanted, name)
            self.assertEqual(options["seen"], 8 if shipped["adapter"].get("seen") else 0)
            self.assertIn("source own, delay 0, chain 1" if "paper" in name else "source tokens, delay 16, chain 4", plan)
            self.assertEqual(os.path.exists(f"{out}/final/pointer.json"), stages[-1]["kind"] == "pointer")

    def test_answers_must_be_marked(self):
        for key in ("data", "valid"):
            errors = refusal("chat.json", "--out", "unmarked", "--set", f"stage.1.{key}=text.tokens", code=1)
            self.assertIn("text.tokens: was packed without --chat", errors)
            self.assertIn("pack conversations with --chat", errors)

    def test_all_stages_are_looked_at_first(self):
        errors = refusal("config.json", "--out", "later", "--set", "stage.2.data=missing.tokens", code=1)
        self.assertIn("missing.tokens", errors)
        self.assertFalse(checkpoints("later"))

    def test_another_models_data(self):
        content_now = content("text.tokens")
        with open("foreign.tokens", "wb") as file:  # another fingerprint, checksums are only looked at by request
            file.write(content_now[:40] + struct.pack("<Q", 12345) + content_now[48:])
        errors = refusal("config.json", "--out", "foreign", "--set", "stage.1.data=foreign.tokens", code=1)
        self.assertIn("another tokenizer", errors)

    def test_what_is_there_is_not_written_over(self):
        self.assertIn("continue with --resume", refusal("config.json", "--out", "whole", code=1))

    def test_what_cannot_change(self):
        def resume(setting, code):
            return refusal("config.json", "--out", "whole", "--resume", "--set", setting, code=code)

        self.assertIn("seed was 3 when the run began and is 4 now", resume("seed=4", 1))
        write_model("other.gguf", seed=2)
        self.assertIn("another model", resume("model=other.gguf", 1))
        self.assertIn("stage.2.weight_decay was 0.1, it is 0 from here on", resume("stage.2.weight_decay=0", 0))

    def test_one_run_a_folder(self):
        os.makedirs("locked")
        with open("locked/lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.assertIn("another run is writing there", refusal("config.json", "--out", "locked", code=1))


# -------------------------------------------------------------------------------------------------------- data parallel


def with_mpi():
    return "mpi: yes" in run("--version").stdout


@unittest.skipUnless(with_mpi() and shutil.which("mpirun"), "there is no MPI")
class Processes(Case):
    def several(self, count, out, *arguments, **more):
        environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                       "ASAN_OPTIONS": "detect_leaks=0"}  # what MPI leaves behind is not ours
        return run("tune", "config.json", "--out", out, *arguments, env=environment,
                   prefix=("mpirun", "--oversubscribe", "-np", str(count)), **more)

    def test_the_curve_of_one(self):
        for count in (2, 3):  # which explore
            output = self.several(count, f"ranks{count}").stdout
            self.assertIn(f"{count} processes", output)
            self.assertEqual(output.count("done after step 24"), 1)
            self.close(f"ranks{count}", "whole")

    def test_a_plan_is_told_once(self):
        output = self.several(2, "planned", "--dry-run").stdout
        self.assertEqual(output.count("in all 24 steps"), 1)
        self.assertIn("memory per process", output)

    def test_another_number_goes_on(self):
        self.several(2, "moved", "--set", "stage.2.tokens=200")
        self.several(3, "moved", "--resume", "--set", "stage.2.tokens=1k")
        tune("moved", "--resume")
        self.assertEqual([e["step"] for e in log("moved")], list(range(25)))
        self.assertEqual(checkpoints("moved")[-1], ENDED)

    def test_mistakes_are_told_once(self):
        for arguments, wanted in ((("--bogus",), "unknown option"), (("--set", "seed=x"), "seed: is x"),
                                  (("--set", "model=gone.gguf"), "gone.gguf")):
            errors = self.several(2, "told", *arguments, code=None).stderr
            self.assertEqual(errors.count("rosatune tune:"), 1, errors)
            self.assertIn(wanted, errors)

    def test_one_that_dies_ends_the_job(self):
        environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        # the second process kills itself after a while, as the kernel would for want of memory
        script = ('if [ "$OMPI_COMM_WORLD_RANK" = 1 ]; then "$@" & p=$!; sleep 2; kill -9 $p; wait $p; '
                  "kill -9 $$; fi; exec \"$@\"")
        result = run("tune", "config.json", "--out", "died", "--set", "stage.2.tokens=1G", code=None,
                     env=environment, prefix=("mpirun", "--oversubscribe", "-np", "2", "sh", "-c", script, "sh"))
        self.assertNotEqual(result.returncode, 0)
        self.assertTrue(result.stderr)
        # mpirun may end before the first process, which saves when it is told to stop and holds the folder until then
        for _ in range(60):
            result = tune("died", "--resume", "--set", "stage.2.tokens=1G", "--set", "stage.2.tokens=2k", code=None)
            if "another run is writing there" not in result.stderr:
                break
            time.sleep(1)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertGreater(len(log("died")), 12)


# -------------------------------------------------------------------------------------------------------------- pointer

POINTER = dict(kind="pointer", data="held.tokens", length=100, pointer=dict(positions=3000))


class Pointer(Case):
    def tune(self, out, stages, *arguments, code=0, **more):
        put("pointer.json", json.dumps({**CONFIG, "stages": stages, **more}))
        return run("tune", "pointer.json", "--out", out, *arguments, code=code)

    def ppl(self, *words):
        result = run("ppl", "--model", "model.gguf", "--file", "held.txt", "--tokens", "900", "--json", *words)
        return json.loads(result.stdout)

    def check_pointer(self, path, links=0, delay=16, seen=True):
        """A chain of so many links; 0: by contexts."""
        pointer = json.loads(content(path))
        self.assertEqual((pointer["delay"], len(pointer["theta"])), (delay, links or 13))
        self.assertEqual((pointer.get("links", 0), "slopes" in pointer), (links, not links))
        self.assertEqual([len(row) for row in pointer.get("seen", [])], [15] * 4 if seen and not links else [])
        return pointer

    def test_after_an_adapter(self):
        said = self.tune("pointed", [STAGES[0], POINTER]).stdout
        self.assertRegex(said, "stage 2 of 2, pointer: fitted to 3000 positions at most")
        numbers = re.search(
            r"pointer fitted to 2400 positions; on 600 others: far ([0-9.]+) \(without ([0-9.]+)\), "
            r"rest ([0-9.]+) \(([0-9.]+)\), all ([0-9.]+) \(([0-9.]+)\)", said)
        after, before = map(float, numbers.groups()[:2])
        self.assertLess(after, 0.7 * before)
        self.assertEqual(said.splitlines()[-2:], ["adapter: pointed/final", "pointer: pointed/final/pointer.json"])
        first = self.check_pointer("pointed/final/pointer.json")
        # it goes with the adapter, wherever that is copied
        used = self.ppl("--adapter", "pointed")
        self.assertEqual(used["pointer"], "pointed/final")
        self.assertLess(used["nll"], self.ppl("--adapter", "pointed", "--pointer", "none")["nll"] - 1)
        run("adapter", "export", "pointed/final", "copied")
        self.assertEqual(content("copied/pointer.json"), content("pointed/final/pointer.json"))
        # a run at its end has its pointer; one that has lost it, or was stopped before it, gets it
        self.assertIn("nothing left to do", self.tune("pointed", [STAGES[0], POINTER], "--resume").stdout)
        os.unlink("pointed/final/pointer.json")
        result = json.loads(self.tune("pointed", [STAGES[0], POINTER], "--resume", "--json").stdout)
        self.assertEqual(result["pointer"], "pointed/final/pointer.json")
        self.assertEqual(self.check_pointer("pointed/final/pointer.json"), first)

    def test_alone(self):
        plain = dict(links=2, confidence=False, agreement=False, positions=1500)
        self.tune("chain", [{**POINTER, "pointer": dict(links=8, positions=1500)}])
        pointer = self.check_pointer("chain/final/pointer.json", links=8)
        self.assertEqual((len(pointer["confidence"]), len(pointer["agreement"])), (8, 8))
        self.assertLess(self.ppl("--window", "16", "--pointer", "chain")["nll"], self.ppl("--window", "16")["nll"] - 1)
        self.tune("bare", [{**POINTER, "pointer": dict(seen=False, positions=1500)}])
        self.check_pointer("bare/final/pointer.json", seen=False)
        for rosa in False, True:
            out = f"alone-{rosa}"
            adapter = {**CONFIG["adapter"], "rosa": rosa}
            said = self.tune(out, [{**POINTER, "pointer": plain}], adapter=adapter).stdout
            self.assertIn(f"pointer: {out}/final/pointer.json", said)
            pointer = self.check_pointer(f"{out}/final/pointer.json", links=2)
            self.assertFalse({"confidence", "agreement"} & set(pointer))
            self.assertEqual(os.path.exists(f"{out}/final/adapter_config.json"), rosa)
            window = ["--window", "16", "--global-layers", "1"]
            self.assertLess(self.ppl(*window, "--pointer", out)["nll"], self.ppl(*window)["nll"] - 1)
        self.assertIn("nothing left to do", self.tune(out, [{**POINTER, "pointer": plain}], "--resume").stdout)

    def test_what_it_says_before(self):
        said = self.tune("planned", [STAGES[0], POINTER], "--dry-run").stdout
        self.assertIn("stage 2 of 2, pointer: fitted to 3,000 positions at most", said)
        plan = json.loads(self.tune("planned", [STAGES[0], POINTER], "--dry-run", "--json").stdout)
        self.assertEqual([stage["positions"] for stage in plan["stages"]], [0, 3000])
        self.assertFalse(os.path.exists("planned"))
        learnt = self.tune("learnt", [{**STAGES[0], "data": "held.tokens", "tokens": 200}, POINTER]).stderr
        self.assertIn("fitted to data that the model was trained on", learnt)

    def test_refusals(self):
        few = {**POINTER, "data": "valid.tokens"}
        for pattern, stages, more in (
            ("stage.1: fits a pointer to what the others train", [POINTER, STAGES[0]], {}),
            ("takes pointer.positions, not tokens or steps", [{**POINTER, "steps": 3}], {}),
            ("pointer.links", [{**POINTER, "pointer": {"links": 17}}], {}),
        ):
            self.assertIn(pattern, self.tune("refused", stages, code=2, **more).stderr)
        for pattern, stages, more in (
            ("positions from four windows (64) on are used", [STAGES[0], {**POINTER, "length": 64}], {}),
            ("the window is 0: set adapter.window", [POINTER], {"adapter": {"rosa": False, "window": 0}}),
            ("pointer.delay is 5", [{**POINTER, "pointer": {"delay": 5}}], {}),
            ("positions to fit a pointer to; give more text", [few], {}),
        ):
            self.assertIn(pattern, self.tune("refused", stages, code=1, **more).stderr)
            self.assertFalse(os.path.exists("refused/final/pointer.json"))
            shutil.rmtree("refused", ignore_errors=True)


@unittest.skipIf(with_mpi(), "this build has MPI")
class Alone(Case):
    def test_mpirun_is_noticed(self):
        errors = refusal("config.json", "--out", "twice", code=1, env={**os.environ, "OMPI_COMM_WORLD_SIZE": "2"})
        self.assertIn("this build has no MPI", errors)


def write_chat(name, questions):
    with open(f"{name}.jsonl", "w") as file:
        for i, question in enumerate(questions):
            turns = [{"role": "user", "content": question}, {"role": "assistant", "content": words(4, i + 50)}]
            file.write(json.dumps({"messages": turns}) + "\n")
    run("data", "pack", "--model", "model.gguf", "--chat", "--out", f"{name}.tokens", f"{name}.jsonl")


def prepare():
    global duration
    write_model("model.gguf")
    for name, count, seed in (("text", 3000, 1), ("valid", 300, 2), ("held", 3000, 3)):
        put(f"{name}.txt", words(count, seed))
        run("data", "pack", "--model", "model.gguf", "--out", f"{name}.tokens", f"{name}.txt")
    write_chat("chat", [words(3, i) for i in range(20)])
    write_chat("long", ["a", words(60, 1), words(60, 2)])
    with open("chat.json", "w") as file:
        stage = dict(kind="sft", data="chat.tokens", length=64, batch=2, tokens=6 * 128)
        json.dump({**CONFIG, "stages": [stage]}, file)
    put("config.json", json.dumps(CONFIG))
    began = time.monotonic()
    tune("whole")
    duration = time.monotonic() - began


def main():
    if "jansson: yes" not in run("--version").stdout:
        print("this build has no JSON reader", file=sys.stderr)
        sys.exit(77)
    with tempfile.TemporaryDirectory(prefix="rosatune-tune-") as folder:
        os.chdir(folder)
        prepare()
        program = unittest.main(argv=[sys.argv[0], *sys.argv[2:]], exit=False)
        os.chdir("/")
    sys.exit(not program.result.wasSuccessful())


if __name__ == "__main__":
    main()
