"""A shape of drafts, chosen for its predicted speed."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from specresearch.proposal import DraftForecast
from specresearch.proposers import Proposer
from specresearch.proposers.draft_shape import DraftShape


@dataclass(frozen=True)
class ShapeChoice:
    """What `auto` chose, and why.

    Attributes:
        shape: What is drafted, which may be nothing.
        best: The fastest shape that drafts; the predictions are for it.
        expected_tokens: Tokens per step of a request.
        acceptance_length: Tokens per step of a request that has drafts.
        predicted_speedup: Speed over plain decoding, the drafter's prefill included.
        measured: From what, in words.
        forecast: What drafts of the best kind are expected to yield.
    """

    shape: DraftShape
    best: DraftShape
    expected_tokens: float
    acceptance_length: float
    predicted_speedup: float
    measured: str
    forecast: DraftForecast | None = None

    def __str__(self) -> str:
        prediction = (
            f"{self.expected_tokens:.2f} tokens per step and {self.predicted_speedup:.2f}x the "
            f"speed of plain decoding expected"
        )
        if self.shape == self.best:
            return f"auto chose {self.shape}: {prediction}; {self.measured}"
        if self.shape.num_draft_tokens:
            return (
                f"auto leaves it to the controller how much to draft, up to {self.shape}: of "
                f"{self.best}, {prediction}; {self.measured}"
            )
        return (
            f"auto decodes plainly, since no draft is expected to pay: of {self.best}, "
            f"{prediction}; {self.measured}"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the choice as it is written: with its sentence, and settings that repeat it."""
        return asdict(self) | {"summary": str(self), "settings": self.shape.overrides}

    def take_effect(self, proposer: Proposer) -> None:
        """Let a proposer draft so from the next engine on."""
        proposer.draft_as(self.shape)
        proposer.forecast = self.forecast

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> "ShapeChoice":
        """Return a choice as `to_json` wrote it.

        Raises:
            KeyError, TypeError, ValueError: If it is none.
        """
        forecast = data.get("forecast")
        return ShapeChoice(
            shape=DraftShape.from_json(data["shape"]),
            best=DraftShape.from_json(data["best"]),
            expected_tokens=float(data["expected_tokens"]),
            acceptance_length=float(data["acceptance_length"]),
            predicted_speedup=float(data["predicted_speedup"]),
            measured=str(data["measured"]),
            forecast=None if forecast is None else DraftForecast.from_json(forecast),
        )
