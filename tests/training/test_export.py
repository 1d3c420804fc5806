"""Every exported layout loads like a published checkpoint and drafts the same."""

import importlib.util
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_heads import (
    BASE,
    EAGLE1,
    EAGLE3,
    EAGLE3_MORE,
    TARGET,
    TOKENS,
    WIDE,
    D,
    drafts,
    eagle_head,
    target_of,
)
from tiny_models import VOCAB

from specresearch import CausalLM, export
from specresearch.models.eagle_format import LAYER_IDS
from specresearch.models.eagle_head import EagleHead
from specresearch.models.head_writing import read_provenance, save_eagle_head, save_medusa_heads
from specresearch.models.medusa import MedusaHeads
from specresearch.training.export import export_head

TRAINED = {"num_steps": 300}
Exported = Callable[..., Path]


@pytest.fixture
def target_folder(tmp_path: Path) -> Callable[..., str]:
    """Return the folder of a target that holds only its config."""

    def write(target: CausalLM = TARGET, **changes: Any) -> str:
        folder = tmp_path / BASE
        config: Any = target.model.config
        folder.mkdir(parents=True, exist_ok=True)
        stated = config.to_dict() | {"architectures": ["LlamaForCausalLM"]} | changes
        (folder / "config.json").write_text(json.dumps(stated, default=str))
        return str(folder)

    return write


@pytest.fixture
def exported(tmp_path: Path, target_folder: Callable[..., str]) -> Exported:
    """Save and export a head."""

    def write(
        head: EagleHead | MedusaHeads,
        format: str,
        *,
        base_model: str | None = None,
        **settings: Any,
    ) -> Path:
        if isinstance(head, MedusaHeads):
            save_medusa_heads(head, tmp_path / "saved", TRAINED)
            made_for = TARGET
        else:
            save_eagle_head(head, tmp_path / "saved", TRAINED)
            made_for = target_of(head)
        base_model = base_model or target_folder(made_for)
        export_head(
            str(tmp_path / "saved"), format, tmp_path / "out", base_model=base_model, **settings
        )
        return tmp_path / "out"

    return write


def config_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text())


LAYOUTS = {("eagle", name): (1, changes) for name, changes in EAGLE1.items()}
LAYOUTS |= {
    ("eagle_sglang", name): kind for (_, name), kind in LAYOUTS.items() if name != "qkv_bias"
}
LAYOUTS |= {("eagle3", name): (3, changes) for name, changes in EAGLE3.items()}
LAYOUTS |= {("speculators", name): (3, changes) for name, changes in (EAGLE3 | EAGLE3_MORE).items()}
LAYOUTS |= {("eagle3", "targets_lm_head"): (3, {"draft_vocab_size": None})}


@pytest.mark.parametrize("kind", LAYOUTS, ids="-".join)
def test_an_exported_eagle_head_drafts_the_same(exported: Exported, kind: tuple[str, str]) -> None:
    version, changes = LAYOUTS[kind]
    head = eagle_head(version, **changes)
    folder = exported(head, kind[0])
    again = EagleHead.from_pretrained(str(folder))
    convention = {"id_convention": head.format.id_convention} if version == 3 else {}
    assert torch.equal(drafts(again), drafts(head, **convention))
    assert read_provenance(str(folder)) == TRAINED
    stored = load_file(folder / "model.safetensors")
    prefix = {"eagle3": "midlayer."}.get(kind[0], "layers.0.")
    assert sum(key.startswith(prefix) for key in stored) == sum(
        "layers.0." in key for key in head.state_dict()
    )
    shared = target_of(head) is TARGET and not head.format.trains_embedding
    assert ("embed_tokens.weight" in stored) == (head.format.own_embedding and not shared)
    assert ("d2t" in stored) == ("t2d" in stored) == (head.target_ids is not None)


def test_sglang_gets_the_bias_that_it_always_adds(exported: Exported) -> None:
    folder = exported(eagle_head(1), "eagle_sglang")
    config = config_of(folder)
    assert config["architectures"] == ["LlamaForCausalLMEagle"]
    assert "bias" not in config
    assert not load_file(folder / "model.safetensors")["fc.bias"].any()


