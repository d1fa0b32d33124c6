#!/usr/bin/env python3
"""What each stage of the operator costs on a GPU: by tensor operations, and by the Triton kernels that replace them.

Needs a CUDA device, torch, Triton and the rosatune package. First the kernels are compared with the tensor operations,
rule by rule, in float32 and bfloat16: symbols and read-out exactly, gradients by the norm of their difference; and the
kernels' gradients against themselves, which must be equal bit for bit every time. Then each stage is timed by events on
the GPU, in bfloat16, with the memory that it needs beyond its inputs. With --profile the most expensive kernels of the
backward pass are listed.

Stages: `symbols` of q, `read-out` from destinations to y, `levels and v` the gradients of e0, e1, v and the
strength (a table of gains and a gate), and the whole rule for q and k under its own name, with gy's strength.
"""

import statistics
import sys

import common

try:
    import torch
    from overlap import CHANNELS, text
except ImportError as error:
    sys.exit(f"gpu_backward.py: {error.name} is missing: pip install torch")

try:
    import rosatune
    from rosatune.torch import _device, _fused, _gradients, _kernels, _settings, _strength
except ImportError as error:
    common.die(f"{error}; install the package with `pip install .`, and Triton")

EVERYTHING = (True,) * 7
QK, REST = (True,) * 2 + (False,) * 5, (False,) * 2 + (True,) * 5
RULES = [{"qk_grad": "none"}, {"qk_grad": "flips"},
         {"qk_grad": "flips", "key_credit": "destination", "flip_share": 0.5},
         *({"qk_grad": "linear", "credit": credit, "suffix": suffix}
           for credit in ("all", "route") for suffix in (0.0, 0.5)),
         {"qk_grad": "soft"}]


