import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tiny_models import VOCAB, build
from torch import Tensor

from specresearch import CausalLM
from specresearch.models.head_fit import lm_head_of
from specresearch.models.head_writing import save_medusa_heads
from specresearch.models.loading import ModelNotLoadedError
from specresearch.models.medusa import MedusaHeads

H = 16
TARGET = CausalLM(build("llama", seed=1), max_len=40, name="lmsys/vicuna-tiny")


def tensors(num_heads: int = 3, num_layers: int = 1, own_heads: bool = True) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(num_heads)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64) / 4

    weights = {}
    for i in range(num_heads):
        for j in range(num_layers):
            weights[f"{i}.{j}.linear.weight"] = random(H, H)
            weights[f"{i}.{j}.linear.bias"] = random(H)
        if own_heads:
            weights[f"{i}.{num_layers}.weight"] = random(VOCAB, H)
    return weights


def write(folder: Path, weights: dict[str, Tensor], name: str, **config: Any) -> str:
    """Write a checkpoint of a single file."""
    (folder / "config.json").write_text(json.dumps(config))
    if name.endswith(".safetensors"):
        save_file(weights, folder / name)
    else:
        torch.save(weights, folder / name)
    return str(folder)


def by_hand(weights: dict[str, Tensor], hidden: Tensor, num_layers: int = 1) -> Tensor:
    logits = []
    for i in range(sum(key.endswith(".0.linear.bias") for key in weights)):
        x = hidden
        for j in range(num_layers):
            y = x @ weights[f"{i}.{j}.linear.weight"].T + weights[f"{i}.{j}.linear.bias"]
            x = x + y * torch.sigmoid(y)
        logits.append(x @ weights[f"{i}.{num_layers}.weight"].T)
    return torch.stack(logits, dim=1)


def lm_head() -> torch.nn.Linear:
    return lm_head_of(TARGET)


