"""One side of a run, and its figures."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from specresearch.bench.acceptance_profile import AcceptanceProfile
from specresearch.bench.estimate import Estimate, percentile_estimate
from specresearch.bench.rows import GroupRow
from specresearch.bench.side_comparison import MeanStepTimes
from specresearch.metrics import Counts
from specresearch.rows import RequestRow
from specresearch.statistics import percentile, ratio_of

LATENCIES = ("ttft", "tpot", "itl", "e2el")
PERCENTS = (50, 90, 99)
PARTS = ("prefill", "propose", "verify", "accept", "commit", "host")


@dataclass(frozen=True)
class RunSide:
    """All rows of one side of a run.

    Attributes:
        counts: The sum over the requests.
    """

    requests: Sequence[RequestRow]
    groups: Sequence[GroupRow]
    counts: Counts

    @staticmethod
    def of(side: str, requests: Iterable[RequestRow], groups: Iterable[GroupRow]) -> "RunSide":
        """Select the rows of a side."""
        requests = [row for row in requests if row.key.side == side]
        groups = [row for row in groups if row.key.side == side]
        return RunSide(requests, groups, Counts.total([row.counts for row in requests]))

    def sum(self, name: str) -> float:
        """Return the sum of an attribute over the groups."""
        return float(sum(getattr(row, name) for row in self.groups))

    @property
    def tokens_per_second(self) -> float | None:
        """Return the generated tokens per second, prefill included."""
        return ratio_of(self.sum("num_generated_tokens"), self.sum("wall"))

    @property
    def decode_tokens_per_second(self) -> float | None:
        """Return the generated tokens per second without prefill."""
        return ratio_of(self.sum("num_generated_tokens"), self.sum("decode"))

    @property
    def host_overhead(self) -> float | None:
        """Return the share of decoding in which no model runs."""
        busy = ratio_of(self.sum("propose") + self.sum("verify"), self.sum("decode"))
        return None if busy is None else 1 - busy

    def fractions(self) -> dict[str, float | None]:
        """Return the share of each part in the wall time."""
        wall = self.sum("wall")
        return {f"fraction_{part}": ratio_of(self.sum(part), wall) for part in PARTS}

    def latencies(self) -> dict[str, float | None]:
        """Return percentiles of latencies."""
        figures: dict[str, float | None] = {}
        for name in LATENCIES:
            values, _ = self._latency(name)
            for percent in PERCENTS:
                figures[f"{name}_p{percent}"] = percentile(values, percent)
        return figures

    def latency_estimates(self) -> dict[str, Estimate]:
        """Return percentiles of latencies with intervals over prompts."""
        estimates = {}
        for name in LATENCIES:
            values, prompts = self._latency(name)
            for percent in PERCENTS:
                estimate = percentile_estimate(values, prompts, percent)
                if estimate is not None:
                    estimates[f"{name}_p{percent}"] = estimate
        return estimates

    def _latency(self, name: str) -> tuple[list[float], list[str]]:
        """Return all values of a latency, and the prompt of each."""
        values, prompts = [], []
        for row in self.requests:
            row_values = row.itl if name == "itl" else (getattr(row, name),)
            values += row_values
            prompts += [row.row] * len(row_values)
        return values, prompts

    def figures(self) -> dict[str, float | None]:
        """Return throughput and latencies, named as in a load test."""
        counted = {"throughput": self.tokens_per_second, "num_requests": len(self.requests)}
        return counted | self.latencies()

    def acceptance_profile(self) -> AcceptanceProfile | None:
        """Return how acceptance varies between prompts and along the draft."""
        counts = [row.counts for row in self.requests]
        return AcceptanceProfile.of(counts, [row.row for row in self.requests])

    def step_times(self) -> MeanStepTimes | None:
        """Return the average step of decoding."""
        sums = {part: self.sum(part) for part in PARTS if part != "prefill"}
        return MeanStepTimes.of(sums, int(self.sum("num_steps")), self.sum("num_generated_tokens"))

    def by_group(self, *names: str) -> dict[int, list[float]]:
        """Return the sums of attributes over the repeats of each group."""
        totals: dict[int, list[float]] = defaultdict(lambda: [0.0] * len(names))
        for row in self.groups:
            for i, name in enumerate(names):
                totals[row.key.group][i] += getattr(row, name)
        return dict(sorted(totals.items()))
