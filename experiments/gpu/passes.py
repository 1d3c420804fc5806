"""Which kernels a pass of an 8B target runs on a GPU: `python experiments/gpu/passes.py`

Prints the time of a pass over one token, a chain and a tree of 61 nodes, behind 1,024 tokens, by
flash kernel, with layers as they are and compiled. Passes are queued one behind the other, or each
waits for the one before, as in decoding. Then it prints where the time of each goes; all of that
comes last, since graphs take longer to launch once a profiler has looked into a process.
"""

from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile

from specresearch.device_bench.attention import wide_tree
from specresearch.device_bench.bench import Bench, UnreadPrompts, sharing_weights
from specresearch.device_bench.device import CudaDevice, seconds
from specresearch.device_bench.scale import REAL
from specresearch.models.flash_kernels import KERNELS, FlashKernel
from specresearch.models.kernel_choice import LayerShape, failure_of
from specresearch.proposal import Proposal, Topology

CONTEXT, REPEATS, PROFILED, SHOWN = 1024, 20, 3, 20


def target_of(bench: Bench, kernel: FlashKernel, *, compile: bool) -> UnreadPrompts:
    weights = sharing_weights(bench.weights)
    target = UnreadPrompts(weights, max_len=CONTEXT + 128, self_test=False, compile=compile)
    target.kernel = kernel
    target.allocate(1, 64)
    target.acquire()
    target.extend((0,), [[0] * CONTEXT], want_logits=False)
    return target


def passes_of(target: UnreadPrompts, tree: Topology) -> Callable[[], None]:
    """Return what runs a pass over a tree."""
    tokens = torch.arange(tree.num_nodes, device=target.device)[None]
    proposal = Proposal(tokens, tree, torch.full((1,), tree.num_nodes, device=target.device))

    def run() -> None:
        target.forward((0,), proposal)

    return run


def show_time(device: CudaDevice, run: Callable[[], None], name: str) -> None:
    first = seconds(device, run)  # it is compiled and captured
    seconds(device, run, 3)
    queued = 1e3 * seconds(device, run, REPEATS)
    alone = 1e3 * sum(seconds(device, run) for _ in range(REPEATS)) / REPEATS
    print(f"{name}: {queued:.2f} ms a pass, {alone:.2f} alone, {first:.1f} s the first", flush=True)


def show_kernels(device: CudaDevice, run: Callable[[], None], name: str) -> None:
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        seconds(device, run, PROFILED)
    events = [event for event in recorded.key_averages() if event.self_device_time_total]
    events.sort(key=lambda event: -event.self_device_time_total)
    total = sum(event.self_device_time_total for event in events) / PROFILED / 1e3
    number = sum(event.count for event in events) // PROFILED
    print(f"{name}: {number} kernels, {total:.2f} ms")
    for event in events[:SHOWN]:
        time, count = event.self_device_time_total / PROFILED, event.count // PROFILED
        print(f"{time:8.0f} us {count:5} x {event.key[:100]}")


@torch.inference_mode()
def main() -> None:
    device = CudaDevice()
    bench, gpu = Bench(device, REAL), device.device
    trees = {
        "one token": Topology.chain(1, gpu),
        "chain of 6": Topology.chain(6, gpu),
        "tree of 61": wide_tree(61, gpu),
    }
    shape = LayerShape(gpu, REAL.dtype, 128, has_window=False)
    kernels = [k for k in KERNELS["cuda"] if failure_of(k, shape) is None]
    cases: list[tuple[str, Callable[[], None]]] = []
    for kernel in kernels:
        for compile in (False, True):
            target = target_of(bench, kernel, compile=compile)
            layers = "compiled layers" if compile else "layers as they are"
            for name, tree in trees.items():
                cases.append((f"{name}, {kernel.name}, {layers}", passes_of(target, tree)))
    for name, run in cases:
        show_time(device, run, name)
    for name, run in cases:
        show_kernels(device, run, name)


if __name__ == "__main__":
    main()
