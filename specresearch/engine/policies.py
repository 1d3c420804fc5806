"""Who is admitted first."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from specresearch.request import RequestState


@runtime_checkable
class Policy(Protocol):
    """An order of waiting requests that is known when they arrive."""

    def rank(self, row: RequestState) -> float:
        """The lowest is admitted first. Asked on arrival, and again when all clocks are moved."""
        ...


@dataclass(frozen=True)
class FirstCome:
    """By time of arrival."""

    def rank(self, row: RequestState) -> float:
        return row.arrival_time


@dataclass(frozen=True)
class ShortestPrompt:
    """The shortest prompt, where every second of waiting makes a prompt `ageing` tokens shorter.

    All age alike, so the order of two requests never changes: one with n tokens more is passed by those that come within
    n / ageing seconds after it, and by no other. Hence none starves.
    """

    ageing: float = 100.0

    def __post_init__(self) -> None:
        if self.ageing <= 0:
            raise ValueError(
                f"scheduler.policy.ageing={self.ageing} must be above 0, or long prompts wait for ever"
            )

    def rank(self, row: RequestState) -> float:
        return row.num_prompt_tokens + self.ageing * row.arrival_time
