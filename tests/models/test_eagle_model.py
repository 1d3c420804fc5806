"""Every published layout equals its layer written out; each trap is handled or an error."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tiny_models import VOCAB, build
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers.models.llama.modeling_llama import (
    LlamaRotaryEmbedding,
    apply_rotary_pos_emb,
    repeat_kv,
)

from specresearch import CausalLM
from specresearch.models.eagle import EagleModel
from specresearch.models.eagle_checkpoint import read_eagle
from specresearch.models.eagle_format import LAYER_IDS, Eagle1Format
from specresearch.models.eagle_head import EagleHead
from specresearch.models.head_fit import lm_head_of
from specresearch.models.hf_adapter import FINAL_NORM
from specresearch.models.loading import ModelNotLoadedError
from specresearch.proposal import Topology

H, LAYERS, D = 16, 6, 9


def make_target(attention: str) -> CausalLM:
    return CausalLM(
        build("llama", seed=1, num_hidden_layers=LAYERS),
        max_len=40,
        attention=attention,
        prefill_chunk=4,
        name="acme/base-8b",
    )


TARGET = make_target("slot")
TWO_PART_TARGET = make_target("two_part")
LLAMA = {
    "hidden_size": H,
    "intermediate_size": 24,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 1,
    "rms_norm_eps": 1e-6,
    "vocab_size": VOCAB,
}
Weights = dict[str, Tensor]
Shapes = dict[str, tuple[int, ...]]


def padded(rows: Iterable[Tensor]) -> Tensor:
    """Stack ragged rows, right-padded."""
    return pad_sequence(list(rows), batch_first=True)


def random_weights(shapes: Shapes) -> Weights:
    generator = torch.Generator().manual_seed(7)
    weights = {}
    for key, shape in shapes.items():
        value = torch.randn(shape, generator=generator, dtype=torch.float64)
        weights[key] = 1 + value / 4 if len(shape) == 1 else value * 1.5 / shape[-1] ** 0.5
    return weights


def layer_shapes(prefix: str, width: int) -> Shapes:
    return {
        f"{prefix}.self_attn.q_proj.weight": (H, width),
        f"{prefix}.self_attn.k_proj.weight": (H // 2, width),
        f"{prefix}.self_attn.v_proj.weight": (H // 2, width),
        f"{prefix}.self_attn.o_proj.weight": (H, H),
        f"{prefix}.mlp.gate_proj.weight": (24, H),
        f"{prefix}.mlp.up_proj.weight": (24, H),
        f"{prefix}.mlp.down_proj.weight": (H, 24),
        f"{prefix}.post_attention_layernorm.weight": (H,),
    }


def eagle1(*, more: Shapes | None = None) -> Weights:
    return random_weights({"fc.weight": (H, 2 * H), **layer_shapes("layers.0", H), **(more or {})})


def eagle3(prefix: str = "midlayer", *, more: Shapes | None = None) -> Weights:
    shapes: Shapes = {"fc.weight": (H, 3 * H), "norm.weight": (H,), "lm_head.weight": (D, H)}
    shapes |= {f"{prefix}.hidden_norm.weight": (H,), f"{prefix}.input_layernorm.weight": (H,)}
    weights = random_weights({**shapes, **layer_shapes(prefix, 2 * H), **(more or {})})
    return weights | vocabulary_map([1, 2, 4, 7, 8, 15, 16, 29, 30])


def vocabulary_map(ids: Sequence[int]) -> Weights:
    chosen = torch.tensor(ids)
    return {
        "d2t": chosen - torch.arange(len(ids)),
        "t2d": torch.zeros(VOCAB, dtype=torch.bool).index_fill(0, chosen, 1),
    }


def speculators(**top: Any) -> dict[str, Any]:
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": D,
        "target_hidden_size": None,
        LAYER_IDS: [1, 3, 5],
        "transformer_layer_config": LLAMA
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
        "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": "acme/base-8b"}},
        **top,
    }


RAW3 = LLAMA | {"draft_vocab_size": D, "rope_theta": 5e5}
LLAMA3_ROPE = {
    "type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
SLIDING = {"sliding_window": 3, "use_sliding_window": True, "layer_types": ["sliding_attention"]}
PUBLISHED: dict[str, tuple[dict[str, Any], Weights, str]] = {
    "eagle1": (
        LLAMA | {"bias": True},
        eagle1(more={"fc.bias": (H,), "embed_tokens.weight": (VOCAB, H)}),
        "pytorch_model.bin",
    ),
    "eagle1_says_nothing_of_bias": (LLAMA, eagle1(more={"fc.bias": (H,)}), "model.safetensors"),
    "eagle1_without_bias": (
        LLAMA | {"bias": False, "rope_theta": 1e6},
        eagle1(),
        "model.safetensors",
    ),
    "eagle1_qkv_bias": (
        LLAMA | {"bias": False, "qkv_bias": True},
        eagle1(
            more={f"layers.0.self_attn.{x}_proj.bias": (H if x == "q" else H // 2,) for x in "qkv"}
        ),
        "pytorch_model.bin",
    ),
    "eagle1_scaled_rope": (
        LLAMA | {"rope_scaling": LLAMA3_ROPE, "rope_theta": 5e5},
        eagle1(),
        "pytorch_model.bin",
    ),
    "eagle3_raw": (RAW3, eagle3(), "pytorch_model.bin"),
    "eagle3_whole_vocabulary": (
        LLAMA,
        {
            k: v
            for k, v in eagle3(more={"lm_head.weight": (VOCAB, H)}).items()
            if k not in ("d2t", "t2d")
        },
        "pytorch_model.bin",
    ),
    "speculators": (speculators(), eagle3("layers.0"), "model.safetensors"),
    "speculators_norm_before_residual": (
        speculators(norm_before_residual=True, norm_output=True),
        eagle3("layers.0", more={"verifier_norm.weight": (H,)}),
        "model.safetensors",
    ),
    "speculators_norm_before_fc": (
        speculators(norm_before_fc=True),
        eagle3("layers.0", more={"input_norm.weight": (3 * H,)}),
        "model.safetensors",
    ),
    "speculators_fc_norm": (
        speculators(fc_norm=True),
        eagle3("layers.0", more={f"fc_norm.{i}.weight": (H,) for i in range(3)}),
        "model.safetensors",
    ),
    "speculators_sliding": (
        speculators(transformer_layer_config=LLAMA | SLIDING),
        eagle3("layers.0"),
        "model.safetensors",
    ),
}


def write(
    folder: Path, config: dict[str, Any], weights: Weights, name: str = "model.safetensors"
) -> str:
    (folder / "config.json").write_text(json.dumps(config))
    if name.endswith(".safetensors"):
        save_file(weights, folder / name)
    else:
        torch.save(weights, folder / name)
    return str(folder)


def load(
    path: str, target: CausalLM, *, overrides: dict[str, Any] | None = None, **layers: Any
) -> EagleModel:
    return EagleModel(EagleHead.from_pretrained(path, overrides=overrides), target, **layers)


class WrittenOut:
    """Compute a checkpoint from its published tensors, one row at a time, without a cache."""

    def __init__(self, config: dict[str, Any], weights: Weights, target: CausalLM = TARGET) -> None:
        self.flags = config
        self.weights = {
            key.replace("midlayer.", "layers.0."): value for key, value in weights.items()
        }
        self.is_3 = "layers.0.hidden_norm.weight" in self.weights
        self.target = target
        layer = {**config, **config.get("transformer_layer_config", {})}
        self.window = layer.get("sliding_window", 1 << 30)
        model_config: Any = build("llama").config
        scaling = {
            ("rope_type" if k == "type" else k): v for k, v in layer.get("rope_scaling", {}).items()
        }
        rope = {"rope_type": "default", "rope_theta": layer.get("rope_theta", 1e4), **scaling}
        model_config.rope_parameters = layer.get("rope_parameters", rope)
        self.rotary = LlamaRotaryEmbedding(model_config)

    def linear(self, x: Tensor, name: str) -> Tensor:
        return x @ self.weights[f"{name}.weight"].T + self.weights.get(f"{name}.bias", 0.0)

    def norm(self, x: Tensor, name: str) -> Tensor:
        return x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * self.weights[f"{name}.weight"]

    def fuse(self, hidden: Sequence[Tensor]) -> Tensor:
        if not self.is_3:
            return hidden[0]
        if self.flags.get("fc_norm"):
            hidden = [self.norm(state, f"fc_norm.{i}") for i, state in enumerate(hidden)]
        joined = torch.cat(list(hidden), dim=-1)
        return self.linear(
            self.norm(joined, "input_norm") if self.flags.get("norm_before_fc") else joined, "fc"
        )

    def out(self, tokens: Sequence[int], features: Tensor) -> Tensor:
        """Return outputs at every position, from features 0 to n - 1 and tokens 1 to n."""
        embedding: Any = self.target.model.get_input_embeddings()
        e = embedding.weight.detach()[torch.tensor(tokens)]
        if self.is_3:
            normed = self.norm(features, "layers.0.hidden_norm")
            x = torch.cat([self.norm(e, "layers.0.input_layernorm"), normed], dim=-1)
            residual = normed if self.flags.get("norm_before_residual") else features
        else:
            x = residual = self.linear(torch.cat([e, features], dim=-1), "fc")
        num = len(tokens)

        def heads(name: str) -> Tensor:
            return (
                self.linear(x, f"layers.0.self_attn.{name}_proj")
                .view(1, num, -1, 4)
                .transpose(1, 2)
            )

        rotary: Any = self.rotary
        cos, sin = rotary(x, torch.arange(num)[None])
        q, k = apply_rotary_pos_emb(heads("q"), heads("k"), cos, sin)
        scores = q @ repeat_kv(k, 2).transpose(2, 3) / 2
        distance = torch.arange(num)[:, None] - torch.arange(num)
        scores = scores.masked_fill((distance < 0) | (distance >= self.window), float("-inf"))
        attended = (scores.softmax(-1) @ repeat_kv(heads("v"), 2)).transpose(1, 2).reshape(num, H)
        h = residual + self.linear(attended, "layers.0.self_attn.o_proj")
        z = self.norm(h, "layers.0.post_attention_layernorm")
        gate = torch.nn.functional.silu(self.linear(z, "layers.0.mlp.gate_proj"))
        return h + self.linear(
            gate * self.linear(z, "layers.0.mlp.up_proj"), "layers.0.mlp.down_proj"
        )

    def logits_and_fed_back(self, tokens: Sequence[int], features: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits and the fed-back feature after the last token."""
        out = self.out(tokens, features)[-1]
        if not self.is_3:
            return lm_head_of(self.target).weight.detach() @ out, out
        normed = self.norm(out, "norm")
        logits = self.linear(normed, "lm_head")
        if "d2t" in self.weights:
            ids = torch.arange(D) + self.weights["d2t"]
            logits = torch.full((VOCAB,), float("-inf"), dtype=logits.dtype).index_copy(
                0, ids, logits
            )
        return logits, normed if self.flags.get("norm_output") else out

    def unrolled(
        self, tokens: Sequence[int], features: Tensor, drafts: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """Return logits after `drafts`, each reading the feature that the last one fed back."""
        tokens = list(tokens)
        logits, fed_back = self.logits_and_fed_back(tokens, features)
        for draft in drafts:
            tokens, features = [*tokens, draft], torch.cat([features, fed_back[None]])
            logits, fed_back = self.logits_and_fed_back(tokens, features)
        return logits, fed_back


@pytest.mark.parametrize("target", [TARGET, TWO_PART_TARGET], ids=["slot", "two_part"])
@pytest.mark.parametrize("layout", PUBLISHED)
def test_ragged_pairs_and_trees_equal_the_layer_written_out(
    tmp_path: Path, layout: str, target: CausalLM
) -> None:
    config, weights, name = PUBLISHED[layout]
    model = load(write(tmp_path, config, weights, name), target)
    assert (model.kernel is None) == (target is TARGET)
    reference = WrittenOut(config, weights)
    model.reserve(4, 40)
    generator = torch.Generator().manual_seed(3)
    slots, lengths = (3, 0, 1), (9, 2, 5)
    num_captured = len(model.captured_layers)
    hidden = [
        torch.randn((num_captured, n, H), generator=generator, dtype=torch.float64) for n in lengths
    ]
    tokens = [torch.randint(0, VOCAB, (n,), generator=generator).tolist() for n in lengths]
    features = [model.fuse(list(states)) for states in hidden]
    for states, fused in zip(hidden, features, strict=True):
        torch.testing.assert_close(fused, reference.fuse(list(states)), rtol=1e-5, atol=1e-6)
    tree = Topology.from_paths([(0,), (1,), (0, 0), (1, 0), (1, 1)])
    drafts = torch.randint(0, VOCAB, (3, 6), generator=generator)
    drafts[:, 0] = torch.tensor([row[-1] for row in tokens])
    early = [row[:-2] for row in tokens]
    model.extend(slots, early, padded(f[:-2] for f in features), want_logits=False)
    model.extend(
        slots, [[5]] * 3, padded(f[:1] for f in features)
    )  # a draft step that is forgotten again
    model.truncate(slots, [len(row) for row in early])
    newest = padded(f[-2:] for f in features)
    logits, fed_back = model.extend(slots, [row[-2:] for row in tokens], newest)
    all_logits, all_fed_back = [logits], [fed_back]
    for first, last in ((1, 3), (3, 6)):
        top = Topology.from_parents(tree.parents[:, :last])
        parents = tree.parents[0, first:last]
        before = torch.cat(all_fed_back, dim=1)[:, parents]
        logits, fed_back = model.grow(slots, drafts[:, first:last], before, top, first)
        all_logits.append(logits)
        all_fed_back.append(fed_back)
    actual = model.vocabulary.whole(torch.cat(all_logits, dim=1))
    fed = torch.cat(all_fed_back, dim=1)
    for b in range(3):
        for node in range(6):
            path = drafts[b, tree.ancestors[0, node]].tolist()[1:]
            expected = reference.unrolled(tokens[b], features[b], path)
            torch.testing.assert_close(actual[b, node], expected[0], rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(fed[b, node], expected[1], rtol=1e-4, atol=1e-4)
    assert model.lengths == [2, 5, 0, 9]


def test_negative_control_a_row_at_the_wrong_position(tmp_path: Path) -> None:
    config, weights, name = PUBLISHED["eagle1_without_bias"]
    model = load(write(tmp_path, config, weights, name), TARGET)
    model.reserve(1, 40)
    features = torch.randn((3, H), generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    logits, _ = model.extend((0,), [[1, 2, 3]], features[None])
    swapped, _ = WrittenOut(config, weights).logits_and_fed_back([1, 2, 3], features[[1, 0, 2]])
    assert float((logits[0, 0] - swapped).abs().max()) > 0.01


@pytest.mark.parametrize(
    ("config", "settings", "captured"),
    [
        (RAW3, {}, (2, 3, 3)),
        (speculators(), {}, (1, 3, 5)),
        (RAW3 | {"eagle_config": {LAYER_IDS: [0, 2, 4]}}, {"id_convention": "outputs"}, (1, 3, 5)),
        (RAW3 | {"eagle_config": {LAYER_IDS: [0, 2, 4]}}, {"id_convention": "inputs"}, (0, 2, 4)),
        (speculators(), {"id_convention": "outputs"}, (2, 4, 6)),
        (speculators(), {"layer_ids": [0, 1, 6]}, (0, 1, 6)),
        (speculators(), {"layer_ids": [0, 1, 5], "id_convention": "outputs"}, (1, 2, 6)),
        (speculators(), {"overrides": {LAYER_IDS: [2, 2, 4]}}, (2, 2, 4)),
    ],
)
def test_the_captured_layers_are_read_from_the_config(
    tmp_path: Path, config: dict[str, Any], settings: dict[str, Any], captured: tuple[int, ...]
) -> None:
    model = load(write(tmp_path, config, eagle3()), TARGET, **settings)
    assert model.captured_layers == captured
    assert f"inputs of layers {', '.join(map(str, captured))} of 6 " in model.describe()
    assert "drafts from 9 of 31 tokens" in model.describe()


def test_layer_ids_in_eagle_config_count_outputs_and_give_a_warning(tmp_path: Path) -> None:
    config = RAW3 | {"eagle_config": {LAYER_IDS: [0, 2, 4]}}
    with pytest.warns(UserWarning, match=r"\[0, 2, 4\] in eagle_config is read as the outputs"):
        model = load(write(tmp_path, config, eagle3()), TARGET)
    assert model.captured_layers == (1, 3, 5)


def test_eagle_1_reads_the_input_of_the_lm_head(tmp_path: Path) -> None:
    path = write(tmp_path, LLAMA, eagle1())
    model = load(path, TARGET)
    assert model.captured_layers == (FINAL_NORM,)
    assert "reads the final norm" in model.describe()
    with pytest.raises(ValueError, match=r"layer_ids=\[1\] is for EAGLE-3"):
        load(path, TARGET, layer_ids=[1])


def test_the_targets_embedding_is_used_unless_the_heads_was_trained(tmp_path: Path) -> None:
    """Some exporters store random values as `embed_tokens`; others train it and say so."""
    weights = eagle3(more={"embed_tokens.weight": (VOCAB, H)})
    for trained, is_kept in ((False, False), (True, True)):
        model = load(write(tmp_path, speculators(embed_requires_grad=trained), weights), TARGET)
        assert (model.head.embed_tokens is not None) == is_kept
    assert model.head.embed_tokens is not None
    assert torch.equal(model.head.embed_tokens.weight, weights["embed_tokens.weight"])


def test_a_head_of_another_width_has_its_own_embedding(tmp_path: Path) -> None:
    wide = CausalLM(
        build("llama", hidden_size=24, num_hidden_layers=LAYERS), max_len=40, name="acme/base-8b"
    )
    weights = eagle3(more={"fc.weight": (H, 72)})
    with pytest.raises(
        ValueError, match=r"16 wide, the target 24, and embed_tokens\.weight is missing"
    ):
        load(write(tmp_path, speculators(), weights), wide)
    weights |= random_weights({"embed_tokens.weight": (VOCAB, H)})
    model = load(write(tmp_path, speculators(target_hidden_size=24), weights), wide)
    model.reserve(1, 8)
    logits, _ = model.extend(
        (0,), [[3]], model.fuse([torch.ones((1, 1, 24), dtype=torch.float64)] * 3)
    )
    assert int(logits.isfinite().sum()) == D


def drop(weights: Weights, *keys: str) -> Weights:
    return {k: v for k, v in weights.items() if k not in keys}


WRONG: dict[str, tuple[dict[str, Any], Weights, str]] = {
    "missing": (
        RAW3,
        drop(eagle3(), "midlayer.hidden_norm.weight"),
        r"missing: layers\.0\.hidden_norm\.weight",
    ),
    "missing_norm": (RAW3, drop(eagle3(), "norm.weight"), r"missing: norm\.weight"),
    "unexpected": (
        LLAMA,
        eagle1(more={"layers.0.input_layernorm.weight": (H,)}),
        r"unexpected: layers\.0\.input_layernorm\.weight",
    ),
    "second_layer": (
        RAW3,
        eagle3(more={"layers.1.mlp.up_proj.weight": (24, H)}),
        r"unexpected: layers\.1\.mlp\.up_proj\.weight",
    ),
    "two_layers": (
        RAW3 | {"num_hidden_layers": 2},
        eagle3(),
        "num_hidden_layers=2 is not supported; only 1 is",
    ),
    "query_norms": (
        RAW3,
        eagle3(more={"midlayer.self_attn.q_norm.weight": (4,)}),
        r"unexpected: .*q_norm\.weight",
    ),
    "eagle1_input": (
        RAW3 | {"eagle_config": {"use_aux_hidden_state": False}},
        eagle3(),
        "use_aux_hidden_state=False is not supported",
    ),
    "bias_lost": (
        LLAMA | {"bias": True},
        eagle1(),
        r"bias=True and fc\.bias is missing.*overrides=\{bias: false\}",
    ),
    "bias_denied": (
        LLAMA | {"bias": False},
        eagle1(more={"fc.bias": (H,)}),
        r"bias=False and fc\.bias is there",
    ),
    "qkv_bias_lost": (
        LLAMA | {"attention_bias": True},
        eagle1(),
        "attention_bias=True and .*q_proj.bias is missing",
    ),
    "lm_head_lost": (
        RAW3,
        drop(eagle3(), "lm_head.weight"),
        "lacks lm_head.weight and its config sets draft_vocab_size=9",
    ),
    "lm_head_tied": (
        LLAMA | {"tie_word_embeddings": True},
        drop(eagle3(), "lm_head.weight", "d2t", "t2d"),
        "sets tie_word_embeddings=True",
    ),
    "draft_vocab_size": (
        RAW3 | {"draft_vocab_size": 8},
        eagle3(),
        "draft_vocab_size=8 and lm_head.weight has 9 rows",
    ),
    "map_lost": (RAW3, drop(eagle3(), "d2t", "t2d"), "drafts from 9 of 31 tokens and lacks d2t"),
    "map_of_ids": (
        RAW3,
        eagle3() | {"d2t": torch.tensor([1, 2, 4, 7, 8, 15, 16, 29, 30])},
        r"d2t must hold offsets.* to 38 in a vocabulary of 31",
    ),
    "maps_differ": (
        RAW3,
        eagle3() | {"t2d": torch.ones(VOCAB, dtype=torch.bool)},
        "t2d and d2t name different tokens",
    ),
    "no_fc": (RAW3, drop(eagle3(), "fc.weight"), r"no matrix fc\.weight"),
    "no_heads": (drop(RAW3, "num_attention_heads"), eagle3(), "lacks num_attention_heads"),
    "two_bases": (
        RAW3 | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
        eagle3(),
        r"states rope_theta 2 times differently \(10000.0, 500000.0\)",
    ),
    "scaling_lost": (
        LLAMA | {"rope_scaling": LLAMA3_ROPE, "rope_parameters": {"rope_type": "default"}},
        eagle1(),
        r"states rope_type 2 times differently \(default, llama3\)",
    ),
    "both_norms": (
        speculators(fc_norm=True, norm_before_fc=True),
        eagle3("layers.0"),
        "fc_norm and norm_before_fc are both",
    ),
    "norm_lost": (
        speculators(norm_before_fc=True),
        eagle3("layers.0"),
        r"missing: input_norm\.weight",
    ),
    "another_speculator": (
        speculators(speculators_model_type="dflash"),
        eagle3("layers.0"),
        "'dflash' is not supported",
    ),
    "two_lists_of_layers": (
        speculators(eagle_config={LAYER_IDS: [0, 1, 2]}),
        eagle3("layers.0"),
        r"\[1, 3, 5\] on top of its config and \[0, 1, 2\] in eagle_config",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_errors_name_what_is_wrong_with_a_checkpoint(tmp_path: Path, case: str) -> None:
    config, weights, complaint = WRONG[case]
    with pytest.raises(ModelNotLoadedError, match=complaint):
        load(write(tmp_path, config, weights, "pytorch_model.bin"), TARGET)


@pytest.mark.parametrize(
    ("config", "settings", "complaint"),
    [
        (
            speculators(),
            {"layer_ids": [1, 2, 7]},
            r"layers \[1, 2, 7\] and the target has 6 layers",
        ),
        (
            speculators(),
            {"layer_ids": [1, 2]},
            r"fc\.weight of .* reads 48 values and this target gives 32",
        ),
        (speculators(), {"id_convention": "after"}, "choose one of inputs, outputs"),
        (speculators(target_hidden_size=32), {}, "target_hidden_size=32 and the target's is 16"),
        (speculators(), {"overrides": {"num_hidden_layers": 4}}, "num_hidden_layers=4"),
    ],
)
def test_heads_that_do_not_fit_are_rejected(
    tmp_path: Path, config: dict[str, Any], settings: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        load(write(tmp_path, config, eagle3("layers.0")), TARGET, **settings)


def test_another_vocabulary_or_too_few_layers_are_rejected(tmp_path: Path) -> None:
    path = write(tmp_path, LLAMA, eagle1())
    with pytest.raises(ValueError, match="vocabulary of 31 tokens and the target has 29"):
        load(path, CausalLM(build("llama", vocab_size=29)))
    path = write(tmp_path, RAW3, eagle3())
    with pytest.raises(
        ValueError,
        match=r"layers \[2, 1, -1\] and the target has 2 layers; set proposer\.layer_ids",
    ):
        load(path, CausalLM(build("llama")))


def test_another_base_model_gives_a_warning(tmp_path: Path) -> None:
    config = speculators(speculators_config={"verifier": {"name_or_path": "acme/base-8b-instruct"}})
    with pytest.warns(
        UserWarning, match="trained for acme/base-8b-instruct and the target is acme/base-8b"
    ):
        load(write(tmp_path, config, eagle3()), TARGET)


def test_the_rotary_base_can_be_replaced(tmp_path: Path) -> None:
    for config in (RAW3, speculators(), LLAMA | {"draft_vocab_size": D}):
        path = write(tmp_path, config, eagle3())
        rope = read_eagle(path, overrides={"rope_theta": 10000}).format.layer.rope_parameters
        assert rope == {"rope_type": "default", "rope_theta": 10000}
        head = EagleHead.from_pretrained(path, overrides={"rope_theta": 4.0})
        assert float(head.rotary_emb.inv_freq[1]) == 0.5


def new_head() -> EagleHead:
    config: Any = build("llama").config
    return EagleHead.of(Eagle1Format(config, 2 * H))


def test_frequencies_keep_their_precision() -> None:
    model = EagleModel(new_head(), CausalLM(build("llama", dtype=torch.bfloat16), max_len=40))
    assert {parameter.dtype for parameter in model.head.parameters()} == {torch.bfloat16}
    assert model.head.rotary_emb.inv_freq.dtype == torch.float32


def test_a_cache_that_cannot_fit_is_an_error() -> None:
    model = EagleModel(new_head(), TARGET)
    with pytest.raises(MemoryError, match="lower batch_size or target"):
        model.reserve(1 << 20, 1 << 30)
