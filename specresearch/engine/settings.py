"""Limits of the scheduler, as a user sets them."""

from dataclasses import dataclass, field

from specresearch.engine.policies import FirstCome, Policy


@dataclass(frozen=True)
class SchedulerSettings:
    """policy: who is admitted first.

    max_step_tokens: the most that one step reads: tokens of prompts, roots and drafts. Roots come first, then drafts, and
    prompts are read with what is left, in chunks; None = whole prompts at once.
    max_cache_tokens: the most columns that running requests hold, the drafts of the step included. Where the next step does not
    fit, the request admitted last gives its slot up and is computed again later; None = every slot may be filled.
    """

    policy: Policy = field(default_factory=FirstCome)
    max_step_tokens: int | None = None
    max_cache_tokens: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_step_tokens", "max_cache_tokens"):
            value = getattr(self, name)
            if value is not None and (
                not isinstance(value, int) or isinstance(value, bool) or value < 1
            ):
                raise ValueError(
                    f"scheduler.{name}={value} must be a whole number from 1, or null for no limit"
                )
