import math
from typing import Any

import pytest
import torch

from specresearch import sampling
from specresearch.sampling import (
    SamplingBatch,
    SamplingParams,
    argmax,
    logits_to_probs,
    penalize,
    topk,
)

V = 12


def count(rows: list[list[int]]) -> torch.Tensor:
    return torch.stack(
        [torch.bincount(torch.tensor(row, dtype=torch.long), minlength=V) for row in rows]
    )


def batch_of(
    *params: SamplingParams,
    prompts: list[list[int]] | None = None,
    outputs: list[list[int]] | None = None,
) -> SamplingBatch:
    num_rows = len(params)
    nothing = [[] for _ in params]
    return SamplingBatch(
        params,
        range(num_rows),
        [0] * num_rows,
        prompt_counts=count(prompts or nothing),
        output_counts=count(outputs or nothing),
    )


def naive_probs(logits: list[float], p: SamplingParams) -> list[float]:
    """Apply temperature, top-k, top-p and min-p, in that order, to one row of Python floats."""
    if p.temperature == 0:
        return [
            float(i == max(range(len(logits)), key=logits.__getitem__)) for i in range(len(logits))
        ]
    weights = [math.exp(x / p.temperature) for x in logits]
    order = sorted(range(len(weights)), key=lambda i: -weights[i])
    kept = order[: p.top_k] if p.top_k else order
    total, mass, nucleus = sum(weights[i] for i in kept), 0.0, []
    for i in kept:
        if p.top_p == 1 or mass < p.top_p:
            nucleus.append(i)
        mass += weights[i] / total
    highest = max(weights[i] for i in nucleus)
    final = [i for i in nucleus if weights[i] >= p.min_p * highest]
    total = sum(weights[i] for i in final)
    return [weights[i] / total if i in final else 0.0 for i in range(len(weights))]


SETTINGS = [
    SamplingParams(),
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.3),
    SamplingParams(temperature=1.0, top_k=1),
    SamplingParams(temperature=1.0, top_k=5),
    SamplingParams(temperature=1.0, top_k=V + 50),
    SamplingParams(temperature=1.0, top_p=0.6),
    SamplingParams(temperature=1.0, top_p=1e-9),
    SamplingParams(temperature=2.0, min_p=0.3),
    SamplingParams(temperature=0.8, top_k=7, top_p=0.9, min_p=0.05),
]


