"""The order in which waiting requests are admitted."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from specresearch.request import RequestState


@runtime_checkable
class AdmissionPolicy(Protocol):
    """Ranks requests when they arrive."""

    def rank(self, row: RequestState) -> float:
        """Return the request's rank; the lowest is admitted first."""
        ...


@dataclass(frozen=True)
class FirstCome:
    """Admit requests in order of arrival."""

    def rank(self, row: RequestState) -> float:
        return row.arrival_time


@dataclass(frozen=True)
class ShortestPrompt:
    """Admit the shortest prompt first; each second of waiting counts as `ageing` tokens less.

    All requests age alike, so the order of two never changes: a request is passed only by those
    with n tokens less that arrive within n / ageing seconds after it. Hence none starves.
    """

    ageing: float = 100.0

    def __post_init__(self) -> None:
        if self.ageing <= 0:
            raise ValueError(
                f"scheduler.policy.ageing={self.ageing} must be above 0, or long prompts may wait "
                "for ever"
            )

    def rank(self, row: RequestState) -> float:
        return row.num_prompt_tokens + self.ageing * row.arrival_time
