"""The steps of a pass as its summary reads them: what waited, ran and came of it over time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
from jaxtyping import Float

from specresearch.statistics import ratio_of

NUM_BINS = 120  # of a timeline, at most
PARTS = ("control", "propose", "verify", "accept", "commit")  # of a step's `total`
COLUMNS = ("start", *PARTS, "prefill", "schedule", "total", "num_waiting", "num_running")
PER_STEP = ("start", "seconds", "waiting", "running", "drafted", "accepted", "new")
SUMMED = ("num_draft_tokens", "num_accepted_tokens", "num_new_tokens")


@dataclass(frozen=True)
class PassSteps:
    """The steps of a pass, one entry per step.

    Attributes:
        start: Seconds since the pass began.
        seconds: The whole step, prefill included.
        schedule: Seconds of the scheduler in all steps together.
        times: Seconds of all steps together by part, without prefill; empty if unknown.
    """

    start: Float[np.ndarray, " n"]
    seconds: Float[np.ndarray, " n"]
    waiting: Float[np.ndarray, " n"]
    running: Float[np.ndarray, " n"]
    drafted: Float[np.ndarray, " n"]
    accepted: Float[np.ndarray, " n"]
    new: Float[np.ndarray, " n"]
    schedule: float
    times: Mapping[str, float] = field(default_factory=dict)

    @staticmethod
    def of(table: pa.Table) -> "PassSteps":
        """Return the steps of a table with the COLUMNS and the lists SUMMED of one pass."""
        column = {name: np.asarray(table[name], dtype=float) for name in COLUMNS}
        drafted, accepted, new = (_sums(table[name].combine_chunks()) for name in SUMMED)
        schedule = float(column["schedule"].sum())
        times = {part: float(column[part].sum()) for part in PARTS}
        host = max(float(column["total"].sum()) - sum(times.values()), 0.0)
        return PassSteps(
            start=column["start"],
            seconds=column["total"] + column["prefill"] + column["schedule"],
            waiting=column["num_waiting"],
            running=column["num_running"],
            drafted=drafted,
            accepted=accepted,
            new=new,
            schedule=schedule,
            times=times | {"schedule": schedule, "host": host},
        )

    def sum_over(self, name: str, begin: float, end: float) -> float:
        """Return the request seconds spent waiting or running between two moments."""
        within = np.minimum(self.start + self.seconds, end) - np.maximum(self.start, begin)
        return float((getattr(self, name) * within.clip(min=0)).sum())

    def since(self, begin: float) -> "PassSteps":
        """Return the steps that began at `begin` or later."""
        is_later = self.start >= begin
        return replace(self, **{name: getattr(self, name)[is_later] for name in PER_STEP})

    @staticmethod
    def timeline(passes: "Sequence[PassSteps]") -> list[dict[str, float | None]]:
        """Return averages over stretches of whole seconds, taken over all passes."""
        passes = [steps for steps in passes if len(steps.start)]
        if not passes:
            return []
        ends = [float(steps.start[-1] + steps.seconds[-1]) for steps in passes]
        width = max(1, int(np.ceil(max(ends) / NUM_BINS)))
        edges = np.arange(0, max(ends) + width, width)
        totals = np.sum([steps._binned(edges) for steps in passes], axis=0)
        rows = []
        for begin, sums in zip(edges[:-1].tolist(), totals.tolist(), strict=True):
            num_steps, waiting, running, drafted, accepted, new = sums
            covered = sum(min(max(end - begin, 0.0), width) for end in ends)
            rows.append(
                {
                    "second": float(begin),
                    "waiting": ratio_of(waiting, num_steps),
                    "running": ratio_of(running, num_steps),
                    "acceptance": ratio_of(accepted, drafted),
                    "draft_length": ratio_of(drafted, running),
                    "tokens_per_second": ratio_of(new, covered),
                }
            )
        return rows

    def _binned(self, edges: Float[np.ndarray, " e"]) -> Float[np.ndarray, "bins 6"]:
        """Return steps, waiting, running, drafted, accepted and new tokens of each bin."""
        ones = np.ones(len(self.start))
        columns = (ones, self.waiting, self.running, self.drafted, self.accepted, self.new)
        sums = [np.histogram(self.start, edges, weights=column)[0] for column in columns]
        return np.stack(sums, axis=1)


def _sums(lists: pa.ListArray) -> Float[np.ndarray, " n"]:
    """Return the sum of every list, none of which is empty."""
    if not len(lists):
        return np.zeros(0)
    begins = np.asarray(lists.offsets[:-1]) - lists.offsets[0].as_py()
    return np.add.reduceat(np.asarray(lists.flatten()), begins).astype(float)
