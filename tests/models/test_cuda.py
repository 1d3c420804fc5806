"""Tests that need a GPU; run them with `pytest -m gpu`."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from specresearch import CausalLM, Engine, SamplingParams
from specresearch.models.flash_kernels import KERNELS, FlashKernel
from specresearch.models.graphs import GraphInput, Graphs
from specresearch.models.kernel_choice import COARSE, LayerShape, error_of_example
from specresearch.proposal import Proposal, Topology
from specresearch.proposers import DraftModel, NGram
from tests.tiny_models import VOCAB, build

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def on_gpu(model: PreTrainedModel) -> PreTrainedModel:
    torch.nn.Module.cuda(model)
    return model


PROMPTS = [[1, 2, 3, 1, 2, 3, 1], [4, 5], [6, 7, 8, 9, 6, 7]]


def test_tree_equals_sequence_on_the_device() -> None:
    model = CausalLM(on_gpu(build("llama")))
    model.allocate(2, 4)
    tree = Topology.from_parents(torch.tensor([[-1, 0, 0, 1]], device="cuda"))
    tokens = torch.tensor([[3, 4, 5, 6]], device="cuda")
    slot, other = model.acquire(), model.acquire()
    assert slot is not None
    assert other is not None
    model.extend((slot,), [PROMPTS[0]], want_logits=False)
    logits = model.forward((slot,), Proposal(tokens, tree, torch.tensor([4], device="cuda"))).logits
    alone = model.extend((other,), [[*PROMPTS[0], 3, 4, 6]]).logits
    torch.testing.assert_close(logits[:, 3:], alone)


WIDE: dict[str, Any] = {
    "hidden_size": 64,  # kernels need heads of 8 or more
    "max_position_embeddings": 4096,
    "num_experts_per_tok": 4,  # all of them: rounding would change a choice
}


def in_bfloat16(architecture: str, attention: str) -> tuple[CausalLM, CausalLM]:
    """Return a model, and the same weights computing in float32."""
    rounded = build(architecture, dtype=torch.bfloat16, spread=0.5, **WIDE)
    exact = CausalLM(on_gpu(copy.deepcopy(rounded).float()))
    half = CausalLM(on_gpu(rounded), attention=attention)
    for model in (exact, half):
        model.allocate(4, 8)
    return half, exact


@pytest.mark.parametrize("kernel", KERNELS["cuda"], ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("width", [8, 64, 96, 128, 256])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("has_window", [False, True])
def test_kernels_compute_small_examples(
    kernel: FlashKernel, width: int, dtype: torch.dtype, has_window: bool
) -> None:
    shape = LayerShape(torch.device("cuda", 0), dtype, width, has_window)
    try:
        error = error_of_example(kernel, shape)
    except (ImportError, RuntimeError) as reason:
        if not kernel.is_package:
            raise
        pytest.skip(f"{kernel.name} is not installed, or was built for less: {reason}")
    assert error < COARSE


@pytest.mark.parametrize("attention", ["slot", "two_part"])
@pytest.mark.parametrize("architecture", ["llama", "mistral", "gpt_oss"])
def test_half_precision_agrees_with_float32(architecture: str, attention: str) -> None:
    half, exact = in_bfloat16(architecture, attention)
    assert (half.kernel is not None) == (attention == "two_part")
    assert exact.kernel is None  # float32
    slots = (3, 0, 2)
    torch.testing.assert_close(
        half.extend(slots, PROMPTS).logits.float(),
        exact.extend(slots, PROMPTS).logits,
        rtol=0.1,
        atol=0.1,
    )
    tokens = torch.tensor([[1, 2, 3, 4, 5]] * 3, device="cuda")
    lengths = torch.tensor([5, 5, 5], device="cuda")
    tree = Topology.from_parents(torch.tensor([[-1, 0, 0, 1, 3]], device="cuda"))
    for proposal in (Proposal.chain(tokens, lengths), Proposal(tokens, tree, lengths)):
        torch.testing.assert_close(
            half.forward(slots, proposal).logits.float(),
            exact.forward(slots, proposal).logits,
            rtol=0.1,
            atol=0.1,
        )


@pytest.mark.parametrize("attention", ["slot", "two_part"])
@pytest.mark.parametrize("num_tokens", [20, 40, 128])
def test_prompts_are_replayed_as_graphs(attention: str, num_tokens: int) -> None:
    half, exact = in_bfloat16("llama", attention)
    assert half.passes is not None
    for first in (5, 9):  # captured, then replayed
        prompts = [[(first * i + row) % VOCAB for i in range(num_tokens)] for row in (3, 4)]
        logits = half.extend((2, 0), prompts).logits.float()
        torch.testing.assert_close(logits, exact.extend((2, 0), prompts).logits, rtol=0.1, atol=0.1)
    assert not half.passes.graphs.refused
    sizes = {key[0].num_nodes for key in half.passes.graphs.keys}
    assert sizes == {{20: 32, 40: 64, 128: 128}[num_tokens]}


def test_long_keys_are_split() -> None:
    half, exact = in_bfloat16("llama", "auto")
    assert half.kernel is not None
    prompts = [[(7 * i + 3) % VOCAB for i in range(3000)], [5, 6]]
    tokens = torch.tensor([[1, 2, 3, 4, 5]] * 2, device="cuda")
    lengths = torch.tensor([5, 5], device="cuda")
    tree = Topology.from_parents(torch.tensor([[-1, 0, 0, 1, 3]], device="cuda"))
    for model in (half, exact):
        model.extend((3, 1), prompts, want_logits=False)
    for kernel in (half.kernel, replace(half.kernel, splits_keys=False)):
        half.kernel = kernel
        assert half.passes is not None
        half.passes.graphs.clear()
        torch.testing.assert_close(
            half.forward((3, 1), Proposal(tokens, tree, lengths)).logits.float(),
            exact.forward((3, 1), Proposal(tokens, tree, lengths)).logits,
            rtol=0.1,
            atol=0.1,
        )


def test_a_gpu_in_half_precision_has_two_parts() -> None:
    half, _ = in_bfloat16("llama", "auto")
    assert half.kernel is not None
    with pytest.raises(ValueError, match="attention=two_part does not work"):
        CausalLM(on_gpu(build("llama", dtype=torch.float32)), attention="two_part")


@pytest.mark.filterwarnings("ignore:the target is 1.0 times the draft")
def test_greedy_is_baseline_on_the_device() -> None:
    target = CausalLM(on_gpu(build("llama")))
    sampling = SamplingParams(max_new_tokens=20)
    plain = {
        o.id: o.token_ids for o in Engine(target, max_batch_size=2).generate(PROMPTS, sampling)
    }
    for proposer in (NGram(4, n_min=1), DraftModel(CausalLM(on_gpu(build("llama"))), 3)):
        engine = Engine(target, proposer, max_batch_size=2)
        assert {o.id: o.token_ids for o in engine.generate(PROMPTS, sampling)} == plain


def test_a_failed_capture_does_no_harm(caplog: pytest.LogCaptureFixture) -> None:
    device, held = torch.device("cuda", 0), torch.ones(3, device="cuda")
    graphs = Graphs(device)

    def run(key: str, function: Callable[[Tensor], tuple[Tensor]]) -> list[float]:
        return graphs.run((key,), function, [GraphInput(held)])[0].tolist()

    run("before", lambda values: (values * 2,))
    for attempt in range(2):
        assert run(f"waits {attempt}", lambda values: (values * values.sum().item(),)) == [3.0] * 3
        assert len(torch.randn(3, device=device).unique()) == 3
        for key in ("before", f"after {attempt}"):
            assert run(key, lambda values: (values * 2,)) == [2.0] * 3
    assert [key for (key,) in graphs.keys] == ["before", "after 0", "after 1"]
    assert len(caplog.messages) == 1


@pytest.mark.filterwarnings("ignore:the target is 1.0 times the draft")
@pytest.mark.parametrize("attention", ["slot", "two_part"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("shape", [{}, {"tree": "dynamic", "depth": 3, "top_k": 3}], ids=str)
def test_graphs_decode_what_passes_without_them_do(
    shape: dict[str, Any], temperature: float, attention: str
) -> None:
    dtype = torch.float32 if attention == "slot" else torch.bfloat16
    outputs = []
    for graphs in (False, True):
        target, draft = (
            CausalLM(
                on_gpu(build("llama", dtype=dtype, spread=0.5, **WIDE)),
                attention=attention,
                graphs=graphs,
            )
            for _ in range(2)
        )
        engine = Engine(target, DraftModel(draft, 6, **shape), max_batch_size=2)
        sampling = SamplingParams(max_new_tokens=30, temperature=temperature, seed=1)
        for _ in range(2):  # captured, then replayed
            outputs.append([output.token_ids for output in engine.generate_all(PROMPTS, sampling)])
    for model in (target, draft):
        assert model.passes is not None
        assert len(model.passes.graphs) > 2
        assert not model.passes.graphs.refused
    if dtype == torch.float32:
        assert outputs.count(outputs[0]) == 4
