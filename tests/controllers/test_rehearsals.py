"""Drafts that are made in plain steps, left out, and judged by the tokens that follow."""

from dataclasses import replace

import pytest
import torch
from shape_checks import unchecked
from simulation import batch_of, record_of, rows_of

from specresearch import Engine, SamplingParams
from specresearch.certification.targets import Toy
from specresearch.controllers import Goodput
from specresearch.controllers.evidence import AskedStep, RequestEvidence
from specresearch.controllers.rehearsal import LEVELS, Rehearsals
from specresearch.controllers.scored_tree import ScoredTree
from specresearch.metrics import StepRecord
from specresearch.metrics.times import StepTimes
from specresearch.proposal import Proposal, Topology
from specresearch.proposers import NGram, TokenRecycling

PARENTS = [-1, 0, 0, 1, 2]
TREE = [[7, 10, 11, 12, 13], [7, 20, 21, 22, 23], [7, 30, 31, 0, 0], [7, 0, 0, 0, 0]]
LENGTHS = (5, 5, 3, 1)


def tree(*, scored: bool = True) -> Proposal:
    scores = torch.full((4, 5), 0.5) if scored else None
    return Proposal(
        torch.tensor(TREE),
        Topology.from_parents(torch.tensor([PARENTS])),
        torch.tensor(LENGTHS),
        scores=scores,
        host_lengths=LENGTHS,
    )


def step_of(propose: float = 0.0) -> AskedStep:
    times = StepTimes(propose, 1.0, 0.0, 0.0, 1.0 + propose)
    record = record_of([0] * 4, [0] * 4, times)
    return AskedStep(record, [RequestEvidence() for _ in range(4)], [2] * 4)


def begun(share: float = 0.1) -> Rehearsals:
    rehearsals = Rehearsals(share)
    assert not rehearsals.takes(tree())  # a step that drafts, after which there can be some
    rehearsals.observe(step_of())
    return rehearsals


@pytest.mark.parametrize("scored", [True, False])
def test_what_follows_judges_the_drafts(scored: bool) -> None:
    """Both levels, the first alone, nothing, and nothing made; the second ends after one token."""
    rehearsals, rows = begun(), rows_of(4)
    assert rehearsals.begin(batch_of(rows), 0.05)
    assert rehearsals.takes(tree(scored=scored))
    plain = rehearsals.trim(tree(scored=scored))
    assert plain.token_ids.tolist() == [[7]] * 4
    assert plain.host_lengths == (1,) * 4
    rehearsals.observe(step_of(0.05))
    for row, tokens in zip(rows, ([11, 13, 1], [20], [9, 31, 1], [5, 6, 7]), strict=True):
        row.tokens += tokens
    for _ in range(LEVELS):
        assert rehearsals.judged() is None
        rehearsals.begin(batch_of(rows), 0.0)
        assert not rehearsals.is_now  # one after the other
        rehearsals.observe(step_of())
    judged = rehearsals.judged()
    assert judged is not None
    assert judged.record.accepted_ranks == ((1, 0), (0,), (), ())
    assert judged.record.num_accepted_tokens == (2, 1, 0, 0)
    assert judged.record.num_new_tokens == (3, 1, 1, 1)
    assert judged.record.num_draft_tokens == (4, 4, 2, 0)
    assert judged.record.draft_depth == (2, 2, 1, 0)
    assert (judged.chosen is not None) == scored
    assert rehearsals.judged() is None


def test_they_take_no_more_than_their_share() -> None:
    rehearsals, rows, taken, total = begun(0.01), rows_of(4), 0.0, 0.0
    for _ in range(1000):
        propose = 0.0
        if rehearsals.begin(batch_of(rows), 0.05):
            rehearsals.takes(tree())
            rehearsals.trim(tree())
            propose = 0.05
        rehearsals.observe(step_of(propose))
        rehearsals.judged()
        taken, total = taken + propose, total + 1 + propose
    assert 0.009 < taken / total <= 0.01


def test_drafts_that_were_drawn_are_not_rehearsed() -> None:
    """They may be accepted though another token followed, or the other way round."""
    rehearsals = begun()
    drawn = replace(tree(), draft_probs=torch.full((4, 5, 40), 1 / 40))
    assert rehearsals.begin(batch_of(rows_of(4)), 0.0)
    assert rehearsals.takes(drawn)
    assert rehearsals.trim(drawn).host_lengths == (1,) * 4
    rehearsals.observe(step_of())
    assert not rehearsals.begin(batch_of(rows_of(4)), 0.0)


class Dear(Goodput):
    """Sees steps in which a verified node takes as long as several plain steps."""

    def __init__(self) -> None:
        super().__init__(explore=0.05)
        self.num_rehearsed = self.num_verified = 0

    def observe(self, record: StepRecord) -> None:
        num_drafts = sum(record.num_draft_tokens)
        is_start = self._schedule.step < len(self._first)
        self.num_verified += 0 if is_start else num_drafts
        self.num_rehearsed += self._rehearsals.is_now
        propose, verify = 0.01 * max(self._asked), 1.0 + 3.0 * num_drafts
        times = StepTimes(propose, verify, 0.0, 0.0, propose + verify)
        super().observe(replace(record, times=times))


@pytest.mark.parametrize("name", ["ngram", "token_recycling"])
def test_drafts_that_are_never_verified_are_judged_as_if_they_were(name: str) -> None:
    """A toy goes round in circles, so that lookups are right though they never pay."""
    toy, controller = Toy(4, seed=4), Dear()
    proposer = NGram(3) if name == "ngram" else TokenRecycling.toy(toy.target(), 1)
    engine = Engine(toy.target(), proposer, controller=controller, max_batch_size=4)
    sampling = SamplingParams(temperature=0.0, max_new_tokens=60, ignore_eos=True)
    with unchecked():
        for _ in engine.generate([(1, 2), (2, 3), (3, 1), (1, 1)] * 4, sampling):
            pass
    assert controller.num_rehearsed > 10
    assert controller.num_verified < controller.num_rehearsed
    controller.trace()
    if name == "ngram":
        assert controller._evidence.rates()[0] > 0.5
    else:  # what would not be verified is not counted, but its score is learned
        assert controller._calibration.rates[0].max() > 0.5


def test_the_likeliest_nodes_are_a_path_from_each_root() -> None:
    scores = torch.tensor([[1.0, 0.3, 0.6, 0.9, 0.2]]).expand(4, -1)
    scored = ScoredTree.of(replace(tree(), scores=scores))
    kept = scored.likeliest().reshape(4, 5)
    assert kept[0].tolist() == [True, False, True, False, True]
    assert kept[2].tolist() == [True, False, True, False, False]  # two of its nodes are padding
    assert kept[3].tolist() == [True, False, False, False, False]
