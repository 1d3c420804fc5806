"""When to decide anew."""

from specresearch.controllers.time_account import TimeAccount
from specresearch.metrics import StepRecord

MOST_DRAFTING = 8  # steps for which a decision to draft holds at most, since much can be learned,
MOST_IDLE = 32  # and for which one not to draft does, or any if decisions have taken
_SHARE = 0.004  # a larger share of the time than this
_LEAST = 2  # steps for which a decision holds that does not confirm the one before


class DecisionSchedule:
    """Lets decisions hold longer while they confirm one another, and until they can be paid for.

    Args:
        first: The step of the first decision.

    Attributes:
        step: The next step.
        is_drafting: The last decision was to draft; trials are no decisions.
        is_trial: A trial is running.
    """

    def __init__(self, first: int) -> None:
        self.step = 0
        self.is_drafting = self.is_trial = False
        self._next, self._decided_at, self._num_held = first, -1, _LEAST
        self._account = TimeAccount(_SHARE)

    @property
    def has_just_decided(self) -> bool:
        """Whether the last decision is for the next step; a trial is one, too."""
        return self._decided_at == self.step

    @property
    def most_held(self) -> int:
        """The steps for which a decision to draft would hold."""
        return min(2 * self._num_held, MOST_DRAFTING)

    @property
    def is_paid(self) -> bool:
        """Whether decisions have taken less of the time than they may."""
        return self._account.allowance > 0

    def is_due(self) -> bool:
        """Return whether the last decision has held for long enough; a trial ends in any case."""
        has_waited = self.step >= self._decided_at + MOST_IDLE
        return self.step >= self._next and (self.is_trial or self.is_paid or has_waited)

    def try_for(self, num_steps: int) -> None:
        """Begin a trial."""
        self.is_trial, self._decided_at = True, self.step
        self._next = self.step + num_steps

    def decide(self, *, drafts: bool, is_new: bool) -> None:
        """Let a decision hold, for twice as long if it is the one before.

        Args:
            is_new: It is another one, although both draft or both do not.
        """
        most = MOST_DRAFTING if drafts else MOST_IDLE
        is_confirmed = drafts == self.is_drafting and not is_new
        self._num_held = min(2 * self._num_held, most) if is_confirmed else _LEAST
        self.is_drafting, self.is_trial, self._decided_at = drafts, False, self.step
        self._next = self.step + self._num_held

    def observe(self, record: StepRecord) -> None:
        """Count the step, and the time that its decision took."""
        seconds = record.times.total + record.times.lazy_prefill
        self._account.observe(seconds, record.times.control * (self.step == self._decided_at))
        self.step += 1
