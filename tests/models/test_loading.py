import copy
import hashlib
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from huggingface_hub.errors import GatedRepoError
from safetensors.torch import save_file
from tiny_models import build, letters_tokenizer

from specresearch import CausalLM, Engine, Request, SamplingParams
from specresearch.models import loading
from specresearch.models.eagle_checkpoint import read_eagle
from specresearch.models.head_files import read_head
from specresearch.models.loading import ModelNotLoadedError, load_model, resolve, resolve_dtype
from specresearch.proposers import NGram


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    build("llama", dtype=torch.float32).save_pretrained(tmp_path)
    letters_tokenizer().save_pretrained(tmp_path)
    return tmp_path


def test_a_local_folder_is_loaded(folder: Path) -> None:
    lm = CausalLM.from_pretrained(str(folder), device="cpu", dtype="float64", max_len=32)
    assert (lm.dtype, lm.max_len, lm.name) == (torch.float64, 32, str(folder))
    assert lm.tokenizer is not None
    assert lm.tokenizer.get_vocab() == letters_tokenizer().get_vocab()
    ids = torch.tensor([[3, 1, 4]])
    expected = build("llama", dtype=torch.float32).double()(ids).logits[0, -1]
    lm.allocate(1)
    torch.testing.assert_close(lm.extend((0,), [[3, 1, 4]]).logits[0, 0], expected)


@pytest.mark.parametrize("damage", ["truncated", "header", "empty"])
def test_damaged_weights_are_rejected_and_not_changed(folder: Path, damage: str) -> None:
    weights = folder / "model.safetensors"
    data = weights.read_bytes()
    weights.write_bytes(
        {"truncated": data[: len(data) // 2], "header": b"\xff" * 64 + data[64:], "empty": b""}[
            damage
        ]
    )
    before = {path.name: hashlib.sha256(path.read_bytes()).digest() for path in folder.iterdir()}
    with pytest.raises(ModelNotLoadedError, match="damaged"):
        load_model(str(folder), device="cpu")
    assert {
        path.name: hashlib.sha256(path.read_bytes()).digest() for path in folder.iterdir()
    } == before


def test_weights_of_another_kind_need_permission(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    model = build("llama", dtype=torch.float32)
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    with pytest.raises(ModelNotLoadedError, match="allow_pickle=true"):
        load_model(str(folder), device="cpu")
    loaded, _ = load_model(str(folder), device="cpu", allow_pickle=True)
    for name, parameter in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], parameter)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_quantized_weights_verify_drafts_too() -> None:
    pytest.importorskip("bitsandbytes")
    plain, quantized = (
        CausalLM.from_pretrained("zoo:tiny", device="cpu", quantization=settings)
        for settings in (None, {"load_in_4bit": True})
    )
    layer = quantized.model.get_submodule("model.layers.0.mlp.up_proj")
    assert layer.weight.dtype == torch.uint8
    assert plain.tokenizer is not None
    prompt = plain.tokenizer("The cat sat on the mat, and the dog sat on")["input_ids"]
    request = Request(prompt, SamplingParams(max_new_tokens=24))
    outputs = [
        next(iter(Engine(quantized, proposer).generate([request])))
        for proposer in (None, NGram(4, n_min=1))
    ]
    assert outputs[0].token_ids == outputs[1].token_ids
    assert outputs[1].record.counts.num_accepted_tokens > 0


def test_an_unknown_quantization_is_an_error() -> None:
    with pytest.raises(
        ValueError,
        match=r"target\.quantization=.*'int1'.* is not one that the transformers library knows",
    ):
        load_model("zoo:tiny", device="cpu", quantization={"quant_method": "int1"})


@pytest.mark.parametrize(
    ("config", "hint"),
    [
        (None, ""),
        ("{", ""),
        ('{"specresearch": {"method": "medusa"}}', "so draft with it by .proposer=medusa"),
    ],
)
def test_a_folder_without_a_model_is_an_error(
    tmp_path: Path, config: str | None, hint: str
) -> None:
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    with pytest.raises(ModelNotLoadedError, match=f"does not hold a usable causal LM.*{hint}"):
        load_model(str(tmp_path), device="cpu")


def test_an_unknown_name_is_an_error() -> None:
    with pytest.raises(
        ModelNotLoadedError, match=r"neither a local folder nor reachable on the hub.*target=tiny"
    ):
        load_model("no-such-owner/no-such-model", device="cpu")