class Case:
    """Tensors of one layer, and what the host found for them."""

    def __init__(self, tokens, channels, kind, batch=1, words=4096, **options):
        u = text(tokens, channels, words, batch)
        self.settings = _settings.make(**options)
        self.bits = self.settings.bits
        near = [u + 0.02 * torch.randn_like(u) for _ in range(2)]
        self.q, self.k, self.v, self.gy = (x.to(kind) for x in (*near, torch.randn_like(u), torch.randn_like(u)))
        self.e0, self.e1 = torch.randn(2, channels, device="cuda")
        tables = self.settings.qk_grad == "flips"
        self.found = _device.collect(0, self.q, self.k, self.settings, tables, True, 5)
        self.value = _kernels.pack(self.v, self.bits)
        gain, z = torch.rand(channels // self.bits, 10, device="cuda"), torch.rand(batch, tokens, device="cuda")
        self.strength = _strength.Strength(gain, z, torch.tensor(0.3, dtype=torch.float64))

    def symbols(self, kernels):
        if kernels:
            return _kernels.pack(self.q, self.bits)
        found = _gradients.symbols(self.q, self.bits).to(torch.int16)
        return found.transpose(1, 2).reshape(-1, found.shape[1])

    def read_out(self, kernels):
        read, length = self.found.read, self.found.length
        if kernels:
            return _fused.read_out(read, length, self.value, self.e0, self.e1, self.strength, self.v, self.bits)
        return _strength.weigh(self.plain(), length, self.strength)

    def plain(self):
        return _gradients.read_out(
            _device._by_step(self.found.read, len(self.v)), self.v, self.e0, self.e1, self.bits
        )

    def backward(self, kernels, wanted=EVERYTHING):
        inputs = (self.q, self.k, self.v, self.e0, self.e1)
        if kernels:
            given = (self.value, self.strength, True, wanted, self.settings)
            found = _fused.backward(self.gy, *inputs, self.found, *given)
            if wanted[0] and wanted[1]:
                found = (*found[0].split(self.q.shape[2], 2), *found[2:])
            return found
        steps = _device._by_step(self.found.read, len(self.v))
        return _strength.backward(
            self.gy, self.v, self.found.length, self.strength, True, wanted, self.plain,
            lambda gy: _gradients.backward(gy, *inputs, steps, self.found.table, wanted[:5], self.settings),
        )


# ---------------------------------------------------------------------------------------------------------- correctness


def check(rule, bits, kind):
    """The largest relative difference of a gradient; ValueError where something must be equal and is not."""
    case = Case(1000, 240, kind, batch=2, words=60, bits=bits, explore=0.1, **rule)
    if not torch.equal(case.symbols(True), case.symbols(False)):
        raise ValueError("symbols differ")
    if not torch.equal(case.read_out(True), case.read_out(False)):
        raise ValueError("y differs")
    found, expected = case.backward(True), case.backward(False)
    for _ in range(3):
        if not all(torch.equal(x, y) for x, y in zip(found, case.backward(True))):
            raise ValueError("gradients are not the same every time")
    return max(float((x.double() - y.double()).norm() / y.double().norm().clamp(min=1e-30))
               for x, y in zip(found, expected))


def check_all(report):
    """How many combinations failed. Each is named, and the rest goes on: a run on a GPU is worth its whole table."""
    failed = 0
    for kind, tolerance in ((torch.float32, 1e-4), (torch.bfloat16, 2e-2)):
        worst = 0.0
        for rule in RULES:
            for bits in (1, 4, 5, 16):
                try:
                    difference = check(rule, bits, kind)
                    if not difference < tolerance:
                        raise ValueError(f"gradients differ by {difference:.1e}")
                    worst = max(worst, difference)
                except Exception as error:  # pylint: disable=broad-exception-caught
                    report.note(f"FAILED: {rule}, {bits} bits, {kind}: {type(error).__name__}: {str(error)[:500]}")
                    failed += 1
        report.note(f"{kind}: symbols and y equal, gradients of {len(RULES)} rules within {worst:.1e} and the same "
                    f"every time, {failed} failures so far")
    return failed


# --------------------------------------------------------------------------------------------------------------- timing


def measure(work, repeat):
    """The median of several runs in milliseconds, after two that warm up, and the most memory in megabytes."""
    times = []
    torch.cuda.synchronize()
    held = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    for turn in range(repeat + 2):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        result = work()
        end.record()
        end.synchronize()
        if turn >= 2:
            times.append(begin.elapsed_time(end))
        del result
    return statistics.median(times), (torch.cuda.max_memory_allocated() - held) / 1e6


def layer(args, tokens, **options):
    return Case(tokens, args.channels, torch.bfloat16, args.batch, **options)


def stages(args):
    """(name, case, work(kernels)) of everything that is timed."""
    for bits in args.bits:
        for tokens in args.tokens:
            case = layer(args, tokens, bits=bits, qk_grad="linear")
            label = f"M = {bits}"
            yield "symbols", label, tokens, case.symbols
            yield "read-out", label, tokens, case.read_out
            yield "levels and v", label, tokens, lambda kernels, case=case: case.backward(kernels, REST)
            yield "linear", label, tokens, lambda kernels, case=case: case.backward(kernels, QK)
            case = layer(args, tokens, bits=bits, qk_grad="linear", credit="route")
            yield "linear, credit route", label, tokens, lambda kernels, case=case: case.backward(kernels, QK)
            case = layer(args, tokens, bits=bits, qk_grad="flips")
            yield "flips", label, tokens, lambda kernels, case=case: case.backward(kernels, QK)
        case = layer(args, args.soft, bits=bits, qk_grad="soft")
        yield "soft", f"M = {bits}", args.soft, lambda kernels, case=case: case.backward(kernels, QK)


def compare(report, args):
    report.table([("stage", "stage", ""), ("setting", "setting", ""), ("tokens", "T", "d"),
                  ("operations", "operations, ms", ".3f"), ("kernels", "kernels, ms", ".3f"),
                  ("memory_operations", "MB", ".0f"), ("memory_kernels", "MB", ".0f")])
    for stage, setting, tokens, work in stages(args):
        row = {"stage": stage, "setting": setting, "tokens": tokens}
        for way, kernels in (("operations", False), ("kernels", True)):
            if kernels or not args.kernels_only:
                try:
                    row[way], row[f"memory_{way}"] = measure(lambda kernels=kernels: work(kernels), args.repeat)
                except RuntimeError as error:  # out of memory, mostly; the other way may do
                    report.note(f"{stage}, {setting}, T = {tokens}, {way}: {str(error)[:300]}")
        report.add(**row)


def chunks(report, args):
    """`linear` with chunks of several lengths."""
    report.note("linear, by the length of its chunks")
    report.table([("setting", "setting", ""), ("tokens", "T", "d"), ("chunk", "chunk", "d"), ("kernels", "ms", ".3f"),
                  ("memory_kernels", "MB", ".0f")])
    before = _fused.CHUNK, _fused.ROUTE_CHUNK
    for bits in args.bits:
        for credit, lengths in (("all", (256, 512, 1024, 2048)), ("route", (16, 32, 64, 128))):
            case = layer(args, args.profiled, bits=bits, qk_grad="linear", credit=credit)
            for length in lengths:
                _fused.CHUNK = _fused.ROUTE_CHUNK = length
                took, memory = measure(lambda case=case: case.backward(True, QK), args.repeat)
                report.add(setting=f"M = {bits}, {credit}", tokens=args.profiled, chunk=length, kernels=took,
                           memory_kernels=memory)
    _fused.CHUNK, _fused.ROUTE_CHUNK = before


def profile(report, args):
    """The most expensive kernels of whole backward passes."""
    for rule, bits in (("linear", 16), ("linear", 4), ("flips", 4), ("flips", 16)):
        case = layer(args, args.profiled, bits=bits, qk_grad=rule)
        for _ in range(2):
            case.backward(True)
        torch.cuda.synchronize()
        kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=kinds) as seen:
            case.backward(True)
            torch.cuda.synchronize()
        spent = [(event.self_device_time_total, event.count, event.key) for event in seen.key_averages()
                 if event.device_type == torch.autograd.DeviceType.CUDA]
        spent.sort(reverse=True)
        report.note(f"{rule}, M = {bits}, T = {args.profiled}: {sum(time for time, _, _ in spent) / 1e3:.3f} ms in "
                    f"{sum(count for _, count, _ in spent)} kernels")
        for took, count, name in spent[:15]:
            report.note(f"  {took / 1e3:8.3f} ms {count:4d} x  {name[:100]}")


