"""A step waits for the device once, whatever is drafted, judged, steered and asked for.

The engine runs on a pretended device, which counts what would make the host wait on a real one.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import scenarios
import torch
from scenarios import ALL, MAX_LEN, MODEL, PENALIZED, PROPOSERS, SAMPLED
from shape_checks import unchecked
from tiny_models import VOCAB, letters_tokenizer
from tokenizers import decoders

from specresearch import CausalLM, Controller, Engine, Proposer, Request
from specresearch.acceptance import AcceptanceSampler, Block, Greedy, Threshold, Typical
from specresearch.batch import Batch
from specresearch.controllers import (
    AcceptanceGate,
    BatchSizeCutoff,
    Confidence,
    Fixed,
    Goodput,
    Heuristic,
)
from specresearch.grammar import GrammarCompiler
from specresearch.mock_cuda import DEVICE, MockCuda
from specresearch.models.causal_lm import ModelOutput
from specresearch.proposal import Proposal, Verdict
from specresearch.proposers import DraftModel, Eagle, NGram
from specresearch.sampling_params import SamplingParams

pytestmark = pytest.mark.filterwarnings("ignore:the target is:UserWarning")

Make = Callable[[], Proposer | None]
Steps = Sequence[Sequence[str]]


def on_device(model: Any, graphs: bool) -> CausalLM:
    model = copy.deepcopy(model).to(DEVICE)
    return CausalLM(model, letters_tokenizer(), max_len=MAX_LEN, graphs=graphs)


def num_captured(engine: Engine) -> int:
    models = [engine.target, *engine.proposer.models]
    passes = [getattr(model, "passes", None) for model in models]
    return sum(len(graphs_of.graphs) for graphs_of in passes if graphs_of is not None)


def mixed_requests() -> list[Request]:
    """Return requests that sample in every way, some of which want log-probabilities or end."""
    ways: list[dict[str, Any]] = [
        {},
        SAMPLED,
        PENALIZED,
        SAMPLED | {"top_k": 5, "top_p": 0.9, "min_p": 0.01},
        {"logprobs": 3},
        SAMPLED | {"logprobs": 0, "stop_token_ids": [3]},
    ]
    requests = []
    for i, (prompt, way) in enumerate(zip(scenarios.prompts(), ways, strict=True)):
        requests.append(Request(prompt, SamplingParams(max_new_tokens=6, **way), str(i)))
    return requests


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Steps]:
    """Return a function that decodes on the device, and says what each step waited for.

    Captures wait; so with graphs, requests are decoded until none is captured any more.
    """

    def decode(
        make: Make,
        acceptance: AcceptanceSampler | None = None,
        controller: Controller | None = None,
        requests: Sequence[Request] | None = None,
        graphs: bool = False,
    ) -> Steps:
        requests = requests or mixed_requests()
        with MockCuda() as mock, unchecked():
            draft = copy.deepcopy(scenarios.shared_draft().model)
            monkeypatch.setattr(scenarios, "shared_draft", lambda: on_device(draft, graphs))
            engine = Engine(
                on_device(MODEL, graphs),
                make(),
                acceptance,
                controller,
                max_batch_size=4,
                measure_shift=True,
                num_checked=0,
            )
            before = -1
            while num_captured(engine) != before:
                before = num_captured(engine)
                for request in requests:
                    engine.submit(request)
                steps = []
                outputs = []
                while engine.has_work:
                    mock.activity.clear()
                    engine.step()
                    steps.append([str(wait) for wait in mock.activity.waits])
                    outputs += engine.pop_finished()
            assert (before > 0) == graphs
        assert len(outputs) == len(requests)
        assert all(output.finish_reason != "error" for output in outputs)
        return steps

    return decode


TREES: dict[str, Make] = {
    "eagle_dynamic": lambda: Eagle(scenarios._head(1, 32), 8, depth=3, top_k=3),
    "eagle_static": lambda: Eagle(
        scenarios._head(1, 32), tree="static", paths=[[0], [1], [0, 0], [0, 1], [0, 0, 0]]
    ),
    "draft_dynamic": lambda: DraftModel(
        scenarios.shared_draft(), 8, tree="dynamic", depth=3, top_k=3
    ),
    "draft_static": lambda: DraftModel(
        scenarios.shared_draft(), tree="static", paths=[[0], [1], [0, 0], [0, 1]]
    ),
}


SAME_GRAPHS = {"draft_static", "eagle3", "eagle_static"}  # with the same operations as others'


@pytest.mark.parametrize(
    ("name", "graphs"),
    [(name, False) for name in (*ALL, *TREES)]
    + [
        pytest.param(name, True, marks=[pytest.mark.slow] if name in SAME_GRAPHS else [])
        for name in (*ALL, *TREES)
    ],
)
def test_a_step_waits_once_for_every_proposer(
    waits: Callable[..., Steps], name: str, graphs: bool
) -> None:
    steps = waits((ALL | TREES)[name], graphs=graphs)
    assert len(steps) > 4
    assert max(map(len, steps)) == 1, steps


@pytest.mark.parametrize("mode", ["slem", "hybrid"])
def test_a_step_waits_twice_where_the_target_tokens_of_a_text_are_looked_for(
    waits: Callable[..., Steps], mode: str
) -> None:
    steps = waits(lambda: scenarios.other_tokenizer(mode=mode))
    assert max(map(len, steps)) == 2, steps


@pytest.mark.parametrize("name", ["draft_model", "eagle", "medusa", "lookahead"])
def test_a_step_waits_once_when_all_are_greedy(waits: Callable[..., Steps], name: str) -> None:
    steps = waits(ALL[name], requests=scenarios.requests(max_new_tokens=6))
    assert max(map(len, steps)) == 1, steps


RULES: dict[str, tuple[str, Callable[[], AcceptanceSampler], dict[str, Any]]] = {
    "block": ("draft_model", Block, {}),
    "greedy": ("medusa", Greedy, {"greedy": True}),
    "typical": ("medusa", Typical, {}),
    "typical_chain": ("draft_model", Typical, {}),
    "threshold": ("draft_model", lambda: Threshold(0.3), {}),
    "threshold_tree": ("medusa", lambda: Threshold(0.1), {}),
}


@pytest.mark.parametrize("graphs", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("rule", RULES)
def test_a_step_waits_once_for_every_rule_and_its_shift(
    waits: Callable[..., Steps], rule: str, graphs: bool
) -> None:
    name, make, settings = RULES[rule]
    requests = scenarios.requests(max_new_tokens=6) if settings else None
    steps = waits(PROPOSERS[name], make(), requests=requests, graphs=graphs)
    assert max(map(len, steps)) == 1, steps


CONTROLLERS: dict[str, Callable[[], Controller]] = {
    "fixed": lambda: Fixed(2),
    "confidence": lambda: Confidence(0.3),
    "goodput": Goodput,
    "heuristic": Heuristic,
    "acceptance_gate": AcceptanceGate,
    "batch_size_cutoff": lambda: BatchSizeCutoff(2),
}


@pytest.mark.parametrize("name", CONTROLLERS)
def test_a_step_waits_once_for_every_controller(waits: Callable[..., Steps], name: str) -> None:
    requests = mixed_requests()
    if name == "goodput":  # it may choose among greedy drafts by their scores: see below
        requests = [request for request in requests if request.sampling.temperature]
    steps = waits(PROPOSERS["draft_model"], controller=CONTROLLERS[name](), requests=requests)
    assert max(map(len, steps)) == 1, steps


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("name", ["draft_model", "eagle_dynamic", "draft_dynamic", "medusa"])
def test_choosing_nodes_by_score_waits_at_most_once_more(
    waits: Callable[..., Steps], name: str, graphs: bool
) -> None:
    steps = waits((ALL | TREES)[name], controller=Goodput(margin=0.0), graphs=graphs)
    assert max(map(len, steps)) <= 2, steps


@pytest.mark.parametrize("name", ["ngram", "draft_model", "medusa"])
def test_a_grammar_waits_once_more(
    waits: Callable[..., Steps], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The drafts are read before the target runs; masks go up without a wait."""
    monkeypatch.setattr(CausalLM, "eos_token_ids", frozenset([0]))
    tokenizer = copy.deepcopy(letters_tokenizer())
    tokenizer.backend_tokenizer.decoder = decoders.ByteLevel()  # one that llguidance knows
    grammar = GrammarCompiler(tokenizer, VOCAB, [0]).regex("[b-f]{4,}")
    requests = mixed_requests()
    with_grammars = [replace(request, grammar=grammar) for request in requests[::2]]
    steps = waits((ALL | TREES)[name], requests=[*with_grammars, *requests[1::2]])
    assert max(map(len, steps)) == 2, steps


class Looking(NGram):
    """Reads a tensor of the device where it learns."""

    def observe(
        self, batch: Batch, proposal: Proposal, output: ModelOutput, verdict: Verdict
    ) -> None:
        output.logits.argmax(-1).tolist()


def test_a_proposer_that_reads_the_device_is_found(waits: Callable[..., Steps]) -> None:
    steps = waits(lambda: Looking(3))
    assert max(map(len, steps)) == 2
    assert any("test_device_waits.py" in wait for step in steps for wait in step)


def test_a_clock_that_waits_is_found(
    waits: Callable[..., Steps], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Engine, "_scrub", lambda self, batch: torch.cuda.synchronize())
    assert max(map(len, waits(lambda: NGram(3)))) == 2
