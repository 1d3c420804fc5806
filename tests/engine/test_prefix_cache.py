"""Prompts that begin like earlier requests start from their columns; no output changes."""

import copy
from collections.abc import Sequence
from typing import Any

import pytest
from scenarios import ALL, MAX_LEN, MODEL, PROPOSERS, prompts, shared_target
from tiny_models import VOCAB

from specresearch import CausalLM, Engine, Request, RequestOutput, SamplingParams
from specresearch.batch import Batch
from specresearch.controllers import Controller
from specresearch.engine import SchedulerSettings
from specresearch.engine.prefix_cache import SHORTEST, PrefixCache, num_common
from specresearch.metrics import StepRecord
from specresearch.proposers import NGram
from specresearch.request import RequestState

pytestmark = pytest.mark.filterwarnings(
    "ignore:the target is:UserWarning", "ignore:the draft has:UserWarning"
)
PROMPT = list(prompts()[1])  # 26 tokens


class Server:
    """An engine that reuses prefixes or not, with all that it reports."""

    def __init__(
        self,
        name: str,
        *,
        reuse: bool,
        batch_size: int = 3,
        controller: Controller | None = None,
        **limits: Any,
    ) -> None:
        self.records: list[StepRecord] = []
        self.engine = Engine(
            shared_target(),
            ALL[name](),
            controller=controller,
            max_batch_size=batch_size,
            scheduling=SchedulerSettings(reuse_prefixes=reuse, **limits),
            observers=[lambda step: self.records.append(step.record)],
        )

    def decode(self, prompts: Sequence[Sequence[int]], **sampling: Any) -> list[RequestOutput]:
        settings = SamplingParams(**{"max_new_tokens": 8, **sampling})
        requests = [Request(prompt, settings) for prompt in prompts]
        outputs = [output.checked() for output in self.engine.generate(requests)]
        return sorted(outputs, key=lambda output: output.id)

    @property
    def num_prefilled(self) -> int:
        return sum(record.num_prefill_tokens for record in self.records)


class Late(Controller):
    """Draft in the third turn of a conversation only."""

    def budget(self, batch: Batch) -> list[int | None]:
        return [None if row.num_prompt_tokens > len(PROMPT) + 15 else 0 for row in batch.rows]


class ById(Controller):
    """Draft for the requests of these ids only."""

    def __init__(self, ids: set[str]) -> None:
        self.ids = ids

    def budget(self, batch: Batch) -> list[int | None]:
        return [None if row.id in self.ids else 0 for row in batch.rows]


def talk(server: Server, **sampling: Any) -> list[RequestOutput]:
    """Hold two conversations of three turns, whose prompts begin alike."""
    histories = [[*PROMPT, 1], [*PROMPT, 2, 3]]
    outputs = []
    for _ in range(3):
        replies = server.decode(histories, **sampling)
        outputs += replies
        for history, reply in zip(histories, replies, strict=True):
            history += [*reply.token_ids, 4, 5]
    return outputs


def drafting(outputs: Sequence[RequestOutput]) -> list[tuple[Any, ...]]:
    """Return what was drafted and accepted: drafters go on as if they had read every prompt."""
    counts = [output.record.counts for output in outputs]
    return [(c.num_target_forwards, c.num_draft_tokens, c.reached, c.accepted) for c in counts]


def num_reused(outputs: Sequence[RequestOutput]) -> int:
    return sum(output.record.num_reused_tokens for output in outputs)


@pytest.mark.parametrize(
    "sampling", [{}, {"temperature": 1.0, "seed": 3}], ids=["greedy", "seeded"]
)
@pytest.mark.parametrize("name", PROPOSERS)
def test_conversations_are_answered_alike_with_less_prefill(
    name: str, sampling: dict[str, float]
) -> None:
    fresh, reusing = Server(name, reuse=False), Server(name, reuse=True)
    expected, outputs = talk(fresh, **sampling), talk(reusing, **sampling)
    assert [o.token_ids for o in outputs] == [o.token_ids for o in expected]
    assert drafting(outputs) == drafting(expected)
    assert num_reused(expected) == 0
    assert num_reused(outputs) > 4 * SHORTEST
    assert fresh.num_prefilled - reusing.num_prefilled == num_reused(outputs)


@pytest.mark.parametrize("name", ["draft_model", "eagle", "eagle3"])
def test_what_a_drafter_has_not_read_yet_is_reused_too(name: str) -> None:
    """Nothing is drafted in the first two turns; in the third, drafts are as if it had all read."""
    outputs: dict[bool, list[RequestOutput]] = {}
    for reuse in (False, True):
        server = Server(name, reuse=reuse, controller=Late())
        outputs[reuse] = talk(server)
    assert [o.token_ids for o in outputs[True]] == [o.token_ids for o in outputs[False]]
    assert drafting(outputs[True]) == drafting(outputs[False])
    assert num_reused(outputs[True]) > 4 * SHORTEST
    drafted = [output.record.counts.num_draft_tokens for output in outputs[True]]
    assert not any(drafted[:4])
    assert all(drafted[4:])


