"""Training steps recorded as a CUDA graph: for small models most of a step's time is Python launching kernels."""

import torch

WARM = 3  # steps before the recording: what is compiled or allocated once is there by then


class Recorded:
    """Calls ``work(batch)``, a whole step on batches of one shape that gives its loss.

    The first calls run it. Then one is recorded, and from there on it is replayed with each batch copied into its
    place. Work has to leave no gradients behind, and its optimizer must be ``capturable``.
    """

    def __init__(self, work):
        self.work, self.calls, self.graph = work, 0, None

    def __call__(self, batch):
        self.calls += 1
        if self.calls <= WARM:
            beside = torch.cuda.Stream()
            beside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(beside):
                loss = self.work(batch).detach()
            torch.cuda.current_stream().wait_stream(beside)
            return loss
        if self.graph is None:
            self.batch = {name: x.clone() for name, x in batch.items()}
            self.graph = torch.cuda.CUDAGraph()
            # Other threads pin memory for the batches to come, which does not concern the recording.
            with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
                self.loss = self.work(self.batch).detach()
        for name, x in batch.items():
            self.batch[name].copy_(x)
        self.graph.replay()
        return self.loss.clone()