HIDDEN = torch.randn(4, H, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


@pytest.mark.parametrize("num_layers", [1, 2])
def test_medusa_1_counts_heads_by_their_tensors(tmp_path: Path, num_layers: int) -> None:
    weights = tensors(5, num_layers)
    config = {
        "medusa_num_heads": 2,
        "medusa_num_layers": 1,
        "base_model_name_or_path": "lmsys/vicuna-tiny",
    }
    heads = MedusaHeads.from_pretrained(write(tmp_path, weights, "medusa_lm_head.pt", **config))
    assert (len(heads), heads.num_layers, heads.vocab_size) == (5, num_layers, VOCAB)
    heads.check_fit(TARGET)
    with torch.no_grad():
        torch.testing.assert_close(heads(HIDDEN, lm_head()), by_hand(weights, HIDDEN, num_layers))


def test_version_2_ends_in_the_targets_lm_head(tmp_path: Path) -> None:
    weights = tensors(own_heads=False)
    heads = MedusaHeads.from_pretrained(
        write(tmp_path, weights, "medusa_lm_head.safetensors", version="2")
    )
    heads.check_fit(TARGET)
    with_lm_heads = weights | {f"{i}.1.weight": lm_head().weight for i in range(3)}
    with torch.no_grad():
        torch.testing.assert_close(heads(HIDDEN, lm_head()), by_hand(with_lm_heads, HIDDEN))


@pytest.mark.parametrize("sharded", [False, True])
def test_medusa_2_keeps_its_heads_inside_the_model(tmp_path: Path, sharded: bool) -> None:
    weights = {f"medusa_head.{key}": value for key, value in tensors().items()}
    base = {"model.norm.weight": torch.ones(H), "lm_head.weight": torch.ones(VOCAB, H)}
    if sharded:
        torch.save(base, tmp_path / "pytorch_model-00001-of-00002.bin")
        torch.save(weights, tmp_path / "pytorch_model-00002-of-00002.bin")
        weight_map = dict.fromkeys(base, "missing.bin")
        weight_map |= dict.fromkeys(weights, "pytorch_model-00002-of-00002.bin")
        index = json.dumps({"weight_map": weight_map})
        (tmp_path / "pytorch_model.bin.index.json").write_text(index)
        (tmp_path / "config.json").write_text(json.dumps({"base_model_name_or_path": TARGET.name}))
    else:
        write(tmp_path, weights | base, "model.safetensors", base_model_name_or_path=TARGET.name)
    heads = MedusaHeads.from_pretrained(str(tmp_path))
    assert len(heads) == 3
    with pytest.warns(
        UserWarning, match=f"trained for {tmp_path} and the target is lmsys/vicuna-tiny"
    ):
        heads.check_fit(TARGET)


def test_a_reduced_vocabulary_is_saved_and_must_be_the_targets(tmp_path: Path) -> None:
    target_ids = torch.tensor([7, VOCAB - 1, 3])
    heads = MedusaHeads(H, 3, 2, target_ids=target_ids).double()
    save_medusa_heads(heads, tmp_path / "made", {})
    again = MedusaHeads.from_pretrained(str(tmp_path / "made"))
    assert again.target_ids is not None
    assert torch.equal(again.target_ids, target_ids)
    again.check_fit(TARGET)
    with torch.no_grad():
        assert torch.equal(again(HIDDEN, lm_head()), heads(HIDDEN, lm_head()))
    beyond = MedusaHeads(H, 3, 2, target_ids=torch.tensor([7, VOCAB, 3]))
    with pytest.raises(ValueError, match="use heads of this target"):
        beyond.check_fit(TARGET)


@pytest.mark.parametrize(
    ("token_map", "match"),
    [
        (torch.arange(VOCAB - 1), "rows; it must name one token for each"),
        (torch.zeros(VOCAB, dtype=torch.long), "names a token twice"),
        (torch.arange(VOCAB) - 1, "or one below 0"),
        (torch.arange(VOCAB).float(), "is torch.float32"),
    ],
)
def test_a_token_map_that_fits_no_lm_head_is_refused(
    tmp_path: Path, token_map: Tensor, match: str
) -> None:
    weights = tensors() | {"token_map": token_map}
    folder = write(tmp_path, weights, "medusa_lm_head.safetensors")
    with pytest.raises(ModelNotLoadedError, match=match):
        MedusaHeads.from_pretrained(folder)


@pytest.mark.parametrize("vocab_size", [VOCAB, None])
def test_saved_heads_load_unchanged(tmp_path: Path, vocab_size: int | None) -> None:
    heads = MedusaHeads(H, vocab_size, 4, 2, base_model="lmsys/vicuna-tiny")
    with torch.no_grad():
        for parameter in heads.parameters():
            parameter.normal_()
    save_medusa_heads(heads, tmp_path / "made", {})
    again = MedusaHeads.from_pretrained(str(tmp_path / "made"))
    assert (len(again), again.num_layers, again.vocab_size, again.base_model) == (
        4,
        2,
        vocab_size,
        heads.base_model,
    )
    for key, value in heads.state_dict().items():
        assert torch.equal(again.state_dict()[key], value)


def test_new_heads_start_as_copies_of_the_lm_head() -> None:
    heads = MedusaHeads(H, None).double()
    with torch.no_grad():
        torch.testing.assert_close(
            heads(HIDDEN, lm_head()), lm_head()(HIDDEN)[:, None].expand(-1, 5, -1)
        )


def without(key: str) -> dict[str, Tensor]:
    return {k: v for k, v in tensors().items() if k != key}


@pytest.mark.parametrize(
    ("weights", "complaint"),
    [
        (without("1.0.linear.bias"), r"missing: 1\.0\.linear\.bias"),
        (without("2.1.weight"), r"missing: 2\.1\.weight"),
        (tensors() | {"0.0.norm.weight": torch.ones(H)}, r"unexpected: 0\.0\.norm\.weight"),
        (
            tensors() | {"1.1.weight": torch.ones(VOCAB + 1, H)},
            r"1\.1\.weight \[32, 16\] instead of \[31, 16\]",
        ),
        ({"fc.weight": torch.ones(2)}, "holds no Medusa heads"),
    ],
)
def test_tensors_that_do_not_fit_are_named(
    tmp_path: Path, weights: dict[str, Tensor], complaint: str
) -> None:
    with pytest.raises(ModelNotLoadedError, match=complaint):
        MedusaHeads.from_pretrained(write(tmp_path, weights, "medusa_lm_head.pt"))


def test_lm_heads_in_version_2_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(
        ModelNotLoadedError, match=r"version=2 has no LM heads, and there is 0\.1\.weight"
    ):
        MedusaHeads.from_pretrained(
            write(tmp_path, tensors(), "medusa_lm_head.safetensors", version="2")
        )


class CodeInPickle:
    """An object that runs code when it is unpickled."""

    def __reduce__(self):
        return (eval, ("1 / 0",))


def test_a_pickle_is_loaded_as_tensors_or_not_at_all(tmp_path: Path) -> None:
    torch.save({"0.0.linear.weight": CodeInPickle()}, tmp_path / "medusa_lm_head.pt")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelNotLoadedError, match="damaged, or holds more than tensors"):
        MedusaHeads.from_pretrained(str(tmp_path))


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        ({}, "has no config.json"),
        ({"config.json": "{}"}, "has no weights for this; looked for medusa_lm_head.safetensors"),
        (
            {"config.json": '{"specresearch": {"method": "eagle"}}'},
            "it was saved as eagle, so draft with it by .proposer=eagle",
        ),
        ({"config.json": "{"}, "not valid JSON"),
    ],
)
def test_errors_name_what_is_missing(tmp_path: Path, files: dict[str, str], complaint: str) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    if "JSON" in complaint:
        save_file(tensors(), tmp_path / "medusa_lm_head.safetensors")
    with pytest.raises(ModelNotLoadedError, match=complaint):
        MedusaHeads.from_pretrained(str(tmp_path))


def test_an_unknown_name_is_an_error() -> None:
    with pytest.raises(
        ModelNotLoadedError, match="neither the folder of a drafting head nor one that the hub has"
    ):
        MedusaHeads.from_pretrained("no-such-owner/no-such-head")


@pytest.mark.parametrize(("width", "vocab_size"), [(H + 4, VOCAB), (H, VOCAB + 1)])
def test_heads_of_another_target_are_rejected(width: int, vocab_size: int) -> None:
    with pytest.raises(ValueError, match="use heads of this target"):
        MedusaHeads(width, vocab_size).check_fit(TARGET)


def test_base_model_names_are_compared_without_their_folder() -> None:
    copy.deepcopy(MedusaHeads(H, None, base_model="/models/vicuna-tiny/")).check_fit(TARGET)
    with pytest.warns(UserWarning, match="hardly a draft will be accepted"):
        MedusaHeads(H, None, base_model="lmsys/other").check_fit(TARGET)