def main():
    parser = common.parser(__doc__.split("\n", maxsplit=1)[0], program=False)
    parser.add_argument("--channels", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--tokens", type=int, nargs="+", default=[4096, 16384, 32768])
    parser.add_argument("--bits", type=int, nargs="+", default=[4, 16])
    parser.add_argument("--soft", type=int, default=2048, help="steps that `soft` is timed with")
    parser.add_argument("--profiled", type=int, default=16384, help="steps that are profiled")
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kernels-only", action="store_true", help="do not time the tensor operations")
    parser.add_argument("--chunks", action="store_true", help="also time `linear` with chunks of other lengths")
    parser.add_argument("--profile", action="store_true", help="also list the most expensive kernels")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        common.die("no CUDA device")
    torch.manual_seed(args.seed)
    device = torch.cuda.get_device_name()
    version = f"rosatune {rosatune.__version__}, torch {torch.__version__}, {device}"
    report = common.Report("gpu_backward", args, version)
    failed = check_all(report)
    report.note(f"C = {args.channels}, B = {args.batch}, bfloat16")
    compare(report, args)
    if args.chunks:
        chunks(report, args)
    if args.profile:
        profile(report, args)
    report.end()
    if failed:
        common.die(f"{failed} checks failed")


if __name__ == "__main__":
    sys.exit(main())