def test_raw_layer_ids_suit_readers_of_either_convention(exported: Exported) -> None:
    config = config_of(exported(eagle_head(3, layer_ids=(1, 4, 6)), "eagle3"))
    assert config[LAYER_IDS] == [1, 4, 6]
    assert config["eagle_config"] == {"use_aux_hidden_state": True, LAYER_IDS: [0, 3, 5]}
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    assert (config["draft_vocab_size"], config["num_aux_hidden_states"]) == (D, 3)


def test_raw_layer_ids_of_both_conventions_are_recognized(exported: Exported) -> None:
    head = eagle_head(3)
    assert torch.equal(
        drafts(EagleHead.from_pretrained(str(exported(head, "eagle3")))), drafts(head)
    )


def test_the_speculators_config_holds_what_vllm_reads(exported: Exported, tmp_path: Path) -> None:
    config = config_of(exported(eagle_head(3, norm_output=True), "speculators", num_draft_tokens=4))
    assert config["speculators_model_type"] == "eagle3"
    assert config[LAYER_IDS] == [1, 3, 5]
    assert (config["draft_vocab_size"], config["target_hidden_size"]) == (D, 16)
    flags = (
        "norm_before_residual",
        "norm_before_fc",
        "fc_norm",
        "norm_output",
        "tie_word_embeddings",
    )
    assert [config[flag] for flag in flags] == [False, False, False, True, False]
    assert config["speculators_config"]["proposal_methods"][0]["speculative_tokens"] == 4
    verifier = config["speculators_config"]["verifier"]
    assert verifier == {"name_or_path": str(tmp_path / BASE), "architectures": ["LlamaForCausalLM"]}
    layer = config["transformer_layer_config"]
    assert (layer["model_type"], layer["vocab_size"], layer["num_hidden_layers"]) == (
        "llama",
        VOCAB,
        1,
    )
    assert layer["rope_theta"] == layer["rope_parameters"]["rope_theta"] == 1e6


def test_exporting_twice_gives_the_same_files(exported: Exported, tmp_path: Path) -> None:
    first = exported(eagle_head(3, norm_before_residual=True), "speculators")
    export_head(str(first), "speculators", tmp_path / "again")
    assert config_of(tmp_path / "again") == config_of(first)
    before, after = (
        load_file(folder / "model.safetensors") for folder in (first, tmp_path / "again")
    )
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_layers_that_a_config_omits_are_the_usual_three(
    tmp_path: Path, target_folder: Callable[..., str]
) -> None:
    save_eagle_head(eagle_head(3), tmp_path / "saved", {})
    config = config_of(tmp_path / "saved")
    del config[LAYER_IDS]
    (tmp_path / "saved" / "config.json").write_text(json.dumps(config))
    target = target_folder(num_hidden_layers=12)
    line = export_head(
        str(tmp_path / "saved"), "eagle3", tmp_path / "out", base_model=target, dtype="bfloat16"
    )
    assert "reads the inputs of layers 2, 6, 9 of 12, in torch.bfloat16" in line
    assert config_of(tmp_path / "out")[LAYER_IDS] == [2, 6, 9]


def test_weights_and_config_agree_on_the_dtype(exported: Exported) -> None:
    folder = exported(eagle_head(3), "speculators", dtype="bfloat16")
    stored = load_file(folder / "model.safetensors")
    assert {
        key: value.dtype for key, value in stored.items() if key in ("d2t", "t2d", "fc.weight")
    } == {
        "d2t": torch.int64,
        "t2d": torch.bool,
        "fc.weight": torch.bfloat16,
    }
    assert config_of(folder)["transformer_layer_config"]["dtype"] == "bfloat16"


@pytest.mark.parametrize(("rope_type", "expected"), [("default", 4096), ("yarn", 64)])
def test_positions_reach_as_far_as_the_targets(
    exported: Exported, target_folder: Callable[..., str], rope_type: str, expected: int
) -> None:
    rope = {"rope_type": rope_type, "rope_theta": 1e4}
    head = eagle_head(1, rope_parameters=rope | ({"factor": 2.0} if rope_type == "yarn" else {}))
    folder = exported(head, "eagle", base_model=target_folder(max_position_embeddings=4096))
    assert config_of(folder)["max_position_embeddings"] == expected


