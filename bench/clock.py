"""Seconds and memory of work on a device, for scripts with PyTorch."""

import gc
import statistics
import time

import torch


class Clock:
    """Seconds and memory of work on a device."""

    def __init__(self, device):
        self.cuda = torch.device(device).type == "cuda"

    def wait(self):
        if self.cuda:
            torch.cuda.synchronize()

    def seconds(self, work, repeat, warm):
        """The median of single runs, each from an idle device to an idle device, after some that warm up."""
        times = []
        for turn in range(warm + repeat):
            self.wait()
            begin = time.perf_counter()
            work()
            self.wait()
            if turn >= warm:
                times.append(time.perf_counter() - begin)
        return statistics.median(times)

    def clear(self):
        gc.collect()
        if self.cuda:
            torch.cuda.empty_cache()
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        return self.held()

    def held(self):
        return torch.cuda.memory_allocated() / 1e9 if self.cuda else 0.0

    def peak(self):
        return torch.cuda.max_memory_allocated() / 1e9 if self.cuda else 0.0