@pytest.mark.parametrize("name", sorted(ALL.keys() - PROPOSERS.keys()))
def test_greedy_output_is_the_same_where_a_request_learns_from_its_own_steps(name: str) -> None:
    fresh, reusing = Server(name, reuse=False), Server(name, reuse=True)
    expected, outputs = talk(fresh), talk(reusing)
    assert [o.token_ids for o in outputs] == [o.token_ids for o in expected]
    assert num_reused(outputs) > 4 * SHORTEST


@pytest.mark.parametrize("name", ["eagle", "eagle3"])
def test_a_slot_that_has_just_been_given_away_is_no_source(name: str) -> None:
    """What the head knows there is still that of the request that had it before."""
    prompt, others = [*PROMPT, *PROMPT[::-1]], [PROMPT[::-1] * 2, [*PROMPT[5:], *PROMPT]]
    server = Server(name, reuse=True, controller=ById({"source", "first", "second"}))
    engine, short = server.engine, SamplingParams(max_new_tokens=3)
    engine.submit(Request(others[0], short, "idle"))
    engine.submit(Request(prompt, SamplingParams(max_new_tokens=8), "source"))
    engine.submit(Request(others[1], short, "other idle"))
    while engine.scheduler.waiting or engine.scheduler.running or engine._inbox:
        engine.step()
    list(engine.pop_finished())
    for id, length in (("first", 25), ("second", 24)):
        other = (prompt[length] + 1) % VOCAB
        engine.submit(Request([*prompt[:length], other, 1, 2], short, id))
    while engine.scheduler.waiting or engine.scheduler.running or engine._inbox:
        engine.step()
    reused = {output.id: output.record.num_reused_tokens for output in engine.pop_finished()}
    assert reused == {"first": 24, "second": 23}  # the last pair in common has another token


def talk_in_turn(server: Server) -> list[RequestOutput]:
    """Hold as many conversations as there are slots, one request at a time."""
    histories = [[*PROMPT, 1], [2, *PROMPT], [4, 3, *PROMPT]]
    outputs = []
    for _ in range(3):
        for history in histories:
            outputs += server.decode([history])
            history += [*outputs[-1].token_ids[:4], 4, 5]
    return outputs


