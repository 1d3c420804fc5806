"""Measure plain decoding on a CPU beside the memory's bandwidth and transformers' `generate`.

    python scripts/bench_cpu_decoding.py --weights random --output results.json
    python scripts/bench_cpu_decoding.py --target FOLDER

A token needs one pass, which reads every weight, so the bandwidth of the memory bounds decoding at
batch 1. In each round, reading a large buffer, our decoding and the library's take turns, for every
number of threads; both decode the same prompt greedily, past end tokens, and prefill is excluded.
Printed are medians over rounds with their 95% intervals; fewer than eight rounds have none.
"""

import argparse
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor
from transformers import PreTrainedModel

from specresearch import CausalLM, Engine, Request, SamplingParams
from specresearch.device_bench.library import generate, library_model
from specresearch.models import loading
from specresearch.results.provenance import describe_process
from specresearch.statistics import Percentile, median_of

BUFFER_BYTES = 512 << 20
NUM_READS = 20


@dataclass(frozen=True)
class Round:
    """One turn of all sides at one number of threads."""

    num_threads: int
    bandwidth: float  # bytes per second
    ours: float  # tokens per second
    theirs: float
    outputs_equal: bool


def read_bandwidth(buffer: Tensor) -> float:
    """Return the bytes per second at which sums over rows read the buffer.

    It takes about as long as decoding, so that other work on the machine slows both alike.
    """
    begin = time.perf_counter()
    for _ in range(NUM_READS):
        buffer.sum(1)
    return NUM_READS * buffer.nbytes / (time.perf_counter() - begin)


def bytes_per_pass(model: PreTrainedModel) -> int:
    """Return the bytes of the weights that a pass reads: all but an untied table of embeddings."""
    total = sum(parameter.nbytes for parameter in model.parameters())
    table, head = model.get_input_embeddings().weight, model.get_output_embeddings()
    assert isinstance(table, Tensor)
    assert head is not None
    return total if head.weight is table else total - table.nbytes


def decode(engine: Engine, prompt: list[int], num_new: int) -> tuple[float, tuple[int, ...]]:
    """Return tokens per second from the first token on, and the output."""
    sampling = SamplingParams(max_new_tokens=num_new, ignore_eos=True)
    begin = time.perf_counter()
    (output,) = engine.generate([Request(prompt, sampling)])
    seconds = time.perf_counter() - begin - output.record.ttft
    return (len(output.token_ids) - 1) / seconds, output.token_ids


def measure(
    engine: Engine, library: PreTrainedModel, buffer: Tensor, num_threads: int, num_new: int
) -> Round:
    torch.set_num_threads(num_threads)
    prompt = list(range(100, 132))
    bandwidth = read_bandwidth(buffer)
    ours, output = decode(engine, prompt, num_new)
    theirs = generate(library, [prompt], num_new)
    return Round(
        num_threads=num_threads,
        bandwidth=bandwidth,
        ours=ours,
        theirs=theirs.tokens_per_second,
        outputs_equal=output == theirs.outputs[0],
    )


def cell(values: list[float], digits: int = 2) -> str:
    median: Percentile = median_of(np.asarray(values))
    text = f"{median.value:.{digits}f}"
    if median.interval is None:
        return text
    low, high = median.interval
    return f"{text} ({low:.{digits}f} to {high:.{digits}f})"


def table(rounds: list[Round], num_bytes: int) -> Table:
    shown = Table(
        "threads", "read GB/s", "tokens/s", "share of bandwidth", "over generate", "equal"
    )
    for num_threads in sorted({one.num_threads for one in rounds}):
        some = [one for one in rounds if one.num_threads == num_threads]
        shown.add_row(
            str(num_threads),
            cell([one.bandwidth / 1e9 for one in some], 1),
            cell([one.ours for one in some], 1),
            cell([one.ours * num_bytes / one.bandwidth for one in some]),
            cell([one.ours / one.theirs for one in some]),
            f"{sum(one.outputs_equal for one in some)} of {len(some)}",
        )
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--target", default="Qwen/Qwen2.5-0.5B-Instruct")
    parser.add_argument("--weights", choices=["trained", "random"], default="trained")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--new-tokens", type=int, default=33)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--compile", action="store_true", help="compile our passes")
    parser.add_argument("--output", type=Path, help="write all rounds to this JSON file")
    args = parser.parse_args()

    torch.set_num_threads(max(args.threads))
    model, tokenizer = loading.load_model(
        args.target, weights=args.weights, device="cpu", dtype=args.dtype
    )
    library, num_bytes = library_model(model), bytes_per_pass(model)
    begin = time.perf_counter()
    target = CausalLM(model, tokenizer, max_len=512, compile=args.compile, name=args.target)
    seconds = time.perf_counter() - begin
    engine = Engine(target)
    buffer = torch.ones(BUFFER_BYTES // 4).view(-1, 4096)
    for num_threads in args.threads:  # warm up
        measure(engine, library, buffer, num_threads, args.new_tokens)
    order = [num_threads for _ in range(args.rounds) for num_threads in args.threads]
    rounds = [
        measure(engine, library, buffer, num_threads, args.new_tokens)
        for num_threads in track(order, "rounds")
    ]
    console = Console()
    console.print(f"{target.name}, {num_bytes / 1e6:.0f} MB a pass, {target.linear_kernels}")
    console.print(f"packing and self-test: {seconds:.1f} s")
    console.print(table(rounds, num_bytes))
    if args.output:
        content = {
            "provenance": describe_process(("scripts/bench_cpu_decoding.py",), target.device),
            "bytes_per_pass": num_bytes,
            "linear_kernels": target.linear_kernels,
            "rounds": [asdict(one) for one in rounds],
        }
        args.output.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
