"""Score ways to foresee a request's acceptance: `python acceptance.py RUN... --side fixed-10`.

Each step of finished load tests is foreseen from the steps before it. A score is the mean
log-likelihood of a request's step above that of the run's rates alone, in nats; the bias is that of
the expected accepted drafts, all of them and those of the deeper half.
"""

import argparse
import csv
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from specresearch import Request
from specresearch.controllers.evidence import AskedStep, Evidence
from specresearch.request import RequestState

Survival = Float[np.ndarray, "R K"]
MEMORY, WEIGHTS = 50.0, (5.0, 10.0, 15.0, 30.0)
SKIPPED = 0.1  # of the steps, at first
TINY = 1e-4


def run_alone(evidence: Evidence) -> Survival:
    """Return the run's rates, for every request."""
    return np.tile(evidence.rates().cumprod(), (len(evidence.requests.selected), 1))


def one_rate(evidence: Evidence) -> Survival:
    """Return what one rate of the request for all levels says, mixed with the run's."""
    own = np.array([(each.num_accepted, each.num_judged) for each in evidence.requests.selected])
    rates = own[:, :1] + evidence.prior_weight * evidence.rates()
    return (rates / (own[:, 1:] + evidence.prior_weight)).cumprod(1)


# What foresees, and whether drafts that were not made are held against the request.
WAYS: dict[str, tuple[Callable[[Evidence], Survival], bool]] = {
    "run": (run_alone, False),
    "one rate": (one_rate, True),
    "odds, unmade counted": (Evidence.survival, True),
    "odds": (Evidence.survival, False),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path, nargs="+", help="folders of load tests")
    parser.add_argument("--side", default="fixed-10", help="a side of one fixed length")
    args = parser.parse_args()
    writer = csv.writer(sys.stdout)
    writer.writerow(["run", "way", "prior_weight", "score", "bias", "bias_of_deeper_half"])
    for run in args.runs:
        table: Any = pd.read_parquet(run / "steps.parquet")
        steps = table[table["side"] == args.side]
        if steps.empty:
            raise SystemExit(f"{run} has no side {args.side}; it has: {set(table['side'])}")
        alone = None
        others = [(way, weight) for way in list(WAYS)[1:] for weight in WEIGHTS]
        for way, weight in [("run", 1.0), *others]:
            score, *biases = scored(steps, *WAYS[way], weight)
            alone = score if alone is None else alone
            figures = [f"{value:.3f}" for value in (score - alone, *biases)]
            writer.writerow(["/".join(run.parts[-2:]), way, weight, *figures])


def scored(
    steps: pd.DataFrame,
    way: Callable[[Evidence], Survival],
    counts_unmade: bool,
    weight: float,
) -> tuple[float, float, float]:
    """Return the log-likelihood of a request's step, and the biases as ratios less 1."""
    records: list[Any] = [SimpleNamespace(**step) for step in steps.to_dict("records")]
    length = max(max(step.num_draft_tokens) for step in records)
    evidence = Evidence(length, MEMORY, weight, counts_unmade=counts_unmade)
    parts = zip(*foreseen(records, way, evidence, length), strict=True)
    survival, accepted, judged = map(np.concatenate, parts)
    before = np.hstack([np.ones((len(survival), 1)), survival[:, :-1]])
    rates = (survival / before).clip(TINY, 1 - TINY)
    likelihood = np.where(accepted, np.log(rates), np.log(1 - rates))[judged].sum() / len(rates)
    deeper = length // 2
    biases = [
        survival[:, part].sum() / accepted[:, part].sum() - 1
        for part in (slice(None), slice(deeper, None))
    ]
    return likelihood, *biases


def foreseen(
    steps: Sequence[Any], way: Callable[[Evidence], Survival], evidence: Evidence, length: int
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield, of each step but the first, what was foreseen and what came true, by row and level."""
    rows: dict[str, RequestState] = {}
    levels = np.arange(length)
    for number, step in enumerate(steps):
        states = [rows.setdefault(id, _row(id)) for id in step.request_ids]
        requests = evidence.requests.select(states)
        accepted, new = np.array(step.num_accepted_tokens), np.array(step.num_new_tokens)
        if number > SKIPPED * len(steps):
            yield (
                way(evidence),
                levels < accepted[:, None],
                levels < (accepted + (new > accepted))[:, None],
            )
        step.draft_depth, step.expected_acceptance = step.num_draft_tokens, None
        evidence.observe([AskedStep(step, requests, [length] * len(states))])


def _row(id: Any) -> RequestState:
    return RequestState(Request((1,), id=str(id)), 0, 0, frozenset(), 1)


if __name__ == "__main__":
    main()
