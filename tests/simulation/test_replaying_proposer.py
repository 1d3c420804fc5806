"""The replaying proposer and its rule: real proposals, which the real checks pass."""

import pytest
import torch

from specresearch.batch import Batch
from specresearch.clock import ManualClock
from specresearch.controllers import Confidence
from specresearch.proposal import DraftKind
from specresearch.request import RequestState
from specresearch.simulation import Linear
from specresearch.simulation.acceptance import AcceptanceReplay, Drafted
from specresearch.simulation.machine import Machine
from specresearch.simulation.models import END, VOCAB_SIZE
from specresearch.simulation.positions import Estimates
from specresearch.simulation.proposer import ReplayedProposal, ReplayingProposer
from specresearch.simulation.replays import ReplayedOutput, ReplayedRequest, replayed_sampling
from specresearch.simulation.rule import ReplayingRule

SCORED = DraftKind(sampled=True, scored=True)


class Says(AcceptanceReplay):
    """Drafts the same in every step."""

    def __init__(self, drafted: Drafted) -> None:
        self.drafted = drafted

    def step(self, position: int, budget: int) -> Drafted:
        return self.drafted


def batch_of(*drafts: Drafted, num_tokens: int = 20) -> Batch:
    rows = []
    for slot, drafted in enumerate(drafts):
        output = ReplayedOutput(Says(drafted), 20, Estimates([0.9, 0.1, 0.9] * 7, [0.5] * 20))
        request = ReplayedRequest(
            [0, 0], replayed_sampling(99), str(slot), output=output, num_tokens=num_tokens
        )
        rows.append(RequestState(request, slot, 0, frozenset(), 200))
    return Batch(rows, torch.device("cpu"), VOCAB_SIZE)


def machine() -> Machine:
    return Machine(Linear(1.0), ManualClock(), can_draft=True)


def proposed(batch: Batch, budget: list[int], kind: DraftKind) -> ReplayedProposal:
    proposer = ReplayingProposer(machine(), kind, 9, score_reader="Confidence")
    proposal = proposer.propose(batch, budget)
    proposal.check(batch.roots, budget, kind, VOCAB_SIZE)
    return proposal


def test_chains_and_trees_are_valid_proposals() -> None:
    chains = batch_of(Drafted(3, 3, 1), Drafted(0, 0, 0), Drafted(2, 2, 2))
    proposal = proposed(chains, [3, 0, 2], SCORED)
    assert proposal.topology.is_chain
    assert proposal.lengths.tolist() == [4, 1, 3]
    trees = batch_of(Drafted(5, 2, 1), Drafted(0, 0, 0), Drafted(3, 1, 1))
    proposal = proposed(trees, [5, 0, 3], DraftKind(trees=True, scored=True))
    depths = proposal.topology.depth.masked_fill(~proposal.acceptable, 0)
    assert depths.amax(1).tolist() == [2, 0, 1]


def test_the_rule_accepts_what_was_recorded_and_was_not_cut() -> None:
    batch = batch_of(Drafted(3, 3, 3), Drafted(3, 3, 1))
    proposal = proposed(batch, [3, 3], SCORED)
    rule = ReplayingRule(machine())
    logits = torch.zeros((*proposal.token_ids.shape, VOCAB_SIZE))
    verdict = rule(proposal, logits, batch.sampling)
    assert verdict.num_accepted.tolist() == [3, 1]
    assert verdict.path.tolist() == [[0, 1, 2, 3], [0, 1, -1, -1]]
    cut = Confidence(0.4).trim(proposal)  # behind the second draft, of score 0.1
    assert cut.lengths.tolist() == [3, 3]
    verdict = rule(cut, logits[:, :3], batch.sampling)
    assert verdict.num_accepted.tolist() == [2, 1]
    assert verdict.expected is not None
    assert verdict.expected.tolist() == [[0.5, 0.5], [0.5, 0.5]]


@pytest.mark.parametrize("num_tokens", [1, 2, 3, 4])
def test_an_output_ends_after_its_tokens(num_tokens: int) -> None:
    """With the target's own token, or with an accepted draft."""
    batch = batch_of(Drafted(3, 3, 2), num_tokens=num_tokens)
    proposal = proposed(batch, [3], SCORED)
    logits = torch.zeros((*proposal.token_ids.shape, VOCAB_SIZE))
    verdict = ReplayingRule(machine())(proposal, logits, batch.sampling)
    delivery = batch.append(proposal, verdict)
    assert delivery.num_new == (min(num_tokens, 3),)
    has_ended = num_tokens <= 3
    assert (batch.rows[0].finish_reason == "stop") == has_ended
    assert (batch.rows[0].tokens[-1] == END) == has_ended


def test_scores_that_nobody_recorded_are_refused() -> None:
    batch = batch_of(Drafted(1, 1, 1))
    output = ReplayedOutput(Says(Drafted(1, 1, 1)), 20)
    request = ReplayedRequest([0], replayed_sampling(9), output=output, num_tokens=9)
    batch.rows[0].request = request
    proposer = ReplayingProposer(machine(), SCORED, 9, score_reader="Confidence")
    with pytest.raises(ValueError, match="Confidence reads the drafter's scores"):
        proposer.propose(batch, [1])
    unread = ReplayingProposer(machine(), SCORED, 9).propose(batch, [1])
    assert unread.scores is None
