"""A saved head drafts the same after loading, and every key of its config matters."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_heads import EAGLE1, EAGLE3, EAGLE3_MORE, EAGLE3_REST, LLAMA3_ROPE, drafts, eagle_head
from tiny_models import VOCAB
from transformers import LlamaConfig

from specresearch.models.eagle_format import LAYER_IDS
from specresearch.models.eagle_head import EagleHead
from specresearch.models.head_writing import read_provenance, save_eagle_head, save_medusa_heads
from specresearch.models.loading import ModelNotLoadedError
from specresearch.models.medusa import MedusaHeads

TRAINED = {
    "target": "acme/base-8b",
    "objective": {"name": "forward_kl", "temperature": 1.0},
    "num_steps": 300,
}
HEADS = {("eagle1", name): (1, changes) for name, changes in EAGLE1.items()}
HEADS |= {
    ("eagle3", name): (3, changes) for name, changes in (EAGLE3 | EAGLE3_MORE | EAGLE3_REST).items()
}


def config_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text())


@pytest.mark.parametrize("kind", HEADS, ids="-".join)
def test_a_saved_eagle_head_drafts_the_same(tmp_path: Path, kind: tuple[str, str]) -> None:
    version, changes = HEADS[kind]
    head = eagle_head(version, **changes)
    save_eagle_head(head, tmp_path, TRAINED)
    again = EagleHead.from_pretrained(str(tmp_path))
    assert {key: value.dtype for key, value in again.state_dict().items()} == dict.fromkeys(
        head.state_dict(), torch.float64
    )
    convention = {"id_convention": head.format.id_convention} if version == 3 else {}
    assert torch.equal(drafts(again), drafts(head, **convention))
    assert again.format.base_model == "acme/base-8b"
    assert read_provenance(str(tmp_path)) == TRAINED
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", "model.safetensors"}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (LAYER_IDS, [0, 2, 4]),
        ("norm_before_residual", False),
        ("norm_output", False),
        ("sliding_window", 2),
        ("num_attention_heads", 2),
    ],
)
def test_negative_control_every_config_key_matters(tmp_path: Path, key: str, value: Any) -> None:
    head = eagle_head(3, norm_before_residual=True, norm_output=True, window=3)
    save_eagle_head(head, tmp_path, {})
    config = config_of(tmp_path)
    assert config[key] != value
    more = {"num_key_value_heads": 1, "head_dim": 8} if key == "num_attention_heads" else {}
    (tmp_path / "config.json").write_text(json.dumps(config | {key: value} | more))
    assert not torch.allclose(drafts(EagleHead.from_pretrained(str(tmp_path))), drafts(head))


@pytest.mark.parametrize(
    ("version", "rope"), [(1, LLAMA3_ROPE), (3, {"rope_type": "default", "rope_theta": 1e6})]
)
def test_the_config_leaves_nothing_to_a_readers_defaults(
    tmp_path: Path, version: int, rope: dict[str, Any]
) -> None:
    save_eagle_head(eagle_head(version, rope_parameters=rope), tmp_path, {})
    config = config_of(tmp_path)
    assert config["tie_word_embeddings"] is False
    assert config["num_hidden_layers"] == 1
    assert config["target_hidden_size"] == 16 if version == 3 else config["bias"] is False
    scaling = {k: v for k, v in rope.items() if k != "rope_theta"}
    assert (config["rope_theta"], config["rope_parameters"]) == (rope["rope_theta"], rope)
    assert config["rope_scaling"] == (scaling if rope == LLAMA3_ROPE else None)
    old = {k: v for k, v in config.items() if k != "rope_parameters"}
    new = {k: v for k, v in config.items() if k not in ("rope_theta", "rope_scaling")}
    assert LlamaConfig(**config).rope_parameters == LlamaConfig(**old).rope_parameters == rope
    assert LlamaConfig(**new).rope_parameters == rope
    assert LlamaConfig(**config).dtype == torch.float64
    if version == 3:
        flags = (
            "norm_before_residual",
            "norm_before_fc",
            "fc_norm",
            "norm_output",
            "embed_requires_grad",
        )
        assert [config[flag] for flag in flags] == [False] * 5
        assert config[LAYER_IDS] == [1, 3, 5]
        assert config["specresearch"]["layer_id_convention"] == "inputs"


def test_captured_layers_must_be_stated(tmp_path: Path) -> None:
    head = eagle_head(3, layer_ids=None, id_convention=None)
    with pytest.raises(
        ValueError, match="nothing says which target layers the head captures; give captured_layers"
    ):
        save_eagle_head(head, tmp_path, {})
    assert not any(tmp_path.iterdir())
    save_eagle_head(head, tmp_path, {}, captured_layers=(2, 3, 4))
    again = EagleHead.from_pretrained(str(tmp_path))
    assert (again.format.layer_ids, again.format.id_convention) == ((2, 3, 4), "inputs")
    assert torch.equal(drafts(again), drafts(head, layer_ids=(2, 3, 4)))


def test_a_failed_write_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="not JSON serializable"):
        save_eagle_head(eagle_head(1), tmp_path, {"target": object()})
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("vocab_size", [VOCAB, None])
def test_saved_medusa_heads_are_the_same(tmp_path: Path, vocab_size: int | None) -> None:
    heads = MedusaHeads(16, vocab_size, 4, 2, base_model="acme/base-8b").double()
    with torch.no_grad():
        for parameter in heads.parameters():
            parameter.normal_()
    save_medusa_heads(heads, tmp_path, TRAINED)
    again = MedusaHeads.from_pretrained(str(tmp_path))
    assert (again.num_layers, again.vocab_size, again.base_model) == (2, vocab_size, "acme/base-8b")
    states = torch.randn(3, 16, dtype=torch.float64)
    lm_head = torch.nn.Linear(16, VOCAB, dtype=torch.float64)
    assert torch.equal(again(states, lm_head), heads(states, lm_head))
    assert read_provenance(str(tmp_path)) == TRAINED


def test_heads_written_elsewhere_have_no_provenance(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert read_provenance(str(tmp_path)) == {}
    with pytest.raises(ModelNotLoadedError, match=r"there is no folder .*nowhere"):
        read_provenance(str(tmp_path / "nowhere"))
