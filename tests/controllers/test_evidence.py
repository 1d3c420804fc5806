"""What a request has shown is seen beside what levels have shown, which differ more."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from specresearch.controllers.evidence import AskedStep, Evidence, RequestEvidence
from specresearch.controllers.scored_tree import ScoredTree
from specresearch.proposal import DraftForecast, Proposal, Topology
from tests.controllers.simulation import batch_of, record_of, rows_of

DEPTH, WEIGHT = 6, 10.0


def evidence_of(
    drafts: Sequence[tuple[int, int]],
    num_rows: int = 1,
    asked: int = DEPTH,
    *,
    counts_unmade: bool = False,
    finds_depth: bool = False,
) -> Evidence:
    """Return the evidence of steps whose rows all made and accepted the same numbers of drafts."""
    evidence = Evidence(DEPTH, 1e9, WEIGHT, counts_unmade=counts_unmade, finds_depth=finds_depth)
    requests = evidence.requests.select(batch_of(rows_of(num_rows)).rows)
    for drafted, accepted in drafts:
        record = record_of([drafted] * num_rows, [accepted] * num_rows)
        evidence.observe([AskedStep(record, requests, [asked] * num_rows)])
    return evidence


def test_a_request_like_the_run_is_expected_to_be_accepted_like_the_run() -> None:
    """A lookup finds nothing three times of four, and is then accepted five levels deep or six."""
    evidence = evidence_of([(0, 0), (0, 0), (0, 0), (6, 6), (0, 0), (0, 0), (0, 0), (6, 5)] * 40)
    rates = evidence.rates()
    assert rates[0] == pytest.approx(0.25, abs=0.02)
    assert rates[1:5].min() > 0.97
    assert rates[5] == pytest.approx(0.5, abs=0.02)
    (request,) = evidence.requests.selected
    assert request.num_expected / request.num_accepted == pytest.approx(1, abs=0.1)
    (survival,) = evidence.survival()
    np.testing.assert_allclose(survival, rates.cumprod(), rtol=0.15)


def test_a_drafter_that_finds_its_depth_shows_as_much_whatever_was_asked() -> None:
    """Deeper nodes than a trial asked for once seemed to come from nowhere, dozens a row."""
    drafts = [(0, 0), (1, 1), (6, 4), (6, 6)] * 40
    shallow = evidence_of(drafts, asked=1, finds_depth=True)
    deep = evidence_of(drafts)
    np.testing.assert_array_equal(shallow.nodes(), deep.nodes())
    np.testing.assert_array_equal(shallow.survival(), deep.survival())
    assert deep.nodes()[1:].max() < 0.55
    unaware = evidence_of(drafts, asked=1)
    assert unaware.nodes()[1:].min() > 10


@pytest.mark.parametrize(("num_accepted", "num_judged"), [(0.0, 20.0), (7.0, 10.0), (40.0, 40.0)])
def test_where_levels_are_alike_both_records_are_added(
    num_accepted: float, num_judged: float
) -> None:
    evidence = evidence_of([(6, 3)])
    evidence._accepted[:], evidence._tried[:], evidence._made[:] = 599.5, 999.0, 999.0
    rate = 0.6
    np.testing.assert_allclose(evidence.rates(), rate, atol=1e-3)
    (request,) = evidence.requests.selected
    request.num_accepted, request.num_judged = num_accepted, num_judged
    request.num_expected = rate * num_judged
    own = (num_accepted + WEIGHT * rate) / (num_judged + WEIGHT)
    np.testing.assert_allclose(evidence.survival()[0], own ** np.arange(1, DEPTH + 1), rtol=0.01)


def test_a_request_that_refuses_more_is_expected_to_refuse_more_in_every_level() -> None:
    evidence = evidence_of([(6, 0), (6, 5)] * 40)
    usual = evidence.survival()[0]
    (request,) = evidence.requests.selected
    request.num_accepted /= 2
    conditional = [
        survival / np.append(1.0, survival[:-1]) for survival in (evidence.survival()[0], usual)
    ]
    assert (conditional[0] < conditional[1]).all()
    odds = [rates / (1 - rates) for rates in conditional]
    np.testing.assert_allclose(odds[0] / odds[1], odds[0][0] / odds[1][0])


def test_steps_without_a_draft_make_none_forgotten() -> None:
    """A lookup alone makes few drafts, so that it would know hardly any."""
    evidence = Evidence(DEPTH, 0.2, WEIGHT)
    requests = evidence.requests.select(batch_of(rows_of(1)).rows)

    def observe(drafted: int, accepted: int, num: int) -> None:
        evidence.observe([AskedStep(record_of([drafted], [accepted]), requests, [DEPTH])] * num)

    observe(6, 6, 4)
    observe(0, 0, 40)
    made, accepted = evidence._shares()
    assert made[0] < 0.2
    assert accepted.min() > 0.85
    observe(6, 0, 4)
    assert evidence._shares()[1][0] < 0.3


def test_few_requests_are_remembered_for_more_steps() -> None:
    """Ten that draft together show in a step what one shows in ten."""
    rates = []
    for num_rows, times in ((1, 10), (10, 1), (20, 1)):
        evidence = Evidence(DEPTH, 4.0, WEIGHT)
        requests = evidence.requests.select(batch_of(rows_of(num_rows)).rows)
        for accepted, num in ((6, 8 * times), (0, 4 * times)):
            record = record_of([6] * num_rows, [accepted] * num_rows)
            evidence.observe([AskedStep(record, requests, [6] * num_rows)] * num)
        rates.append(evidence.rates()[0])
    assert rates[0] == pytest.approx(rates[1], abs=0.02)
    assert rates[1] == pytest.approx(rates[2], abs=0.02)  # many are not forgotten any sooner


def test_a_level_that_was_never_tried_is_like_what_was_made_of_the_one_before() -> None:
    """A lookup finds a token once in four steps; where it does, it would have found two."""
    rates = evidence_of([(0, 0), (0, 0), (0, 0), (1, 1)] * 40, asked=1).rates()
    assert rates[0] == pytest.approx(0.25, abs=0.02)
    assert rates[1:].min() > 0.95
    rates = evidence_of([(1, 0), (1, 0), (1, 0), (1, 1)] * 40, asked=1).rates()
    np.testing.assert_allclose(rates, 0.25, atol=0.02)


def test_an_unknown_request_is_like_the_run() -> None:
    evidence = evidence_of([(0, 0), (6, 6)] * 20)
    known = evidence.requests.select(batch_of(rows_of(1)).rows)
    assert list(known) == [RequestEvidence()]
    np.testing.assert_allclose(evidence.survival()[0], evidence.rates().cumprod())


def test_what_was_not_made_is_held_against_a_request_only_if_asked_for() -> None:
    """A lookup finds nothing for a while, as it does now and then."""
    drafts = [(0, 0), (0, 0), (0, 0), (6, 6)] * 80 + [(0, 0)] * 30
    usual, strict = evidence_of(drafts), evidence_of(drafts, counts_unmade=True)
    np.testing.assert_allclose(usual.rates(), strict.rates())
    np.testing.assert_allclose(usual.survival()[0], usual.rates().cumprod(), rtol=0.1)
    fresh, last = usual.rates()[0], strict.survival()[0, 0]
    assert last < 0.8 * fresh


def test_a_forecast_is_what_is_known_before_the_first_draft() -> None:
    """A lookup finds something in half of the steps, of which two thirds of the levels follow."""
    forecast = DraftForecast((0.4, 0.3, 0.2), (0.5, 0.5, 0.5), drafted=0.5)
    evidence = Evidence(DEPTH, 1e6, WEIGHT, forecast=forecast)
    requests = evidence.requests.select(batch_of(rows_of(1)).rows)
    np.testing.assert_allclose(evidence.rates().cumprod()[:3], forecast.survival, atol=0.03)
    np.testing.assert_allclose(evidence.nodes()[:3], 0.5, atol=0.05)
    for _ in range(200):
        evidence.observe([AskedStep(record_of([3], [0]), requests, [3])])
    assert evidence.rates()[0] < 0.05


def test_a_tree_that_was_verified_whole_says_nothing_of_those_that_are_chosen() -> None:
    """Of a tree of six nodes a path of two was accepted; then two of its nodes are chosen."""
    parents = torch.tensor([[-1, 0, 0, 1, 1, 3]])
    proposal = Proposal(
        torch.arange(6)[None],
        Topology.from_parents(parents),
        torch.tensor([6]),
        scores=torch.ones(1, 6),
    )
    tree = ScoredTree.of(proposal)
    record = replace(record_of([5], [2]), draft_depth=(3,), accepted_ranks=((0, 0),))
    evidence = Evidence(DEPTH, 1e6, WEIGHT)
    requests = evidence.requests.select(batch_of(rows_of(1)).rows)
    evidence.observe([AskedStep(record, requests, [3], (tree, tree.is_valid), is_whole=True)])
    assert not evidence._nodes.any()
    chosen = np.isin(np.arange(6), [0, 1, 3])
    record = replace(record, num_draft_tokens=(2,), draft_depth=(2,))
    evidence.observe([AskedStep(record, requests, [3], (tree, chosen))])
    assert evidence._nodes.tolist() == [1, 1, 0, 0, 0, 0]
