"""Decode prompts plainly and with drafts, in turns, and find the length that is fastest."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specresearch.engine import Engine
from specresearch.models import CausalLM
from specresearch.proposers import DraftModel, Proposer
from specresearch.request import Request
from specresearch.sampling import SamplingParams


@dataclass(frozen=True)
class DecodedAnswer:
    """One request.

    Attributes:
        seconds: Wall time, prefill included.
    """

    token_ids: tuple[int, ...]
    seconds: float
    num_forwards: int
    num_draft_tokens: int
    num_accepted_tokens: int

    def figures(self, prefix: str = "") -> dict[str, Any]:
        """Return what a row keeps, without the tokens."""
        names = ("seconds", "num_forwards", "num_draft_tokens", "num_accepted_tokens")
        return {f"{prefix}num_tokens": len(self.token_ids)} | {
            f"{prefix}{name}": getattr(self, name) for name in names
        }


class Decoder:
    """Decodes one request after the other on one target.

    Args:
        proposer: None decodes plainly.
    """

    def __init__(self, target: CausalLM, proposer: Proposer | None = None) -> None:
        self.engine = Engine(target, proposer)

    def decode(self, prompt: Sequence[int], sampling: SamplingParams) -> DecodedAnswer:
        """Decode a prompt."""
        clock = self.engine.clock
        begin = clock.now()
        output = next(iter(self.engine.generate([Request(prompt, sampling)]))).checked()
        seconds = clock.now() - begin
        counts = output.record.counts
        return DecodedAnswer(
            token_ids=output.token_ids,
            seconds=seconds,
            num_forwards=counts.num_target_forwards,
            num_draft_tokens=counts.num_draft_tokens,
            num_accepted_tokens=counts.num_accepted_tokens,
        )


def chain(draft: CausalLM, num_draft_tokens: int) -> DraftModel:
    """Return a proposer of chains of a fixed length."""
    return DraftModel(draft, num_draft_tokens, tree="chain")