@pytest.mark.parametrize(
    ("layout", "version", "changes", "complaint"),
    [
        (
            "eagle3",
            3,
            {"norm_before_residual": True},
            "reads: norm_before_residual; use format=speculators",
        ),
        ("eagle3", 3, {"norm_before_fc": True}, "norm_before_fc; use format=speculators"),
        ("eagle3", 3, {"window": 3}, "a sliding window; use"),
        (
            "eagle3",
            3,
            {"own_embedding": True, "trains_embedding": True},
            "a trained embedding; use",
        ),
        (
            "eagle3",
            3,
            {"qkv_bias": True, "o_bias": True},
            "biases of queries, keys and values, a bias in o_proj; use",
        ),
        ("eagle3", 3, {"layer_ids": (0, 1, 5)}, "the input of layer 0; use"),
        ("eagle3", 3, {"fc_bias": True}, "a bias in fc$"),
        ("speculators", 3, {"fc_bias": True}, "a bias in fc$"),
        ("speculators", 3, {"qkv_bias": True}, "biases in some projections of its attention$"),
        ("speculators", 3, {"draft_vocab_size": None}, "the target's LM head$"),
        (
            "speculators",
            3,
            {"layer_ids": (1, 5, 3)},
            r"layers \[1, 5, 3\] \(engines read each once, from low to high\)",
        ),
        ("eagle3", 3, {"layer_ids": (2, 3, 3)}, r"layers \[2, 3, 3\]"),
        (
            "eagle3",
            3,
            {"layer_ids": (2, 3, 7)},
            r"layers \[2, 3, 7\] and .* has 6 layers; set the right ones",
        ),
        ("eagle", 1, {"window": 3}, "a sliding window$"),
        ("eagle", 1, {"mlp_bias": True}, "biases in its MLP"),
        ("eagle", 1, {"o_bias": True}, "a bias in o_proj"),
        ("eagle", 3, {}, "is an EAGLE-3 head; use format=eagle3 or speculators"),
        ("eagle3", 1, {}, "is an EAGLE-1 head; use format=eagle or eagle_sglang"),
        ("eagle_sglang", 1, {"qkv_bias": True}, "biases of queries, keys and values$"),
        ("medusa", 1, {}, "is an EAGLE-1 head; use format=eagle"),
        (
            "eagle3",
            3,
            {"fc_width": 72},
            "16 wide and .* 24, so it needs an embedding and an LM head of its own",
        ),
        (
            "eagle3",
            3,
            {"fc_width": 60},
            "is for 31 tokens and reads 60 values; .* has 31 and gives 48; set base_model=",
        ),
    ],
)
def test_heads_that_a_layout_cannot_express_are_rejected(
    exported: Exported,
    tmp_path: Path,
    layout: str,
    version: int,
    changes: dict[str, Any],
    complaint: str,
) -> None:
    with pytest.raises(ValueError, match=complaint):
        exported(eagle_head(version, **changes), layout)
    assert not (tmp_path / "out").exists()


def medusa_heads(vocab_size: int | None = VOCAB, num_layers: int = 1) -> MedusaHeads:
    heads = MedusaHeads(16, vocab_size, 3, num_layers, base_model=BASE).double()
    with torch.no_grad():
        for parameter in heads.parameters():
            parameter.normal_()
    return heads


@pytest.mark.parametrize("read", ["medusa_lm_head.safetensors", "medusa_lm_head.pt"])
@pytest.mark.parametrize(("vocab_size", "num_layers"), [(VOCAB, 1), (VOCAB, 2), (None, 1)])
def test_exported_medusa_heads_are_the_same(
    exported: Exported, tmp_path: Path, vocab_size: int | None, num_layers: int, read: str
) -> None:
    heads = medusa_heads(vocab_size, num_layers)
    folder = exported(heads, "medusa", pickle=True)
    (other,) = {"medusa_lm_head.safetensors", "medusa_lm_head.pt"} - {read}
    (folder / other).unlink()
    again = MedusaHeads.from_pretrained(str(folder))
    states, lm_head = (
        torch.randn(2, 16, dtype=torch.float64),
        torch.nn.Linear(16, VOCAB, dtype=torch.float64),
    )
    assert torch.equal(again(states, lm_head), heads(states, lm_head))
    assert again.base_model == str(tmp_path / BASE)
    assert read_provenance(str(folder)) == TRAINED


