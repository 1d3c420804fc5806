"""Prefill in chunks, and the start of proposers after it."""

from collections.abc import Sequence
from typing import Any

import pytest
from scenarios import (
    ALL,
    PROPOSERS,
    SAMPLED_CASES,
    decode,
    decoded_freely,
    plain,
    prompts,
    tokens_of,
)

from specresearch import CausalLM, Engine, Request, SamplingParams
from specresearch.engine import SchedulerSettings
from specresearch.models.causal_lm import ModelOutput
from specresearch.proposers import NGram
from specresearch.request import RequestState

pytestmark = pytest.mark.filterwarnings(
    "ignore:the target is:UserWarning", "ignore:the draft has:UserWarning"
)


@pytest.mark.parametrize(("name", "sampling"), SAMPLED_CASES)
def test_prompts_in_chunks_give_the_same_output(
    target: CausalLM, name: str, sampling: dict[str, Any]
) -> None:
    settings = SchedulerSettings(max_step_tokens=72)  # cuts none of these drafts
    chunked = decode(
        Engine(target, PROPOSERS[name](), max_batch_size=3, scheduling=settings), **sampling
    )
    assert tokens_of(chunked) == tokens_of(decoded_freely(name, **sampling))


@pytest.mark.parametrize(
    ("name", "max_step_tokens"), [*((name, 5) for name in ALL), ("eagle", 4), ("suffix", 9)]
)
def test_tight_step_limits_do_not_change_greedy_output(
    target: CausalLM, name: str, max_step_tokens: int
) -> None:
    """Drafts are cut short, and rows wait while others decode."""
    proposer = ALL[name]
    settings = SchedulerSettings(max_step_tokens=max_step_tokens)
    assert (
        tokens_of(decode(Engine(target, proposer(), max_batch_size=3, scheduling=settings)))
        == plain()
    )


class Listening(NGram):
    """Record the arguments of `start`."""

    hidden_layers = (0, 2)

    def __init__(self) -> None:
        super().__init__(3)
        self.started: list[tuple[list[RequestState], ModelOutput | None]] = []

    def start(self, rows: Sequence[RequestState], output: Any) -> None:
        self.started.append((list(rows), output))
        super().start(rows, output)


@pytest.mark.parametrize("max_step_tokens", [None, 4, 7, 16])
def test_a_proposer_is_started_once_with_the_states_of_the_whole_prompt(
    target: CausalLM, max_step_tokens: int | None
) -> None:
    proposer = Listening()
    settings = SchedulerSettings(max_step_tokens=max_step_tokens)
    decode(Engine(target, proposer, max_batch_size=3, scheduling=settings))
    assert sorted(row.id for rows, _ in proposer.started for row in rows) == sorted(
        map(str, range(len(prompts())))
    )
    target.allocate(1)
    slot = target.acquire()
    assert slot is not None
    for rows, output in proposer.started:
        lengths = [row.num_prompt_tokens - 1 for row in rows]
        assert (output is None) == (max(lengths) == 0)
        if output is None:
            continue
        assert len(output.hidden) == 2
        assert output.logits.shape == (len(rows), 0, target.vocab_size)
        for b, (row, length) in enumerate(zip(rows, lengths, strict=True)):
            target.truncate([slot], [0])
            tokens = [list(row.request.prompt_ids[:-1])]
            for layer in output.hidden:
                assert layer.shape[:2] == (len(rows), max(lengths))
                assert not layer[b, length:].any()
            if length == 0:
                continue
            expected = target.extend([slot], tokens, want_logits=False, hidden_layers=(0, 2)).hidden
            for layer, states in zip(output.hidden, expected, strict=True):
                assert layer[b, :length].sub(states[0]).abs().max() < 1e-9
    target.release(slot)


def test_decoding_starts_after_the_whole_prefill(target: CausalLM) -> None:
    engine = Engine(target, scheduling=SchedulerSettings(max_step_tokens=8))
    engine.submit(Request([1] * 30, SamplingParams(max_new_tokens=3)))
    steps = []
    while engine.has_work:
        steps.append(engine.step())
        list(engine.pop_finished())
    assert [step is None for step in steps] == [True] * 3 + [False] * 3
    records = [step for step in steps if step is not None]
    assert [record.num_prefill_tokens for record in records] == [29, 0, 0]
    assert records[0].times.prefill > 0 == records[1].times.prefill
