"""The scheduler's settings."""

from dataclasses import dataclass, field

from specresearch.engine.policies import AdmissionPolicy, FirstCome


@dataclass(frozen=True)
class SchedulerSettings:
    """Limits of one step and of the cache, and the order of admission.

    Attributes:
        max_step_tokens: The most tokens of prompts, roots and drafts in one step. Roots come first,
            then drafts; prefill uses what is left, in chunks. None prefills whole prompts at once.
        max_cache_tokens: The most cache columns of running requests, the step's drafts included.
            If the next step does not fit, the request admitted last is preempted and recomputed
            later. None lets every slot fill up.
        reuse_prefixes: Keep the columns of requests that ended or were preempted until their slot
            is needed, and begin a new request with the longest prefix of it that any slot holds.
            Prefill then depends on earlier requests, so measurements leave it off.
    """

    policy: AdmissionPolicy = field(default_factory=FirstCome)
    max_step_tokens: int | None = None
    max_cache_tokens: int | None = None
    reuse_prefixes: bool = False

    def __post_init__(self) -> None:
        for name in ("max_step_tokens", "max_cache_tokens"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise ValueError(
                    f"scheduler.{name}={value} must be a whole number from 1, or null for no limit"
                )