def test_a_reduced_medusa_vocabulary_is_exported_as_vllm_calls_it(exported: Exported) -> None:
    target_ids = torch.tensor([2, 30, 7])
    heads = MedusaHeads(16, 3, 2, base_model=BASE, target_ids=target_ids)
    folder = exported(heads, "medusa")
    assert json.loads((folder / "config.json").read_text())["truncated_vocab_size"] == 3
    assert torch.equal(load_file(folder / "medusa_lm_head.safetensors")["token_map"], target_ids)


def test_medusa_heads_that_do_not_fit_are_rejected(
    exported: Exported, target_folder: Callable[..., str]
) -> None:
    with pytest.raises(ValueError, match="2 layers a head and no LM heads"):
        exported(medusa_heads(None, 2), "medusa")
    with pytest.raises(
        ValueError,
        match=r"hidden states of 16 and 31 tokens, and .* has 24 and 31; set base_model=",
    ):
        exported(medusa_heads(), "medusa", base_model=target_folder(WIDE))


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (
            {"format": "eagle2"},
            "format='eagle2' is unknown; choose one of eagle, eagle_sglang, eagle3, speculators, "
            "medusa",
        ),
        ({"dtype": "int8"}, "dtype='int8' is unknown; choose one of"),
        ({"num_draft_tokens": 0}, "num_draft_tokens=0 must be at least 1"),
        ({"pickle": True}, "pickle=true is for format=medusa"),
        (
            {"format": "medusa", "overrides": {"rope_theta": 1}},
            "overrides={'rope_theta': 1} are for EAGLE heads",
        ),
        ({"output": "saved"}, "is not an empty folder; choose another"),
        ({"head": "zoo:nothing"}, "'zoo:nothing' is not in the zoo"),
        ({"base_model": None}, "names no target; set base_model="),
        (
            {"base_model": "no-such-owner/no-such-model"},
            "config.json of the target 'no-such-owner/no-such-model' cannot be read",
        ),
    ],
)
def test_errors_for_bad_settings_name_a_remedy(
    tmp_path: Path, settings: dict[str, Any], complaint: str
) -> None:
    save_eagle_head(eagle_head(3, base_model=None), tmp_path / "saved", {})
    settings_by_layout: dict[str, Any] = {
        "head": str(tmp_path / "saved"),
        "format": "eagle3",
        "output": "out",
    } | settings
    settings_by_layout["output"] = tmp_path / settings_by_layout["output"]
    with pytest.raises(ValueError, match=complaint):
        export_head(**settings_by_layout)


