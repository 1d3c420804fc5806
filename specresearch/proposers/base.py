"""What every proposer is: all that the engine knows of one."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal

from specresearch.batch import Batch, RequestState
from specresearch.models.causal_lm import CausalLM, ModelOutput
from specresearch.proposal import DraftKind, Proposal, Verdict


class Proposer(ABC):
    """Guesses what the target will say next.

    A row keeps its `slot` for as long as its request runs: a proposer with state keeps it by slot.

    num_draft_tokens: the most drafts it proposes for a row in one step.
    num_probe_nodes: nodes beside these that are verified but never accepted, such as lookahead's window.
    kind: what its drafts may be. Where they branch, a budget counts nodes and may go deeper than the request has room for.
    hidden_layers: the target's hidden states that `start` and `observe` want, in the adapter's numbering.
    proposers: those that it is made of, if any.
    """

    num_draft_tokens: int = 0
    num_probe_nodes: int = 0
    kind: DraftKind = DraftKind()
    hidden_layers: tuple[int, ...] = ()
    proposers: "tuple[Proposer, ...]" = ()

    @property
    def max_nodes(self) -> int:
        """The most nodes it proposes for a row, root included."""
        return 1 + self.num_draft_tokens + self.num_probe_nodes

    @property
    def memory(self) -> Literal["cold", "warm"] | None:
        """What a request finds of those before it: nothing (cold), what they taught (warm). None: it could not be otherwise."""
        found = {part.memory for part in self.proposers}
        return "warm" if "warm" in found else "cold" if "cold" in found else None

    @property
    def compiled(self) -> bool:
        """A model of its has compiled passes, which compute every slot of a cache."""
        return any(part.compiled for part in self.proposers)

    def describe(self) -> str | None:
        """One line on what it has loaded and how it reads the target, once it is bound; None: its settings say it all."""
        told = [part.describe() for part in self.proposers]
        return "; ".join(line for line in told if line) or None

    def bind(self, target: CausalLM, num_slots: int) -> None:
        """Called once, before anything is decoded: allocate state, and refuse a target that does not fit."""

    def start(self, rows: Sequence[RequestState], output: ModelOutput | None) -> None:
        """Requests were admitted, for the first time or after a preemption. output: hidden states of `row.tokens[:-1]`,
        right-padded; None when every row has one token."""

    def lazy_prefill(self, rows: Sequence[RequestState]) -> int:
        """These rows are about to draft, for the first time or after steps in which they did not: read what was put off. Counts
        as prefill. Returns how many tokens were read."""
        return 0

    @abstractmethod
    def propose(self, batch: Batch, budget: Sequence[int]) -> Proposal:
        """Drafts for every row, at most `budget[b]` of them; 0 means none."""

    def observe(
        self, batch: Batch, proposal: Proposal, output: ModelOutput, verdict: Verdict
    ) -> None:
        """What became of the drafts. The verdict lies on the host; `batch` already holds the new tokens."""

    def finish(self, slots: Sequence[int]) -> None:
        """Requests left, were preempted (and will be started anew), or were interrupted before `start`: free their state."""

    def scrub(self, slots: Sequence[int]) -> None:
        """Numbers of these requests were NaN or infinite: leave none behind in caches that others will use."""
        for part in self.proposers:
            part.scrub(slots)

    def reset(self) -> None:
        """Forget what was learnt from requests that have left; a measurement calls it before every repeat."""


def is_own(proposer: Proposer) -> bool:
    """Whether a proposer is one of the package's own, whose proposals are tested and whose `memory` is known."""
    return type(proposer).__module__.partition(".")[0] == __name__.partition(".")[0]


def check_num_draft_tokens(num_draft_tokens: int) -> int:
    """Raises ValueError unless positive."""
    if num_draft_tokens < 1:
        raise ValueError(
            f"proposer.num_draft_tokens={num_draft_tokens} must be at least 1; leave the proposer out to decode plainly"
        )
    return num_draft_tokens
