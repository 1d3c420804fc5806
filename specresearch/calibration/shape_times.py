"""How long a step takes, by what it drafts and verifies."""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float

from specresearch.metrics import StepRecord


@dataclass
class Medians:
    """Medians of a time by a size, with straight lines between the sizes that were measured."""

    samples: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))

    def add(self, size: int, seconds: float) -> None:
        self.samples[size].append(seconds)

    def replaced(self, better: "Medians") -> "Medians":
        """Return these medians, but for sizes that were measured better."""
        return Medians(defaultdict(list, self.samples | better.samples))

    def at(self, sizes: Sequence[int] | Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """Return the seconds at these sizes.

        A larger size never takes less: that is noise, which sizes with many samples outvote.
        """
        from scipy.optimize import isotonic_regression  # takes long to import

        measured = sorted(self.samples)
        medians = [float(np.median(self.samples[size])) for size in measured]
        numbers = [len(self.samples[size]) for size in measured]
        rising = isotonic_regression(medians, weights=numbers).x
        return np.asarray(np.interp(sizes, measured, rising))

    def at_some(
        self, most: int, least_size: int = 0, enough: int | None = None
    ) -> tuple[tuple[int, float], ...]:
        """Return some of the sizes that were measured, evenly chosen, with their seconds.

        Args:
            enough: What lies beyond the first size that is no smaller is left out: a line through
                far larger sizes says little of small ones. None leaves nothing out.
        """
        measured = np.array(sorted(size for size in self.samples if size >= least_size))
        if enough is not None:
            measured = measured[: np.searchsorted(measured, enough) + 1]
        chosen = measured[np.linspace(0, len(measured) - 1, min(most, len(measured))).astype(int)]
        return tuple(zip(chosen.tolist(), self.at(chosen.tolist()).tolist(), strict=True))


@dataclass
class ShapeTimes:
    """Seconds of drafting, and of all else in a step, by kind of draft.

    Attributes:
        draft: By levels of a dynamic tree, and by most drafts of any other.
        rest: Verification, acceptance, commit and host, by nodes of all rows.
    """

    draft: dict[Hashable, Medians] = field(default_factory=lambda: defaultdict(Medians))
    rest: dict[Hashable, Medians] = field(default_factory=lambda: defaultdict(Medians))

    def add(self, kind: Hashable, draft_size: int, num_nodes: int, record: StepRecord) -> None:
        """Add a step.

        Args:
            draft_size: 0 if nothing was to be drafted.
        """
        if draft_size:
            self.draft[kind].add(draft_size, record.times.propose)
        self.rest[kind].add(num_nodes, record.times.work - record.times.propose)