def test_the_command_exports_a_head(
    tmp_path: Path,
    target_folder: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    monkeypatch.setattr("warnings.showwarning", warnings.showwarning)
    save_eagle_head(eagle_head(1), "saved", {})
    command = [
        "export",
        "head=saved",
        "format=eagle",
        "output=out",
        f"base_model={target_folder()}",
    ]

    def call(*more: str) -> str:
        monkeypatch.setattr(sys, "argv", [*command, *more])
        monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
        export.main()
        return capsys.readouterr().out

    line = call("overrides={rope_theta: 20000}")
    assert (
        line == f"wrote out: EAGLE-1 head of {tmp_path / BASE}, which reads the final norm, "
        "in torch.float64\n"
    )
    assert config_of(tmp_path / "out")["rope_theta"] == 20000
    wrong = {
        "output=out": "output=out is not an empty folder",
        "head=???": "head is not set; add head=",
        "+outptu=new": "there is no setting outptu; did you mean output?",
    }
    for more, complaint in wrong.items():
        with pytest.raises(SystemExit) as stopped:
            call(more)
        assert stopped.value.code == 2
        assert f"error: {complaint}" in capsys.readouterr().err


AS_SPECULATORS_HAS_IT = """
import sys
import torch
from pathlib import Path
from safetensors.torch import load_file, save_file
from speculators import SpeculatorModelConfig
from speculators.models.eagle3 import Eagle3DraftModel

for folder in map(Path, sys.argv[1:]):
    config = SpeculatorModelConfig.from_pretrained(folder)
    config.transformer_layer_config._attn_implementation = "eager"
    model = Eagle3DraftModel(config).double().eval()
    stored = load_file(folder / "model.safetensors")
    expected = {k: v.shape for k, v in model.state_dict().items() if not k.startswith("verifier_")}
    if "embed_tokens.weight" not in stored:
        del expected["embed_tokens.weight"]
    differing = expected.keys() ^ stored.keys()
    assert {k: v.shape for k, v in stored.items()} == expected, (folder, differing)
    model.load_state_dict(stored, strict=False)
    inputs = load_file(folder / "inputs")
    hidden, embeddings = inputs["hidden"], inputs["embeddings"]
    if model.input_norm is not None:
        hidden = model.input_norm(hidden)
    if model.fc_norm is not None:
        parts = hidden.chunk(len(model.fc_norm), -1)
        hidden = torch.cat([norm(x) for norm, x in zip(model.fc_norm, parts)], -1)
    both = torch.cat([embeddings, model.fc(hidden)], -1)
    positions = torch.arange(hidden.shape[1])[None]
    distance = positions[0, :, None] - positions
    window = model.sliding_window if model.uses_sliding_window_attn else len(distance)
    seen = (distance >= 0) & (distance < window)
    mask = torch.where(seen, 0.0, -torch.inf).to(both.dtype)[None, None]
    rotary = model.rotary_emb(both, positions)
    with torch.no_grad():
        out = model.layers[0](
            both, attention_mask=mask, position_ids=positions, position_embeddings=rotary
        )
        save_file({"logits": model.lm_head(model.norm(out))}, folder / "outputs")
"""


def test_the_speculators_library_loads_the_export_with_the_same_logits(
    tmp_path: Path, target_folder: Callable[..., str]
) -> None:
    """It runs in its own environment, whose interpreter SPECULATORS_PYTHON names."""
    python = os.environ.get("SPECULATORS_PYTHON")
    if python is None and importlib.util.find_spec("speculators") is None:
        pytest.skip("SPECULATORS_PYTHON names no interpreter that has the speculators library")
    kinds = {name: eagle_head(3, **changes) for name, changes in (EAGLE3 | EAGLE3_MORE).items()}
    heads = {
        name: head for name, head in kinds.items() if target_of(head) is TARGET
    }  # its module has one width
    for name, head in heads.items():
        save_eagle_head(head, tmp_path / "saved" / name, {})
        export_head(
            str(tmp_path / "saved" / name),
            "speculators",
            tmp_path / name,
            base_model=target_folder(),
        )
        own = head.embed_tokens if head.format.trains_embedding else None
        with torch.no_grad():
            hidden = TARGET.forward_whole(
                TOKENS[:, :-1], config_of(tmp_path / name)[LAYER_IDS]
            ).hidden
            embeddings = (own or TARGET.model.get_input_embeddings())(TOKENS[:, 1:])
        save_file(
            {"hidden": torch.cat(hidden, -1), "embeddings": embeddings}, tmp_path / name / "inputs"
        )
    command = [
        python or sys.executable,
        "-c",
        AS_SPECULATORS_HAS_IT,
        *(str(tmp_path / name) for name in heads),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name, head in heads.items():
        library_logits = load_file(tmp_path / name / "outputs")["logits"][0, -1]
        our_logits = drafts(head, id_convention=head.format.id_convention)[0, 0]
        our_logits = our_logits if head.target_ids is None else our_logits[head.target_ids]
        torch.testing.assert_close(
            library_logits,
            our_logits,
            rtol=1e-5,
            atol=1e-5,
            msg=lambda text, name=name: f"{name}: {text}",
        )