def test_a_gated_model_names_its_page_and_the_login(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        gated = GatedRepoError("401 Client Error", response=Mock())
        raise OSError("You are trying to access a gated repo.") from gated

    monkeypatch.setattr(loading.AutoConfig, "from_pretrained", refuse)
    with pytest.raises(ModelNotLoadedError, match=r"huggingface.co/owner/gated, .*hf auth login"):
        load_model("owner/gated", device="cpu")


def test_an_unknown_zoo_name_lists_the_zoo(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("tiny", "tiny_draft"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    monkeypatch.setattr(loading, "ZOO", tmp_path)
    assert resolve("zoo:tiny") == str(tmp_path / "tiny")
    with pytest.raises(
        ModelNotLoadedError,
        match="'zoo:huge' is not in the zoo; there are: zoo:tiny, zoo:tiny_draft",
    ):
        resolve("zoo:huge")


def test_the_default_dtype_depends_on_the_device() -> None:
    assert resolve_dtype("auto", "cpu") == torch.float32
    assert resolve_dtype("auto", "cuda:0") == torch.bfloat16
    with pytest.raises(ValueError, match="dtype='fp8' is unknown; choose one of auto, float64"):
        resolve_dtype("fp8", "cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_an_error(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"torch sees no GPU; use target\.device=cpu"):
        load_model(str(folder), device="cuda")


class CodeInPickle:
    """An object that runs code when it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return print, ("code of a checkpoint was run",)


@pytest.mark.parametrize("saved", ["object", "garbage", "empty"])
def test_rejected_pickles_say_why_without_advice_to_load_them(
    folder: Path, saved: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "model.safetensors").unlink()
    weights = folder / "pytorch_model.bin"
    if saved == "object":
        torch.save({"a": CodeInPickle()}, weights)
    else:
        weights.write_bytes({"garbage": b"<html>gone</html>", "empty": b""}[saved])
    for load in (
        lambda: load_model(str(folder), device="cpu", allow_pickle=True),
        lambda: read_head(str(folder)),
    ):
        with pytest.raises(
            ModelNotLoadedError, match=r"damaged, or holds? more than tensors"
        ) as caught:
            load()
        assert "weights_only" not in str(caught.value)
        assert "\n" not in str(caught.value)
        assert ("'print'" in str(caught.value)) == (saved == "object")
    assert "code of a checkpoint" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ("{}", "lists no tensors"),
        ("[]", "lists no tensors"),
        ('{"weight_map": {}}', "lists no tensors"),
        ('{"weight_map": {"fc.weight": 5}}', "lists no tensors"),
        ('{"weight_map": {"fc.weight": "gone.safetensors"}}', "gone.safetensors|metadata"),
    ],
)
def test_an_index_without_tensors_is_an_error(folder: Path, index: str, message: str) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(index)
    for load in (lambda: load_model(str(folder), device="cpu"), lambda: read_eagle(str(folder))):
        with pytest.raises(ModelNotLoadedError, match=message):
            load()


def test_a_tensor_that_only_the_index_lists_is_named(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    save_file({"other": torch.zeros(2)}, folder / "shard.safetensors")
    (folder / "model.safetensors.index.json").write_text(
        '{"weight_map": {"fc.weight": "shard.safetensors"}}'
    )
    with pytest.raises(
        ModelNotLoadedError, match=r"lacks 1 tensors .*such as 'fc.weight' in shard.safetensors"
    ):
        read_eagle(str(folder))


@pytest.mark.parametrize(
    ("vocab_size", "message"),
    [
        (4096, "31 tokens and the model a vocabulary of 4096"),
        (30, r"1 tokens beyond .* vocabulary of 30 \('.*' = 30\)"),
    ],
)
def test_a_tokenizer_of_another_model_is_rejected(
    folder: Path, vocab_size: int, message: str
) -> None:
    build("llama", dtype=torch.float32, vocab_size=vocab_size).save_pretrained(folder)
    with pytest.raises(ModelNotLoadedError, match=f"{message}.*belongs to another model; put"):
        load_model(str(folder), device="cpu")


def test_padded_vocabularies_and_special_tokens_beyond_them_are_loaded(folder: Path) -> None:
    build("llama", dtype=torch.float32, vocab_size=48).save_pretrained(folder)
    assert load_model(str(folder), device="cpu")[0].config.vocab_size == 48
    tokenizer = copy.deepcopy(letters_tokenizer())
    tokenizer.add_special_tokens({"pad_token": "<pad>"})
    tokenizer.save_pretrained(folder)
    build("llama", dtype=torch.float32).save_pretrained(folder)
    with pytest.warns(UserWarning, match="prompts with them are refused: '<pad>' = 31"):
        load_model(str(folder), device="cpu")
