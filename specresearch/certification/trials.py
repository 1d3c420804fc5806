"""Under which circumstances a method is put to the proof: the target's precision and vocabulary, limits, and equal seeds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specresearch.certification.enumeration import Toy
from specresearch.controllers import Controller
from specresearch.engine import SchedulerSettings
from specresearch.models import CausalLM
from specresearch.proposers import Proposer


@dataclass(frozen=True)
class TrialSettings:
    """One trial, as a user sets it.

    sampled: the names of the sampled settings that are decoded; None = all. stress: those that adversaries are given, too.
    greedy: the names of the greedy settings; None = all.
    toy: what differs from the toy target of the other trials.
    batch_size: requests decoded together.
    max_step_tokens, max_cache_tokens: limits of the scheduler so narrow that drafts are cut, prompts are read in chunks and
        requests are preempted; drafting then stops for every other few steps, which lets the cache fill with requests.
    max_draft_tokens: drafts of a step beyond this are not tried, so that limits mean the same for every method.
    equal_seeds: all requests of a wave share one seed, see `decoding.in_waves`.
    coarseness: the total variation that this trial sees, as a multiple of the certificate's `visible_tv`.
    """

    sampled: Sequence[str] | None = None
    stress: Sequence[str] = ()
    greedy: Sequence[str] | None = None
    toy: Mapping[str, Any] = field(default_factory=dict)
    batch_size: int = 256
    max_step_tokens: int | None = None
    max_cache_tokens: int | None = None
    max_draft_tokens: int | None = None
    equal_seeds: bool = False
    coarseness: float = 1.0

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"batch_size={self.batch_size} must be at least 1")
        if self.coarseness < 1:
            raise ValueError(
                f"coarseness={self.coarseness} must be at least 1; lower visible_tv for sharper tests"
            )
        if self.equal_seeds and self.stress:
            raise ValueError(
                "stress cannot be combined with equal_seeds: adversaries remember nothing of other requests"
            )

    @property
    def is_crowded(self) -> bool:
        return self.max_step_tokens is not None or self.max_cache_tokens is not None


@dataclass(frozen=True)
class Trial:
    """One trial with everything it decodes with. Proposers and controllers keep state, so each trial has its own.

    scheduling: order and limits for the method's requests.
    """

    name: str
    settings: TrialSettings
    toy: Toy
    target: CausalLM
    proposer: Proposer
    controller: Controller
    scheduling: SchedulerSettings
