"""What is left to `auto`, by the proposer's settings, the acceptance rule and the controller."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from specresearch.acceptance import AcceptanceSampler
from specresearch.controllers import AcceptanceGate, BatchSizeCutoff, Controller, Fixed
from specresearch.proposers import Proposer
from specresearch.proposers.draft_shape import DraftShape

LEAVE_NUMBER = (AcceptanceGate, BatchSizeCutoff, Fixed)  # to the proposer, if they name none


@dataclass(frozen=True)
class Scope:
    """The shapes to choose from.

    Attributes:
        shapes: The largest of each kind.
        is_num_auto: Smaller shapes may be chosen; by the controller if it is steered, so that a
            kind is judged by the best of its sizes.
        is_steered: The controller chooses the number of drafts, so that only the kind is chosen.
        is_forecast: The controller begins with what is measured, even of the one kind there is.
        may_be_plain: No drafts may be chosen.
    """

    shapes: tuple[DraftShape, ...]
    is_num_auto: bool
    is_steered: bool
    is_forecast: bool
    may_be_plain: bool

    @staticmethod
    def of(
        proposer: Proposer,
        acceptance: AcceptanceSampler,
        controller: Controller,
        *,
        is_alone: bool = False,
    ) -> "Scope":
        """Return what there is to choose.

        Args:
            is_alone: Requests are decoded one by one, and nothing else drafts with this proposer.
                Only then may a controller that steers be left without drafts: fewer requests might
                gain where many do not.

        Raises:
            ValueError: If the controller asks for more drafts than `auto` considers.
        """
        shapes, is_num_auto = proposer.shapes, proposer.is_num_auto
        number = None
        if isinstance(controller, LEAVE_NUMBER):
            number = controller.num_draft_tokens
        if number is not None:
            shapes, is_num_auto = _with_number(shapes, number), False
        judged = [shape for shape in shapes if _fits(proposer, shape, acceptance, controller)]
        # If none fits, the engine says why, so drafts must not be left out.
        is_steered = Scope.is_steered_by(controller)
        may_be_plain = is_num_auto and bool(judged) and (is_alone or not is_steered)
        return Scope(
            shapes=tuple(judged) or shapes,
            is_num_auto=is_num_auto or is_steered,
            is_steered=is_steered,
            is_forecast=controller.takes_forecasts,
            may_be_plain=may_be_plain,
        )

    @staticmethod
    def is_steered_by(controller: Controller) -> bool:
        """Return whether the controller chooses the number of drafts itself."""
        return not isinstance(controller, LEAVE_NUMBER)

    @property
    def only(self) -> DraftShape | None:
        """Return the one shape that is possible, if there is one and that is enough."""
        shape, *others = self.shapes
        if others or self.may_be_plain or self.is_forecast:
            return None
        is_size_given = self.is_steered or not (self.is_num_auto or shape.depth)
        return shape if is_size_given else None


def _with_number(shapes: Sequence[DraftShape], number: int) -> tuple[DraftShape, ...]:
    most = max(shape.num_draft_tokens for shape in shapes)
    if number > most:
        raise ValueError(
            f"controller.num_draft_tokens={number} is more than the {most} drafts that "
            "proposer.num_draft_tokens=auto considers; set the second to a number, too"
        )
    fitting = [shape for shape in shapes if shape.num_draft_tokens >= number]
    return tuple(replace(shape, num_draft_tokens=number) for shape in fitting)


def _fits(
    proposer: Proposer, shape: DraftShape, acceptance: AcceptanceSampler, controller: Controller
) -> bool:
    """Return whether rule and controller take drafts of this shape."""
    if not shape.num_draft_tokens:
        return True
    proposer.draft_as(shape)
    try:
        controller.bind(proposer.kind, shape.num_draft_tokens)
    except ValueError:
        return False
    return acceptance.refuses(proposer.kind) is None
