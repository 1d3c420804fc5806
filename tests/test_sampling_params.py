"""Invalid settings are rejected when they are given, not in the middle of a step."""

import math
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import VOCAB, build, letters_tokenizer

from specresearch import CausalLM, Engine, Request, SamplingParams

pytestmark = pytest.mark.usefixtures("untyped")

NAN, INF = math.nan, math.inf
REFUSED: list[tuple[str, Any]] = [
    *(("temperature", value) for value in (-1, 1e-40, 1e-6, 1e6, NAN, INF, "hot", None, True)),
    *(("top_k", value) for value in (-1, 2.5, 2.0, "5", True, NAN)),
    *(("top_p", value) for value in (0, 1.1, -0.1, NAN, "0.9")),
    *(("min_p", value) for value in (-0.1, 1, NAN, "0.1")),
    *(("repetition_penalty", value) for value in (0, -1, 1e-45, 1e30, NAN, INF)),
    *(("presence_penalty", value) for value in (NAN, INF, -INF, 1e38, "1")),
    *(("frequency_penalty", value) for value in (NAN, INF, -INF, -1e38, True)),
    *(("seed", value) for value in (1.5, "0", True, -1, 2**64, NAN)),
    *(("max_new_tokens", value) for value in (0, -1, 2.5, True, None)),
    *(("logprobs", value) for value in (-1, 1.5, True)),
    *(("draft_threshold", value) for value in (-0.1, 1.5, NAN, "0.5")),
    *(("stop", value) for value in ([5], ["a", None], [""], 5, [b"a"])),
    *(("stop_token_ids", value) for value in ([1.5], ["a"], [True], 1.5, [[1]])),
    *(("ignore_eos", value) for value in (1, "yes", None)),
]


@pytest.mark.parametrize(("name", "value"), REFUSED)
def test_a_wrong_type_or_range_is_rejected_by_name(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"sampling\.{name}=.* must"):
        SamplingParams(**{name: value})


def test_numpy_numbers_and_whole_floats_become_python_numbers() -> None:
    of_numpy: dict[str, Any] = {
        "temperature": np.float32(0.5),
        "top_k": np.int32(4),
        "seed": np.int64(7),
        "stop_token_ids": np.array([3, 4]),
    }
    params = SamplingParams(**of_numpy)
    assert params == SamplingParams(temperature=0.5, top_k=4, seed=7, stop_token_ids=(3, 4))
    assert {type(getattr(params, field.name)) for field in fields(params)} <= {
        float,
        int,
        tuple,
        bool,
        type(None),
    }
    assert type(SamplingParams(temperature=1).temperature) is float


EXTREMES: list[dict[str, Any]] = [
    {"temperature": 1e-5},
    {"temperature": 1e5},
    {"temperature": 1.0, "repetition_penalty": 0.01},
    {"temperature": 1e-5, "repetition_penalty": 100.0},
    {"temperature": 1.0, "presence_penalty": 1e4, "frequency_penalty": -1e4},
    {"temperature": 1.0, "top_p": 1e-30, "top_k": 10**9},
    {"temperature": 1.0, "min_p": 1 - 1e-12},
    {"temperature": 1.0, "seed": 2**64 - 1},
    {"max_new_tokens": 10**12},
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_accepted_settings_can_be_decoded(dtype: torch.dtype) -> None:
    target = CausalLM(build("llama", seed=1, dtype=dtype), letters_tokenizer(), max_len=16)
    requests = [
        Request((1, 2, 3), SamplingParams(**settings), str(i))
        for i, settings in enumerate(EXTREMES)
    ]
    outputs = list(Engine(target, max_batch_size=len(requests)).generate(requests))
    assert {output.finish_reason for output in outputs} == {"length"}
    assert all(0 <= token < VOCAB for output in outputs for token in output.token_ids)


@pytest.mark.parametrize("token", [-5, VOCAB, 10**12])
def test_a_stop_token_beyond_the_vocabulary_is_refused(token: int) -> None:
    target = CausalLM(build("llama", seed=1), letters_tokenizer(), max_len=16)
    request = Request((1, 2, 3), SamplingParams(stop_token_ids=(token,)))
    with pytest.raises(ValueError, match=f"stop_token_ids=.*{token}, outside this target's"):
        Engine(target).submit(request)


@pytest.mark.parametrize(
    "prompt",
    ["abc", [1.5], [1, None], [[1, 2]], [True, False], torch.tensor([1.0]), np.array([[1]])],
)
def test_a_prompt_is_one_list_of_whole_numbers(prompt: Any) -> None:
    with pytest.raises(ValueError, match="give one list of token ids"):
        Request(prompt)


@pytest.mark.parametrize("value", [-1, 1.5, True, "3"])
def test_the_drafts_of_a_request_must_be_a_count(value: Any) -> None:
    with pytest.raises(ValueError, match=f"num_draft_tokens={value!r}; it must be 0"):
        Request((1,), num_draft_tokens=value)
