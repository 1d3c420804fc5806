"""The conditions a method is tested under, and how sharp the tests are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from specresearch.certification.targets import Toy
from specresearch.controllers import Controller
from specresearch.engine import SchedulerSettings
from specresearch.models import CausalLM
from specresearch.proposers import Proposer

PROBING_ROWS = 3  # about as many as draft in one step of a crowded trial


@dataclass(frozen=True)
class CertifierSettings:
    """Settings shared by all trials.

    Attributes:
        alpha: probability that a lossless method is refuted.
        visible_tv, power: every test of the method detects a deviation of this total variation,
            times its trial's coarseness, with this probability.
        max_draft_tokens: limit of drafts per step; None leaves it to the method.
    """

    alpha: float = 0.001
    power: float = 0.9
    visible_tv: float = 0.1
    max_draft_tokens: int | None = None
    num_greedy_prompts: int = 36
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("alpha", "power", "visible_tv"):
            value = getattr(self, name)
            if not 0 < value < 1:
                raise ValueError(f"{name}={value} must lie between 0 and 1")
        for name in ("max_draft_tokens", "num_greedy_prompts"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={value} must be at least 1")


@dataclass(frozen=True)
class TrialSettings:
    """Settings of one trial.

    Attributes:
        sampled, greedy: names of the settings that are decoded; None for all.
        stress: names of the sampled settings that adversaries decode as well.
        toy: arguments of the toy target that differ from the other trials'.
        shortest_prompt: tokens of the first sampled setting's prompt; each next one has one more.
        max_step_tokens, max_cache_tokens: limits of the scheduler that cut drafts, chunk prompts
            and preempt requests, beside the probes of `PROBING_ROWS` rows. Drafting then pauses
            regularly, so that the cache fills up.
        max_draft_tokens: limit of drafts per step, so that all methods meet the same limits.
        equal_seeds: decode in waves whose requests share a seed; see `in_waves`.
        coarseness: total variation that this trial must detect, in multiples of `visible_tv`.
    """

    sampled: Sequence[str] | None = None
    stress: Sequence[str] = ()
    greedy: Sequence[str] | None = None
    toy: Mapping[str, Any] = field(default_factory=dict)
    batch_size: int = 256
    shortest_prompt: int = 5
    max_step_tokens: int | None = None
    max_cache_tokens: int | None = None
    max_draft_tokens: int | None = None
    equal_seeds: bool = False
    coarseness: float = 1.0

    def __post_init__(self) -> None:
        for name in ("batch_size", "shortest_prompt"):
            value = getattr(self, name)
            if value < 1:
                raise ValueError(f"{name}={value} must be at least 1")
        if self.coarseness < 1:
            raise ValueError(
                f"coarseness={self.coarseness} must be at least 1; lower visible_tv for sharper "
                "tests"
            )
        if self.equal_seeds and self.stress:
            raise ValueError(
                "stress cannot be combined with equal_seeds, since adversaries learn nothing from "
                "other requests; drop one of the two"
            )

    @property
    def is_crowded(self) -> bool:
        return self.max_step_tokens is not None or self.max_cache_tokens is not None

    def limited(self, scheduling: SchedulerSettings, num_probe_nodes: int) -> SchedulerSettings:
        """Return the scheduling with this trial's limits, if it has any.

        Args:
            num_probe_nodes: of a row. Their room is added, or hardly any row could draft.
        """
        if not self.is_crowded:
            return scheduling
        room = PROBING_ROWS * num_probe_nodes
        step, cache = self.max_step_tokens, self.max_cache_tokens
        return replace(
            scheduling,
            max_step_tokens=None if step is None else step + room,
            max_cache_tokens=None if cache is None else cache + room,
        )


@dataclass(frozen=True)
class Trial:
    """One trial with its own target, proposer and controller, since these keep state.

    Attributes:
        scheduling: order and limits for the method's requests.
    """

    name: str
    settings: TrialSettings
    toy: Toy
    target: CausalLM
    proposer: Proposer
    controller: Controller
    scheduling: SchedulerSettings
