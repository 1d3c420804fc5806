"""The base class of controllers, which decide how many tokens each request drafts."""

from abc import ABC, abstractmethod

from specresearch.batch import Batch
from specresearch.metrics import StepRecord
from specresearch.proposal import DraftForecast, DraftKind, Proposal

AT_LEAST_ONE = "at least 1; to decode plainly use controller=fixed controller.num_draft_tokens=0"


class Controller(ABC):
    """Chooses a draft budget for every row of a step, on the host and before anything is launched.

    A budget may depend on everything that happened in earlier steps, but on nothing of the drafts
    that it is for: otherwise the output's distribution changes.

    Attributes:
        per_request: True if what a request may draft depends on that request's own steps alone.
            The engine relies on it for what a seed promises.
        needs_scores: True if it cannot do without the scores of drafts.
        takes_forecasts: True if `auto` is to measure for it, though it chooses the number itself.
    """

    per_request: bool = False
    needs_scores: bool = False
    takes_forecasts: bool = False

    def bind(self, kind: DraftKind, num_draft_tokens: int) -> None:
        """Prepare for a proposer. The engine calls this once, unless nothing drafts.

        Args:
            kind: What the drafts may be.
            num_draft_tokens: The most drafts that the proposer makes for a row.

        Raises:
            ValueError: If the controller cannot steer such drafts.
        """

    def foresee(self, forecast: DraftForecast) -> None:
        """Take note, after `bind`, of what was measured before the run, if anything was.

        It counts for little beside the run's own steps, and holds after a reset, too.
        """

    @abstractmethod
    def budget(self, batch: Batch) -> list[int | None]:
        """Return the drafts allowed for each row.

        0 decodes plainly and None leaves the number to the proposer. A request's own
        `num_draft_tokens` replaces its entry.
        """

    def max_depth(self, batch: Batch) -> int | None:
        """Return the longest path to draft in this step, after `budget`; None sets no limit.

        In a tree a budget counts nodes. A drafter needs a pass for each level of one.
        """
        return None

    def max_width(self, batch: Batch) -> int | None:
        """Return how many nodes of a level to expand, after `budget`; None sets no limit.

        A drafter that grows a tree where it is surest passes so many in each level, though few of
        them may be verified.
        """
        return None

    def trim(self, proposal: Proposal) -> Proposal:
        """Return the part of the proposal that is to be verified.

        To be lossless, whether a sampled token stays may depend on the tokens before it only. Of
        point masses any may be left out.
        """
        return proposal

    def observe(self, record: StepRecord) -> None:
        """Learn from the record of the step that the last budget was for. Rows keep their order."""

    def reset(self) -> None:
        """Forget everything learned. A measurement calls this before every repeat."""

    def trace(self) -> list[dict[str, float]]:
        """Return the controller's estimates, averaged over stretches of steps, for reports."""
        return []


def draft_demand(
    controller: Controller, batch: Batch, num_draft_tokens: int, kind: DraftKind
) -> tuple[list[int], list[int]]:
    """Return how much each row should draft, and the most that it has room for.

    Args:
        num_draft_tokens: The most drafts that the proposer makes for a row.
        kind: What the drafts may be. A tree may hold more nodes than the request has tokens left.
    """
    wanted = []
    for row, budget in zip(batch.rows, controller.budget(batch), strict=True):
        requested = row.request.num_draft_tokens
        number = budget if requested is None else requested
        wanted.append(num_draft_tokens if number is None else min(number, num_draft_tokens))
    batch.limit(controller.max_depth(batch), controller.max_width(batch))
    limits = list(batch.room)
    if kind.trees:
        limits = [num_draft_tokens if room else 0 for room in limits]
    return wanted, limits


def check(name: str, value: object, holds: bool, rule: str) -> None:
    """Raise ValueError if a setting breaks the rule for it."""
    if not holds:
        raise ValueError(f"controller.{name}={value} must be {rule}")


def check_num_draft_tokens(num_draft_tokens: int | None) -> int | None:
    """Return the number, or raise ValueError if it is negative."""
    is_number = num_draft_tokens is None or num_draft_tokens >= 0
    check("num_draft_tokens", num_draft_tokens, is_number, "0 (plain decoding) or above")
    return num_draft_tokens


def check_chains(controller: Controller, kind: DraftKind) -> None:
    """Raise ValueError if drafts may branch, since a budget of nodes says little about depth."""
    if kind.trees:
        chain = f"set {kind.chain_setting}, or " if kind.chain_setting else ""
        raise ValueError(
            f"controller {type(controller).__name__} steers the length of chains, and this "
            f"proposer drafts trees; {chain}use a controller that works with trees: "
            "controller=acceptance_gate, batch_size_cutoff, fixed or goodput"
        )
