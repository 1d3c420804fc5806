"""The interface of proposers: all that the engine knows of one."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal

from jaxtyping import Shaped
from torch import Tensor, nn

from specresearch.batch import Batch
from specresearch.models.causal_lm import CausalLM, ModelOutput
from specresearch.models.slot_model import SlotModel
from specresearch.proposal import DraftForecast, DraftKind, InvalidProposalError, Proposal, Verdict
from specresearch.proposers.draft_shape import AUTO, DraftShape, NumDrafts
from specresearch.proposers.foretold import Foretold, Text
from specresearch.request import RequestState
from specresearch.sampling_params import SamplingParams


class Proposer(ABC):
    """Drafts what the target will say next.

    A row keeps its `slot` for as long as its request runs; a proposer keeps its state by slot.

    Attributes:
        num_draft_tokens: The most drafts for a row in one step.
        num_probe_nodes: Nodes beside these that are verified but never accepted, such as
            lookahead's window.
        kind: The drafts that it may make. If they branch, a budget counts nodes, and the longest
            path is `batch.room`.
        hidden_layers: The target's hidden states that `start` and `observe` need, in the
            adapter's numbering.
        proposers: The proposers that it combines, if any.
        shapes: The largest shape of each kind that `auto` chooses from, any of which may be drafted
            until `draft_as`; empty if the settings say what to draft.
        is_num_auto: Whether `auto` chooses the number of drafts too, none included.
        chosen: The shape that was chosen, if any.
        forecast: What drafts are expected to yield, if that was measured.
    """

    num_draft_tokens: int = 0
    num_probe_nodes: int = 0
    kind: DraftKind = DraftKind()
    hidden_layers: tuple[int, ...] = ()
    proposers: "tuple[Proposer, ...]" = ()
    shapes: tuple[DraftShape, ...] = ()
    is_num_auto: bool = True
    chosen: DraftShape | None = None
    forecast: DraftForecast | None = None

    @property
    def max_nodes(self) -> int:
        """The most nodes it proposes for a row, root included."""
        return 1 + self.num_draft_tokens + self.num_probe_nodes

    @property
    def memory(self) -> Literal["cold", "warm"] | None:
        """Whether a request profits from earlier ones ("warm") or starts from nothing ("cold").

        None means that the proposer keeps no state across requests that could be either.
        """
        kinds = {part.memory for part in self.proposers}
        if "warm" in kinds:
            return "warm"
        return "cold" if "cold" in kinds else None

    @property
    def compiled(self) -> bool:
        """Whether a draft model is compiled; compiled passes run over all slots of a cache."""
        return any(part.compiled for part in self.proposers)

    @property
    def models(self) -> tuple[SlotModel | nn.Module, ...]:
        """The models and heads that it drafts with, after `bind`: results report their memory."""
        return tuple(model for part in self.proposers for model in part.models)

    @property
    def keeps_prompt_states(self) -> bool:
        """Whether the hidden states of a prompt are kept until its first draft."""
        return any(part.keeps_prompt_states for part in self.proposers)

    @property
    def slot_bytes(self) -> int:
        """Bytes that it keeps on the device for each slot, beside the caches of its models."""
        return sum(part.slot_bytes for part in self.proposers)

    def describe(self) -> str | None:
        """Return one line on what was loaded and how it reads the target, after `bind`.

        Returns None if the settings already say it all.
        """
        lines = [part.describe() for part in self.proposers]
        return "; ".join(filter(None, lines)) or None

    def bind(self, target: CausalLM, num_slots: int) -> None:
        """Load what it drafts with, and allocate its state.

        Called before anything is decoded: first without slots, to forecast how much memory they
        will take, then for every engine that drafts with it.

        Raises:
            ValueError: If the target does not fit.
        """

    def foretell(
        self, target: CausalLM, texts: Sequence[Text], sampling: SamplingParams
    ) -> Foretold | None:
        """Return what texts of the target say about its drafts, after `bind`.

        Models hold no requests then. None foretells nothing.
        """
        parts = [part.foretell(target, texts, sampling) for part in self.proposers]
        return next(filter(None, parts), None)

    @property
    def foretells(self) -> bool:
        """Whether `foretell` returns anything."""
        return any(part.foretells for part in self.proposers)

    @property
    def shape_now(self) -> DraftShape:
        """What it drafts at present, by its settings or by `draft_as`."""
        return DraftShape(self.num_draft_tokens)

    def draft_as(self, shape: DraftShape) -> None:
        """Draft in a shape that is no larger than one of `shapes`, from the next step on."""
        self.chosen = shape
        self.num_draft_tokens = shape.num_draft_tokens

    def refuses_sampling(self, sampling: SamplingParams) -> str | None:
        """Return why it cannot draft for a request with such sampling, or None if it can.

        The engine refuses the request when it is submitted, so that no step fails because of it.
        """
        reasons = (part.refuses_sampling(sampling) for part in self.proposers)
        return next(filter(None, reasons), None)

    def start(self, rows: Sequence[RequestState], output: ModelOutput | None) -> None:
        """Set up requests that were admitted, for the first time or after a preemption.

        Args:
            output: Hidden states of `row.tokens[row.num_reused:-1]`, right-padded; None if every
                row has one token.
        """

    def num_reusable(self, slot: int, num_tokens: int) -> int:
        """Return of how many first tokens another request needs no hidden states in `start`.

        Args:
            slot: Of a request that runs or had it last, and whose first `num_tokens` tokens are
                the same.
        """
        return 0 if self.hidden_layers else num_tokens

    def reuse(self, slot: int, source: int, num_tokens: int) -> None:
        """Take over what the slot `source` holds of the first tokens, before `start`.

        Args:
            slot: Of the new request; may equal `source`.
            num_tokens: At most `num_reusable`; 0 forgets what the slot holds.
        """

    def lazy_prefill(self, rows: Sequence[RequestState]) -> int:
        """Prefill rows that are about to draft, for the first time or after steps without drafts.

        The time counts as prefill. It may do a part, so that a long prompt does not hold up the
        other requests; a row that `is_behind` afterwards drafts nothing in this step.

        Returns:
            The number of tokens that were prefilled.
        """
        return 0

    def is_behind(self, row: RequestState) -> bool:
        """Return whether a row cannot draft before more of it is prefilled lazily."""
        return False

    @abstractmethod
    def propose(self, batch: Batch, budget: Sequence[int]) -> Proposal:
        """Draft for every row, at most `budget[b]` tokens; 0 means none."""

    def readback(
        self, batch: Batch, proposal: Proposal, output: ModelOutput
    ) -> Sequence[Shaped[Tensor, "..."]]:
        """Return tensors that `observe` needs on the host, where they are `verdict.readback`.

        They come with the step's one transfer. Reading a tensor of the device in `observe` would
        wait for the device once more.
        """
        return ()

    def observe(
        self, batch: Batch, proposal: Proposal, output: ModelOutput, verdict: Verdict
    ) -> None:
        """Learn from what the target accepted.

        Args:
            batch: Already holds the new tokens.
            verdict: On the host.
        """

    def finish(self, slots: Sequence[int]) -> None:
        """Free the state of requests that ended, were preempted or never reached `start`.

        A preempted request will be started again.
        """

    def scrub(self, slots: Sequence[int]) -> None:
        """Clear caches of requests with NaN or infinite values, before others reuse them."""
        for part in self.proposers:
            part.scrub(slots)

    def reset(self) -> None:
        """Drop what was learnt from finished requests; called before every measured repeat."""


def drafts_of(proposer: Proposer, batch: Batch, budget: Sequence[int]) -> Proposal:
    """Return what the proposer drafts.

    Raises:
        InvalidProposalError: If that is no `Proposal`.
    """
    proposal = proposer.propose(batch, budget)
    if not isinstance(proposal, Proposal):
        kind = type(proposer)
        returned = "None" if proposal is None else f"a {type(proposal).__name__}"
        raise InvalidProposalError(
            f"{kind.__module__}.{kind.__qualname__}.propose returned {returned} and must return a "
            "specresearch.Proposal, such as Proposal.chain(token_ids, lengths) or, "
            "to draft nothing, Proposal.empty(batch.roots)"
        )
    return proposal


def is_own(proposer: Proposer) -> bool:
    """Return whether a proposer ships with the package, so that its proposals are tested."""
    return type(proposer).__module__.partition(".")[0] == __name__.partition(".")[0]


def number_or(num_draft_tokens: NumDrafts, largest: int) -> int:
    """Return the number, or the largest to choose from if it is `auto`."""
    return largest if num_draft_tokens == AUTO else check_num_draft_tokens(num_draft_tokens)


def check_num_draft_tokens(num_draft_tokens: int) -> int:
    """Return the number; raises ValueError unless it is positive."""
    if num_draft_tokens < 1:
        raise ValueError(
            f"proposer.num_draft_tokens={num_draft_tokens} must be at least 1; "
            "leave the proposer out to decode plainly"
        )
    return num_draft_tokens
