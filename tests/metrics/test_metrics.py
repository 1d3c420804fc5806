from dataclasses import asdict, replace

import pytest
import torch

from specresearch import metrics
from specresearch.batch import Batch, Delivery, HostDrafts
from specresearch.metrics import Counts, RequestRecord, StepRecord
from specresearch.metrics.times import StepTimes
from specresearch.proposal import Proposal, Topology, Verdict
from specresearch.request import Request, RequestState

# drafted, depth, accepted, new: two chains of 3, no drafts, a chain of 1, a tree of 6 and depth 2
STEPS = [(3, 3, 3, 4), (3, 3, 1, 2), (0, 0, 0, 1), (1, 1, 0, 1), (6, 2, 1, 2)]


@pytest.fixture
def counts() -> Counts:
    result = Counts()
    for step in STEPS:
        result.add_step(*step)
    return result


class TestCounts:
    def test_totals(self, counts: Counts) -> None:
        assert counts.num_target_forwards == 5
        assert counts.num_drafts == 4
        assert counts.num_draft_tokens == 13
        assert counts.num_accepted_tokens == 5
        assert counts.num_generated_tokens == 10

    def test_rates(self, counts: Counts) -> None:
        assert counts.draft_acceptance_rate == 5 / 13
        assert counts.mean_acceptance_length == 1 + 5 / 4
        assert counts.tokens_per_target_forward == 10 / 5

    def test_acceptance_by_position(self, counts: Counts) -> None:
        assert counts.acceptance_at_position == [3 / 4, 1 / 4, 1 / 4]
        assert counts.conditional_acceptance_at_position == [3 / 4, 1 / 3, 1 / 1]

    def test_a_deterministic_rule_expected_what_happened(self, counts: Counts) -> None:
        assert counts.expected_acceptance_at_position == counts.conditional_acceptance_at_position

    def test_expected_acceptance_is_averaged_over_the_drafts_that_were_reached(self) -> None:
        counts = Counts()
        counts.add_step(2, 2, 1, 2, [0.8, 0.5])
        counts.add_step(2, 2, 0, 1, [0.4, 0.9])
        assert counts.expected_acceptance_at_position == pytest.approx([0.6, 0.5])
        assert counts.expected_acceptance == pytest.approx((0.8 + 0.5 + 0.4) / 3)

    def test_unconditional_rates_add_up_to_the_mean_acceptance_length(self, counts: Counts) -> None:
        assert 1 + sum(counts.acceptance_at_position) == pytest.approx(
            counts.mean_acceptance_length
        )

    def test_adding_up_requests_is_adding_up_their_steps(self, counts: Counts) -> None:
        parts = []
        for step in STEPS:
            parts.append(Counts())
            parts[-1].add_step(*step)
        assert Counts.total(parts) == counts

    def test_nothing_yet(self) -> None:
        empty = Counts.total([])
        assert empty == Counts()
        assert (
            empty.draft_acceptance_rate,
            empty.mean_acceptance_length,
            empty.tokens_per_target_forward,
        ) == (0, 1, 0)


def test_every_figure_has_a_definition() -> None:
    for name in (
        "draft_acceptance_rate",
        "mean_acceptance_length",
        "tokens_per_target_forward",
        "num_drafts",
    ):
        assert hasattr(Counts(), name)
        assert name in metrics.DEFINITIONS


def test_step_record_counts_valid_nodes_and_their_depth() -> None:
    rows = [RequestState(Request([1, 2], id=str(i)), i, 0, frozenset(), 50) for i in range(3)]
    for row, new in zip(rows, (3, 1, 1), strict=True):
        row.append([5] * new, None)
    topology = Topology.from_parents(torch.tensor([[-1, 0, 0, 1, 3]]))
    proposal = Proposal(torch.zeros(3, 5, dtype=torch.long), topology, torch.tensor([5, 3, 1]))
    path = torch.tensor([[0, 1, 3, -1], [0, -1, -1, -1], [0, -1, -1, -1]])
    verdict = Verdict(path, torch.tensor([2, 0, 0]), torch.zeros(3, dtype=torch.long))
    times = StepTimes(0.1, 0.2, 0.05, 0.05, 0.5)
    record = StepRecord.of(
        Batch(rows, torch.device("cpu"), 9),
        proposal,
        Delivery(verdict, (3, 1, 1), (5, 3, 1), HostDrafts.of(proposal)),
        times,
    )
    assert record.request_ids == ("0", "1", "2")
    assert record.num_draft_tokens == (4, 2, 0)
    assert record.draft_depth == (3, 1, 0)
    assert record.num_accepted_tokens == (2, 0, 0)
    assert record.num_new_tokens == (3, 1, 1)
    assert record.context == (1, 1, 1)
    assert record.num_nodes == 5
    assert times.host == pytest.approx(0.1)