class TestLogitsToProbs:
    @pytest.mark.parametrize("largest_sorted", [0, V])
    @pytest.mark.parametrize("together", [True, False])
    def test_equals_a_naive_reference(
        self, together: bool, largest_sorted: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Rows with different settings do not influence one another, sorted or by histograms."""
        monkeypatch.setattr(sampling, "SORTED_VOCABULARY", largest_sorted)
        logits = torch.randn(len(SETTINGS), 3, V, dtype=torch.float64) * 2
        groups = [range(len(SETTINGS))] if together else [[i] for i in range(len(SETTINGS))]
        for group in groups:
            rows = list(group)
            probs = logits_to_probs(logits[rows], batch_of(*(SETTINGS[i] for i in rows)))
            for b, i in enumerate(rows):
                for n in range(3):
                    expected = torch.tensor(
                        naive_probs(logits[i, n].tolist(), SETTINGS[i]), dtype=torch.float64
                    )
                    torch.testing.assert_close(probs[b, n], expected, rtol=1e-6, atol=1e-9)

    def test_half_precision_logits_are_widened(self) -> None:
        logits = torch.randn(1, 1, V).bfloat16()
        probs = logits_to_probs(logits, batch_of(SamplingParams(temperature=1.0)))
        assert probs.dtype == torch.float32
        torch.testing.assert_close(probs, logits.float().softmax(-1))

    def test_ties_keep_exactly_k(self) -> None:
        probs = logits_to_probs(
            torch.zeros(1, 1, V), batch_of(SamplingParams(temperature=1.0, top_k=3))
        )
        assert int((probs > 0).sum()) == 3

    def test_infinite_logits_have_probability_zero(self) -> None:
        logits = torch.zeros(1, 1, V)
        logits[..., 4:] = float("-inf")
        probs = logits_to_probs(
            logits, batch_of(SamplingParams(temperature=0.5, top_k=8, top_p=0.99, min_p=0.1))
        )
        assert probs[0, 0].tolist() == pytest.approx([0.25] * 4 + [0.0] * (V - 4))


class TestPenalties:
    PARAMS = SamplingParams(repetition_penalty=1.7, presence_penalty=0.4, frequency_penalty=0.3)

    def naive(self, logits: list[float], prompt: list[int], output: list[int]) -> list[float]:
        result = []
        for token, logit in enumerate(logits):
            if token in prompt + output:
                logit = logit / 1.7 if logit > 0 else logit * 1.7
            result.append(logit - 0.3 * output.count(token) - 0.4 * (token in output))
        return result

    def test_each_row_is_penalized_by_its_own_history(self) -> None:
        logits = torch.randn(2, 1, V, dtype=torch.float64)
        prompts, outputs = [[1, 1, 2], []], [[2, 3, 3, 3], [7]]
        actual = penalize(
            logits, batch_of(self.PARAMS, self.PARAMS, prompts=prompts, outputs=outputs)
        )
        for b in range(2):
            assert actual[b, 0].tolist() == pytest.approx(
                self.naive(logits[b, 0].tolist(), prompts[b], outputs[b]), rel=1e-6
            )

    def test_drafts_on_the_path_count_as_output(self) -> None:
        logits = torch.randn(1, 3, V, dtype=torch.float64)
        path_tokens = torch.tensor([[9, 5, 5]])
        on_path = torch.tensor([[[False, False, False], [False, True, False], [False, True, True]]])
        actual = penalize(
            logits, batch_of(self.PARAMS, prompts=[[1]], outputs=[[9]]), path_tokens, on_path
        )
        for n, drafts in enumerate(([], [5], [5, 5])):
            assert actual[0, n].tolist() == pytest.approx(
                self.naive(logits[0, n].tolist(), [1], [9, *drafts]), rel=1e-6
            )

    def test_rows_without_penalty_are_untouched(self) -> None:
        logits = torch.randn(2, 1, V, dtype=torch.float64)
        batch = batch_of(self.PARAMS, SamplingParams(), prompts=[[1], [1]], outputs=[[2], [2]])
        assert torch.equal(penalize(logits, batch)[1], logits[1])


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str
)
def test_argmax_is_the_first_of_equals_in_every_precision(dtype: torch.dtype) -> None:
    logits = torch.randn(3, 5, 97).to(dtype)
    logits[0, 0, [40, 7, 90]] = 9.0
    logits[1, 2] = -torch.inf
    best = argmax(logits)
    assert best[0, 0] == 7
    assert best[1, 2] == 0
    for row, index in zip(logits.flatten(0, 1).tolist(), best.flatten().tolist(), strict=True):
        assert index == row.index(max(row))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("largest", [torch.inf, 9.0, 1e-5, 0.0, -1e-5, -9.0])
def test_argmax_does_not_depend_on_signs(dtype: torch.dtype, largest: float) -> None:
    logits = -10 - torch.rand(2, 5, 97).to(dtype)
    logits[..., [40, 7, 90]] = largest
    assert argmax(logits).unique().tolist() == [7]
    logits[..., 7] *= -1
    assert argmax(logits).unique().tolist() == [7 if largest <= 0 else 40]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("vocab_size", [97, 4096, 32_000, 151_936, 1 << 18])
def test_topk_finds_the_largest_of_large_vocabularies(dtype: torch.dtype, vocab_size: int) -> None:
    logits = torch.randn(2, 3, vocab_size).to(dtype)
    logits[0, 0] = -torch.inf
    logits[0, 1, -40:] = 9.0  # more equals than are asked for, side by side
    logits[0, 2, :: vocab_size // 30] = 9.0  # and far apart
    for k in (1, 4, 17):
        best = topk(logits, k)
        assert torch.equal(best.values, logits.sort(-1, descending=True).values[..., :k])
        assert torch.equal(logits.gather(-1, best.indices), best.values)
        assert all(len(set(row)) == k for row in best.indices.flatten(0, 1).tolist())
    logits[1, 1, 5] = torch.nan
    assert topk(logits, 2).values[1, 1, 0].isnan()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("min_p", 1.0),
        ("min_p", -0.1),
        ("repetition_penalty", 0.0),
        ("max_new_tokens", 0),
        ("logprobs", -1),
        ("stop", ("",)),
    ],
)
def test_errors_name_the_bad_value_and_its_rule(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"sampling\.{name}=.* must"):
        SamplingParams(**{name: value})


@pytest.mark.parametrize("largest_sorted", [V, 0])
def test_a_nucleus_smaller_than_any_float_keeps_the_likeliest_token(
    largest_sorted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "SORTED_VOCABULARY", largest_sorted)
    logits = torch.tensor([0.0, 2.0, 1.0] + [0.5] * (V - 3)).expand(3, 1, V)
    params = [
        SamplingParams(temperature=1.0, top_p=5e-324),
        SamplingParams(temperature=1e-5, top_p=5e-324, top_k=2**31 - 2),
        SamplingParams(temperature=1.0, top_p=1e-30),
    ]
    probs = logits_to_probs(logits, batch_of(*params))
    assert probs.argmax(-1).flatten().tolist() == [1, 1, 1]
    assert probs.max(-1).values.flatten().tolist() == [1.0, 1.0, 1.0]
