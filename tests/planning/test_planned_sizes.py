"""Sizes from a configuration are those of the model that it describes."""

from dataclasses import replace
from typing import Any

import pytest
from tiny_models import ARCHITECTURES, build, config_of
from transformers import ViTConfig

from specresearch import CausalLM
from specresearch.models.loading import ModelNotLoadedError, read_config
from specresearch.planning.kv_size import KVLayer, kv_bytes
from specresearch.planning.model_size import ModelSize, causal_lm_size
from specresearch.planning.precision import PRECISIONS, int4, stored_precision

REPEATED = {"falcon"}  # the library caches keys once for each query head; engines do not
IGNORED = {"gpt_neox"}  # has no key heads of its own, whatever a config says
PUBLISHED = [  # model, parameters, linear, GB in bfloat16, int8 and int4, bytes a cached token
    (
        "meta-llama/Llama-3.1-70B-Instruct",
        70_553_706_496,
        68_451_041_280,
        (141.11, 72.66, 39.77),
        327_680,
    ),
    (
        "meta-llama/Llama-3.1-8B-Instruct",
        8_030_261_248,
        6_979_321_856,
        (16.06, 9.08, 5.73),
        131_072,
    ),
    ("meta-llama/Llama-3.2-1B-Instruct", 1_235_814_400, 973_078_528, (2.47, 1.50, 1.03), 32_768),
    (
        "meta-llama/Llama-3.1-405B-Instruct",
        405_853_388_800,
        401_646_551_040,
        (811.71, 410.06, 217.08),
        516_096,
    ),
]


def size_of(name: str) -> ModelSize:
    return causal_lm_size(name, read_config(name))


@pytest.mark.parametrize(("name", "num_parameters", "num_linear", "sizes", "cached"), PUBLISHED)
def test_published_sizes(
    name: str,
    num_parameters: int,
    num_linear: int,
    sizes: tuple[float, float, float],
    cached: int,
) -> None:
    size = size_of(name)
    assert (size.num_parameters, size.num_linear) == (num_parameters, num_linear)
    for precision, expected in zip(("bfloat16", "int8", "int4"), sizes, strict=True):
        exact = size.weight_bytes(PRECISIONS[precision]) / 1e9
        assert exact == pytest.approx(expected, abs=0.005)
    assert kv_bytes(size.kv, 1) == cached


@pytest.mark.parametrize(
    ("name", "cached"),
    [
        ("Qwen/Qwen3-8B", 147_456),
        ("Qwen/Qwen3-32B", 262_144),
        ("Qwen/Qwen2.5-32B-Instruct", 262_144),
        ("deepseek-ai/DeepSeek-V3", 70_272),
    ],
)
def test_published_bytes_of_a_cached_token(name: str, cached: int) -> None:
    assert kv_bytes(size_of(name).kv, 1) == cached


@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES.keys() - REPEATED - IGNORED))
def test_sizes_are_those_of_a_loaded_model_and_its_cache(architecture: str) -> None:
    size = causal_lm_size(architecture, config_of(architecture))
    model = CausalLM(build(architecture), self_test=False)
    assert size.num_parameters == model.num_parameters
    everything = [replace(layer, window=None) for layer in size.kv]
    assert kv_bytes(everything, 1, itemsize=model.dtype.itemsize) == model.bytes_per_token
    assert sorted(str(layer.window) for layer in size.kv) == sorted(map(str, model.windows))
    model.allocate(3, 5)
    columns = model.cache.num_slots * model.cache.num_columns
    cached = columns * kv_bytes(everything, 1, itemsize=model.dtype.itemsize)
    assert model.cache.num_bytes == cached


def test_quantised_weights_are_those_of_linear_layers_without_the_lm_head() -> None:
    size = causal_lm_size("llama", config_of("llama"))
    model = build("llama")
    layers = [p for name, p in model.named_parameters() if "layers" in name and p.dim() == 2]
    assert size.num_linear == sum(weight.numel() for weight in layers)


def test_experts_that_no_token_needs_are_not_read() -> None:
    size = causal_lm_size("qwen3_moe", config_of("qwen3_moe"))
    assert (size.share_of_experts, size.num_experts) == (0.5, 2 * 4 * 3 * 16 * 12)
    assert size.num_active == size.num_parameters - size.num_experts // 2
    precision = PRECISIONS["bfloat16"]
    assert size.read_bytes(precision, 1) == 2 * size.num_active
    assert size.read_bytes(precision, 2) == 2 * (size.num_parameters - size.num_experts / 4)
    assert size.read_bytes(precision, 200) == pytest.approx(size.weight_bytes(precision))


def test_windows_bound_what_a_request_keeps() -> None:
    layers = (KVLayer(2, 16), KVLayer(2, 16, window=5))
    assert kv_bytes(layers, 4) == 4 * 2 * 32 * 2
    assert kv_bytes(layers, 9) == (9 + 5) * 32 * 2


@pytest.mark.parametrize(("num_heads", "num_gpus", "copies"), [(8, 2, 1), (2, 8, 4), (1, 4, 4)])
def test_fewer_heads_than_gpus_are_copied(num_heads: int, num_gpus: int, copies: int) -> None:
    layers = (KVLayer(num_heads, 16),)
    assert kv_bytes(layers, 1, num_gpus) == copies * kv_bytes(layers, 1)


def test_gpus_that_cannot_divide_the_heads_are_refused() -> None:
    size = causal_lm_size("llama", config_of("llama"))
    size.check_gpus(4)
    with pytest.raises(ValueError, match=r"3 GPUs cannot divide the 4 attention heads.*1, 2, 4"):
        size.check_gpus(3)


@pytest.mark.parametrize(
    ("quantization", "name", "bits"),
    [
        ({"quant_method": "fp8"}, "fp8", 8),
        ({"quant_method": "gptq", "bits": 4, "group_size": 32}, "int4", 4.625),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, "int4", 4.15625),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8", 8),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes 4-bit", 4.5),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 8, "group_size": None}}},
            },
            "int8",
            8,
        ),
        ({"quant_method": "mxfp4"}, "mxfp4", 4.25),
    ],
)
def test_quantised_checkpoints_say_what_they_take(
    quantization: dict[str, Any], name: str, bits: float
) -> None:
    precision = stored_precision(quantization)
    assert precision is not None
    assert (precision.name, precision.bits) == (name, bits)


def test_an_unknown_quantisation_names_the_setting_that_replaces_it() -> None:
    with pytest.raises(ValueError, match=r"quant_method=hqq.*precision\.target"):
        stored_precision({"quant_method": "hqq"})


def test_scales_of_small_groups_take_more() -> None:
    assert int4(32).bits > int4(128).bits == 4.15625


def test_a_config_of_no_causal_lm_is_refused() -> None:
    with pytest.raises(ModelNotLoadedError, match="no causal LM can be built"):
        causal_lm_size("pictures", ViTConfig())
