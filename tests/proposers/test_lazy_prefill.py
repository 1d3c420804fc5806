"""Lazy prefill runs once, on a request's first draft."""

import copy
from collections.abc import Callable

import pytest
from tiny_models import build

from specresearch import CausalLM, Engine, Request, SamplingParams
from specresearch.batch import Batch
from specresearch.controllers import Controller
from specresearch.engine import Step
from specresearch.metrics import StepRecord
from specresearch.models.slot_model import SlotModel
from specresearch.proposers import DraftModel, Eagle, Eagle3, Proposer

pytestmark = pytest.mark.filterwarnings(
    "ignore:the target is:UserWarning", "ignore:the draft has:UserWarning"
)

TARGET = build("llama", seed=1, num_hidden_layers=4)
PATHS = {"static": [(0,), (1,), (0, 0)]}


def draft_model(target: CausalLM, tree: str, prefill_chunk: int) -> DraftModel:
    draft = CausalLM(copy.deepcopy(TARGET), max_len=48, prefill_chunk=prefill_chunk)
    return DraftModel(draft, 3, tree=tree, depth=2, paths=PATHS.get(tree))


def eagle(target: CausalLM, tree: str, prefill_chunk: int) -> Eagle:
    return eagle_of(Eagle, target, tree, prefill_chunk)


def eagle3(target: CausalLM, tree: str, prefill_chunk: int) -> Eagle:
    return eagle_of(Eagle3, target, tree, prefill_chunk)


def eagle_of(kind: type[Eagle], target: CausalLM, tree: str, prefill_chunk: int) -> Eagle:
    proposer = kind.toy(target, seed=3, tree=tree)
    proposer.bind(target, 0)
    assert proposer.model is not None
    proposer.model.prefill_chunk = prefill_chunk
    return proposer


DRAFTERS: list[Callable[[CausalLM, str, int], Proposer]] = [draft_model, eagle, eagle3]


@pytest.fixture
def target() -> CausalLM:
    return CausalLM(copy.deepcopy(TARGET), max_len=40)


class Some(Controller):
    """Draft for the requests of these ids, from that step on."""

    def __init__(self, ids: set[str], begin: int = 0) -> None:
        self.ids, self.begin, self.num_steps = ids, begin, 0

    def budget(self, batch: Batch) -> list[int | None]:
        return [
            3 if row.id in self.ids and self.num_steps >= self.begin else 0 for row in batch.rows
        ]

    def observe(self, record: StepRecord) -> None:
        self.num_steps += 1


@pytest.mark.parametrize("tree", ["chain", "static", "dynamic"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_a_prompt_is_read_on_the_first_draft_of_its_request(
    target: CausalLM,
    drafter: Callable[[CausalLM, str, int], Proposer],
    tree: str,
    temperature: float,
) -> None:
    """Requests that never draft cost nothing."""
    prompts = {"never": tuple(range(1, 31)), "late": tuple(range(2, 28)), "short": (5, 1)}
    sampling = SamplingParams(temperature=temperature, max_new_tokens=10)
    all_requests = [Request(prompt, sampling, name) for name, prompt in prompts.items()]
    plain = {
        output.id: output.token_ids
        for output in Engine(target, max_batch_size=3).generate(all_requests)
    }
    proposer = drafter(target, tree, 48)
    (model,) = proposer.models
    assert isinstance(model, SlotModel)
    steps: list[StepRecord] = []
    cached_lengths: list[dict[str, int]] = []

    def note(step: Step) -> None:
        steps.append(step.record)
        cached_lengths.append({row.id: model.lengths[row.slot] for row in engine.scheduler.running})

    engine = Engine(
        target,
        proposer,
        controller=Some({"late", "short"}, begin=2),
        max_batch_size=3,
        observers=[note],
    )
    outputs = {output.id: output.token_ids for output in engine.generate(all_requests)}
    assert outputs["never"] == plain["never"]
    if temperature == 0:
        assert outputs == plain
    assert all(lengths.get("never", 0) == 0 for lengths in cached_lengths)
    assert [cached_lengths[i]["late"] for i in (0, 1)] == [0, 0] != cached_lengths[2]["late"]
    # the prompt and two tokens, but for the last; a head reads pairs, one fewer
    num_read = 27 if isinstance(proposer, DraftModel) else 26
    assert [step.num_lazy_prefill_tokens for step in steps[:3]] == [0, 0, num_read]
    assert not any(step.num_lazy_prefill_tokens for step in steps[3:])
    assert [step.times.lazy_prefill > 0 for step in steps[:3]] == [False, False, True]
    assert steps[2].times.prefill == steps[2].times.lazy_prefill
    drafted = {
        name: num
        for step in steps[2:4]
        for name, num in zip(step.request_ids, step.num_draft_tokens, strict=True)
    }
    assert drafted["never"] == 0 < min(drafted["late"], drafted["short"])


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_a_long_prompt_is_read_in_chunks(
    target: CausalLM, drafter: Callable[[CausalLM, str, int], Proposer]
) -> None:
    """Others draft meanwhile, and the request itself once it has been read."""
    prompts = {"long": tuple(range(1, 31)), "short": (5, 1)}
    sampling = SamplingParams(max_new_tokens=10)
    requests = [Request(prompt, sampling, name) for name, prompt in prompts.items()]
    plain = {out.id: out.token_ids for out in Engine(target).generate(requests)}
    steps: list[StepRecord] = []
    engine = Engine(
        target,
        drafter(target, "chain", 6),
        controller=Some(set(prompts)),
        max_batch_size=2,
        observers=[lambda step: steps.append(step.record)],
    )
    assert {out.id: out.token_ids for out in engine.generate(requests)} == plain
    row = steps[0].request_ids.index("long")
    assert [step.num_lazy_prefill_tokens for step in steps[:4]] == [6, 6, 6, 0]
    assert [step.budget[row] for step in steps[:4]] == [0, 0, 3, 3]
    assert [step.num_draft_tokens[row] for step in steps[:3]] == [0, 0, 3]
    assert all(step.num_draft_tokens[1 - row] for step in steps[:2])
