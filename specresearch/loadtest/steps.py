"""The steps of a pass, as its summary reads them: what waited, what ran, and what came of it, over time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
from jaxtyping import Float

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
        seconds: All that the step took, prefill included.
        schedule: Seconds of the scheduler, of all steps together.
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
        seconds = column["total"] + column["prefill"] + column["schedule"]
        schedule = float(column["schedule"].sum())
        waiting, running = column["num_waiting"], column["num_running"]
        times = {part: float(column[part].sum()) for part in PARTS}
        host = max(float(column["total"].sum()) - sum(times.values()), 0.0)
        return PassSteps(
            start=column["start"],
            seconds=seconds,
            waiting=waiting,
            running=running,
            drafted=drafted,
            accepted=accepted,
            new=new,
            schedule=schedule,
            times=times | {"schedule": schedule, "host": host},
        )

    def sum_over(self, name: str, begin: float, end: float) -> float:
        """Request seconds that were spent waiting or running between two moments."""
        within = np.minimum(self.start + self.seconds, end) - np.maximum(self.start, begin)
        return float((getattr(self, name) * within.clip(min=0)).sum())

    def since(self, moment: float) -> "PassSteps":
        """Those that began then or later."""
        later = self.start >= moment
        return replace(self, **{name: getattr(self, name)[later] for name in PER_STEP})

    @staticmethod
    def timeline(passes: "Sequence[PassSteps]") -> list[dict[str, float | None]]:
        """Averages over stretches of whole seconds, passes put on top of one another."""
        passes = [steps for steps in passes if len(steps.start)]
        if not passes:
            return []
        ends = [float(steps.start[-1] + steps.seconds[-1]) for steps in passes]
        width = max(1, int(np.ceil(max(ends) / NUM_BINS)))
        edges = np.arange(0, max(ends) + width, width)
        totals = sum(steps._binned(edges) for steps in passes)
        assert isinstance(totals, np.ndarray)
        rows = []
        for begin, (steps, waiting, running, drafted, accepted, new) in zip(
            edges, totals, strict=False
        ):
            covered = sum(min(max(end - begin, 0.0), width) for end in ends)
            rows.append(
                {
                    "second": float(begin),
                    "waiting": waiting / steps if steps else None,
                    "running": running / steps if steps else None,
                    "acceptance": accepted / drafted if drafted else None,
                    "draft_length": drafted / running if running else None,
                    "tokens_per_second": new / covered if covered else None,
                }
            )
        return rows

    def _binned(self, edges: Float[np.ndarray, " e"]) -> Float[np.ndarray, "bins 6"]:
        values = (
            np.ones(len(self.start)),
            self.waiting,
            self.running,
            self.drafted,
            self.accepted,
            self.new,
        )
        return np.stack(
            [np.histogram(self.start, edges, weights=value)[0] for value in values], axis=1
        )


def _sums(lists: pa.ListArray) -> Float[np.ndarray, " n"]:
    """Of every list, none of which is empty."""
    if not len(lists):
        return np.zeros(0)
    begins = np.asarray(lists.offsets[:-1]) - lists.offsets[0].as_py()
    return np.add.reduceat(np.asarray(lists.flatten()), begins).astype(float)
