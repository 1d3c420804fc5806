"""Compare predictions with measurements at settings that nothing was fitted to.

Writes results.csv and results.md.

    python experiments/simulate/validate.py outputs/simulate \\
        --cnndm cnn_dailymail.jsonl --sharegpt ShareGPT.json

Every other prompt is recorded; the rest, with other seeds, are measured and predicted. Every
measurement is a load test in a folder of its own. The same command resumes after an interruption.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hydra
import pandas as pd

from specresearch.cli import conf_dir
from specresearch.data.files import find_file, read_records
from specresearch.files import replace_text
from specresearch.files.jsonl import to_line
from specresearch.results.folder import RESULTS, STEPS
from specresearch.rows import BASELINE, FIXED, METHOD
from specresearch.simulation.build import build_simulator
from specresearch.simulation.timing import Timing, Work

HERE = Path(__file__).parent
PAIRS = (
    ("draft_model", "cnndm", 0.0),
    ("draft_model", "sharegpt", 1.0),
    ("ngram", "cnndm", 1.0),
    ("ngram", "sharegpt", 0.0),
)
RECORDED, LONGEST = 1, 10  # drafts of the recording, whose times need a short one too
OTHERS = (2, 4)  # drafts that are predicted
NUM_RECORDED = 64  # requests of a recording
SEED = 1  # of what is predicted; recordings have 0
FITTED, CLOSED = (1, 16), (4, 8)  # requests in flight: recorded, and predicted
UTILISATION = 0.6  # of an open load: share of the baseline's rate at the larger concurrency
LIMITS = {"throughput": 0.10, "tpot_p99": 0.20}  # what the errors are held against
FIGURES = (
    "throughput",
    "ttft_p50",
    "ttft_p99",
    "tpot_p50",
    "tpot_p99",
    "tokens_per_target_forward",
)


Sides = Mapping[str, Mapping[str, Any]]  # figures by side


def split(file: Path, folder: Path) -> dict[str, Path]:
    """Split the prompts of a published file into two halves: to record, and to predict."""
    records = list(read_records(find_file(str(file))))
    halves = {name: folder / f"{file.stem}-{name}.jsonl" for name in ("recorded", "predicted")}
    for first, half in enumerate(halves.values()):
        half.parent.mkdir(parents=True, exist_ok=True)
        replace_text(half, "".join(to_line(record.fields) for record in records[first::2]))
    return halves


@dataclass(frozen=True)
class Pair:
    """A method on a dataset at a temperature.

    Attributes:
        folder: Where its runs are.
        prompts: Files of the dataset: `recorded` and `predicted`.
    """

    proposer: str
    dataset: str
    temperature: float
    folder: Path
    prompts: Mapping[str, Path]

    @property
    def name(self) -> str:
        return f"{self.proposer}-{self.dataset}-{self.temperature:g}"

    def overrides(self, half: str, num_tokens: int) -> list[str]:
        return [
            f"+proposer={self.proposer}",
            f"proposer.num_draft_tokens={LONGEST}",
            f"dataset={self.dataset}",
            f"dataset.path={self.prompts[half]}",
            "dataset.max_prompt_tokens=256",
            f"sampling.temperature={self.temperature}",
            f"sampling.max_new_tokens={num_tokens}",
            "sampling.ignore_eos=false",
            "max_running=32",
            "progress=false",
        ]

    def recording(self, concurrency: int) -> Path:
        return self.folder / self.name / f"fit-{concurrency}"

    def measured(self, load: str) -> Path:
        return self.folder / self.name / load


def measure(folder: Path, overrides: list[str]) -> None:
    """Run a load test, unless it is complete."""
    results = folder / RESULTS
    if results.exists() and json.loads(results.read_text(encoding="utf-8"))["complete"]:
        return
    print(f"measuring {folder}", flush=True)
    command = [sys.executable, "-m", "specresearch.load", *overrides, f"hydra.run.dir={folder}"]
    subprocess.run([*command, "resume=true"], check=True, stdout=subprocess.DEVNULL)


def loads_of(pair: Pair) -> dict[str, list[str]]:
    """Return the loads that are predicted: closed loops, and one of Poisson arrivals."""
    loads = {f"closed-{n}": ["arrivals=closed_loop", f"arrivals.concurrency={n}"] for n in CLOSED}
    text = (pair.recording(FITTED[-1]) / RESULTS).read_text(encoding="utf-8")
    baseline = json.loads(text)["sides"][BASELINE]
    rate = UTILISATION * baseline["request_throughput"]
    return loads | {"poisson": ["arrivals=poisson", f"arrivals.qps={rate:.3g}"]}


def measure_all(pair: Pair, num_requests: int, num_tokens: int) -> None:
    common = pair.overrides("recorded", num_tokens)
    for concurrency in FITTED:
        closed = [
            "arrivals=closed_loop",
            f"arrivals.concurrency={concurrency}",
            f"num_requests={NUM_RECORDED}",
        ]
        short = f"compare=[{RECORDED}]"
        measure(
            pair.recording(concurrency),
            [*common, *closed, "controller=fixed", short, "record=true"],
        )
    common = [*pair.overrides("predicted", num_tokens), f"seed={SEED}"]
    compare = "compare=[" + ",".join(map(str, OTHERS)) + "]"
    for load, arrivals in loads_of(pair).items():
        measure(
            pair.measured(load),
            [*common, *arrivals, f"num_requests={num_requests}", "controller=goodput", compare],
        )


def predict(pair: Pair, load: str) -> tuple[dict[str, Any], Timing]:
    """Simulate a load from the recording at the larger concurrency, with times fitted to both.

    Returns:
        The figures of every side, and the timing model.
    """
    config = json.loads((pair.measured(load) / RESULTS).read_text(encoding="utf-8"))
    others = [str(pair.recording(concurrency)) for concurrency in FITTED[:-1]]
    overrides = [
        f"recording={pair.recording(FITTED[-1])}",
        f"timing.recordings=[{','.join(others)}]",
        *loads_of(pair)[load],
        "controller=goodput",
        f"compare=[{','.join(map(str, OTHERS))}]",
        "max_running=32",
        f"num_requests={config['provenance']['workload']['num_requests']}",
        f"seed={SEED}",
        # The first repeat has the arrival times that were measured.
        "repeats=1" if load == "poisson" else "repeats=5",
    ]
    with hydra.initialize_config_dir(str(conf_dir()), version_base="1.3"):
        simulator = build_simulator(hydra.compose("simulate", overrides), "goodput")
    return simulator.run().sides, simulator.timing


def step_seconds(steps: pd.DataFrame, timing: Timing) -> tuple[float, float]:
    """Return the mean seconds of a side's measured steps, and of the same work as predicted."""
    measured = steps[["total", "schedule"]].to_numpy(dtype=float).sum(axis=1)
    predicted = [predicted_seconds(step, timing) for step in steps.itertuples()]
    return float(measured.mean()), sum(predicted) / len(predicted)


