"""GGUF files written here load as the models that they were written from."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import VOCAB, build, letters_tokenizer
from transformers import PreTrainedModel

from specresearch import CausalLM
from specresearch.models import gguf_file
from specresearch.models.loading import ModelNotLoadedError, load_model

gguf = pytest.importorskip("gguf")

FILE = "tiny.gguf"
END = "<|endoftext|>"  # which the converted tokenizer of the architecture always has
WIDTH = 32  # blocks of Q8_0 hold as many numbers; heads of Qwen3 have 128


def model_to_write() -> PreTrainedModel:
    return build(
        "qwen3",
        dtype=torch.float32,
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        head_dim=128,
        vocab_size=VOCAB + 1,
    )


def write(file: Path, model: PreTrainedModel, kind: Any, architecture: str = "qwen3") -> None:
    """Write a model with its tokenizer as a GGUF file, matrices in a given quantisation."""
    config: Any = model.config
    writer = gguf.GGUFWriter(file, architecture)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    tokens = sorted(letters_tokenizer().get_vocab().items(), key=lambda item: item[1])
    words = [*(word for word, _ in tokens), END]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(words)
    writer.add_token_types([*[gguf.TokenType.NORMAL] * (len(words) - 1), gguf.TokenType.CONTROL])
    writer.add_token_merges([f"{word[0]} {word[1]}" for word in words if len(word) == 2])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, config.num_hidden_layers)
    for name, weight in model.state_dict().items():
        array, own = weight.numpy(), gguf.GGMLQuantizationType.F32
        if array.ndim > 1:
            array, own = gguf.quants.quantize(array, kind), kind
        written = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert written is not None
        writer.add_tensor(written, array, raw_dtype=own)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / FILE, model_to_write(), gguf.GGMLQuantizationType.F32)
    return tmp_path


def dequantised(weight: torch.Tensor, kind: Any) -> torch.Tensor:
    if weight.dim() == 1:
        return weight
    return torch.from_numpy(gguf.dequantize(gguf.quants.quantize(weight.numpy(), kind), kind))


@pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0"])
def test_the_weights_are_those_that_were_written(tmp_path: Path, kind: str) -> None:
    original = model_to_write()
    quantization = gguf.GGMLQuantizationType[kind]
    write(tmp_path / FILE, original, quantization)
    loaded, tokenizer = load_model(str(tmp_path), device="cpu", dtype="float32", gguf_file=FILE)
    weights = loaded.state_dict()
    for name, value in original.state_dict().items():
        assert torch.equal(weights[name], dequantised(value, quantization)), name
    assert tokenizer.get_vocab() == letters_tokenizer().get_vocab() | {END: VOCAB}


def test_a_model_decodes_like_any_other(folder: Path) -> None:
    lm = CausalLM.from_pretrained(str(folder), device="cpu", dtype="float64", gguf_file=FILE)
    assert lm.name == f"{folder}/{FILE}"
    assert lm.vocab_size == VOCAB + 1
    ids = torch.tensor([[3, 1, 4]])
    lm.allocate(1)
    logits = lm.extend((0,), [[3, 1, 4]]).logits[0, 0]
    torch.testing.assert_close(logits, model_to_write().double()(ids).logits[0, -1])


def test_a_model_is_trained_and_saved_like_any_other(folder: Path) -> None:
    loaded, tokenizer = load_model(str(folder), device="cpu", dtype="float64", gguf_file=FILE)
    ids = torch.tensor([[3, 1, 4]])
    loaded(ids).logits.sum().backward()
    saved = folder / "saved"
    loaded.save_pretrained(saved)
    tokenizer.save_pretrained(saved)
    again, _ = load_model(str(saved), device="cpu", dtype="float64")
    assert not hasattr(again.config, "quantization_config")
    assert torch.equal(again(ids).logits, loaded(ids).logits)


def test_a_tokenizer_beside_the_file_comes_first(folder: Path) -> None:
    tokenizer = copy.deepcopy(letters_tokenizer())
    tokenizer.add_special_tokens({"eos_token": "a"})
    tokenizer.save_pretrained(folder)
    assert load_model(str(folder), device="cpu", gguf_file=FILE)[1].eos_token == "a"


def test_a_missing_file_is_named_with_those_that_are_there(folder: Path) -> None:
    with pytest.raises(ModelNotLoadedError, match=f"it holds {FILE}"):
        load_model(str(folder), device="cpu", gguf_file="other.gguf")
    (folder / FILE).unlink()
    with pytest.raises(ModelNotLoadedError, match="holds no GGUF file"):
        load_model(str(folder), device="cpu", gguf_file=FILE)
    with pytest.raises(ModelNotLoadedError, match=r"does not end with \.gguf"):
        load_model(str(folder), device="cpu", gguf_file="model.safetensors")


def test_a_path_to_a_file_says_how_to_name_it(folder: Path) -> None:
    with pytest.raises(ModelNotLoadedError, match=f"target.gguf_file={FILE}"):
        load_model(str(folder / FILE), device="cpu")


def test_without_the_gguf_package_the_error_says_how_to_install_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf_file, "find_spec", lambda _: None)
    with pytest.raises(ModelNotLoadedError, match=r"pip install -e '\.\[gguf\]'"):
        load_model(str(folder), device="cpu", gguf_file=FILE)


def test_an_unknown_architecture_is_refused_by_name(tmp_path: Path) -> None:
    write(tmp_path / FILE, model_to_write(), gguf.GGMLQuantizationType.F32, "clockwork")
    with pytest.raises(ModelNotLoadedError, match=r"cannot be converted: .*clockwork"):
        load_model(str(tmp_path), device="cpu", gguf_file=FILE)


@pytest.mark.parametrize("damage", ["truncated", "foreign", "empty"])
def test_a_damaged_file_is_refused(folder: Path, damage: str) -> None:
    data = (folder / FILE).read_bytes()
    damaged = {"truncated": data[: len(data) // 9], "foreign": b"nonsense", "empty": b""}
    (folder / FILE).write_bytes(damaged[damage])
    with pytest.raises(ModelNotLoadedError, match="is damaged"):
        load_model(str(folder), device="cpu", gguf_file=FILE)


def test_random_weights_and_quantization_contradict_a_file(folder: Path) -> None:
    with pytest.raises(ValueError, match="leave out"):
        load_model(str(folder), gguf_file=FILE, weights="random")
    with pytest.raises(ValueError, match="leave out"):
        load_model(str(folder), gguf_file=FILE, quantization={"load_in_4bit": True})
