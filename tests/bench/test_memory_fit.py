"""What `auto` chooses for free memory of a given size, on a pretended device and on a CPU."""

import copy
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import build, letters_tokenizer

from specresearch import CausalLM
from specresearch.bench import Runner, RunSettings, decoding_memory
from specresearch.bench.decoding_memory import Available, Forecast
from specresearch.bench.memory_fit import AUTO, MIN_PROMPT, BatchSetting, choose_fit
from specresearch.data import PromptDataset
from specresearch.engine import SchedulerSettings
from specresearch.loadtest.arrivals import ClosedLoop
from specresearch.loadtest.folder import LoadFolder
from specresearch.loadtest.runner import LoadRunner
from specresearch.loadtest.settings import LoadSettings
from specresearch.loadtest.workload import RequestClass
from specresearch.mock_cuda import DEVICE, MockCuda
from specresearch.models import slot_model
from specresearch.models.kv_cache import available_bytes
from specresearch.models.pass_graphs import PENDING
from specresearch.proposers import DraftModel, NGram, Proposer
from specresearch.results.folder import RunFolder
from specresearch.sampling_params import SamplingParams

pytestmark = pytest.mark.filterwarnings("ignore:the target is:UserWarning")

MODEL = build("llama", seed=1)
MAX_LEN = 64
NO_LIMIT = {"none": 10**6}
Make = Callable[..., Runner]


def on(device: torch.device) -> CausalLM:
    model: Any = copy.deepcopy(MODEL)
    return CausalLM(model.to(device), letters_tokenizer(), max_len=MAX_LEN, self_test=False)


def drafter(kind: str, device: torch.device) -> Proposer | None:
    if kind == "draft_model":
        return DraftModel(on(device), 3)
    return NGram(5) if kind == "ngram" else None


@pytest.mark.parametrize("kind", ["plain", "ngram", "draft_model"])
def test_one_more_slot_would_not_fit(kind: str) -> None:
    chosen = set()
    with MockCuda():
        forecast = Forecast(on(DEVICE), drafter(kind, DEVICE), [SamplingParams()])
        one = forecast.of(1).additional
    for free in (2 * one, 7 * one, 30 * one, 35 * one + 1):
        with MockCuda(free):
            fit = choose_fit(forecast, NO_LIMIT, 8)
            room = free - 0.1 * free
            assert forecast.of(fit.num_running).additional <= room
            assert forecast.of(fit.num_running + 1).additional > room
            assert fit.max_len == MAX_LEN
            assert fit.memory == forecast.of(fit.num_running)
            assert fit.reason == "one more would leave less than 10% of free memory"
            chosen.add(fit.num_running)
    assert len(chosen) == 4


def test_sides_share_the_memory() -> None:
    with MockCuda():
        target = on(DEVICE)
        forecasts = [Forecast(target, NGram(5), [SamplingParams()], num_sides=n) for n in (1, 3)]
        free = 40 * forecasts[1].of(1).additional
    with MockCuda(free):
        one, three = (choose_fit(forecast, NO_LIMIT, 8).num_running for forecast in forecasts)
    assert 1 < three < one


def test_a_number_is_never_larger_than_there_is_use_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with MockCuda():
        target = on(DEVICE)
        forecast = Forecast(target, None, [SamplingParams()])
        assert choose_fit(forecast, {"there are no more": 5}, 8).num_running == 5
        fit = choose_fit(forecast, NO_LIMIT, 8)
        assert (fit.num_running, fit.reason) == (256, "more are seldom faster on a GPU")
    forecast = Forecast(on(torch.device("cpu")), None, [SamplingParams()])
    fit = choose_fit(forecast, NO_LIMIT, 8)
    assert (fit.num_running, fit.reason) == (16, "more are seldom faster on a CPU")
    assert fit.available.reserve == 0.5


def test_a_drafter_on_another_device_must_fit_there() -> None:
    forecast = Forecast(on(torch.device("cpu")), drafter("draft_model", torch.device("cpu")), [])
    memory = forecast.of(4)
    own = memory.additional - memory.draft_cache
    apart = memory.draft_cache + memory.draft_prefill
    assert Available(own, apart, 0.0).holds(memory)
    assert not Available(own, apart - 1, 0.0).holds(memory)
    assert not Available(own - 1, apart, 0.0).holds(memory)
    assert Available(memory.additional, None, 0.0).holds(memory)
    assert not Available(memory.additional - 1, None, 0.0).holds(memory)


def test_the_context_is_shortened_where_it_does_not_fit_even_once() -> None:
    with MockCuda():
        target = on(DEVICE)
        forecast = Forecast(target, drafter("draft_model", DEVICE), [SamplingParams()])
        free = int(forecast.of(1).additional / 0.9) - 1
    with MockCuda(free):
        fit = choose_fit(forecast, NO_LIMIT, 8)
        assert (fit.num_running, fit.max_len) == (1, target.max_len)
        assert 8 + MIN_PROMPT <= fit.max_len < MAX_LEN
        assert forecast.of(1, fit.max_len).additional <= 0.9 * free
        assert forecast.of(1, fit.max_len + 1).additional > 0.9 * free
        assert fit.reason == (
            f"a context of {MAX_LEN} tokens does not fit even once, one of {fit.max_len} does"
        )
        target.allocate(1)
        assert target.cache.num_columns == fit.max_len + 2 * PENDING  # and columns of padding


