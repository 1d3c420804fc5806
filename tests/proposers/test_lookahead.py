import copy
from collections.abc import Sequence

import pytest
import torch
from tiny_models import VOCAB, build

from specresearch import CausalLM, Engine, Request, SamplingParams, Step
from specresearch.batch import Batch
from specresearch.metrics import StepRecord
from specresearch.proposers import Lookahead
from specresearch.proposers.draft_shape import DraftShape
from specresearch.proposers.lookahead import NGramPool
from specresearch.request import RequestState

MODEL = build("llama", seed=1)
PROMPTS = [(5,), (1, 2, 3, 4, 5, 6, 7), (8, 8), (3, 1, 4, 1, 5)]


@pytest.fixture
def target() -> CausalLM:
    return CausalLM(copy.deepcopy(MODEL), max_len=64)


def state(tokens: Sequence[int], slot: int) -> RequestState:
    return RequestState(Request(tokens, SamplingParams()), slot, 0, frozenset(), 100)


def started(rows: Sequence[RequestState], **settings: int) -> tuple[Lookahead, Batch]:
    proposer = Lookahead(**settings)
    proposer.start(rows, None)
    return proposer, Batch(rows, torch.device("cpu"), VOCAB)


class TestPool:
    def test_the_latest_ngrams_come_first_and_the_oldest_are_evicted(self) -> None:
        pool = NGramPool(2)
        for ngram in ((1, 2, 3), (1, 4, 5), (1, 2, 3), (1, 6, 7), (2, 9, 9)):
            pool.add(ngram)
        assert list(pool.continuations(1)) == [(6, 7), (2, 3)]
        assert list(pool.continuations(2)) == [(9, 9)]
        assert list(pool.continuations(3)) == []


class TestProposal:
    def test_each_probe_sees_the_oldest_guesses_before_it_and_its_own_diagonal(self) -> None:
        rows = [state([1, 2, 3, 4, 5], 0), state([9], 1)]
        proposer, batch = started(rows, window_size=3, ngram_size=4, num_ngrams=2)
        for ngram in ((5, 6, 7, 8), (5, 6, 9, 8)):
            proposer._requests[0].pool.add(ngram)
        proposal = proposer.propose(batch, [6, 6])
        window, first = proposer._requests[0].window, proposal.topology.num_nodes - 9
        assert proposal.probe is not None
        assert proposal.probe.nonzero()[:, 1].tolist() == list(range(first, first + 9))
        for level in range(3):
            for column in range(3):
                node = first + 3 * level + column
                path = proposal.topology.ancestors[0, node].nonzero()[:, 0]
                visible = [
                    *window[0][: column + 1],
                    *(guesses[column] for guesses in window[1 : level + 1]),
                ]
                assert proposal.token_ids[0, path].tolist() == [5, *visible]
                assert int(proposal.topology.depth[0, node]) == 1 + column + level

    def test_ngrams_with_a_common_prefix_share_nodes(self) -> None:
        proposer, batch = started(
            [state([5], 0), state([5], 1)], window_size=1, ngram_size=4, num_ngrams=3
        )
        for ngram in ((5, 1, 2, 3), (5, 1, 4, 3), (5, 2, 2, 2)):
            proposer._requests[0].pool.add(ngram)
        proposal = proposer.propose(batch, [9, 9])
        assert proposal.lengths.tolist() == [9, 1]
        assert proposal.token_ids[0, 1:9].tolist() == [2, 2, 2, 1, 4, 3, 2, 3]
        assert proposal.topology.parents[0, 1:9].tolist() == [0, 1, 2, 0, 4, 5, 4, 7]
        assert not bool(proposal.acceptable[1, 1:].any())

    @pytest.mark.parametrize("budget", [1, 4, 8])
    def test_the_budget_counts_drafts_but_not_probes(self, budget: int) -> None:
        proposer, batch = started(
            [state([5], 0), state([5], 1)], window_size=2, ngram_size=4, num_ngrams=3
        )
        for ngram in ((5, 1, 2, 3), (5, 1, 4, 3), (5, 2, 2, 2)):
            proposer._requests[0].pool.add(ngram)
        proposal = proposer.propose(batch, [budget, 0])
        assert proposal.lengths.tolist() == [1 + budget, 1]
        assert proposal.topology.num_nodes == 1 + budget + 6

    def test_a_budget_of_0_is_plain_decoding(self) -> None:
        proposer, batch = started([state([5], 0)])
        assert proposer.propose(batch, [0]).token_ids.tolist() == [[5]]


