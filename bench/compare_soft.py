#!/usr/bin/env python3
"""Times exact retrieval and its operator on a GPU beside rosa_soft, another implementation with a backward pass of its
own.

    git clone https://github.com/wjie98/rosa_soft /tmp/rosa_soft
    bench/compare_soft.py /tmp/rosa_soft

From q, k and v to y, and from the gradient of y back to those of q, k and v. Both sides find the same: the longest
suffix of the query's symbols among the keys before, cut at --max-match symbols, the newest of the longest, no runs
folded, the current step readable (our policy `inclusive`); y is -1 or 1 by the bit that is read, 0 where nothing is
found. `equal y` is the share of y that is the same on both sides; it is to be all of it.

The backward passes are not the same work. Theirs is dense: every earlier position gets a part, so it grows with the
square of the text. Ours is --qk-grad, by default `linear`, which grows with the text.

Needs torch, a CUDA device, nvcc, the rosatune package with its CUDA library, and a checkout of rosa_soft (MIT licence),
which is copied to --build and built there once. Nothing of it is kept here.
"""

import importlib
import os
import pathlib
import shutil
import subprocess
import sys

import common

try:
    import torch
    from clock import Clock
except ImportError as error:
    sys.exit(f"compare_soft.py: {error.name} is missing: pip install torch")

try:
    import rosatune
    import rosatune.torch
except ImportError as error:
    common.die(f"{error}; install the package with `pip install .`")

ROOT = pathlib.Path(__file__).resolve().parent.parent
NAME = "rosa_soft"
TAIL = 15  # lines of a build that failed


def load(folder):
    """Their package, from a folder that has it."""
    folder = pathlib.Path(folder).resolve()
    if not (folder / NAME / "__init__.py").is_file():
        common.die(f"{folder}: has no folder {NAME}; give the path of a checkout of wjie98/rosa_soft")
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(NAME)
    except Exception as error:  # of an extension that was built for another torch, for instance
        common.die(f"{folder}: {NAME} cannot be used: {error}")
    finally:
        sys.path.remove(str(folder))


