import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from tiny_models import build

from specresearch import CausalLM, Engine, Request, RequestOutput, SamplingParams
from specresearch.batch import Batch
from specresearch.proposal import Proposal
from specresearch.proposers import Suffix
from specresearch.request import RequestState

PROMPTS = [(5,), (1, 2, 3, 4, 5, 6, 7), (8, 8), (3, 1, 4, 1, 5)]


@pytest.fixture
def target() -> CausalLM:
    return CausalLM(build("llama", seed=1), max_len=64)


def state(tokens: Sequence[int], slot: int) -> RequestState:
    return RequestState(Request(tokens, SamplingParams()), slot, 0, frozenset(), 100)


def propose(*prompts: Sequence[int], budget: Sequence[int] | None = None, **settings) -> Proposal:
    rows = [state(prompt, slot) for slot, prompt in enumerate(prompts)]
    proposer = Suffix(**settings)
    proposer.start(rows, None)
    return proposer.propose(Batch(rows, torch.device("cpu"), 20), budget or [9] * len(rows))


def paths(proposal: Proposal, row: int = 0) -> dict[tuple[int, ...], float]:
    """Return the score of every draft, keyed by its path of tokens."""
    assert proposal.scores is not None
    ancestors = proposal.topology.ancestors.expand(len(proposal.lengths), -1, -1)
    tokens, scores = proposal.token_ids[row], proposal.scores[row]
    nodes = range(1, int(proposal.lengths[row]))
    return {tuple(tokens[ancestors[row, n]].tolist()[1:]): float(scores[n]) for n in nodes}


class TestGrowth:
    def test_children_are_weighted_by_count(self) -> None:
        text = [1, 2, 3, 1, 2, 3, 1, 2, 4, 1, 2]
        score_of = paths(propose(text, offset=2.0))
        assert score_of == pytest.approx({(3,): 2 / 3, (4,): 1 / 3, (3, 1): 1.0, (3, 1, 2): 1.0})

    def test_unlikely_runs_are_left_out(self) -> None:
        text = [1, 2, 3, 1, 2, 3, 1, 2, 4, 1, 2]
        assert set(paths(propose(text, offset=9.0, min_probability=0.4))) == {
            (3,),
            (3, 1),
            (3, 1, 2),
        }

    def test_the_length_of_the_match_bounds_the_tree(self) -> None:
        text = [5, 6, 7, 8, 9, 10, 11, 5, 6, 7]
        assert propose(text).lengths.tolist() == [1 + 3]
        assert propose(text, max_factor=0.5).lengths.tolist() == [1 + 1]
        assert propose(text, max_factor=0.5, offset=2.5).lengths.tolist() == [1 + 4]
        assert propose(text, max_depth=4).lengths.tolist() == [1 + 2]

    def test_without_branches_the_likeliest_child_is_followed(self) -> None:
        proposal = propose([1, 2, 3, 1, 2, 3, 1, 2, 4, 1, 2], [4, 5, 4], offset=9.0, branch=False)
        assert proposal.topology.is_chain
        assert proposal.token_ids[0, 1 : int(proposal.lengths[0])].tolist()[:3] == [3, 1, 2]

    def test_rows_keep_their_own_budget(self) -> None:
        text = [1, 2, 3, 1, 2, 4, 1, 2, 5, 1, 2]
        proposal = propose(text, text, [9], text, budget=[0, 2, 9, 9], offset=9.0)
        assert proposal.lengths.tolist()[:3] == [1, 3, 1]
        assert int(proposal.lengths[3]) > 3
        assert list(paths(proposal, 3))[:2] == list(paths(proposal, 1))
        assert proposal.draft_probs is None

    def test_a_batch_without_matches_is_decoded_plainly(self) -> None:
        assert propose([1, 2], [3], offset=4.0).token_ids.tolist() == [[2], [3]]


def test_the_kind_of_drafts_is_declared() -> None:
    assert (Suffix().kind.trees, Suffix(branch=False).kind.trees) == (True, False)
    assert Suffix().kind.scored
    assert not Suffix().kind.sampled