def predicted_seconds(step: Any, timing: Timing) -> float:
    """Return what a timing model predicts for one measured step."""
    attended = 0
    for num_drafts, context in zip(step.num_draft_tokens, step.context, strict=True):
        attended += (num_drafts + 1) * (context + num_drafts + 1)
    work = Work(
        num_rows=len(step.context),
        num_drafts=sum(step.num_draft_tokens),
        longest=step.num_nodes - 1,
        num_nodes=step.num_nodes,
        context=sum(step.context),
        max_context=max(step.context),
        num_prefill_tokens=step.num_prefill_tokens,
        attended=attended,
        num_lazy_prefill_tokens=step.num_lazy_prefill_tokens,
        can_draft=step.side != BASELINE,
    )
    # An n-gram search may be asked for drafts and find none.
    is_asked = step.num_nodes > 1 or step.side.startswith(FIXED)
    seconds = timing.propose_seconds(work) if is_asked else 0.0
    seconds += timing.verify_seconds(work) + timing.overhead_seconds(work)
    timing.between_seconds(work)
    return seconds


def compare(pair: Pair, load: str) -> Iterator[dict[str, Any]]:
    """Yield a row per side and figure."""
    results = json.loads((pair.measured(load) / RESULTS).read_text(encoding="utf-8"))
    measured = results["sides"]
    predicted, timing = predict(pair, load)
    steps = pd.read_parquet(pair.measured(load) / STEPS)
    for side in measured:
        figures = {name: (measured[side][name], predicted[side][name]) for name in FIGURES}
        figures["step_seconds"] = step_seconds(steps.loc[steps["side"] == side], timing)
        if load != "poisson":
            figures["speedup"] = over_baseline(measured, predicted, side, "throughput")
        figures["tpot_p99_over_baseline"] = over_baseline(measured, predicted, side, "tpot_p99")
        intervals = results["side_intervals"][side]
        for name, (actual, prediction) in figures.items():
            low, high = intervals.get(name) or (None, None)
            yield {
                "method": pair.proposer,
                "dataset": pair.dataset,
                "temperature": pair.temperature,
                "load": load,
                "side": "goodput" if side == METHOD else side,
                "figure": name,
                "counted": measured[side]["num_requests"],
                "predicted": prediction,
                "measured": actual,
                "low": low,
                "high": high,
                "error": prediction / actual - 1 if actual else None,
            }


