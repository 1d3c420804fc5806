"""Drafts that are not verified: the tokens that follow show what they would have yielded."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from specresearch.batch import Batch
from specresearch.controllers.evidence import AskedStep
from specresearch.controllers.scored_tree import ScoredTree
from specresearch.controllers.time_account import TimeAccount
from specresearch.proposal import Proposal
from specresearch.readback import Readback
from specresearch.request import RequestState

LEVELS = 3  # of a rehearsal, which is judged after as many steps


@dataclass(frozen=True)
class _Drafts:
    """What a plain step drafted, on the host.

    Attributes:
        rows: Whose outputs will show which drafts were right.
        known: The tokens that each of them had, the root included.
        token_ids: Of the valid nodes of each row, the root included.
        parents: Of these nodes; -1 for roots.
        tree: The same with scores; None without.
    """

    rows: Sequence[RequestState]
    known: Sequence[int]
    token_ids: Sequence[Sequence[int]]
    parents: Sequence[Sequence[int]]
    tree: ScoredTree | None

    @staticmethod
    def of(rows: Sequence[RequestState], proposal: Proposal) -> "_Drafts":
        readback = Readback()
        wanted = [proposal.token_ids, proposal.topology.parents, proposal.lengths]
        fetched = readback.add_all(wanted)
        readback.fetch()
        token_ids, parents, lengths = (part.values.numpy() for part in fetched)
        parents = np.broadcast_to(parents, token_ids.shape)
        widths = lengths.tolist()
        return _Drafts(
            rows,
            [len(row.tokens) for row in rows],
            [ids[:width].tolist() for ids, width in zip(token_ids, widths, strict=True)],
            [above[:width].tolist() for above, width in zip(parents, widths, strict=True)],
            None if proposal.scores is None else ScoredTree.of(proposal),
        )

    def accepted_ranks(self, b: int) -> list[int]:
        """Return the ranks, among their siblings, of the drafts of a row that came true."""
        node, ranks = 0, list[int]()
        for token in self.rows[b].tokens[self.known[b] :]:
            children = [i for i, parent in enumerate(self.parents[b]) if i and parent == node]
            tokens = [self.token_ids[b][child] for child in children]
            if token not in tokens:
                break
            ranks.append(tokens.index(token))
            node = children[ranks[-1]]
        return ranks

    def num_followed(self, b: int) -> int:
        return len(self.rows[b].tokens) - self.known[b]

    def depth(self, b: int) -> int:
        depths = [0]
        for parent in self.parents[b][1:]:
            depths.append(depths[parent] + 1)
        return max(depths)


class Rehearsals:
    """Drafts in a plain step now and then, all of which are left out before verification.

    Where drafting is cheap and verification is not, that shows whose drafts would be accepted by
    now, for a fraction of what a trial costs. The output keeps its distribution: that drafts are
    left out depends on nothing that was drafted.

    Args:
        share: Of the time that they may take.

    Attributes:
        is_possible: The last drafts were point masses, of known tokens.
        is_now: This step is a rehearsal.
    """

    def __init__(self, share: float) -> None:
        self.is_possible = self.is_now = False
        self._account = TimeAccount(share, 0.0)
        self._rows: Sequence[RequestState] = ()
        self._drafts: _Drafts | None = None
        self._step: AskedStep | None = None
        self._num_steps = 0  # since the last rehearsal

    def begin(self, batch: Batch, seconds: float) -> bool:
        """Return whether drafts that take so long may be made in this step."""
        is_free = self.is_possible and self._step is None
        self.is_now = is_free and seconds <= self._account.allowance
        self._rows = batch.rows
        return self.is_now

    def takes(self, proposal: Proposal) -> bool:
        """Return whether this step is a rehearsal; see from the drafts if there can be any."""
        if proposal.topology.num_nodes > 1:
            is_certain = proposal.draft_probs is None and proposal.probe is None
            self.is_possible = is_certain and proposal.has_tokens
        return self.is_now

    def trim(self, proposal: Proposal) -> Proposal:
        """Keep the drafts in mind, and return the proposal without any."""
        self._drafts = _Drafts.of(self._rows, proposal) if self.is_possible else None
        return Proposal.empty(proposal.token_ids[:, :1])

    def observe(self, step: AskedStep) -> None:
        """Count a step, and keep that of a rehearsal until it can be judged."""
        times = step.record.times
        self._account.observe(times.total, times.propose if self.is_now else 0.0)
        self._num_steps += 1
        if self.is_now and self._drafts is not None:
            self._step, self._num_steps = step, 0

    def judged(self) -> AskedStep | None:
        """Return the last rehearsal as if all had been verified, once enough tokens followed."""
        step, drafts = self._step, self._drafts
        if step is None or drafts is None or self._num_steps < LEVELS:
            return None
        self._step = self._drafts = None
        rows = range(len(drafts.rows))
        ranks = tuple(tuple(drafts.accepted_ranks(b)) for b in rows)
        num_new = (len(each) + (len(each) < drafts.num_followed(b)) for b, each in enumerate(ranks))
        record = replace(
            step.record,
            num_draft_tokens=tuple(len(ids) - 1 for ids in drafts.token_ids),
            draft_depth=tuple(drafts.depth(b) for b in rows),
            num_accepted_tokens=tuple(map(len, ranks)),
            num_new_tokens=tuple(num_new),
            accepted_ranks=ranks,
        )
        chosen = None if drafts.tree is None else (drafts.tree, drafts.tree.is_valid)
        return replace(step, record=record, chosen=chosen)
