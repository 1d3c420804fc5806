import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from tiny_models import VOCAB, build

from specresearch import CausalLM, Engine, Request, RequestOutput, SamplingParams
from specresearch.batch import Batch
from specresearch.controllers import Controller
from specresearch.metrics import StepRecord
from specresearch.models.head_writing import save_medusa_heads
from specresearch.models.medusa import MedusaHeads
from specresearch.proposal import Proposal
from specresearch.proposers import Cascade, Medusa, NGram
from specresearch.proposers.medusa import FADE, typical_paths
from specresearch.proposers.sequoia import TYPICAL_RANK_ACCEPTANCE
from specresearch.proposers.static_tree import StaticTree

H = 16
TARGET: Any = build("llama", seed=1)
PROMPTS = [(5,), (1, 2, 3, 4, 5, 6, 7), (8, 8), (3, 1, 4, 1, 5)]
PATHS = [[0], [1], [2], [0, 0], [0, 1], [1, 0], [0, 0, 0], [0, 1, 2]]
Seen = list[tuple[list[tuple[list[int], int]], list[int], Proposal]]


@pytest.fixture
def target() -> CausalLM:
    return CausalLM(copy.deepcopy(TARGET), max_len=40, prefill_chunk=4)


def make_heads(num_heads: int = 3, own_lm_head: bool = True) -> MedusaHeads:
    heads = MedusaHeads(H, VOCAB if own_lm_head else None, num_heads).double()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in heads.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 3)
    return heads


def reduced(heads: MedusaHeads, target_ids: torch.Tensor) -> tuple[MedusaHeads, MedusaHeads]:
    """Return heads that draft some tokens only: with LM heads of their rows, and of all rows."""
    small = MedusaHeads(H, len(target_ids), len(heads), target_ids=target_ids).double()
    large = copy.deepcopy(heads)
    outside = torch.ones(VOCAB, dtype=torch.bool).index_fill(0, target_ids, False)
    pairs: Any = zip(small, large, strict=True)
    for narrow, wide in pairs:
        narrow[0].load_state_dict(wide[0].state_dict())
        narrow[1].weight.data.copy_(wide[1].weight[target_ids])
        bias = torch.zeros(VOCAB, dtype=torch.float64).masked_fill(outside, -1e9)
        wide[1].bias = torch.nn.Parameter(bias)
    return small, large


class Budgets(Controller):
    """Change the budget in every step and row."""

    def __init__(self, *pattern: int | None) -> None:
        self.pattern, self.num_steps = pattern, 0

    def budget(self, batch: Batch) -> list[int | None]:
        return [self.pattern[(self.num_steps + b) % len(self.pattern)] for b in range(len(batch))]

    def observe(self, record: StepRecord) -> None:
        self.num_steps += 1


def decode(
    engine: Engine, prompts: Sequence[Sequence[int]] = PROMPTS, **sampling: Any
) -> list[RequestOutput]:
    params = [SamplingParams(max_new_tokens=6 + i, **sampling) for i in range(len(prompts))]
    requests = [Request(p, s, str(i)) for i, (p, s) in enumerate(zip(prompts, params, strict=True))]
    return sorted(engine.generate(requests), key=lambda output: int(output.id))


def watch(proposer: Medusa) -> Seen:
    """Record each call: tokens and room of every row, the budget, the proposal."""
    calls, original = [], proposer.propose

    def propose(batch: Batch, budget: Sequence[int]) -> Proposal:
        proposal = original(batch, budget)
        rows = [(list(row.tokens), room) for row, room in zip(batch.rows, batch.room, strict=True)]
        calls.append((rows, list(budget), proposal))
        return proposal

    proposer.propose = propose
    return calls


@torch.no_grad()
def head_logits(heads: MedusaHeads, tokens: Sequence[int]) -> torch.Tensor:
    """Return the heads' logits at the token before the last, by a plain pass of the target."""
    hidden = TARGET.model(torch.tensor([tokens[:-1]])).last_hidden_state[:, -1]
    return heads(hidden, TARGET.get_output_embeddings())[0]


