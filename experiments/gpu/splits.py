"""Attention in two parts on a GPU, by the number of stretches that long keys are read in.

`python experiments/gpu/splits.py > experiments/gpu/splits.csv`: microseconds of a layer in the
shape of Llama 3.1 8B, each of 16 layers with keys of its own, replayed as one CUDA graph. A kernel
that splits by itself has one row.
"""

import csv
import sys
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from specresearch.device_bench.attention import wide_tree
from specresearch.device_bench.device import CudaDevice, seconds
from specresearch.models import two_part
from specresearch.models.flash_kernels import KERNELS, FlashKernel
from specresearch.models.kernel_choice import LayerShape, failure_of
from specresearch.models.two_part import TwoPartPlan
from specresearch.proposal import Topology

LAYERS, HEADS, KEY_HEADS, WIDTH = 16, 32, 8, 128
CONTEXTS, BATCHES, SPLITS = (1024, 2048, 4096, 16384), (1, 4), (1, 2, 4, 8, 16)
SHORTEST, REPEATS = 256, 10


def replayed(device: CudaDevice, function: Callable[[], None]) -> float:
    """Return the seconds of one replay of a function."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        function()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    seconds(device, graph.replay, 3)
    return seconds(device, graph.replay, REPEATS)


@torch.inference_mode()
def main() -> None:
    device = CudaDevice()
    gpu = device.device
    shape = LayerShape(gpu, torch.bfloat16, WIDTH, has_window=False)
    kernels = [kernel for kernel in KERNELS["cuda"] if failure_of(kernel, shape) is None]
    draw = partial(torch.randn, device=gpu, dtype=torch.bfloat16)
    trees = {"1": Topology.chain(1, gpu), "chain of 6": Topology.chain(6, gpu)}
    trees["tree of 61"] = wide_tree(61, gpu)
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["context", "batch", "nodes", "kernel", "splits", "us_per_layer"])

    def attend(
        kernel: FlashKernel, tree: Topology, query: Tensor, caches: list[tuple[Tensor, Tensor]]
    ) -> None:
        bases = torch.arange(batch, device=gpu) * columns
        starts = torch.full((batch,), context, device=gpu)
        plan = TwoPartPlan(kernel, bases, starts, tree, context + tree.num_nodes)
        for keys, values in caches:
            plan.attend(query, keys, values, scaling=None, window=None, sinks=None)

    for context in CONTEXTS:
        for batch in BATCHES:
            columns = context + 128
            caches = [
                (
                    draw(1, batch * columns, KEY_HEADS, WIDTH).transpose(1, 2),
                    draw(1, batch * columns, KEY_HEADS, WIDTH).transpose(1, 2),
                )
                for _ in range(LAYERS)
            ]
            for nodes, tree in trees.items():
                query = draw(batch, HEADS, tree.num_nodes, WIDTH)
                for kernel in kernels:
                    for splits in (1,) if kernel.splits_keys else SPLITS:
                        if splits > 1 and context // splits < SHORTEST:
                            continue
                        two_part.num_splits_of = lambda *_, splits=splits: splits
                        two_part.MIN_SPLIT_CHAIN = 0
                        run = partial(attend, kernel, tree, query, caches)
                        time = 1e6 * replayed(device, run) / LAYERS
                        name = "by itself" if kernel.splits_keys else splits
                        writer.writerow([context, batch, nodes, kernel.name, name, f"{time:.1f}"])


if __name__ == "__main__":
    main()