def over_baseline(measured: Sides, predicted: Sides, side: str, name: str) -> tuple[float, float]:
    """Return a figure over the baseline's of the same run, measured and predicted.

    The speed of the machine cancels out.
    """
    actual = measured[side][name] / measured[BASELINE][name]
    return actual, predicted[side][name] / predicted[BASELINE][name]


def summary_of(table: pd.DataFrame) -> str:
    """Return the errors by figure and load as Markdown."""
    lines = [
        "| figure | load | cells | median error | 90% of errors within | worst | within limit |",
        "|---|---|---|---|---|---|---|",
    ]
    for key, part in table.groupby(["figure", "load"], sort=False):
        figure, load = key if isinstance(key, tuple) else (key, "")
        size = part["error"].abs()
        worst = part.loc[size.idxmax()]
        cell = f"{worst['method']}, {worst['dataset']}, T={worst['temperature']:g}, {worst['side']}"
        where = f"{worst['error']:+.0%} ({cell})"
        limit = LIMITS.get(str(figure))
        met = "" if limit is None else f"{(size <= limit).sum()} of {len(size)} (limit {limit:.0%})"
        median, most = part["error"].median(), size.quantile(0.9)
        lines.append(
            f"| {figure} | {load} | {len(part)} | {median:+.1%} | {most:.1%} | {where} | {met} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="of the measurements")
    for name in ("cnndm", "sharegpt"):
        variable = name.upper()
        parser.add_argument(
            f"--{name}",
            type=Path,
            default=os.environ.get(variable),
            help=f"its published file; by default the environment's {variable}",
        )
    parser.add_argument(
        "--requests", type=int, default=170, help="of a pass that is predicted; nine in ten count"
    )
    parser.add_argument("--tokens", type=int, default=48, help="of an answer, at most")
    parser.add_argument("--pairs", type=int, default=len(PAIRS), help="how many of the four pairs")
    parser.add_argument(
        "--out", type=Path, default=HERE, help="folder for results.csv and results.md"
    )
    args = parser.parse_args()
    folder = args.folder.absolute()
    rows: list[dict[str, Any]] = []
    for proposer, dataset, temperature in PAIRS[: args.pairs]:
        file = getattr(args, dataset)
        if file is None:
            parser.error(
                f"no prompts: give --{dataset}, or set {dataset.upper()}, to its published file"
            )
        pair = Pair(proposer, dataset, temperature, folder, split(Path(file), folder / "prompts"))
        measure_all(pair, args.requests, args.tokens)
        for load in loads_of(pair):
            rows += compare(pair, load)
    table = pd.DataFrame(rows)
    table.to_csv(args.out / "results.csv", index=False, float_format="%.5g")
    text = summary_of(table)
    (args.out / "results.md").write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
