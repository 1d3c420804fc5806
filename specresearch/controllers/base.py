"""What every controller is: a budget of drafts for each row of a step, and a look at what came of it."""

from abc import ABC, abstractmethod
from typing import Protocol, runtime_checkable

from specresearch.batch import Batch
from specresearch.metrics import StepRecord
from specresearch.proposal import DraftKind, Proposal


@runtime_checkable
class Controller(Protocol):
    """Lives on the host: a budget must be known before anything is launched.

    A budget may depend on everything that happened in earlier steps, and on nothing of the drafts that it is for.
    """

    def budget(self, batch: Batch) -> list[int | None]:
        """Drafts allowed for each row; 0 = decode plainly, None = as many as the proposer likes. A request's own
        `num_draft_tokens` replaces it."""
        ...

    def observe(self, record: StepRecord) -> None:
        """What became of the last budget; rows come in the same order."""
        ...


class Adaptive(ABC):
    """A controller that is also told who drafts, may shorten drafts before they are verified, and learns.

    per_request: what it allows a request depends on that request's own steps alone. Any controller may
    say so; of one that does not it is not believed.
    """

    per_request: bool = False

    def bind(self, kind: DraftKind, num_draft_tokens: int) -> None:
        """Called once by the engine, unless nothing drafts: what drafts may be, and the most that a row gets.

        Raises ValueError for drafts it cannot steer.
        """

    @abstractmethod
    def budget(self, batch: Batch) -> list[int | None]:
        """See `Controller`."""

    def trim(self, proposal: Proposal) -> Proposal:
        """The drafts that are to be verified. To be lossless, whether a token stays may depend on the tokens before it only."""
        return proposal

    @abstractmethod
    def observe(self, record: StepRecord) -> None:
        """See `Controller`."""

    def reset(self) -> None:
        """Forget everything learnt; a measurement calls it before every repeat."""

    def trace(self) -> list[dict[str, float]]:
        """What it thought, averaged over stretches of steps, for reports; `StepRecord` has the lengths themselves."""
        return []


def is_per_request(controller: Controller) -> bool:
    """Whether what a controller allows a request depends on that request's own steps alone."""
    return bool(getattr(controller, "per_request", False))


def drafts_wanted(
    controller: Controller, batch: Batch, num_draft_tokens: int, kind: DraftKind
) -> tuple[list[int], list[int]]:
    """What each row should draft, and the most that it has room for.

    A request's own number replaces the controller's; num_draft_tokens: the most that the proposer makes.
    """
    own = [row.request.num_draft_tokens for row in batch.rows]
    asked = [n if o is None else o for n, o in zip(controller.budget(batch), own, strict=True)]
    limits = [num_draft_tokens if kind.trees and room else room for room in batch.room]
    return [
        num_draft_tokens if want is None else min(want, num_draft_tokens) for want in asked
    ], limits


def check_num_draft_tokens(num_draft_tokens: int | None) -> int | None:
    """Raises ValueError if negative."""
    if num_draft_tokens is not None and num_draft_tokens < 0:
        raise ValueError(
            f"controller.num_draft_tokens={num_draft_tokens} must be 0 (plain decoding) or above"
        )
    return num_draft_tokens


def check_chains(controller: object, kind: DraftKind) -> None:
    """Raises ValueError where drafts may branch: a budget then counts nodes and says little of how deep they go."""
    if kind.trees:
        raise ValueError(
            f"controller {type(controller).__name__} steers the length of chains, and this proposer drafts trees; "
            "use a chain (such as proposer.tree=chain), or controller=fixed, batch_size_cutoff or acceptance_gate"
        )
