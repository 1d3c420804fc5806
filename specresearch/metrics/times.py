"""Where the time of a step goes."""

from collections.abc import Mapping
from dataclasses import dataclass

PREFILL, DRAFT_PREFILL, LAZY_PREFILL = "prefill", "draft_prefill", "lazy_prefill"  # laps
STEP_LAPS = ("control", "propose", "verify", "accept", "commit")


@dataclass(frozen=True)
class StepTimes:
    """Seconds of one step.

    On CUDA each part is a stretch of the GPU's own timeline, idling for the host included, so that
    a launch-bound pass shows as a long `verify`.

    Attributes:
        propose: Drafting, and what the proposer learns from the step.
        total: The whole step except `prefill` and `schedule`.
        prefill: All prefill since the last record, whether of the target or of a draft model.
        schedule: Time spent in the scheduler since the last record.
        lazy_prefill: The part of `prefill` that a drafter deferred to a first draft.
        control: Choosing how much to draft.
        draft_prefill: The drafter's part of `prefill`, lazy or not.
    """

    propose: float
    verify: float
    accept: float
    commit: float
    total: float
    prefill: float = 0.0
    schedule: float = 0.0
    lazy_prefill: float = 0.0
    control: float = 0.0
    draft_prefill: float = 0.0

    @staticmethod
    def of(laps: Mapping[str, float], elapsed: float) -> "StepTimes":
        """Return the times of a step.

        Args:
            laps: Seconds by name, as `Clock.pop_laps` returns them.
            elapsed: Seconds since the step's batch was formed, lazy prefill included.
        """
        parts = {name: laps.get(name, 0.0) for name in (*STEP_LAPS, "schedule")}
        lazy = laps.get(LAZY_PREFILL, 0.0)
        return StepTimes(
            **parts,
            total=elapsed - lazy,
            prefill=laps.get(PREFILL, 0.0) + lazy,
            lazy_prefill=lazy,
            draft_prefill=laps.get(DRAFT_PREFILL, 0.0) + lazy,
        )

    @property
    def work(self) -> float:
        """Return the seconds of the step without choosing how much to draft."""
        return self.total - self.control

    @property
    def host(self) -> float:
        """Return the seconds that no named part accounts for."""
        return self.work - self.propose - self.verify - self.accept - self.commit