@pytest.mark.parametrize("name", PROPOSERS)
def test_lone_requests_have_the_first_slot_where_that_is_cheaper(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh, reusing = Server(name, reuse=False), Server(name, reuse=True)
    expected = talk_in_turn(fresh)
    prefixes, target = reusing.engine.scheduler.prefixes, reusing.engine.target
    assert prefixes is not None
    prefixes.prefers_first = True
    slots: list[int] = []
    commit = target.commit

    def noting(used: Sequence[int], *verdict: Any) -> None:
        slots.extend(used)
        commit(used, *verdict)

    monkeypatch.setattr(target, "commit", noting)
    outputs = talk_in_turn(reusing)
    assert [o.token_ids for o in outputs] == [o.token_ids for o in expected]
    assert drafting(outputs) == drafting(expected)
    assert num_reused(outputs) > 6 * SHORTEST
    assert set(slots) == {0}


@pytest.mark.parametrize("name", PROPOSERS)
def test_columns_of_a_running_request_are_copied(name: str) -> None:
    outputs: dict[bool, list[RequestOutput]] = {}
    for reuse in (False, True):
        server = Server(name, reuse=reuse)
        engine = server.engine
        settings = SamplingParams(max_new_tokens=12)
        engine.submit(Request([*PROMPT, 1], settings, "a"))
        engine.step()
        engine.submit(Request([*PROMPT, 1, 2], settings, "b"))
        while engine.scheduler.waiting or engine.scheduler.running or engine._inbox:
            engine.step()
        outputs[reuse] = sorted(engine.pop_finished(), key=lambda output: output.id)
    assert [o.token_ids for o in outputs[True]] == [o.token_ids for o in outputs[False]]
    assert [o.record.num_reused_tokens for o in outputs[False]] == [0, 0]
    first, second = (o.record.num_reused_tokens for o in outputs[True])
    assert first == 0
    assert len(PROMPT) - 1 <= second <= len(PROMPT) + 1
    assert drafting(outputs[True]) == drafting(outputs[False])


@pytest.mark.parametrize("name", PROPOSERS)
def test_a_preempted_request_goes_on_from_its_own_columns(name: str) -> None:
    many = [[i, *PROMPT, i] for i in range(4)]  # no two begin alike
    fresh = Server(name, reuse=False, max_cache_tokens=66)
    reusing = Server(name, reuse=True, max_cache_tokens=66)
    expected, outputs = fresh.decode(many), reusing.decode(many)
    assert [o.token_ids for o in outputs] == [o.token_ids for o in expected]
    assert sum(o.record.num_preemptions for o in outputs) > 0
    assert num_reused(outputs) > 0


def test_columns_that_another_engine_overwrote_are_not_reused() -> None:
    first, other = Server("ngram", reuse=True), Server("ngram", reuse=True)
    expected = first.decode([PROMPT])
    again = first.decode([PROMPT])
    other.decode([list(reversed(PROMPT))] * 3)
    after = first.decode([PROMPT])
    assert num_reused(again) == len(PROMPT) - 1
    assert num_reused(after) == 0
    assert again[0].token_ids == after[0].token_ids == expected[0].token_ids


def test_aborted_requests_leave_nothing_to_reuse() -> None:
    server = Server("draft_model", reuse=True)
    server.engine.submit(Request([*PROMPT, 1], SamplingParams(max_new_tokens=20)))
    server.engine.step()
    server.engine.abort()
    assert num_reused(server.decode([[*PROMPT, 1]])) == 0


class TestSlots:
    """Which slot is given."""

    def setup_method(self) -> None:
        self.slots = CausalLM(copy.deepcopy(MODEL), max_len=MAX_LEN)
        self.slots.allocate(3)
        self.cache = PrefixCache(self.slots, NGram(3), None)

    def admit(self, tokens: Sequence[int], running: Sequence[RequestState] = ()) -> RequestState:
        row = RequestState(Request(tokens), -1, 0, frozenset(), 100)
        slot = self.cache.acquire(row, running)
        assert slot is not None
        row.slot = slot
        self.slots.lengths[slot] = len(tokens) - 1
        return row

    def leave(self, row: RequestState) -> None:
        self.cache.keep(row)
        self.slots.release(row.slot)

    def test_empty_slots_are_given_before_those_that_hold_something(self) -> None:
        self.leave(self.admit(range(20)))
        assert self.admit(range(30, 60)).slot == 1

    def test_the_slot_that_was_used_longest_ago_goes_first(self) -> None:
        rows = [self.admit(range(begin, begin + 40)) for begin in (0, 100, 200)]
        for row in (rows[1], rows[0], rows[2]):
            self.leave(row)
        assert self.admit(range(300, 320)).slot == rows[1].slot
        # a copy from slot 0 is a use of it
        copied = self.admit([*range(20), 7])
        assert (copied.slot, copied.reused_from, copied.num_reused) == (rows[2].slot, 0, 20)

    def test_a_slot_that_the_request_uses_nearly_whole_is_taken_over(self) -> None:
        row = self.admit(range(40))
        self.leave(row)
        longer = self.admit(range(60))
        assert (longer.slot, longer.reused_from, longer.num_reused) == (row.slot, row.slot, 39)

    def test_a_slot_that_holds_more_is_copied_from_while_others_are_free(self) -> None:
        row = self.admit(range(60))
        self.leave(row)
        copied = self.admit([*range(20), 99])
        assert (copied.slot, copied.reused_from) == (1, row.slot)
        other = self.admit(range(60))
        assert (other.slot, other.num_reused) == (row.slot, 59)

    def test_the_last_free_slot_is_taken_over_whatever_it_holds(self) -> None:
        row = self.admit(range(60))
        running = [self.admit(range(100, 130)), self.admit(range(200, 230))]
        self.leave(row)
        taken = self.admit([*range(20), 99], running)
        assert (taken.slot, taken.reused_from, taken.num_reused) == (row.slot, row.slot, 20)
        nobody = RequestState(Request([1]), -1, 0, frozenset(), 100)
        assert self.cache.acquire(nobody, running) is None

    def test_a_lone_request_has_the_first_slot_and_what_that_held_is_moved(self) -> None:
        self.cache.prefers_first = True
        prompts = [range(begin, begin + 40) for begin in (0, 100, 200, 300)]
        for prompt in prompts[:3]:
            row = self.admit(prompt)
            assert (row.slot, row.num_reused) == (0, 0)
            self.leave(row)
        # slots 0, 1 and 2 hold the third, the first and the second
        again = self.admit(prompts[0])
        assert (again.slot, again.reused_from, again.num_reused) == (0, 1, 39)
        assert self.admit(prompts[3], [again]).slot == 1
        self.leave(again)
        # slot 2 holds the third now
        moved = self.admit(prompts[2])
        assert (moved.slot, moved.reused_from, moved.num_reused) == (0, 2, 39)

    def test_short_prefixes_are_not_worth_a_copy(self) -> None:
        self.leave(self.admit(range(40)))
        assert self.admit([*range(SHORTEST - 1), 99, 98]).num_reused == 0


def test_common_prefixes() -> None:
    long = list(range(SHORTEST + 4))
    assert num_common(long, long) == SHORTEST + 4
    assert num_common(long, [*long[:-2], VOCAB]) == SHORTEST + 2
    assert num_common(long, long[: SHORTEST - 1]) == 0
    assert num_common([0, *long], long) == 0
