"""Names stand for the first quantiser that works here, and quantised weights verify and draft."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from specresearch import CausalLM, Engine, Request, SamplingParams
from specresearch.models import load_draft, quantization
from specresearch.models.int8_linear import Int8Linear, use_int8_kernel
from specresearch.models.load_errors import ModelNotLoadedError
from specresearch.models.loading import ZOO, load_model
from specresearch.models.memory import stored_bytes
from specresearch.models.quantization import choose_quantizer, label_of
from specresearch.models.quantizer import Quantizer, is_quantized, try_out
from specresearch.proposers import DraftModel, NGram
from specresearch.shape_store.identity import weights_fingerprint

torchao = pytest.importorskip("torchao")
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore:the target is:UserWarning"
)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def plain() -> CausalLM:
    return CausalLM.from_pretrained("zoo:tiny", device="cpu")


@pytest.fixture(scope="module", params=["int8", "int4"])
def quantized(request: pytest.FixtureRequest) -> CausalLM:
    return CausalLM.from_pretrained("zoo:tiny", device="cpu", quantization=request.param)


def prompt_of(lm: CausalLM) -> list[int]:
    assert lm.tokenizer is not None
    return lm.tokenizer("The cat sat on the mat, and the dog sat on")["input_ids"]


def decode(target: CausalLM, proposer: Any = None) -> tuple[tuple[int, ...], int]:
    request = Request(prompt_of(target), SamplingParams(max_new_tokens=16))
    output = next(iter(Engine(target, proposer).generate([request]))).checked()
    return output.token_ids, output.record.counts.num_accepted_tokens


def test_quantized_targets_verify_drafts_and_say_what_they_are(
    plain: CausalLM, quantized: CausalLM
) -> None:
    assert decode(quantized, NGram(4, n_min=1))[0] == decode(quantized)[0]
    assert quantized.num_parameters == plain.num_parameters
    assert stored_bytes([quantized.module]) < 0.5 * stored_bytes([plain.module])
    assert "torchao" in quantized.weights
    assert plain.weights == "float32"
    assert quantized.linear_kernels == "quantized"
    assert weights_fingerprint(quantized) != weights_fingerprint(plain)


def test_heads_read_logits_through_the_modules_forward(quantized: CausalLM) -> None:
    head: Any = quantized.model.get_output_embeddings()
    states = torch.randn(3, head.in_features)
    assert is_quantized(head)
    with torch.inference_mode():
        one_hot = torch.eye(head.in_features)
        columns = head(one_hot)  # [H, V], the weights as they are multiplied by
        assert torch.allclose(quantized.readout(states), states @ columns, atol=1e-2)
        assert quantized.readout(states[:0]).shape == (0, quantized.vocab_size)


def test_the_lm_head_may_stay_as_it_is() -> None:
    settings = {"weights": "int8", "lm_head": None}
    lm = CausalLM.from_pretrained("zoo:tiny", device="cpu", quantization=settings)
    assert lm.weights.endswith("LM head float32")
    head: Any = lm.model.get_output_embeddings()
    assert head.weight.dtype == torch.float32
    assert label_of(settings, "float32") == "int8, LM head float32"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("has_bias", [True, False])
def test_the_int8_kernel_multiplies_as_torchao_does(dtype: torch.dtype, has_bias: bool) -> None:
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    model = nn.Sequential(nn.Linear(64, 48, bias=has_bias).to(dtype))
    quantize_(model, Int8WeightOnlyConfig(set_inductor_config=False))
    inputs = torch.randn(2, 5, 64).to(dtype)
    with torch.no_grad():
        expected = model(inputs)
        use_int8_kernel(model)
        assert type(model[0]) is Int8Linear
        result = model(inputs)
        assert model(inputs[:0]).shape == (0, 5, 48)
    assert torch.allclose(result, expected, atol=0.05 if dtype == torch.bfloat16 else 1e-4)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("float8", "does not work on cpu.*compute capability 8.9.*use int8 or int4"),
        ("int5", "quantization=int5 is unknown; choose one of int8, int4, float8"),
        ({"weights": "int8", "lm_head": "int5"}, "int5 is unknown"),
        ({"quant_method": "torchao", "quant_type": "Nope"}, "Nope"),
        ({"quant_method": "torchao", "quant_type": "Int4WeightOnlyConfig"}, "does not work on cpu"),
    ],
)
def test_what_does_not_work_here_is_one_sentence(settings: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        choose_quantizer(settings, CPU, torch.float32)
    assert "\n" not in str(caught.value)


def test_bitsandbytes_stands_in_for_torchao(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: str, **__: bool) -> None:
        raise ImportError("torchao is not installed")

    monkeypatch.setattr(quantization, "_torchao", missing)
    assert "load_in_8bit" in choose_quantizer("int8", CPU, torch.float32).config.to_dict()
    with pytest.raises(ValueError, match="only torchao quantises an LM head"):
        choose_quantizer({"weights": "int8", "lm_head": "int8"}, CPU, torch.float32)
    monkeypatch.setattr(quantization, "BitsAndBytesConfig", missing)
    with pytest.raises(
        ValueError, match=r"not installed; bitsandbytes: .*pip install -e '.\[quant"
    ):
        choose_quantizer("int8", CPU, torch.float32)


def test_a_quantiser_that_computes_something_else_fails_its_trial(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    quantizer = choose_quantizer("int8", CPU, torch.float32)
    assert try_out(quantizer, CPU, torch.float32) is None

    def spoil(self: Quantizer, model: Any) -> None:
        model.get_output_embeddings().weight.data.zero_()

    monkeypatch.setattr(Quantizer, "finish", spoil)
    assert "logits are off" in (try_out(quantizer, CPU, torch.float32) or "")


def test_a_checkpoint_that_comes_quantised_needs_no_setting(tmp_path: Path) -> None:
    settings = {"weights": "int8", "lm_head": None}
    lm = CausalLM.from_pretrained("zoo:tiny", device="cpu", quantization=settings)
    lm.model.save_pretrained(tmp_path)
    assert lm.tokenizer is not None
    lm.tokenizer.save_pretrained(tmp_path)
    again = CausalLM.from_pretrained(str(tmp_path), device="cpu")
    assert (again.weights, again.num_parameters) == (lm.weights, lm.num_parameters)
    assert decode(again) == decode(lm)


def test_a_checkpoint_of_a_missing_package_names_it(tmp_path: Path) -> None:
    shutil.copytree(ZOO / "tiny", tmp_path / "hqq")
    file = tmp_path / "hqq" / "config.json"
    config = json.loads(file.read_text())
    config["quantization_config"] = {"quant_method": "hqq", "bits": 4}
    file.write_text(json.dumps(config))
    with pytest.raises(ModelNotLoadedError) as caught:
        load_model(str(tmp_path / "hqq"), device="cpu")
    assert "comes quantised and cannot be read" in str(caught.value)
    assert "pip install hqq" in str(caught.value)


class TestSelfDraft:
    @pytest.mark.parametrize("name", ["int8", "int4"])
    def test_it_shares_what_is_not_quantised_and_changes_no_output(
        self, plain: CausalLM, name: str
    ) -> None:
        copy = load_draft("self", quantization=name)
        proposer = DraftModel(copy, 3)
        tokens, accepted = decode(plain, proposer)
        assert tokens == decode(plain)[0]
        assert accepted > 0
        assert copy.of(plain) is proposer.draft  # pyright: ignore[reportAttributeAccessIssue]
        beside = stored_bytes([proposer.draft.module], [plain.module])
        embeddings: Any = plain.model.get_input_embeddings()
        assert beside < stored_bytes([proposer.draft.module]) - 0.99 * embeddings.weight.nbytes

    def test_an_unquantised_copy_is_accepted_whole(self, plain: CausalLM) -> None:
        proposer = DraftModel(load_draft("self"), 3)
        tokens, accepted = decode(plain, proposer)
        assert accepted >= len(tokens) - -(-len(tokens) // 4)
        buffers = stored_bytes([proposer.draft.module], [plain.module])
        assert buffers < 1000  # frequencies of rotary embeddings

    def test_a_quantised_target_has_no_copy(self, quantized: CausalLM) -> None:
        with pytest.raises(ValueError, match=r"quantised already .* proposer\.draft\.model="):
            load_draft("self", quantization="int8").of(quantized)  # pyright: ignore
