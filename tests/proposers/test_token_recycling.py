import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from tiny_models import VOCAB, build

from specresearch import CausalLM, Engine, Request, RequestOutput, SamplingParams
from specresearch.batch import Batch
from specresearch.models.causal_lm import ModelOutput
from specresearch.proposal import Proposal, Topology, Verdict
from specresearch.proposers import TokenRecycling
from specresearch.proposers.draft_shape import DraftShape
from specresearch.request import RequestState

MODEL = build("llama", seed=1)
PROMPTS = [(5,), (1, 2, 3, 4, 5, 6, 7), (8, 8), (3, 1, 4, 1, 5)]
PATHS = [[0], [1], [2], [0, 0], [0, 1], [1, 0], [0, 0, 0], [0, 0, 2]]


@pytest.fixture
def target() -> CausalLM:
    return CausalLM(copy.deepcopy(MODEL), max_len=64)


def state(tokens: Sequence[int], slot: int, **sampling: Any) -> RequestState:
    return RequestState(Request(tokens, SamplingParams(**sampling)), slot, 0, frozenset(), 100)


def batch_of(*slots: int) -> Batch:
    return Batch([state([3, 7 + slot], slot) for slot in slots], torch.device("cpu"), VOCAB)


def bound(target: CausalLM, *, slots: int = 3, **settings) -> TokenRecycling:
    proposer = TokenRecycling(**settings)
    target.allocate(slots, proposer.max_nodes)
    proposer.bind(target, slots)
    return proposer


def teach(proposer: TokenRecycling, batch: Batch, proposal: Proposal, logits: torch.Tensor) -> None:
    nothing = Verdict(
        torch.zeros(len(batch), 1, dtype=torch.long),
        torch.zeros(len(batch), dtype=torch.long),
        torch.zeros(len(batch), dtype=torch.long),
    )
    proposer.observe(batch, proposal, ModelOutput(logits), nothing)


def teach_everything(proposer: TokenRecycling, batch: Batch, seed: int = 0) -> torch.Tensor:
    """Feed logits after every token of the vocabulary, with a different table for every row."""
    tokens = torch.arange(VOCAB).expand(len(batch), -1)
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn((len(batch), VOCAB, VOCAB), generator=generator, dtype=torch.float64)
    teach(proposer, batch, Proposal.chain(tokens, torch.full((len(batch),), VOCAB)), logits)
    return logits


@pytest.mark.parametrize("warm", [False, True])
def test_every_node_is_the_successor_of_its_rank(target: CausalLM, warm: bool) -> None:
    proposer, batch = bound(target, top_k=3, paths=PATHS, warm=warm), batch_of(0, 2)
    logits = teach_everything(proposer, batch)
    proposal = proposer.propose(batch, [8, 5])
    assert proposal.lengths.tolist() == [9, 6]
    assert proposal.draft_probs is None
    parents, ordered = (
        proposal.topology.parents[0].tolist(),
        sorted(map(tuple, PATHS), key=lambda p: (len(p), p)),
    )
    for b in range(2):
        tokens = proposal.token_ids[b].tolist()
        for node, path in enumerate(ordered, start=1):
            order = logits[1 if warm else b, tokens[parents[node]]].argsort(descending=True)
            assert tokens[node] == int(order[path[-1]])


def test_a_small_budget_keeps_only_the_top_of_the_tree(target: CausalLM) -> None:
    proposer, batch = bound(target, top_k=3, paths=PATHS), batch_of(0, 1)
    teach_everything(proposer, batch)
    full = proposer.propose(batch, [8, 8])
    part = proposer.propose(batch, [2, 4])
    assert part.lengths.tolist() == [3, 5]
    assert part.token_ids.equal(full.token_ids[:, :5])
    assert part.topology.parents.equal(full.topology.parents[:, :5])
    assert proposer.propose(batch, [0, 0]).token_ids.shape == (2, 1)


def test_a_row_keeps_the_first_paths_that_it_has_room_for(target: CausalLM) -> None:
    proposer, slots = bound(target, top_k=3, paths=[[0], [0, 0], [0, 0, 0], [1], [1, 0]]), (0, 1)
    teach_everything(proposer, batch_of(*slots))
    rows = [
        state([3, 7 + slot], slot, max_new_tokens=left + 1)
        for slot, left in zip(slots, (9, 1), strict=True)
    ]
    proposal = proposer.propose(Batch(rows, torch.device("cpu"), VOCAB), [3, 5])
    assert proposal.host_lengths == tuple(proposal.lengths.tolist()) == (4, 3)
    assert proposal.topology.parents[:, :4].tolist() == [[-1, 0, 1, 2], [-1, 0, 0, 1]]


