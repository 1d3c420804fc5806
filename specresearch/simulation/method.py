"""How a simulated side drafts: a controller, and what its drafter can do."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from specresearch.batch import Batch, RequestState
from specresearch.controllers import Controller, draft_demand
from specresearch.proposal import DraftKind, Proposal, Topology, upload
from specresearch.simulation.acceptance import Drafted
from specresearch.simulation.replays import text_of


@dataclass(frozen=True)
class Method:
    """num_draft_tokens: the most in a step, 0 for plain decoding. reads_late: the drafter reads a prompt when first asked for
    drafts."""

    controller: Controller
    kind: DraftKind = field(default_factory=DraftKind)
    num_draft_tokens: int = 0
    reads_late: bool = False

    def __post_init__(self) -> None:
        if self.num_draft_tokens:
            self.controller.bind(self.kind, self.num_draft_tokens)

    def reset(self) -> None:
        self.controller.reset()

    def trace(self) -> tuple[Mapping[str, float], ...]:
        return tuple(self.controller.trace())

    def wanted(self, batch: Batch) -> tuple[list[int], list[int]]:
        return draft_demand(self.controller, batch, self.num_draft_tokens, self.kind)

    def trim(self, rows: Sequence[RequestState], drafted: list[Drafted]) -> list[Drafted]:
        """What the controller leaves of drafts. Raises ValueError where it looks at scores and there are none."""
        own = self.controller
        if type(own).trim is Controller.trim or not self.num_draft_tokens:
            return drafted
        width = max(draft.num for draft in drafted) + 1
        scores = []
        for row, draft in zip(rows, drafted, strict=True):
            if draft.num and not text_of(row).scores:
                raise ValueError(
                    f"controller {type(own).__name__} reads the drafter's scores, and the recording says none of drafts in other "
                    "places; measure it, or use another controller"
                )
            told = text_of(row).scores_at(row.num_generated, draft.num)
            scores.append([1.0, *told] + [0.0] * (width - 1 - len(told)))
        lengths = upload([draft.num + 1 for draft in drafted], "cpu")
        nothing = torch.zeros((len(rows), width), dtype=torch.long)
        proposal = Proposal(
            nothing, Topology.chain(width), lengths, scores=upload(scores, "cpu", torch.float32)
        )
        kept = (own.trim(proposal).lengths - 1).tolist()
        return [
            Drafted(n, n, min(n, draft.accepted)) for n, draft in zip(kept, drafted, strict=True)
        ]