def count_right_drafts(calls: Seen, heads: MedusaHeads) -> int:
    """Return the number of drafts, after checking each against its own head.

    Every row has the first paths that its budget and room allow.
    """
    num_checked = 0
    for batch, budget, proposal in calls:
        assert proposal.draft_probs is None
        for b, (tokens, room) in enumerate(batch):
            num_drafts = int(proposal.lengths[b]) - 1
            kept_paths = (
                [tuple(path) for path in PATHS if len(path) <= room][: budget[b]]
                if len(tokens) > 1
                else []
            )
            assert num_drafts == len(kept_paths)
            if not kept_paths:
                continue
            logits = head_logits(heads, tokens)
            likeliest = logits.argsort(descending=True).tolist()
            ancestors = proposal.topology.ancestors[b % len(proposal.topology.parents)]
            drafts = []
            for node in range(1, num_drafts + 1):
                path = proposal.token_ids[b, ancestors[node]].tolist()[1:]
                drafts.append(
                    tuple(likeliest[level].index(token) for level, token in enumerate(path))
                )
                q = logits[len(path) - 1].softmax(-1)[path[-1]]
                assert proposal.scores is not None
                assert float(proposal.scores[b, node]) == pytest.approx(float(q), rel=1e-4)
            assert drafts == kept_paths
            num_checked += num_drafts
    return num_checked


@pytest.mark.parametrize("own_lm_head", [True, False], ids=["own_lm_heads", "version_2"])
def test_a_node_holds_the_token_of_its_rank_and_depth(target: CausalLM, own_lm_head: bool) -> None:
    """This holds in reused slots too, whatever was accepted or rejected before."""
    plain = [output.token_ids for output in decode(Engine(target, max_batch_size=3))]
    heads = make_heads(own_lm_head=own_lm_head)
    proposer = Medusa(heads, paths=PATHS)
    calls = watch(proposer)
    engine = Engine(target, proposer, controller=Budgets(None, 3, 0, 6), max_batch_size=3)
    assert [output.token_ids for output in decode(engine)] == plain
    assert count_right_drafts(calls, heads) > 30
    assert not proposer._states


def test_drafts_are_right_after_steps_of_another_proposer(target: CausalLM) -> None:
    plain = [output.token_ids for output in decode(Engine(target, max_batch_size=3))]
    proposer = Medusa(make_heads(), paths=PATHS)
    calls = watch(proposer)
    outputs = decode(
        Engine(target, Cascade([NGram(3, n_max=1, n_min=1), proposer]), max_batch_size=3)
    )
    assert [output.token_ids for output in outputs] == plain
    assert count_right_drafts(calls, make_heads()) > 15
    num_passed_over = sum(output.record.counts.num_target_forwards for output in outputs)
    assert num_passed_over - sum(len(rows) for rows, _, _ in calls) > 5


def rigged() -> tuple[CausalLM, MedusaHeads]:
    """Return a target that cycles through its vocabulary, and heads that predict it."""
    model: Any = build("llama", hidden_size=32, num_attention_heads=4, num_key_value_heads=4)
    heads = MedusaHeads(32, VOCAB, 4).double()
    step = torch.eye(VOCAB, 32, dtype=torch.float64).roll(7, 0)  # from token t to t + 7
    with torch.no_grad():
        model.get_input_embeddings().weight.copy_(torch.eye(VOCAB, 32))
        model.get_output_embeddings().weight.copy_(step)
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        for i, head in enumerate(cast(list[Any], heads)):
            head[-1].weight.copy_(torch.eye(VOCAB, 32).roll(7 * (i + 2), 0))
    return CausalLM(model, max_len=40), heads


ROUND = [
    tuple((begin + 7 * i) % VOCAB for i in range(num))
    for begin, num in ((4, 1), (0, 5), (9, 2), (30, 7))
]


def test_perfect_heads_are_always_accepted() -> None:
    target, heads = rigged()
    engine = Engine(target, Medusa(heads, paths=[[0], [1], [0, 0], [0, 0, 0]]), max_batch_size=3)
    for output, prompt in zip(decode(engine, ROUND), ROUND, strict=True):
        num = len(output.token_ids)
        assert output.token_ids == tuple((prompt[-1] + 7 * (i + 1)) % VOCAB for i in range(num))
        without_drafts = 1 if len(prompt) == 1 else 0
        assert output.record.counts.num_target_forwards == without_drafts + -(
            -(num - without_drafts) // 4
        )


def test_negative_control_heads_off_by_one_are_never_accepted() -> None:
    target, heads = rigged()
    for head in cast(list[Any], heads):
        head[-1].weight.data.copy_(head[-1].weight.roll(7, 0))
    for output in decode(Engine(target, Medusa(heads, paths=[[0]]), max_batch_size=3), ROUND):
        assert output.record.counts.num_accepted_tokens == 0 < output.record.counts.num_draft_tokens


