"""Compare our engine with the transformers library's own generation in one process.

    python scripts/compare_transformers.py --output experiments/compare_transformers/results.json

Models, prompts and settings are the same. The two take turns on every prompt (at batch 8: on every
eight), and alternate in who goes first. Each ratio is ours over theirs in tokens per second, for
the whole call and for decoding alone, from the first delivery of tokens to the last. The median
over prompts, with repeats averaged, is printed with its 95% interval, which needs at least eight
groups. Both decode greedily past end tokens, so that outputs have equal lengths, and are compared
token for token. N-gram methods match down to one token: theirs from 2 (its default), ours from 4.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from rich.console import Console
from rich.progress import track
from rich.table import Table
from transformers import AutoModelForCausalLM, PreTrainedModel

from specresearch import CausalLM, Engine, Request, SamplingParams
from specresearch.cli import conf_dir
from specresearch.device_bench.library import FirstDelivery, constant_assistant
from specresearch.models import loading
from specresearch.proposers import DraftModel, NGram
from specresearch.results.provenance import describe_process
from specresearch.statistics import Percentile, median_of


@dataclass(frozen=True)
class Timing:
    """One call for one or more prompts, in seconds.

    The decode_* fields exclude everything up to the first delivery of tokens.
    """

    num_tokens: int
    seconds: float
    decode_tokens: int
    decode_seconds: float
    outputs: tuple[tuple[int, ...], ...]


@dataclass
class Comparison:
    """Two ways to decode a list of prompts, and their ratios."""

    name: str
    ours: Callable[[list[list[int]]], Timing]
    theirs: Callable[[list[list[int]]], Timing]
    group: int = 1
    ratios: list[list[float]] = field(default_factory=list)  # [group][repeat]
    decode_ratios: list[list[float]] = field(default_factory=list)
    num_equal: int = 0
    num_outputs: int = 0


def run_ours(engine: Engine, num_new: int) -> Callable[[list[list[int]]], Timing]:
    def run(prompts: list[list[int]]) -> Timing:
        sampling = SamplingParams(max_new_tokens=num_new, ignore_eos=True)
        begin = time.perf_counter()
        done = {
            o.id: o
            for o in engine.generate(Request(p, sampling, str(i)) for i, p in enumerate(prompts))
        }
        seconds = time.perf_counter() - begin
        outputs = tuple(done[str(i)].token_ids for i in range(len(prompts)))
        first_time = min(o.record.ttft for o in done.values())
        first_tokens = sum(
            1 + sum(itl == 0 for itl in _leading(o.record.itl)) for o in done.values()
        )
        total = sum(map(len, outputs))
        return Timing(total, seconds, total - first_tokens, seconds - first_time, outputs)

    return run


def _leading(intervals: Sequence[float]) -> Iterable[float]:
    """Yield the intervals inside the first delivery, whose tokens are 0 seconds apart."""
    for interval in intervals:
        if interval != 0:
            return
        yield interval


def run_theirs(
    model: PreTrainedModel, num_new: int, **options: object
) -> Callable[[list[list[int]]], Timing]:
    generate: Callable[..., torch.Tensor] = model.generate  # pyright: ignore[reportAssignmentType]

    def run(prompts: list[list[int]]) -> Timing:
        outputs, decode_tokens, decode_seconds = [], 0, 0.0
        begin = time.perf_counter()
        for prompt in prompts:
            streamer = FirstDelivery()
            ids = torch.tensor([prompt], device=model.device)
            out = generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=num_new,
                do_sample=False,
                streamer=streamer,
                **options,
            )
            outputs.append(tuple(out[0, len(prompt) :].tolist()))
            decode_tokens += len(outputs[-1]) - streamer.num_tokens
            decode_seconds += time.perf_counter() - streamer.time
        seconds = time.perf_counter() - begin
        return Timing(
            sum(map(len, outputs)), seconds, decode_tokens, decode_seconds, tuple(outputs)
        )

    return run


def load_library_model(name: str, dtype: str, device: str) -> PreTrainedModel:
    """Load a copy that our engine never touches, set to decode past end tokens."""
    path = loading.resolve(name)
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        path, dtype=loading.resolve_dtype(dtype, device)
    )
    model = model.to(torch.device(device)).eval()  # pyright: ignore[reportArgumentType]
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model


def load_prompts(
    target: CausalLM, num_prompts: int, overrides: list[str]
) -> tuple[list[list[int]], dict[str, object]]:
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        cfg = compose("run", overrides)
    dataset = instantiate(cfg.dataset, limit=num_prompts, _convert_="all")
    assert target.tokenizer is not None
    return [list(dataset.prompt(target.tokenizer, row).token_ids) for row in dataset.rows], asdict(
        dataset.source
    )


def cells(median: Percentile) -> tuple[str, str]:
    """Return a median and its interval as table cells."""
    spread = (
        "-" if median.interval is None else f"{median.interval[0]:.2f} to {median.interval[1]:.2f}"
    )
    return f"{median.value:.2f}", spread


def compare(comparison: Comparison, prompts: list[list[int]], repeats: int) -> None:
    groups = [prompts[i : i + comparison.group] for i in range(0, len(prompts), comparison.group)]
    comparison.ours(groups[0])
    comparison.theirs(groups[0])
    comparison.ratios = [[] for _ in groups]
    comparison.decode_ratios = [[] for _ in groups]
    order = [(repeat, number) for repeat in range(repeats) for number in range(len(groups))]
    for repeat, number in track(order, comparison.name):
        group = groups[number]
        if (repeat + number) % 2:
            theirs, ours = comparison.theirs(group), comparison.ours(group)
        else:
            ours, theirs = comparison.ours(group), comparison.theirs(group)
        comparison.ratios[number].append(
            (ours.num_tokens / ours.seconds) / (theirs.num_tokens / theirs.seconds)
        )
        decode = (ours.decode_tokens / ours.decode_seconds) / (
            theirs.decode_tokens / theirs.decode_seconds
        )
        comparison.decode_ratios[number].append(decode)
        comparison.num_equal += sum(
            a == b for a, b in zip(ours.outputs, theirs.outputs, strict=True)
        )
        comparison.num_outputs += len(group)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--target", default="zoo:tiny")
    parser.add_argument("--draft", default="zoo:tiny_draft")
    parser.add_argument("--device", default=loading.default_device())
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--num-prompts", type=int, default=24)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument(
        "--no-compile", action="store_true", help="run our side without torch.compile"
    )
    parser.add_argument(
        "--no-pack", action="store_true", help="run our side without packed weights"
    )
    parser.add_argument("--output", type=Path, help="write all ratios to this JSON file")
    parser.add_argument(
        "overrides",
        nargs="*",
        help="as for specresearch.run, e.g. dataset=sharegpt dataset.path=FILE",
    )
    args = parser.parse_args()

    load = {
        "device": args.device,
        "dtype": args.dtype,
        "compile": not args.no_compile,
        "pack_weights": False if args.no_pack else None,
    }
    target, draft = (
        CausalLM.from_pretrained(args.target, **load),
        CausalLM.from_pretrained(args.draft, **load),
    )
    library = load_library_model(args.target, args.dtype, args.device)
    assistant = constant_assistant(load_library_model(args.draft, args.dtype, args.device), 5)
    prompts, source = load_prompts(target, args.num_prompts, args.overrides)
    num = args.new_tokens
    lookup = run_theirs(library, num, prompt_lookup_num_tokens=10)
    comparisons = [
        Comparison("plain, batch 1", run_ours(Engine(target), num), run_theirs(library, num)),
        Comparison(
            "n-gram (10), batch 1", run_ours(Engine(target, NGram(10, n_min=1)), num), lookup
        ),
        Comparison(
            "draft model (5), batch 1",
            run_ours(Engine(target, DraftModel(draft, 5)), num),
            run_theirs(library, num, assistant_model=assistant),
        ),
        Comparison(
            "n-gram (10), batch 8",
            run_ours(Engine(target, NGram(10, n_min=1), max_batch_size=8), num),
            lookup,
            group=8,
        ),
    ]
    columns = ["groups", "whole call", "95%", "decoding", "95%", "outputs equal"]
    table = Table("setting", *columns, title="tokens per second, ours / theirs")
    results = []
    for comparison in comparisons:
        compare(comparison, prompts, args.repeats)
        total, decode = (
            median_of(np.asarray(ratios).mean(1))
            for ratios in (comparison.ratios, comparison.decode_ratios)
        )
        equal = f"{comparison.num_equal} of {comparison.num_outputs}"
        table.add_row(
            comparison.name, str(len(comparison.ratios)), *cells(total), *cells(decode), equal
        )
        results.append(
            {
                "setting": comparison.name,
                "whole_call": {"median": total.value, "ci95": total.interval},
                "decoding": {"median": decode.value, "ci95": decode.interval},
                "outputs_equal": [comparison.num_equal, comparison.num_outputs],
                "ratios": comparison.ratios,
                "decode_ratios": comparison.decode_ratios,
            }
        )
    Console().print(table)
    if args.output:
        process = describe_process(("scripts/compare_transformers.py",), torch.device(args.device))
        provenance = {**process, "dataset": source}
        args.output.parent.mkdir(parents=True, exist_ok=True)
        args.output.write_text(
            json.dumps({"results": results, "provenance": provenance}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
