"""Which kernels a pass of an 8B target runs on a GPU: `python experiments/gpu/kernels.py`

Prints the time of a pass over one token and over a tree of 61 nodes, behind 1,024 tokens, with the
norms of the library and with fused ones, and by flash kernel; and where the time goes. Passes are
queued one behind the other, or each waits for the one before, as in decoding.
"""

from unittest.mock import patch

import torch
from torch.profiler import ProfilerActivity, profile

from specresearch.device_bench.attention import wide_tree
from specresearch.device_bench.bench import Bench, UnreadPrompts, sharing_weights
from specresearch.device_bench.device import CudaDevice, seconds
from specresearch.device_bench.scale import REAL
from specresearch.models import flash_kernels, hf_model
from specresearch.models.flash_kernels import KERNELS
from specresearch.proposal import Proposal, Topology

CONTEXT, REPEATS, PROFILED, SHOWN = 1024, 20, 3, 20


def show(bench: Bench, target: UnreadPrompts, tree: Topology, name: str) -> None:
    """Print the time of a pass over a tree, and its kernels by time."""
    device = bench.device
    target.allocate(1, 64)
    slot = target.acquire()
    assert slot is not None
    target.extend((slot,), [[0] * CONTEXT], want_logits=False)
    tokens = torch.arange(tree.num_nodes, device=device.device)[None]
    proposal = Proposal(tokens, tree, torch.full((1,), tree.num_nodes, device=device.device))

    def run() -> None:
        target.forward((slot,), proposal)

    seconds(device, run, 4)  # the first one is captured
    queued = 1e3 * seconds(device, run, REPEATS)
    alone = 1e3 * sum(seconds(device, run) for _ in range(REPEATS)) / REPEATS
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        seconds(device, run, PROFILED)
    events = [event for event in recorded.key_averages() if event.self_device_time_total]
    events.sort(key=lambda event: -event.self_device_time_total)
    total = sum(event.self_device_time_total for event in events) / PROFILED / 1e3
    number = sum(event.count for event in events) // PROFILED
    print(f"{name}: {queued:.2f} ms a pass, {alone:.2f} alone; {number} kernels, {total:.2f} ms")
    for event in events[:SHOWN]:
        time, count = event.self_device_time_total / PROFILED, event.count // PROFILED
        print(f"{time:8.0f} us {count:5} x {event.key[:100]}")
    target.release(slot)


def main() -> None:
    bench = Bench(CudaDevice(), REAL)
    gpu = bench.device.device
    one, tree = Topology.chain(1, gpu), wide_tree(61, gpu)
    shape = flash_kernels.LayerShape(gpu, REAL.dtype, 128, has_window=False)
    for kernel in KERNELS["cuda"]:
        if flash_kernels._failure(kernel, shape) is not None:
            continue
        for is_fused in (False, True):
            fuse = hf_model.fuse_norms if is_fused else lambda _: 0
            with patch.object(hf_model, "fuse_norms", fuse):
                weights = sharing_weights(bench.weights)
                target = UnreadPrompts(weights, max_len=CONTEXT + 128, self_test=False)
            target.kernel = kernel
            norms = "fused norms" if is_fused else "the library's norms"
            show(bench, target, one, f"one token, {kernel.name}, {norms}")
            if is_fused:
                show(bench, target, tree, f"tree of {tree.num_nodes}, {kernel.name}, {norms}")
            del target
            bench.clean_up()


if __name__ == "__main__":
    main()