def test_penalties_apply_to_the_drafts_too(target: CausalLM) -> None:
    plain = [
        output.token_ids
        for output in decode(Engine(target, max_batch_size=3), repetition_penalty=1.3)
    ]
    outputs = decode(
        Engine(target, Medusa(make_heads(), 9), max_batch_size=3), repetition_penalty=1.3
    )
    assert [output.token_ids for output in outputs] == plain


class TestTheDefaultTree:
    @pytest.mark.parametrize(("num_heads", "num_nodes"), [(5, 63), (3, 20), (4, 1)])
    def test_it_holds_the_likeliest_nodes_in_order(self, num_heads: int, num_nodes: int) -> None:
        chances: dict[tuple[int, ...], float] = {(): 1.0}
        for i in range(num_heads):
            longer = {path: chance for path, chance in chances.items() if len(path) == i}
            for path, chance in longer.items():
                chances |= {
                    (*path, r): chance * p * FADE**i for r, p in enumerate(TYPICAL_RANK_ACCEPTANCE)
                }
        paths = typical_paths(num_heads, num_nodes)
        assert len(set(paths)) == num_nodes
        best = sorted((chance for path, chance in chances.items() if path), reverse=True)[
            :num_nodes
        ]
        assert [chances[path] for path in paths] == pytest.approx(best)
        assert StaticTree.from_paths(paths).paths == tuple(paths)

    def test_a_single_head_gives_no_more_nodes_than_ranks(self, target: CausalLM) -> None:
        proposer = Medusa(make_heads(1))
        Engine(target, proposer)
        assert proposer.num_draft_tokens == len(TYPICAL_RANK_ACCEPTANCE)


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: Medusa(), "names no Medusa heads"),
        (lambda: Medusa(make_heads(2), paths=PATHS), "3 levels and rank 2, and there are 2 heads"),
        (lambda: Medusa(make_heads(), paths=[[i] for i in range(40)]), "rank 39.* 31 tokens"),
        (lambda: Medusa(MedusaHeads(8, None)), "use heads of this target"),
        (lambda: Medusa(make_heads(), 0), "must be at least 1"),
        (lambda: Medusa(make_heads(), paths=[[0, 0]]), "has no parent"),
    ],
)
def test_settings_that_cannot_work_are_rejected_before_decoding(
    target: CausalLM, make: Any, complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        Engine(target, make())


def test_heads_and_paths_are_loaded_from_files(target: CausalLM, tmp_path: Path) -> None:
    save_medusa_heads(make_heads(), tmp_path / "heads", {})
    (tmp_path / "tree.json").write_text(json.dumps({"paths": PATHS}))
    proposer = Medusa(str(tmp_path / "heads"), paths=str(tmp_path / "tree.json"))
    assert proposer.num_draft_tokens == len(PATHS)
    plain = [output.token_ids for output in decode(Engine(target, max_batch_size=3))]
    assert [
        output.token_ids for output in decode(Engine(target, proposer, max_batch_size=3))
    ] == plain


@pytest.mark.parametrize("repetition_penalty", [1.0, 1.3])
def test_a_reduced_vocabulary_drafts_what_the_whole_one_would_of_its_tokens(
    target: CausalLM, repetition_penalty: float
) -> None:
    small, large = reduced(make_heads(), torch.tensor([3, 28, 5, 14, 9, 1]))
    seen: list[Seen] = []
    for heads in (small, large):
        proposer = Medusa(heads, paths=PATHS)
        seen.append(watch(proposer))
        decode(
            Engine(target, proposer, max_batch_size=3),
            repetition_penalty=repetition_penalty,
            temperature=0.0,
        )
    assert len(seen[0]) == len(seen[1]) > 3
    for (_, _, ours), (_, _, theirs) in zip(*seen, strict=True):
        assert torch.equal(ours.token_ids, theirs.token_ids)
        torch.testing.assert_close(ours.scores, theirs.scores)


def test_a_tree_wider_than_a_reduced_vocabulary_is_refused(target: CausalLM) -> None:
    heads = MedusaHeads(H, 2, 3, target_ids=torch.tensor([3, 5])).double()
    with pytest.raises(ValueError, match="3 heads and 2 tokens"):
        Medusa(heads, paths=PATHS).bind(target, 1)
    assert "over 2 tokens" in str(Medusa(heads).describe())