def test_too_little_memory_is_one_sentence_with_numbers_and_remedies() -> None:
    with MockCuda(10_000):
        target = on(DEVICE)
        forecast = Forecast(target, None, [SamplingParams()])
        for may_shorten in (True, False):
            with pytest.raises(MemoryError) as caught:
                choose_fit(forecast, NO_LIMIT, 8, may_shorten=may_shorten)
        needed = f"{forecast.of(1).additional:,} bytes"
    for part in (needed, "9,000 of 10,000 free bytes", "target.max_len", "dtype", "quantization"):
        assert part in str(caught.value)
    assert target.max_len == MAX_LEN


@pytest.fixture
def little_memory(target: CausalLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave free memory for two requests with drafts, of one side."""
    target.free_cache()
    two = Forecast(target, NGram(4), [SamplingParams(max_new_tokens=10)]).of(2).additional
    for module in (slot_model, decoding_memory):
        monkeypatch.setattr(module, "available_bytes", lambda device: 2 * two + 1)


@pytest.mark.usefixtures("little_memory")
def test_a_run_decodes_what_fits_together_and_says_why(
    make_runner: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settings = RunSettings(batch_size=AUTO, warmup=1)
    with caplog.at_level(logging.INFO):
        runner = make_runner(proposer=NGram(4), method="ngram", settings=settings)
    assert [len(group) for group in runner.groups] == [2, 2]
    assert "batch_size=auto is 2: one more would leave less than 50% of free memory" in caplog.text
    assert "memory forecast for 2 requests of up to 60 tokens: weights" in caplog.text
    results = runner.run()
    memory = results.provenance["memory"]
    assert (memory["num_running"], memory["max_len"]) == (2, 60)
    assert results.summary["memory_foretold"] == memory["foretold"]["total"]
    assert runner.folder.config["batch_size"] == 2
    assert results.complete
    monkeypatch.undo()  # there is room for more now, and the groups stay
    del runner
    again = make_runner(proposer=NGram(4), method="ngram", settings=settings, resume=True)
    assert [len(group) for group in again.groups] == [2, 2]


def test_too_few_prompts_or_too_small_steps_limit_the_batch(make_runner: Make) -> None:
    settings = RunSettings(batch_size=AUTO, warmup=1)
    runner = make_runner(settings=settings)
    assert runner.size == 4
    assert runner.memory.reason == "there are no more requests"
    limited = SchedulerSettings(max_step_tokens=3)
    runner = make_runner(settings=settings, scheduling=limited, folder=runner.folder.path / "b")
    assert runner.size == 2
    assert runner.memory.reason == "scheduler.max_step_tokens=3 must exceed it"


def test_a_load_test_chooses_for_all_its_sides(
    target: CausalLM, prompt_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = PromptDataset("letters", "mtbench", "raw", path=str(prompt_file))

    def make(folder: str, share: float) -> LoadRunner:
        target.free_cache()
        sampling = SamplingParams(max_new_tokens=6)
        forecast = Forecast(target, NGram(4), [sampling], num_sides=2)
        free = int(2 * share * forecast.of(3).additional) + 1
        for module in (slot_model, decoding_memory):
            monkeypatch.setattr(module, "available_bytes", lambda device: free)
        path = tmp_path / folder
        settings = LoadSettings(max_running=AUTO, num_requests=24, warmup=1)
        classes = [RequestClass(dataset, sampling)]
        parts: dict[str, Any] = {"proposer": NGram(4), "method": "ngram"}
        return LoadRunner(
            target, classes, ClosedLoop(8), settings, LoadFolder(path, {"seed": 0}), **parts
        )

    runner = make("three", 1.0)
    assert runner.whole_passes is None
    assert runner.max_running == 3
    assert target.cache.num_slots == 6
    assert runner.folder.config["max_running"] == 3
    results = runner.run()
    assert results.summary["max_running"] == 3
    assert results.summary["memory_foretold"] > 0
    crowded = make("crowded", 0.3)
    assert "memory is short" in (crowded.whole_passes or "")
    assert crowded.max_running == 1


def test_a_setting_is_adopted_only_where_it_was_chosen(target: CausalLM, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, {"batch_size": 3})
    fit = BatchSetting("batch_size", 3, folder, num_requests=2).fit(
        Forecast(target, None, [SamplingParams()]), 8
    )
    assert (fit.num_running, fit.reason) == (2, None)
    assert folder.config == {"batch_size": 3}
    assert available_bytes(torch.device("cpu")) > 0