def test_the_last_node_of_a_token_sets_its_successors_and_padding_does_not(
    target: CausalLM,
) -> None:
    proposer, batch = bound(target, top_k=2, paths=[[0]]), batch_of(1)
    tokens = torch.tensor([[4, 6, 4, 6, 4]])
    logits = torch.zeros(1, 5, VOCAB, dtype=torch.float64)
    for node, (best, second) in enumerate([(1, 2), (3, 4), (5, 6), (7, 8), (9, 10)]):
        logits[0, node, best], logits[0, node, second] = 2.0, 1.0
    teach(proposer, batch, Proposal(tokens, Topology.chain(5), torch.tensor([4])), logits)
    assert proposer._successors[1, 4].tolist() == [5, 6]
    assert proposer._successors[1, 6].tolist() == [7, 8]
    untouched = proposer._successors[:, :VOCAB].clone()
    untouched[1, [4, 6]] = 0
    assert not bool(untouched.any())


def run(engine: Engine, prompts: Sequence[Sequence[int]]) -> list[RequestOutput]:
    requests = [
        Request(p, SamplingParams(max_new_tokens=16), str(i)) for i, p in enumerate(prompts)
    ]
    return sorted(engine.generate(requests), key=lambda output: output.id)


def steps(outputs: Sequence[RequestOutput]) -> list[int]:
    return [output.record.counts.num_target_forwards for output in outputs]


def test_a_cold_request_takes_the_same_steps_in_any_batch(target: CausalLM) -> None:
    settings: dict[str, Any] = {"num_draft_tokens": 12, "top_k": 4, "depth": 3}
    together = run(Engine(target, TokenRecycling(**settings), max_batch_size=3), PROMPTS)
    again = Engine(target, TokenRecycling(**settings), max_batch_size=2)
    assert steps(run(again, PROMPTS)) == steps(run(again, PROMPTS)) == steps(together)
    alone = [run(Engine(target, TokenRecycling(**settings)), [prompt])[0] for prompt in PROMPTS]
    assert steps(alone) == steps(together)
    assert sum(output.record.counts.num_accepted_tokens for output in together) > 10


@pytest.mark.parametrize("warm", [False, True])
def test_only_a_warm_memory_outlives_its_request(target: CausalLM, warm: bool) -> None:
    proposer, first, second = (
        bound(target, top_k=2, paths=[[0], [1]], warm=warm),
        batch_of(0),
        batch_of(1),
    )
    logits = teach_everything(proposer, first)
    proposer.finish([0])
    learned = logits[0, second.rows[0].tokens[-1]].argsort(descending=True)[:2].tolist()
    assert proposer.propose(second, [2]).token_ids[0, 1:].tolist() == (learned if warm else [0, 0])
    proposer.reset()
    assert proposer.propose(second, [2]).token_ids[0, 1:].tolist() == [0, 0]


def test_after_a_reset_a_warm_run_repeats_itself(target: CausalLM) -> None:
    proposer = TokenRecycling(12, top_k=4, depth=3, warm=True)
    engine = Engine(target, proposer, max_batch_size=2)
    first = run(engine, PROMPTS)
    proposer.reset()
    again = run(engine, PROMPTS)
    assert steps(again) == steps(first)
    assert [o.token_ids for o in again] == [o.token_ids for o in first]


def test_finish_clears_only_its_own_slot(target: CausalLM) -> None:
    proposer, batch = bound(target, top_k=2, paths=[[0]]), batch_of(0, 1)
    teach_everything(proposer, batch)
    proposer.finish([0])
    assert not bool(proposer._successors[0].any())
    assert bool(proposer._successors[1].any())


def test_it_drafts_in_its_own_tree_again_after_another() -> None:
    proposer = TokenRecycling("auto")
    (largest,) = proposer.shapes
    proposer.draft_as(DraftShape(2, "static", paths=((0,), (1,))))
    assert proposer.tree.num_drafts == 2
    proposer.draft_as(largest)
    assert proposer.tree.num_drafts == largest.num_draft_tokens
    proposer.draft_as(DraftShape(5, "static"))
    assert proposer.tree.num_drafts == 5


def test_the_default_is_the_papers_size() -> None:
    tree = TokenRecycling().tree
    assert (tree.num_drafts, tree.depth) == (80, 6)
    assert max(tree.widths) <= 8


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"num_draft_tokens": 0}, "num_draft_tokens=0 must be at least 1"),
        ({"top_k": 0}, "top_k=0.*must be at least 1"),
        ({"depth": 0}, "depth=0: both must be at least 1"),
        ({"paths": [[0, 0]]}, "no parent"),
        ({"paths": [[3]], "top_k": 3}, "rank 3 and proposer.top_k=3.*raise top_k"),
    ],
)
def test_bad_settings_are_rejected(settings: dict, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        TokenRecycling(**settings)


def test_more_successors_than_tokens_are_rejected(target: CausalLM) -> None:
    with pytest.raises(ValueError, match=f"top_k={VOCAB + 1} exceeds the vocabulary of {VOCAB}"):
        Engine(target, TokenRecycling(top_k=VOCAB + 1))
