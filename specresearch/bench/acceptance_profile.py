"""How acceptance varies: between requests, and along the draft."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from specresearch.bench.estimate import Estimate, estimate_of, percentile_estimate
from specresearch.metrics import Counts
from specresearch.statistics import SHARE, Histogram, Statistic


@dataclass(frozen=True)
class Position:
    """Acceptance at one position of the draft.

    Attributes:
        position: From 1.
        unconditional: Share of all drafts that were accepted up to here.
        conditional: Share of the drafts accepted up to the position before that were accepted here.
    """

    position: int
    num_reached: int
    unconditional: Estimate | None
    conditional: Estimate | None


@dataclass(frozen=True)
class AcceptanceProfile:
    """The draft acceptance of one side.

    Attributes:
        rate: Accepted share of all draft tokens.
        p10: 10th percentile of the requests' own rates.
        histogram: Requests by their own rate.
    """

    rate: Estimate | None
    p10: Estimate | None
    histogram: Histogram
    positions: tuple[Position, ...]

    @staticmethod
    def of(counts: Sequence[Counts], units: Sequence[str]) -> "AcceptanceProfile | None":
        """Return the profile of requests, or None if none of them drafted.

        Args:
            counts: The requests' counts.
            units: What each request belongs to; requests of one unit depend on one another.
        """
        by_unit: dict[str, list[Counts]] = defaultdict(list)
        rates, units_of_rates = [], []
        for request, unit in zip(counts, units, strict=True):
            if request.num_judged_tokens:
                by_unit[unit].append(request)
                rates.append(request.draft_acceptance_rate)
                units_of_rates.append(unit)
        if not rates:
            return None
        per_unit = [Counts.total(group) for group in by_unit.values()]
        rows = [[unit.num_accepted_tokens, unit.num_judged_tokens] for unit in per_unit]
        accepted = np.array(rows, float)
        return AcceptanceProfile(
            rate=estimate_of(accepted, _share, SHARE),
            p10=percentile_estimate(rates, units_of_rates, 10),
            histogram=Histogram.of(rates),
            positions=_positions(per_unit, accepted),
        )

    @staticmethod
    def of_total(counts: Counts) -> "AcceptanceProfile | None":
        """Return what sums over many requests say: no intervals, and nothing of single requests.

        Returns None if nothing was judged.
        """
        if not counts.num_judged_tokens:
            return None
        accepted = np.array([[counts.num_accepted_tokens, counts.num_judged_tokens]], float)
        return AcceptanceProfile(
            rate=estimate_of(accepted, _share, SHARE),
            p10=None,
            histogram=Histogram.of([]),
            positions=_positions([counts], accepted),
        )

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> "AcceptanceProfile":
        """Return a profile as it was written."""
        positions = []
        for entry in data["positions"]:
            names = ("unconditional", "conditional")
            estimates = {name: Estimate.from_json(entry[name]) for name in names}
            positions.append(Position(**entry | estimates))
        histogram = data["histogram"]
        bins = {name: tuple(histogram[name]) for name in ("edges", "counts")}
        return AcceptanceProfile(
            rate=Estimate.from_json(data["rate"]),
            p10=Estimate.from_json(data["p10"]),
            histogram=Histogram(**histogram | bins),
            positions=tuple(positions),
        )


def _positions(
    per_unit: Sequence[Counts], shares: Float[np.ndarray, "n 2"]
) -> tuple[Position, ...]:
    """Return acceptance by position.

    Args:
        shares: Accepted and judged tokens of every unit, which weight the units.
    """
    deepest = max(len(counts.reached) for counts in per_unit)
    reached = np.zeros((len(per_unit), deepest))
    accepted = np.zeros((len(per_unit), deepest))
    for row, counts in enumerate(per_unit):
        reached[row, : len(counts.reached)] = counts.reached
        accepted[row, : len(counts.accepted)] = counts.accepted
    totals = np.concatenate([accepted, reached, shares], axis=1)
    positions = []
    for i in range(deepest):
        position = Position(
            position=i + 1,
            num_reached=int(reached[:, i].sum()),
            unconditional=estimate_of(totals, _survival(i + 1, deepest), SHARE),
            conditional=estimate_of(totals[:, [i, deepest + i]], _share, SHARE),
        )
        positions.append(position)
    return tuple(positions)


def _share(totals: Any) -> Any:
    return totals[..., 0] / totals[..., 1]


def _survival(depth: int, deepest: int) -> Statistic:
    """Return the product of the conditional acceptance rates of the first `depth` positions."""
    return lambda t: (t[..., :depth] / t[..., deepest : deepest + depth]).prod(-1)
