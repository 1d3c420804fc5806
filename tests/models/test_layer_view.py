"""Views that leave out sublayers equal a model of the transformers library with them cut out."""

import copy

import pytest
import torch
from cut_models import LAYERS, SKIPPED, cut, deep
from tiny_models import ARCHITECTURES, VOCAB, build
from torch import Tensor

from specresearch import CausalLM
from specresearch.models.hf_adapter import UnsupportedModelError
from specresearch.models.layer_view import Sublayers, skip_sublayers
from specresearch.models.memory import weight_bytes

WITHOUT_MLP_MODULE = {"opt"}
TOLERANCE = 1e-5  # some architectures compute parts in float32


def tokens(num: int) -> list[int]:
    return torch.randint(0, VOCAB, (num,), generator=torch.Generator().manual_seed(1)).tolist()


def last_logits(lm: CausalLM, ids: list[int]) -> Tensor:
    lm.allocate(2, 1)
    slot = lm.acquire()
    assert slot is not None
    lm.extend([slot], [ids[:-1]], want_logits=False)
    logits = lm.extend([slot], [ids[-1:]]).logits[0, 0]
    lm.release(slot)
    return logits


@pytest.mark.parametrize("skipped", SKIPPED)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_logits_equal_those_of_a_model_with_the_sublayers_cut_out(
    architecture: str, skipped: str
) -> None:
    if skipped == "sublayers" and architecture in WITHOUT_MLP_MODULE:
        pytest.skip("its MLP is no module of its own")
    model, ids = deep(architecture), tokens(12)
    target = CausalLM(copy.deepcopy(model), max_len=48, self_test=False)
    with torch.no_grad():
        expected = cut(model, SKIPPED[skipped])(torch.tensor([ids])).logits[0, -1]
        whole = model(torch.tensor([ids])).logits[0, -1]
    view = skip_sublayers(target, SKIPPED[skipped])
    assert (last_logits(view, ids) - expected).abs().max() < TOLERANCE * expected.abs().max()
    assert (last_logits(target, ids) - whole).abs().max() < TOLERANCE * whole.abs().max()
    assert (expected - whole).abs().max() > 0.01 * whole.abs().max()


def test_nothing_is_copied_and_only_attention_that_runs_is_cached() -> None:
    target = CausalLM(deep("llama"), max_len=48)
    view = skip_sublayers(target, Sublayers.of([0, 1, 3], [1, 2]))
    assert weight_bytes([view.module], besides=[target.module]) == 0
    assert view.num_parameters < target.num_parameters
    assert view.bytes_per_token == target.bytes_per_token // LAYERS
    with torch.no_grad():
        for parameter in target.model.parameters():
            parameter.mul_(1.1)
    fresh = skip_sublayers(target, Sublayers.of([0, 1, 3], [1, 2]))
    assert torch.equal(last_logits(view, tokens(6)), last_logits(fresh, tokens(6)))


def test_packed_layers_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specresearch.models.packed.SMALLEST_WEIGHT", 1)
    model = build("llama", dtype=torch.float32, num_hidden_layers=LAYERS)
    target = CausalLM(model, max_len=48, pack_weights=True)
    view = skip_sublayers(target, Sublayers.behind(2, LAYERS))
    last_logits(view, tokens(6))
    assert weight_bytes([view.module]) > 0
    assert weight_bytes([view.module], besides=[target.module]) == 0
    assert view.linear_kernels == target.linear_kernels


@pytest.mark.parametrize(
    ("architecture", "skipped", "message"),
    [
        ("llama", Sublayers.of([4], []), r"layer 4 cannot be skipped: .* are 0 to 3$"),
        ("llama", Sublayers.of([], [-1]), r"layer -1 cannot be skipped"),
        ("llama", Sublayers.of(range(4), range(4)), r"the attention of all 4 layers .* keep"),
        ("opt", Sublayers.of([], [1]), r"the MLP of a OPTDecoderLayer is no module .* skip whole"),
    ],
)
def test_what_cannot_be_skipped_is_refused(
    architecture: str, skipped: Sublayers, message: str
) -> None:
    target = CausalLM(deep(architecture), max_len=48)
    with pytest.raises((ValueError, UnsupportedModelError), match=message):
        skip_sublayers(target, skipped)


def test_the_words_for_what_is_skipped() -> None:
    assert str(Sublayers.of([1, 3], [3, 2])) == "layers 3; attention of 1; MLP of 2"
    assert str(Sublayers()) == "nothing"
