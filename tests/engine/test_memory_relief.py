"""Memory that runs out in the middle of a step."""

import copy
import logging
from collections.abc import Callable

import pytest
import torch
from scenarios import MAX_LEN, MODEL, PROPOSERS, decode, plain, tokens_of
from tiny_models import letters_tokenizer

from specresearch import CausalLM, Engine
from specresearch.models.causal_lm import ModelOutput
from specresearch.models.memory import is_out_of_memory

pytestmark = pytest.mark.filterwarnings(
    "ignore:the target is:UserWarning", "ignore:the draft has:UserWarning"
)


@pytest.fixture
def own_target() -> CausalLM:
    """Return a target whose cache no other test has used."""
    return CausalLM(copy.deepcopy(MODEL), letters_tokenizer(), max_len=MAX_LEN, self_test=False)


def runs_out(
    target: CausalLM, monkeypatch: pytest.MonkeyPatch, fails: Callable[[int, int], bool]
) -> list[int]:
    """Let verification fail where `fails(number of the pass, rows)`; return the rows by pass."""
    forward, sizes = target.forward, []

    def scarce(slots: list[int], *args: object, **settings: object) -> ModelOutput:
        sizes.append(len(slots))
        if fails(len(sizes), len(slots)):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB.\nGPU 0")
        return forward(slots, *args, **settings)  # type: ignore[arg-type]

    monkeypatch.setattr(target, "forward", scarce)
    return sizes


@pytest.mark.parametrize("function", ["forward", "extend"])
@pytest.mark.parametrize("drafter", PROPOSERS)
def test_a_step_without_memory_changes_no_output(
    own_target: CausalLM,
    drafter: str,
    function: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Verification fails after draft caches have moved on, or prefill after its last row."""
    sound, calls = getattr(own_target, function), 0

    def scarce(*args: object, **settings: object) -> object:
        nonlocal calls
        calls += 1
        result = sound(*args, **settings)
        if calls == 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB.\nGPU 0")
        return result

    engine = Engine(own_target, PROPOSERS[drafter](), max_batch_size=4)
    monkeypatch.setattr(own_target, function, scarce)
    with caplog.at_level(logging.WARNING):
        outputs = decode(engine)
    assert calls > 2
    assert tokens_of(outputs) == plain()
    assert "requests running (CUDA out of memory. Tried to allocate 9 GiB.)" in caplog.text
    assert sum(output.record.num_preemptions for output in outputs.values()) >= 2
    assert not own_target.in_use


def test_one_request_fewer_runs_until_all_have_ended(
    own_target: CausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(own_target, max_batch_size=4)
    sizes = runs_out(own_target, monkeypatch, lambda number, rows: number > 2 and rows > 3)
    assert tokens_of(decode(engine)) == plain()
    assert sizes[2] == 4
    assert max(sizes[3:]) == 3
    monkeypatch.undo()
    sizes = runs_out(own_target, monkeypatch, lambda number, rows: False)
    decode(engine)
    assert max(sizes) == 4


def test_the_engine_ends_with_one_sentence_when_fewer_requests_do_not_help(
    own_target: CausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(own_target, max_batch_size=4)
    sizes = runs_out(own_target, monkeypatch, lambda number, rows: number > 2)
    with pytest.raises(MemoryError, match=r"with 3 requests running \(CUDA out of memory\..*; low"):
        decode(engine)
    assert sizes == [4, 4, 4, 3]
    assert not own_target.in_use
    monkeypatch.undo()
    assert tokens_of(decode(engine)) == plain()  # `generate` has dropped what failed


def test_a_request_alone_cannot_be_preempted(
    own_target: CausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(own_target, max_batch_size=1)
    runs_out(own_target, monkeypatch, lambda number, rows: number == 2)
    with pytest.raises(MemoryError, match="with 1 request running"):
        decode(engine)


def test_other_errors_still_fail_the_step(
    own_target: CausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("broken on purpose")

    engine = Engine(own_target, max_batch_size=4)
    monkeypatch.setattr(own_target, "forward", broken)
    with pytest.raises(RuntimeError, match="broken on purpose"):
        decode(engine)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory."),
        MemoryError(),
        RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"),
        RuntimeError("HIP out of memory"),
    ],
)
def test_memory_errors_are_recognized(error: Exception) -> None:
    assert is_out_of_memory(error)
    assert not is_out_of_memory(RuntimeError("shapes differ"))
    assert not is_out_of_memory(ValueError("out of memory"))