def built(checkout, folder):
    """Their package with its extension for this GPU, which is built in a copy of the checkout if need be."""
    from torch.utils import cpp_extension

    if not (pathlib.Path(checkout) / NAME / "__init__.py").is_file():
        common.die(f"{checkout}: has no folder {NAME}; give the path of a checkout of wjie98/rosa_soft")
    if not list((folder / NAME).glob("_C*.so")):
        if cpp_extension.CUDA_HOME is None or not (pathlib.Path(cpp_extension.CUDA_HOME) / "bin" / "nvcc").is_file():
            common.die("no nvcc, which builds rosa_soft; install the CUDA toolkit, or name it by CUDA_HOME")
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(checkout, folder, ignore=shutil.ignore_patterns(".git", "build", "*.so"))
        environment = {**os.environ, "USE_CUDA": "1", "MAX_JOBS": str(os.cpu_count())}
        done = subprocess.run([sys.executable, "setup.py", "build_ext", "--inplace"], cwd=folder, env=environment,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode:
            said = "\n".join(done.stdout.splitlines()[-TAIL:])
            common.die(f"rosa_soft cannot be built here; setup.py ended with {done.returncode}:\n{said}")
    module = load(folder)
    if not module.BUILD_CAPABILITIES.rosa_soft_cuda:
        common.die(f"{folder}: rosa_soft was built without CUDA; remove the folder")
    return module


def make_inputs(kind, tokens, channels, device, dtype, seed=1):
    """q, k and v, [1, tokens, channels], and the gradient of y."""
    torch.manual_seed(seed)
    q, k = common.queries_and_keys(kind, tokens, channels)
    return [x.to(device, dtype) for x in (q, k, *torch.randn(2, 1, tokens, channels))]


def ours(bits, max_match, qk_grad="none"):
    """Our operator by their rule."""
    rule = dict(bits=bits, policy="inclusive", fold=False, max_match=max_match, qk_grad=qk_grad)

    def operator(q, k, v):
        level = torch.ones(q.shape[-1], device=q.device)
        return rosatune.torch.rosa(q, k, v, -level, level, **rule)

    return operator


def theirs(function, bits, max_match):
    """Theirs: `rosa_soft`, or `rosa_soft_reference`, which needs no GPU."""
    def operator(q, k, v):
        heads = (x.unflatten(-1, (-1, bits)) for x in (q, k, v))
        return function(*heads, max_suffix_length=max_match).flatten(-2)

    return operator


def agreement(one, other, inputs):
    with torch.no_grad():
        return float((one(*inputs) == other(*inputs)).float().mean())


def timed(operator, inputs, gy, clock, repeat):
    """Milliseconds of y, and of y with gradients; None without gy, or where memory is short."""
    def forward():
        with torch.no_grad():
            operator(*inputs)

    def both():
        there = [x.detach().requires_grad_() for x in inputs]
        torch.autograd.grad(operator(*there), there, gy)

    found = []
    for work in (forward, both):
        try:
            found.append(None if work is both and gy is None else 1e3 * clock.seconds(work, repeat, 1))
        except torch.OutOfMemoryError:
            found.append(None)
    return found


def main(words=None):
    parser = common.parser(__doc__.split("\n\n", maxsplit=1)[0].replace("\n", " "), program=False)
    parser.add_argument("checkout", help="a checkout of wjie98/rosa_soft")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build-rosa-soft", metavar="DIR",
                        help="where it is built")
    parser.add_argument("--channels", type=int, default=2048)
    parser.add_argument("--bits", type=int, nargs="+", default=[4, 16], help="of a route: channels / bits routes")
    parser.add_argument("--tokens", type=int, nargs="+", default=[4096, 16384])
    parser.add_argument("--most-backward", type=int, default=16384, help="the longest text with gradients")
    parser.add_argument("--inputs", nargs="+", choices=["uniform", "text"], default=["uniform", "text"])
    parser.add_argument("--max-match", type=int, default=32, help="symbols at which suffixes are cut")
    parser.add_argument("--qk-grad", choices=["linear", "flips", "soft", "none"], default="linear",
                        help="our gradients of q and k; flips are looked up by the host")
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args(words)
    if not torch.cuda.is_available():
        common.die("no CUDA device")
    module, clock = built(args.checkout, args.build), Clock("cuda")
    rosatune.torch.retrieve_on("device")
    try:
        ours(4, args.max_match)(*make_inputs("uniform", 64, 64, "cuda", torch.bfloat16)[:3])
    except rosatune.DeviceError as error:
        common.die(error)
    version = f"rosatune {rosatune.__version__}, rosa_soft {module.__version__}, torch {torch.__version__}"
    report = common.Report("soft", args, f"{version}, {torch.cuda.get_device_name()}")
    report.note(f"milliseconds, medians of {args.repeat}, bfloat16; suffixes cut at {args.max_match}")
    report.table([
        ("kind", "inputs", ""), ("routes", "routes", "d"), ("bits", "M", "d"), ("tokens", "T", "d"),
        ("theirs", "theirs: y", ".2f"), ("ours", "ours: y", ".2f"), ("ratio", "ratio", ".1f"),
        ("theirs_both", "theirs: y, grads", ".1f"), ("ours_both", f"ours, {args.qk_grad}", ".1f"),
        ("ratio_both", "ratio", ".1f"), ("agree", "equal y", ".3%")])
    for kind in args.inputs:
        for bits in args.bits:
            for tokens in args.tokens:
                *inputs, gy = make_inputs(kind, tokens, args.channels, "cuda", torch.bfloat16)
                gy = gy if tokens <= args.most_backward else None
                sides = theirs(module.rosa_soft, bits, args.max_match), ours(bits, args.max_match, args.qk_grad)
                (one, one_both), (two, two_both) = (timed(side, inputs, gy, clock, args.repeat) for side in sides)
                report.add(kind=kind, routes=args.channels // bits, bits=bits, tokens=tokens, theirs=one, ours=two,
                           theirs_both=one_both, ours_both=two_both, ratio=one / two if one and two else None,
                           ratio_both=one_both / two_both if one_both and two_both else None,
                           agree=agreement(*sides, inputs) if one and two else None)
    report.end()
    return 0


if __name__ == "__main__":
    sys.exit(main())
