"""How a simulated side drafts: what its proposer can do, and how its controller steers it."""

from dataclasses import dataclass, field

from specresearch.controllers import Controller
from specresearch.proposal import DraftKind
from specresearch.simulation.machine import Machine
from specresearch.simulation.proposer import ReplayingDraftModel, ReplayingProposer


@dataclass(frozen=True)
class Method:
    """A proposer and its controller, as a recording knows them.

    Attributes:
        num_draft_tokens: The most drafts in a step; 0 for plain decoding.
        lazy_prefill: True if the proposer prefills a request on its first draft.
    """

    controller: Controller
    kind: DraftKind = field(default_factory=DraftKind)
    num_draft_tokens: int = 0
    lazy_prefill: bool = False

    def __post_init__(self) -> None:
        # A controller that cannot steer such drafts is refused before anything is simulated.
        if self.num_draft_tokens:
            self.controller.bind(self.kind, self.num_draft_tokens)

    def proposer(self, machine: Machine) -> ReplayingProposer:
        """Return a proposer that runs on the machine."""
        of_kind = ReplayingDraftModel if self.lazy_prefill else ReplayingProposer
        needs_scores = self.controller.needs_scores
        score_reader = type(self.controller).__name__ if needs_scores else None
        return of_kind(machine, self.kind, self.num_draft_tokens, score_reader)
