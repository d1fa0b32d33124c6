"""Training steps recorded as CUDA graphs: for small models most of a step's time is Python launching kernels."""

import torch

WARM = 3  # steps before a recording: what is compiled or allocated once is there by then


class Recorded:
    """Calls ``work(batch)``, a whole step that gives its loss, on batches of few different shapes.

    The first calls of each set of shapes run it. Then one is recorded, and from there on it is replayed with each batch
    copied into its place. All recordings share their memory. Work has to leave no gradients behind, and its optimizer
    must be ``capturable``.
    """

    def __init__(self, work):
        self.work, self.calls, self.made, self.pool = work, {}, {}, None

    def __call__(self, batch):
        shapes = tuple((name, x.shape) for name, x in sorted(batch.items()))
        self.calls[shapes] = self.calls.get(shapes, 0) + 1
        if self.calls[shapes] <= WARM:
            beside = torch.cuda.Stream()
            beside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(beside):
                loss = self.work(batch).detach()
            torch.cuda.current_stream().wait_stream(beside)
            return loss
        if shapes not in self.made:
            if self.pool is None:
                self.pool = torch.cuda.graph_pool_handle()
            kept, graph = {name: x.clone() for name, x in batch.items()}, torch.cuda.CUDAGraph()
            # Other threads pin memory for the batches to come, which does not concern the recording.
            with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
                loss = self.work(kept).detach()
            self.made[shapes] = kept, graph, loss
        kept, graph, loss = self.made[shapes]
        for name, x in batch.items():
            kept[name].copy_(x)
        graph.replay()
        return loss.clone()
