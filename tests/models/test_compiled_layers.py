"""Layers that are compiled one by one compute the same, with attention left to the pass.

The compiler cannot trace the tests' annotation checks. So here layers run with deferred attention,
but not compiled; `test_compiled.py` runs the compiler in a process of its own.
"""

import copy
from typing import Any

import pytest
import torch
from shape_checks import unchecked
from tiny_heads import BASE, eagle_head
from tiny_models import VOCAB, build
from torch import Tensor, nn
from torch._dynamo.exc import BackendCompilerFailed
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from specresearch import CausalLM, Engine, SamplingParams
from specresearch.models import compiled_layers, deferred_attention
from specresearch.models.compiled_layers import CompiledLayers
from specresearch.models.eagle_head import _Eagle3Layer
from specresearch.models.layer_view import Sublayers, skip_sublayers
from specresearch.proposal import Proposal, Topology
from specresearch.proposers import Eagle, Eagle3

PROMPTS = [[5, 1, 2, 3, 4, 5, 1, 2], [3, 1, 4], [9, 2, 6, 9, 2]]
TREES = {
    "token": Topology.chain(1),
    "chain": Topology.chain(5),
    "tree": Topology.from_parents(torch.tensor([[-1, 0, 0, 1, 3]])),
}


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[type[nn.Module]]:
    """Return the class of every layer that ran."""
    classes: list[type[nn.Module]] = []

    def uncompiled(layer_class: type[nn.Module]) -> Any:
        classes.append(layer_class)
        return layer_class.forward

    monkeypatch.setattr(compiled_layers, "_compiled", uncompiled)
    return classes


def logits(architecture: str, attention: str, *, compile: bool) -> list[Tensor]:
    """Return the logits of passes over several trees, behind rows of different lengths."""
    lm = CausalLM(
        build(architecture), max_len=48, graphs=True, compile=compile, attention=attention
    )
    lm.allocate(4, 8)
    slots = (2, 0, 3)
    lm.extend(slots, PROMPTS, want_logits=False)
    found = []
    for tree in TREES.values():
        tokens = torch.arange(3 * tree.num_nodes).view(3, -1) % VOCAB
        proposal = Proposal(tokens, tree, torch.full((3,), tree.num_nodes))
        for _ in range(2):  # captured, then replayed
            found.append(lm.forward(slots, proposal).logits)
    return found


@pytest.mark.parametrize(
    ("architecture", "attention"),
    [
        ("llama", "slot"),
        ("llama", "two_part"),
        ("mistral", "two_part"),  # windows
        ("gemma2", "slot"),  # caps
        ("gpt_oss", "two_part"),  # sinks and windows
        ("qwen3_moe", "slot"),
    ],
)
def test_deferred_attention_is_that_of_the_pass(
    architecture: str, attention: str, compiled: list[type[nn.Module]]
) -> None:
    plain = logits(architecture, attention, compile=False)
    assert not compiled
    for found, expected in zip(logits(architecture, attention, compile=True), plain, strict=True):
        torch.testing.assert_close(found, expected)
    assert len(compiled) >= 2 * len(TREES) * 2  # two layers


def test_layers_that_take_the_cache_otherwise_stay_as_they_are(
    compiled: list[type[nn.Module]],
) -> None:
    for found, expected in zip(
        logits("gpt2", "slot", compile=True), logits("gpt2", "slot", compile=False), strict=True
    ):
        torch.testing.assert_close(found, expected)
    assert not compiled


def test_layers_are_what_they_were_outside_of_graphs(compiled: list[type[nn.Module]]) -> None:
    lm = CausalLM(build("llama"), max_len=48, graphs=True, compile=True)
    layers = lm.adapter.layers

    def fail() -> None:
        with CompiledLayers(lm.model).running():
            assert all("forward" in vars(layer) for layer in layers)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert not any("forward" in vars(layer) for layer in layers)
    lm.forward_whole(torch.tensor([[1, 2, 3]]))
    assert not compiled
    assert not deferred_attention._attending


def test_layers_with_a_forward_of_their_own_stay() -> None:
    """As accelerate gives them one that moves their inputs."""
    model: Any = copy.deepcopy(build("llama"))
    first, *others = model.model.layers
    first.forward = first.forward
    assert CompiledLayers(model).layers == others


def test_a_view_without_some_layers_is_compiled_like_its_target(
    compiled: list[type[nn.Module]],
) -> None:
    outputs = []
    for compile in (False, True):
        target = CausalLM(build("llama"), max_len=48, graphs=True, compile=compile)
        view = skip_sublayers(target, Sublayers.of([1], [0]))
        assert view.passes is not None
        assert view.passes.compile == compile
        outputs.append(Engine(view).generate_all(PROMPTS, SamplingParams(max_new_tokens=9)))
        assert bool(compiled) == compile
    plain, again = ([output.token_ids for output in side] for side in outputs)
    assert plain == again


def test_the_operation_is_what_it_says_to_the_compiler() -> None:
    """Shapes and strides that are told to the compiler are those of the result."""

    def attend(query: Tensor, key: Tensor, value: Tensor, *_: Any) -> Tensor:
        scores = query @ key.repeat_interleave(2, 1).transpose(2, 3)
        return (scores @ value.repeat_interleave(2, 1)).transpose(1, 2)

    query, key, value = torch.randn(2, 4, 3, 8), torch.randn(2, 2, 3, 8), torch.randn(2, 2, 3, 6)
    with unchecked(), deferred_attention.attending(attend):
        checks = torch.library.opcheck(
            torch.ops.specresearch.attend.default,
            (query, key, value, 0.5, None, None, None),
            test_utils=("test_schema", "test_faketensor"),
        )
    assert set(checks.values()) == {"SUCCESS"}


def test_a_compiler_that_fails_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(_: type[nn.Module]) -> Any:
        def run(*_: Any, **__: Any) -> None:
            error = BackendCompilerFailed.__new__(BackendCompilerFailed)
            RuntimeError.__init__(error, "no C++ compiler found")
            raise error

        return run

    monkeypatch.setattr(compiled_layers, "_compiled", failing)
    with pytest.raises(ValueError, match=r"(?s)cannot be compiled here.*target\.compile=false"):
        logits("llama", "slot", compile=True)


@pytest.mark.parametrize("version", [1, 3])
def test_a_head_is_compiled_like_its_target(version: int, compiled: list[type[nn.Module]]) -> None:
    outputs = []
    for compile in (False, True):
        network = build("llama", num_hidden_layers=6)
        target = CausalLM(network, max_len=48, graphs=True, compile=compile, name=BASE)
        proposer = (Eagle if version == 1 else Eagle3)(eagle_head(version), 4, tree="chain")
        engine = Engine(target, proposer, max_batch_size=2)
        outputs.append(engine.generate_all(PROMPTS, SamplingParams(max_new_tokens=12)))
        assert bool(compiled) == compile
    plain, again = ([output.token_ids for output in side] for side in outputs)
    assert plain == again
    assert (LlamaDecoderLayer if version == 1 else _Eagle3Layer) in compiled
