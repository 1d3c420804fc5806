from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tiny_models import build
from torch import Tensor

from specresearch import CausalLM, Engine
from specresearch.models import slot_model
from specresearch.proposal import Proposal, Topology


@pytest.fixture
def lm() -> CausalLM:
    return CausalLM(build("llama"), max_len=40, name="toy")


def test_bytes_per_token_are_measured(lm: CausalLM) -> None:
    layers, heads, width, bytes_each = 2, 2, 4, 8
    assert lm.bytes_per_token == 2 * layers * heads * width * bytes_each
    latent = CausalLM(build("deepseek_v3"))
    assert (
        latent.bytes_per_token
        == sum(k.shape[-1] * k.shape[2] for pair in _buffers(latent) for k in pair) * 8
    )


def _buffers(lm: CausalLM) -> Sequence[tuple[torch.Tensor, ...]]:
    lm.allocate(1)
    lm.extend((0,), [[1, 2]])
    return lm.cache.buffers


def test_predicted_memory_equals_used_memory(lm: CausalLM) -> None:
    lm.allocate(3, 6)
    lm.extend((0,), [[1, 2, 3]])
    assert lm.cache.num_bytes == lm.bytes_per_token * 3 * (40 + 6)


def test_the_error_for_too_large_a_cache_names_its_size_and_a_remedy(
    lm: CausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot_model, "available_bytes", lambda device: 100_000)
    needed = lm.bytes_per_token * 64 * 41
    with pytest.raises(MemoryError) as caught:
        Engine(lm, max_batch_size=64)
    for part in (
        f"{needed:,} bytes",
        "64 requests x 41 tokens",
        "100,000 are available",
        "batch_size",
        "target.max_len",
    ):
        assert part in str(caught.value)


def test_a_smaller_batch_works_after_the_error(
    lm: CausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot_model, "available_bytes", lambda device: 100_000)
    with pytest.raises(MemoryError):
        Engine(lm, max_batch_size=64)
    (output,) = Engine(lm, max_batch_size=2).generate([[1, 2, 3]])
    assert len(output.token_ids) == 37


def test_a_large_enough_cache_is_kept(lm: CausalLM) -> None:
    lm.allocate(4, 8)
    cache = lm.cache
    lm.allocate(2, 3)
    assert lm.cache is cache
    lm.allocate(2, 20)
    assert (lm.cache.num_slots, lm.cache.num_columns) == (4, 60)


def test_a_cache_in_use_cannot_grow(lm: CausalLM) -> None:
    lm.allocate(1)
    lm.acquire()
    with pytest.raises(RuntimeError, match="cannot grow while requests are running"):
        lm.allocate(2)


def test_more_tokens_than_columns_is_an_error(lm: CausalLM) -> None:
    lm.allocate(2)
    with pytest.raises(IndexError, match="raise max_len"):
        lm.extend((0, 1), [[1] * 42, [2]])


@pytest.mark.parametrize("max_len", [1, 65, -3])
def test_max_len_must_be_possible(max_len: int) -> None:
    with pytest.raises(ValueError, match=f"max_len={max_len}.*2 to 64 tokens"):
        CausalLM(build("llama"), max_len=max_len)


@pytest.mark.parametrize("attention", ["slot", "sdpa"])
def test_attention_may_lie_in_memory_as_on_a_gpu(
    attention: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There, torch's attention puts the heads of a token side by side."""

    def decoded() -> list[Tensor]:
        lm = CausalLM(build("llama"), attention=attention, self_test=False)
        lm.allocate(3, 4)
        tree = Topology.from_parents(torch.tensor([[-1, 0, 0, 1]]))
        tokens = torch.tensor([[1, 2, 3, 4]]).expand(3, -1)
        logits = lm.extend((0, 1, 2), [[1, 2, 3, 4, 5, 6, 7], [3], [5, 4]]).logits
        proposal = Proposal(tokens, tree, torch.full((3,), 4))
        return [logits, lm.forward((0, 1, 2), proposal).logits]

    def attend(*args: Any, **options: Any) -> Tensor:
        return own(*args, **options).transpose(1, 2).contiguous().transpose(1, 2)

    expected, own = decoded(), F.scaled_dot_product_attention
    monkeypatch.setattr(F, "scaled_dot_product_attention", attend)
    torch.testing.assert_close(decoded(), expected)