class TestGlobal:
    def finished(
        self,
        proposer: Suffix,
        prompt: Sequence[int],
        output: Sequence[int],
        reason: str | None = "length",
    ) -> None:
        row = state(prompt, 0)
        proposer.start([row], None)
        row.tokens += output
        row.finish_reason = reason
        proposer.finish([0])

    def drafts(self, proposer: Suffix, prompt: Sequence[int]) -> list[int]:
        row = state(prompt, 1)
        proposer.start([row], None)
        proposal = proposer.propose(Batch([row], torch.device("cpu"), 20), [9])
        proposer.finish([1])
        return proposal.token_ids[0, 1 : int(proposal.lengths[0])].tolist()

    @pytest.mark.parametrize("use_global", [True, False])
    def test_outputs_are_remembered_and_prompts_are_not(self, use_global: bool) -> None:
        proposer = Suffix(use_global=use_global)
        self.finished(proposer, [1, 2, 3, 4], [5, 6, 7, 8])
        assert self.drafts(proposer, [5, 6]) == ([7, 8] if use_global else [])
        assert self.drafts(proposer, [1, 2]) == []
        proposer.reset()
        assert self.drafts(proposer, [5, 6]) == []

    def test_a_preempted_request_is_remembered_after_it_ends(self) -> None:
        proposer = Suffix(use_global=True)
        self.finished(proposer, [1], [5, 6, 7], reason=None)
        assert self.drafts(proposer, [5, 6]) == []

    def test_the_more_probable_of_two_drafts_is_used(self) -> None:
        proposer = Suffix(use_global=True)
        self.finished(proposer, [1], [5, 6, 7, 8])
        assert self.drafts(proposer, [6, 9, 1, 5, 6]) == [7, 8]
        assert self.drafts(proposer, [4, 5, 6, 9, 1, 4, 5, 6]) == [9, 1, 4]

    def test_memory_is_bounded_and_keeps_the_latest_outputs(self) -> None:
        proposer = Suffix(use_global=True, max_global_nodes=200)
        generator = torch.Generator().manual_seed(1)
        for _ in range(100):
            self.finished(proposer, [1], torch.randint(0, 20, (12,), generator=generator).tolist())
            assert sum(trie.num_nodes for trie in proposer._global_tries) < 400
        self.finished(proposer, [1], [30, 31, 32])
        assert self.drafts(proposer, [30, 31]) == [32]

    def test_memory_of_one_output_again_and_again_is_bounded(self) -> None:
        proposer = Suffix(use_global=True, max_global_nodes=200)
        for _ in range(100):
            self.finished(proposer, [1], [5, 6, 7, 8])
            assert sum(trie.num_tokens for trie in proposer._global_tries) < 220
        assert self.drafts(proposer, [5, 6]) == [7, 8]


def run(engine: Engine) -> list[RequestOutput]:
    requests = [
        Request(p, SamplingParams(max_new_tokens=24), str(i)) for i, p in enumerate(PROMPTS)
    ]
    return sorted(engine.generate(requests), key=lambda output: output.id)


def steps(outputs: Sequence[RequestOutput]) -> list[int]:
    return [output.record.counts.num_target_forwards for output in outputs]


def test_a_request_takes_the_same_steps_in_any_batch(target: CausalLM) -> None:
    proposer = Suffix(8, offset=1.0)
    engine = Engine(target, proposer, max_batch_size=3)
    together = run(engine)
    assert (
        steps(run(engine))
        == steps(together)
        == steps(run(Engine(copy.deepcopy(target), Suffix(8, offset=1.0))))
    )
    assert sum(output.record.counts.num_accepted_tokens for output in together) > 10
    assert not proposer._tries
    assert not proposer._rows


def test_remembered_outputs_save_steps_until_they_are_reset(target: CausalLM) -> None:
    proposer = Suffix(8, offset=1.0, use_global=True)
    engine = Engine(target, proposer)
    first, second = run(engine), run(engine)
    assert sum(steps(second)) < sum(steps(first))
    proposer.reset()
    assert steps(run(engine)) == steps(first)
    assert [o.token_ids for o in first] == [o.token_ids for o in second]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_draft_tokens", 0),
        ("max_factor", 0.0),
        ("offset", -1.0),
        ("min_probability", 1.0),
        ("max_depth", 1),
        ("max_global_nodes", 1),
    ],
)
def test_bad_settings_are_rejected(name: str, value: float) -> None:
    setting: dict[str, Any] = {name: value}
    with pytest.raises(ValueError, match=f"proposer.{name}={value} must"):
        Suffix(**setting)