def plain_argmax(tokens: Sequence[int]) -> int:
    with torch.no_grad():
        return int(MODEL(torch.tensor([list(tokens)])).logits[0, -1].argmax())


def test_guesses_are_the_targets_tokens_after_the_window(target: CausalLM) -> None:
    """Guesses equal plain forwards after the window; every n-gram of the pool ends in one."""
    proposer = Lookahead(window_size=3, ngram_size=4, num_ngrams=4)
    engine = Engine(target, proposer, max_batch_size=2)
    for prompt in PROMPTS[:2]:
        engine.submit(Request(prompt, SamplingParams(max_new_tokens=40)))
    engine.step()
    for _ in range(4):
        rows = engine.scheduler.running
        before = [
            (list(row.tokens), [list(level) for level in proposer._requests[row.slot].window])
            for row in rows
        ]
        engine.step()
        for row, (tokens, window) in zip(rows, before, strict=True):
            request = proposer._requests[row.slot]
            newest = [
                plain_argmax(
                    [*tokens, *window[0][: column + 1], *(level[column] for level in window[1:])]
                )
                for column in range(3)
            ]
            assert request.window == [*window[1:], newest]
            for ngram in zip(*window, newest, strict=True):
                assert ngram[1:] in list(request.pool.continuations(ngram[0]))
    engine.abort()


def counts(
    target: CausalLM, prompts: Sequence[Sequence[int]], batch_size: int
) -> list[tuple[int, int, int]]:
    records: list[StepRecord] = []
    engine = Engine(
        target,
        Lookahead(4, 3, 4),
        max_batch_size=batch_size,
        observers=[lambda step: records.append(step.record)],
    )
    requests = [
        Request(p, SamplingParams(max_new_tokens=30), str(i)) for i, p in enumerate(prompts)
    ]
    outputs = sorted(engine.generate(requests), key=lambda output: output.id)
    assert all(n <= 8 for record in records for n in record.num_draft_tokens)
    assert not engine.proposer._requests  # type: ignore[attr-defined]
    result = [output.record.counts for output in outputs]
    return [(c.num_target_forwards, c.num_draft_tokens, c.num_accepted_tokens) for c in result]


def test_a_request_takes_the_same_steps_in_any_batch(target: CausalLM) -> None:
    together = counts(target, PROMPTS, 3)
    assert together == [counts(target, [prompt], 1)[0] for prompt in PROMPTS]
    assert sum(accepted for _, _, accepted in together) > 10


def test_a_reused_slot_starts_with_an_empty_pool() -> None:
    proposer, _ = started([state([5], 0)])
    proposer._requests[0].pool.add((5, 1, 2, 3, 4))
    proposer.finish([0])
    row = state([5, 6, 5], 0)
    proposer.start([row], None)
    assert proposer.propose(Batch([row], torch.device("cpu"), VOCAB), [9]).lengths.tolist() == [1]


def test_fewer_drafts_use_as_small_a_share_of_the_window() -> None:
    rows = [state([5, 6, 7, 8], 0)]
    proposer, batch = started(rows, window_size=4, ngram_size=3, num_ngrams=4, num_draft_tokens=3)
    assert proposer.num_draft_tokens == 3
    assert proposer.num_probe_nodes == 2 * 2
    proposal = proposer.propose(batch, [3])
    assert proposal.probe is not None
    assert int(proposal.probe.sum()) == 4


def test_output_and_memory_survive_shapes_that_change_from_step_to_step(target: CausalLM) -> None:
    sampling = SamplingParams(max_new_tokens=30)
    plain = [output.token_ids for output in Engine(target).generate(PROMPTS, sampling)]
    proposer = Lookahead(window_size=4, ngram_size=3, num_ngrams=4, num_draft_tokens="auto")
    sizes = [8, 1, 3, 8, 5, 2]
    widths: list[int] = []

    def change(step: Step) -> None:
        if step.proposal.probe is not None:
            widths.append(int(step.proposal.probe[0].sum()))
        proposer.draft_as(DraftShape(sizes[len(widths) % len(sizes)]))

    proposer.draft_as(DraftShape(sizes[0]))
    engine = Engine(target, proposer, observers=[change])
    assert [output.token_ids for output in engine.generate(PROMPTS, sampling)] == plain
    assert set(widths) == {8, 2, 4, 6}


@pytest.mark.parametrize("name", ["window_size", "ngram_size", "num_ngrams"])
def test_bad_settings_are_rejected(name: str) -> None:
    with pytest.raises(ValueError, match=f"proposer.{name}=0 must be at least"):
        Lookahead(**{name: 0})