ENDS = frozenset({9})


def step_of(
    proposal: Proposal,
    path: list[list[int]],
    accepted: list[int],
    new: list[int],
    ends: frozenset[int] = ENDS,
) -> StepRecord:
    rows = [RequestState(Request([1, 2], id=str(i)), i, 0, ends, 50) for i in range(len(new))]
    for row, num in zip(rows, new, strict=True):
        row.tokens.extend([5] * num)
    verdict = Verdict(
        torch.tensor(path), torch.tensor(accepted), torch.zeros(len(new), dtype=torch.long)
    )
    lengths = tuple(proposal.lengths.tolist())
    delivery = Delivery(verdict, tuple(new), lengths, HostDrafts.of(proposal))
    batch = Batch(rows, torch.device("cpu"), 10)
    return StepRecord.of(batch, proposal, delivery, StepTimes(0.1, 0.2, 0.05, 0.05, 0.5))


def test_what_lies_behind_the_end_of_an_output_is_not_judged() -> None:
    """Accepted end token, rejected end token, stop string at the third token, no end."""
    tokens = torch.tensor([[0, 1, 9, 3, 4], [0, 1, 9, 3, 4], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4]])
    path = [[0, 1, 2, -1, -1], [0, 1, -1, -1, -1], [0, 1, 2, 3, -1], [0, 1, 2, -1, -1]]
    proposal = Proposal.chain(tokens, torch.tensor([5, 5, 5, 5]))
    record = step_of(proposal, path, [2, 1, 3, 2], [2, 2, 3, 3])
    assert record.num_draft_tokens == (4, 4, 4, 4)
    assert record.num_judged_tokens == (2, 2, 3, 4)
    assert record.judged_depth == (2, 2, 3, 3)
    ignoring = step_of(proposal, path[1:2] * 4, [1] * 4, [2] * 4, ends=frozenset())
    assert ignoring.num_judged_tokens == (4, 4, 4, 4)


def test_in_a_tree_the_end_of_an_output_judges_nothing_below_it() -> None:
    """The first row ends with node 1, the second continues to node 4.

    The tree is 0 -> 1 (an end token) and 2, 1 -> 3, 2 -> 4, 4 -> 5.
    """
    topology = Topology.from_parents(torch.tensor([[-1, 0, 0, 1, 2, 4]]))
    tokens = torch.tensor([[0, 9, 2, 3, 4, 5]] * 2)
    proposal = Proposal(tokens, topology, torch.tensor([6, 5]))
    record = step_of(proposal, [[0, 1, -1, -1], [0, 2, 4, -1]], [1, 2], [1, 3])
    assert record.num_judged_tokens == (
        2,
        3,
    )  # of the first row nodes 1 and 2 alone; of the second not node 3
    assert record.num_children == ((2, 0), (2, 1, 0))
    assert record.judged_depth == (
        1,
        2,
    )  # node 4 has no child that the second row could have been given


def test_a_perfect_draft_reads_one_at_every_position() -> None:
    counts = Counts()
    counts.add_step(4, 4, 4, 5, num_judged=4, judged_depth=4)
    counts.add_step(
        4, 4, 2, 2, num_judged=2, judged_depth=2
    )  # the output ends with its second draft
    counts.add_step(1, 1, 1, 2, num_judged=1, judged_depth=1)
    assert counts.draft_acceptance_rate == 1.0
    assert counts.acceptance_at_position == counts.conditional_acceptance_at_position == [1.0] * 4
    assert (counts.num_draft_tokens, counts.num_judged_tokens) == (9, 7)


def test_counts_of_rows_that_do_not_tell_what_was_judged() -> None:
    counts = Counts(2, 2, 6, 3, 5, [2, 1], [2, 1], [2.0, 1.0], num_unjudged_tokens=2)
    row = asdict(counts)
    assert Counts.from_row(row) == counts
    del row["num_unjudged_tokens"]
    assert Counts.from_row(row) == replace(counts, num_unjudged_tokens=0)
    del row["reached"]
    with pytest.raises(KeyError):
        Counts.from_row(row)


def test_request_record_times() -> None:
    row = RequestState(Request([1], id="a"), 0, 0, frozenset(), 50, arrival_time=10.0)
    row.append([1, 2, 3, 4], None)
    row.finish_reason = "length"
    row.token_times = [10.5, 11.0, 11.0, 12.0]
    record = RequestRecord.of(row, Counts())
    assert record.ttft == 0.5
    assert record.tpot == 0.5
    assert record.itl == (0.5, 0.0, 1.0)
    assert record.e2el == 2.0
