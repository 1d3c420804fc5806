import json
from collections import Counter
from pathlib import Path

import pytest
from tiny_models import letters

from specresearch import CausalLM, SamplingParams
from specresearch.data import PromptDataset
from specresearch.data.traces import TraceRow
from specresearch.loadtest.prompt_pool import MIN_TEXT
from specresearch.loadtest.workload import LoadWorkload, RequestClass

SHORT = SamplingParams(max_new_tokens=8)


def dataset(folder: Path, lengths: list[int], **settings: object) -> PromptDataset:
    """Prompts of so many letters, one word each and two letters a token."""
    file = folder / "prompts.jsonl"
    rows = [{"id": f"p{n}", "prompt": ("ab" * n)[:n]} for n in lengths]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return PromptDataset("letters", "prompts", "raw", path=str(file), **settings)  # type: ignore[arg-type]


def test_requests_are_the_datasets_over_and_over(target: CausalLM, tmp_path: Path) -> None:
    workload = LoadWorkload(target, [RequestClass(dataset(tmp_path, [4, 6]), SHORT)], 5)
    assert [request.row for request in workload.requests] == ["p4", "p6", "p4", "p6", "p4"]
    assert letters(workload.requests[1].prompt_ids) == "ababab"
    assert len(workload) == 5


def test_answers_may_differ_in_length(target: CausalLM, tmp_path: Path) -> None:
    part = RequestClass(dataset(tmp_path, [4]), SamplingParams(max_new_tokens=20))

    def lengths(spread: float, seed: int = 0) -> list[int]:
        workload = LoadWorkload(target, [part], 200, length_spread=spread, seed=seed)
        return [request.sampling.max_new_tokens for request in workload.requests]

    assert set(lengths(0.0)) == {20}
    assert set(lengths(0.5)) == set(range(10, 21))
    assert lengths(0.5) == lengths(0.5) != lengths(0.5, seed=1)
    with pytest.raises(ValueError, match=r"length_spread=0\.5 has no effect on a trace"):
        LoadWorkload(target, [part], 1, trace=[TraceRow(0.0, 4, 4)], length_spread=0.5)


def test_no_two_requests_share_a_seed_and_sides_of_a_repeat_do(
    target: CausalLM, tmp_path: Path
) -> None:
    workload = LoadWorkload(target, [RequestClass(dataset(tmp_path, [4]), SHORT)], 3, seed=7)
    seeds = [
        workload.request(number, repeat).sampling.seed for repeat in range(2) for number in range(3)
    ]
    assert len(set(seeds)) == 6
    assert seeds[:3] == [workload.request(number, 0).sampling.seed for number in range(3)]


def test_classes_come_in_their_shares_mixed_and_the_same_for_a_seed(
    target: CausalLM, tmp_path: Path
) -> None:
    prompts = dataset(tmp_path, [4, 6])
    cold = RequestClass(prompts, SHORT, "structured", 0.6)
    warm = RequestClass(
        prompts,
        SamplingParams(temperature=1.0, max_new_tokens=8),
        "creative",
        0.4,
        num_draft_tokens=2,
    )
    workload = LoadWorkload(target, [cold, warm], 10)
    categories = [workload.request(number, 0).category for number in range(10)]
    assert Counter(categories) == {"structured": 6, "creative": 4}
    assert categories != sorted(categories, reverse=True)
    assert categories == [
        request.category for request in LoadWorkload(target, [cold, warm], 10).requests
    ]
    drafts = {
        workload.request(n, 0).category: workload.request(n, 0).num_draft_tokens for n in range(10)
    }
    assert drafts == {"structured": None, "creative": 2}
    told = workload.describe()
    assert (told["num_requests_structured"], told["num_requests_creative"]) == (6, 4)
    assert not any(
        isinstance(value, dict) for value in told.values()
    )  # a report sets each beside its name
    assert workload.has_greedy
    assert workload.temperature is None


def test_a_replay_takes_its_lengths_from_the_trace(target: CausalLM, tmp_path: Path) -> None:
    words = tmp_path / "words.jsonl"
    words.write_text(
        "".join(
            json.dumps({"id": str(n), "prompt": "\n".join(["ab"] * n)}) + "\n" for n in range(2, 48)
        )
    )
    prompts = PromptDataset("words", "prompts", "raw", path=str(words))
    trace = [TraceRow(0.0, 10, 3), TraceRow(1.0, 46, 99), TraceRow(2.0, 5000, 1)]
    workload = LoadWorkload(target, [RequestClass(prompts, SHORT)], 9, trace=trace)
    assert len(workload) == 3
    lengths = [len(request.prompt_ids) for request in workload.requests]
    assert lengths[0] >= 10
    assert lengths[1] == pytest.approx(46, abs=2)
    assert all(length <= target.max_len - SHORT.max_new_tokens for length in lengths)
    assert [request.sampling.max_new_tokens for request in workload.requests] == [3, 8, 1]
    assert all(request.sampling.ignore_eos for request in workload.requests)
    told = workload.describe()
    assert told["num_outputs_cut"] == 1
    assert told["trace_mean_prompt_tokens"] == pytest.approx(5056 / 3)


def test_prompts_that_are_too_short_for_the_trace_are_counted(
    target: CausalLM, tmp_path: Path
) -> None:
    trace = [TraceRow(0.0, MIN_TEXT + 10, 3), TraceRow(1.0, 3, 3)]
    workload = LoadWorkload(
        target, [RequestClass(dataset(tmp_path, [4, 6]), SHORT)], 2, trace=trace
    )
    assert workload.describe()["num_prompts_short"] == 1


def test_no_room_for_a_prompt_is_refused(target: CausalLM, tmp_path: Path) -> None:
    sampling = SamplingParams(max_new_tokens=target.max_len)
    with pytest.raises(ValueError, match=r"leaves no room for a prompt in target\.max_len=60"):
        LoadWorkload(target, [RequestClass(dataset(tmp_path, [4]), sampling)], 2)
    with pytest.raises(ValueError, match=r"classes\.x\.share=0\.0 must be above 0"):
        RequestClass(dataset(tmp_path, [4]), SHORT, "x", 0.0)
