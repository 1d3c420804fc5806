from collections.abc import Sequence

import torch

from specresearch.batch import Batch
from specresearch.proposal import Proposal, Verdict
from specresearch.request import Request, RequestState
from specresearch.sampling import SamplingParams


def state(prompt: Sequence[int] = (1, 2), **sampling) -> RequestState:
    return RequestState(
        Request(prompt, SamplingParams(**sampling)),
        slot=0,
        seed=0,
        eos_token_ids=frozenset(),
        max_total_tokens=100,
    )


def batch_of(*rows: RequestState) -> Batch:
    return Batch(rows, torch.device("cpu"), vocab_size=40)


def test_roots_and_room() -> None:
    batch = batch_of(state([5, 6], max_new_tokens=3), state([7], max_new_tokens=1))
    assert batch.roots.tolist() == [[6], [7]]
    assert batch.room == (2, 0)


def test_append_brings_back_what_was_delivered() -> None:
    """Row 0 is cut inside its accepted run, row 1 gets all, row 2's first draft is rejected."""
    rows = (state(max_new_tokens=2), state(), state())
    proposal = Proposal.chain(torch.tensor([[2, 11, 12, 13]] * 3), torch.tensor([4, 4, 3]))
    path = torch.tensor([[0, 1, 2, 3], [0, 1, 2, -1], [0, -1, -1, -1]])
    delivery = batch_of(*rows).append(
        proposal, Verdict(path, torch.tensor([3, 2, 0]), torch.tensor([20, 21, 22]))
    )
    assert [row.output_ids for row in rows] == [[11, 12], [11, 12, 21], [22]]
    assert delivery.num_new == (2, 3, 1)
    assert delivery.lengths == (4, 4, 3)
    assert delivery.verdict.num_accepted.tolist() == [2, 2, 0]
    assert [len(row.token_times) for row in rows] == [2, 3, 1]


def test_append_reads_tokens_along_a_tree_path() -> None:
    row = state()
    proposal = Proposal.chain(torch.tensor([[2, 11, 12, 13, 14]]), torch.tensor([5]))
    batch_of(row).append(
        proposal, Verdict(torch.tensor([[0, 2, 4]]), torch.tensor([2]), torch.tensor([9]))
    )
    assert row.output_ids == [12, 14, 9]


def test_penalty_counts_separate_prompt_and_output() -> None:
    row = state([1, 1, 2], presence_penalty=1.0)
    row.append([2, 3, 3], None)
    sampling = batch_of(row).sampling
    assert sampling.prompt_counts is not None
    assert sampling.output_counts is not None
    assert sampling.prompt_counts[0, :5].tolist() == [0, 2, 1, 0, 0]
    assert sampling.output_counts[0, :5].tolist() == [0, 0, 1, 2, 0]
    assert sampling.positions == [3]
