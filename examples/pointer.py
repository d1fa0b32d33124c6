#!/usr/bin/env python3
"""Give a language model exact recall of what lies beyond its attention window, without training it.

A pointer looks up where the last few tokens occurred before and mixes the tokens that followed into the model's
distribution. Its few dozen weights are fitted on some texts, with the model frozen; then the loss on far tokens, which
repeat something that the window no longer sees, is measured on other texts, without and with it.

    python examples/pointer.py --model HuggingFaceTB/SmolLM2-135M --fit a.py b.py c.py --measure d.py e.py
    python examples/pointer.py

Without a model a small one with random weights is made, which reads source files of Python's own library as bytes: it
knows nothing, so all that it predicts is what the pointer finds. That takes some seconds.
"""

import argparse
import inspect
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

import rosatune.hf

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--model", help="a causal model: its name on the Hub, or a folder")
parser.add_argument("--fit", nargs="+", metavar="FILE", help="texts to fit the pointer on")
parser.add_argument("--measure", nargs="+", metavar="FILE", help="texts to measure on")
parser.add_argument("--window", type=int, default=64, help="positions that attention sees (%(default)s)")
parser.add_argument("--context", type=int, default=1024, help="tokens that are read at once (%(default)s)")
parser.add_argument("--links", type=int, help="look at a chain of so many places, not at all of the last two tokens")
parser.add_argument("--out", default="pointer.json", metavar="FILE", help="write the pointer here (%(default)s)")
given = parser.parse_args()

if given.model:
    if not given.fit or not given.measure:
        parser.error("--model needs texts: --fit FILE... and --measure FILE...")
    model = AutoModelForCausalLM.from_pretrained(given.model, dtype=torch.float32)
    fit, measure = given.fit, given.measure
else:
    torch.manual_seed(1)
    shape = dict(vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4)
    model = LlamaForCausalLM(LlamaConfig(**shape))
    source = {module.__name__: list(Path(module.__file__).read_bytes()) for module in (argparse, inspect)}
    fit, measure = [source["argparse"]], {"inspect": source["inspect"]}

pointer = rosatune.hf.fit_pointer(model, fit, window=given.window, context=given.context, links=given.links)
losses = f"{pointer.fit.before:.3f}, with the pointer {pointer.fit.after:.3f}"
print(f"fitted on {pointer.fit.positions} positions; loss on others {losses}")
pointer.save(given.out)

options = dict(window=given.window, context=given.context, pieces=4)
print(rosatune.recall(model, measure, pointer=pointer, **options))

# In use: attached to the model, or as a logits processor that leaves the model alone.
prompt = torch.arange(10, 40).repeat(2)[None, :50]
rosatune.hf.attach_pointer(model, pointer)
first = model.generate(prompt, max_new_tokens=10, do_sample=False)
rosatune.hf.detach_pointer(model)
processor = rosatune.hf.PointerLogitsProcessor(pointer)
second = model.generate(prompt, max_new_tokens=10, do_sample=False, logits_processor=[processor])
print("attached and as a processor alike:", first.tolist() == second.tolist())
