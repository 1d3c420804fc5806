"""Step and cache limits, preemption, and requests submitted one by one."""

import random
from typing import Any

import pytest
from scenarios import (
    ALL,
    PROPOSERS,
    SAMPLED,
    SAMPLED_CASES,
    decode,
    decoded_freely,
    plain,
    requests,
    shared_target,
    tokens_of,
)

from specresearch import CausalLM, Engine, Request, SamplingParams
from specresearch.clock import ManualClock
from specresearch.controllers import Goodput
from specresearch.engine import FirstCome, SchedulerSettings, ShortestPrompt, Step
from specresearch.engine.scheduler import Scheduler
from specresearch.metrics import StepRecord
from specresearch.proposers import DraftModel, NGram

pytestmark = pytest.mark.filterwarnings(
    "ignore:the target is:UserWarning", "ignore:the draft has:UserWarning"
)


class Meter:
    """Measure the tokens that each `Engine.step` processes, and the cache columns it holds."""

    def __init__(self, target: CausalLM, monkeypatch: pytest.MonkeyPatch) -> None:
        self.target = target
        self.num_read = 0
        self.tokens: list[int] = []
        self.columns: list[int] = []
        extend = target.extend

        def counted(slots, tokens, **kwargs):
            self.num_read += sum(map(len, tokens))
            return extend(slots, tokens, **kwargs)

        monkeypatch.setattr(target, "extend", counted)

    def watch(self, step: Step) -> None:
        batch, proposal, record = step.batch, step.proposal, step.record
        num_nodes = int(proposal.lengths.sum())
        if proposal.probe is not None:
            num_nodes += int(proposal.probe.sum()) * len(batch)
        self.num_read += num_nodes
        num_columns = sum(record.context) + num_nodes
        for row in self.engine.scheduler.running:
            if row not in batch.rows:
                num_columns += self.target.lengths[row.slot]
        self.columns.append(num_columns)

    def run(self, engine: Engine, **sampling: Any) -> dict[str, tuple[int, ...]]:
        self.engine = engine
        outputs = {}
        for request in requests(**sampling):
            engine.submit(request)
        try:
            while engine.has_work:
                self.num_read = 0
                engine.step()
                self.tokens.append(self.num_read)
                outputs |= {output.id: output for output in engine.pop_finished()}
        finally:
            engine.abort()
        return tokens_of(outputs)


@pytest.fixture
def meter(target: CausalLM, monkeypatch: pytest.MonkeyPatch) -> Meter:
    return Meter(target, monkeypatch)


class TestStepLimit:
    @pytest.mark.parametrize(
        ("name", "limit"),
        [
            *((name, 12) for name in ALL if name != "lookahead"),
            *(("lookahead", limit) for limit in (5, 10, 15, 18)),  # which its runs fill
            ("draft_model", 30),
        ],
    )
    def test_no_step_processes_more_tokens(
        self, target: CausalLM, meter: Meter, name: str, limit: int
    ) -> None:
        settings = SchedulerSettings(max_step_tokens=limit)
        engine = Engine(
            target, ALL[name](), max_batch_size=4, scheduling=settings, observers=[meter.watch]
        )
        meter.run(engine)
        assert limit - 1 <= max(meter.tokens) <= limit

    def test_drafts_leave_most_of_a_step_to_prefill(self, target: CausalLM) -> None:
        """Three drafting requests share a quarter of what their roots leave to prefill."""
        steps: list[StepRecord] = []
        settings = SchedulerSettings(max_step_tokens=31)
        engine = Engine(
            target,
            NGram(14, 1, 1),
            max_batch_size=4,
            scheduling=settings,
            observers=[lambda step: steps.append(step.record)],
        )
        for number in range(3):
            engine.submit(Request([1, 1], SamplingParams(max_new_tokens=40), str(number)))
        for _ in range(3):
            engine.step()
        engine.submit(Request([1] * 30, SamplingParams(max_new_tokens=1), "late"))
        engine.step()
        assert steps[-1].num_prefill_tokens == 31 - 3 - (31 - 3) // 4
        engine.abort()

    def test_it_must_leave_room_for_a_prompt(self, target: CausalLM) -> None:
        with pytest.raises(
            ValueError,
            match=r"max_step_tokens=4 leaves no room for a prompt beside 4 .* raise it above 4",
        ):
            Engine(target, max_batch_size=4, scheduling=SchedulerSettings(max_step_tokens=4))


class TestCacheLimit:
    @pytest.mark.parametrize(
        ("name", "limit"), [*((name, 70) for name in ALL), ("lookahead", 56), ("suffix", 110)]
    )
    def test_it_is_never_exceeded_and_greedy_output_does_not_change(
        self, target: CausalLM, meter: Meter, name: str, limit: int
    ) -> None:
        settings = SchedulerSettings(max_cache_tokens=limit)
        engine = Engine(
            target, ALL[name](), max_batch_size=4, scheduling=settings, observers=[meter.watch]
        )
        assert meter.run(engine) == plain()
        assert max(meter.columns) <= limit

    @pytest.mark.parametrize(("name", "sampling"), SAMPLED_CASES)
    def test_preemption_changes_no_sampled_output(
        self, target: CausalLM, name: str, sampling: dict[str, Any]
    ) -> None:
        free = decoded_freely(name, **sampling)
        settings = SchedulerSettings(max_cache_tokens=60)
        tight = decode(
            Engine(target, PROPOSERS[name](), max_batch_size=4, scheduling=settings), **sampling
        )
        assert tokens_of(tight) == tokens_of(free)
        assert sum(output.record.num_preemptions for output in tight.values()) >= 2
        for id, output in tight.items():
            assert output.record.num_prompt_tokens == free[id].record.num_prompt_tokens
            assert output.record.counts.num_generated_tokens == len(output.token_ids)

    def test_negative_control_a_proposer_that_is_not_started_again(
        self, target: CausalLM, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A draft model that keeps a slot's old keys and values drafts other tokens."""
        free = decoded_freely("draft_model", **SAMPLED)
        proposer = PROPOSERS["draft_model"]()
        assert isinstance(proposer, DraftModel)
        start = proposer.start

        def only_new(rows, output):
            start([row for row in rows if not row.num_preemptions], output)
            for row in rows:
                if row.num_preemptions:
                    proposer.draft.lengths[row.slot] = len(row.tokens) - 1

        monkeypatch.setattr(proposer, "start", only_new)
        settings = SchedulerSettings(max_cache_tokens=60)
        tight = decode(Engine(target, proposer, max_batch_size=4, scheduling=settings), **SAMPLED)
        assert tokens_of(tight) != tokens_of(free)

    def test_the_last_admitted_is_preempted_first_and_readmitted_first(
        self, target: CausalLM
    ) -> None:
        steps: list[StepRecord] = []
        settings = SchedulerSettings(max_cache_tokens=40)
        engine = Engine(
            target,
            max_batch_size=3,
            scheduling=settings,
            observers=[lambda step: steps.append(step.record)],
        )
        sampling = SamplingParams(max_new_tokens=10)
        outputs = {
            o.id: o.record for o in engine.generate([[1] * 9, [2] * 9, [3] * 9, [4] * 9], sampling)
        }
        assert [outputs[id].num_preemptions for id in "0123"] == [0, 0, 1, 0]
        company = ["".join(step.request_ids) for step in steps]
        assert company == ["012"] * 5 + ["01"] * 5 + ["23"] * 5 + ["3"] * 5

    def test_a_single_request_drafts_what_still_fits(self, target: CausalLM, meter: Meter) -> None:
        settings = SchedulerSettings(max_cache_tokens=29)
        engine = Engine(
            target, NGram(10, 1, 1), max_batch_size=2, scheduling=settings, observers=[meter.watch]
        )
        meter.engine = engine
        (output,) = engine.generate([[1, 2] * 5], SamplingParams(max_new_tokens=20))
        assert len(output.token_ids) == 20
        assert max(meter.columns) <= 29

    def test_a_request_that_can_never_fit_is_rejected(self, target: CausalLM) -> None:
        engine = Engine(target, scheduling=SchedulerSettings(max_cache_tokens=28))
        with pytest.raises(
            ValueError,
            match=r"'a' may need 29 cached tokens \(10 of the prompt, max_new_tokens=20\).* 28;",
        ):
            engine.submit(Request([1] * 10, SamplingParams(max_new_tokens=20), "a"))
        assert not engine.has_work
        engine.submit(Request([1] * 9, SamplingParams(max_new_tokens=20), "b"))
        engine.abort()


@pytest.mark.parametrize("seed", range(12))
def test_every_request_is_served_alike_under_any_limits(seed: int) -> None:
    """Limits, policies and arrivals are random; nothing hangs, and greedy output is the same."""
    draw, target = random.Random(seed), shared_target()
    batch_size = draw.choice([1, 2, 5])
    settings = SchedulerSettings(
        draw.choice([FirstCome(), ShortestPrompt(1e4)]),
        draw.randint(batch_size + 1, 40),
        draw.randint(55, 120),
    )
    name = draw.choice(list(ALL))
    engine = Engine(target, ALL[name](), max_batch_size=batch_size, scheduling=settings)
    arriving, outputs, num_idle = requests(), {}, 0
    while arriving or engine.has_work:
        if arriving and draw.random() < 0.4:
            engine.submit(arriving.pop(0))
        num_idle = 0 if engine.step() else num_idle + 1
        assert num_idle < 60
        outputs |= {output.id: output for output in engine.pop_finished()}
    assert tokens_of(outputs) == plain()
    assert not engine.scheduler.counts
    assert not target.in_use


def test_an_occasional_long_draft_preempts_no_request(target: CausalLM) -> None:
    """Room is reserved for lengths asked for twice in a row; a controller's probe asks once."""
    target.allocate(2)
    scheduler = Scheduler(target, SchedulerSettings(max_cache_tokens=40), 2, max_nodes=11)
    for number in range(2):
        scheduler.submit(
            scheduler.prepare(Request([1] * 10, SamplingParams(max_new_tokens=20), str(number)))
        )
    for num_drafts in (0, 0):
        for chunk in scheduler.plan().chunks:
            chunk.row.is_prefilled = True
        scheduler.grant([num_drafts] * len(scheduler.decoding), [10] * len(scheduler.decoding))
    for chunk in scheduler.plan().chunks:
        chunk.row.is_prefilled = True
    assert len(scheduler.decoding) == 2
    assert sum(scheduler.grant([20, 20], [20, 20])) <= 20
    assert scheduler.plan().freed == []
    scheduler.grant([20, 20], [20, 20])
    assert len(scheduler.plan().freed) == 1
    scheduler.drop(scheduler.running)


class TestInterface:
    def test_requests_may_be_submitted_between_steps(self, target: CausalLM) -> None:
        expected = tokens_of(decode(Engine(target, NGram(3), max_batch_size=2), **SAMPLED))
        engine = Engine(target, NGram(3), max_batch_size=2)
        arriving, outputs = requests(**SAMPLED), {}
        assert not engine.has_work
        assert engine.step() is None
        while arriving or engine.has_work:
            if arriving:
                engine.submit(arriving.pop(0))
            engine.step()
            outputs |= {output.id: output for output in engine.pop_finished()}
        assert tokens_of(outputs) == expected
        assert list(engine.pop_finished()) == []

    def test_outputs_wait_until_they_are_popped(self, target: CausalLM) -> None:
        engine = Engine(target, max_batch_size=2)
        for number in range(3):
            engine.submit(Request([1, 2], SamplingParams(max_new_tokens=1), str(number)))
        engine.step()
        engine.step()
        assert engine.has_work
        assert engine.step() is None
        assert [output.id for output in engine.pop_finished()] == ["0", "1", "2"]
        assert not engine.has_work

    def test_generate_yields_only_its_own_requests(self, target: CausalLM) -> None:
        engine = Engine(target, max_batch_size=2)
        submitted = engine.submit(Request([1], SamplingParams(max_new_tokens=2)))
        assert [
            output.id for output in engine.generate([[1]], SamplingParams(max_new_tokens=9))
        ] == ["0"]
        assert [output.id for output in engine.pop_finished()] == [submitted]

    def test_queue_time_counts_from_the_arrival(self, target: CausalLM) -> None:
        clock = ManualClock()
        clock.advance(5.0)
        engine = Engine(target, clock=clock)
        engine.submit(Request([1, 2], SamplingParams(max_new_tokens=2), category="chat"), 0.0)
        while engine.has_work:
            engine.step()
            records = [output.record for output in engine.pop_finished()]
        assert (records[0].arrival_time, records[0].queue_time, records[0].ttft) == (0.0, 5.0, 5.0)

    def test_a_queue_keeps_its_order_while_the_clock_is_paused(self, target: CausalLM) -> None:
        """At an ageing of 2 tokens per second, a prompt of 4 tokens passes one of 8 that came a
        second earlier, however long the clock was paused in between."""
        settings = SchedulerSettings(policy=ShortestPrompt(2.0))
        clock = ManualClock()
        engine = Engine(target, max_batch_size=1, scheduling=settings, clock=clock)
        engine.submit(Request([1] * 8, SamplingParams(max_new_tokens=1), "long"))
        with clock.paused():
            clock.advance(100.0)
        clock.advance(1.0)
        engine.submit(Request([1] * 4, SamplingParams(max_new_tokens=1), "short"))
        order = []
        while engine.has_work:
            engine.step()
            order += [output.id for output in engine.pop_finished()]
        assert order == ["short", "long"]

    def test_the_time_of_observers_is_excluded_from_request_times(self, target: CausalLM) -> None:
        steps: list[StepRecord] = []
        clock = ManualClock()

        def observe(step: Step) -> None:
            assert step.output.logits.shape[:2] == step.proposal.token_ids.shape
            assert step.delivery.num_new == step.record.num_new_tokens
            assert step.record.request_ids == tuple(row.id for row in step.batch.rows)
            steps.append(step.record)
            clock.advance(60.0)

        engine = Engine(target, NGram(3), max_batch_size=1, observers=[observe], clock=clock)
        for number in range(2):
            engine.submit(Request([1, 2, 1, 2], SamplingParams(max_new_tokens=6), str(number)))
        records = []
        while engine.has_work:
            assert engine.step() is (steps[-1] if steps else None)
            records += [output.record for output in engine.pop_finished()]
        assert len(steps) >= 2
        assert all(record.e2el == 0 for record in records)

    def test_records_hold_the_queue_length_and_prefill_tokens(self, target: CausalLM) -> None:
        steps: list[StepRecord] = []
        settings = SchedulerSettings(max_step_tokens=16)
        outputs = decode(
            Engine(
                target,
                NGram(3),
                max_batch_size=2,
                scheduling=settings,
                observers=[lambda step: steps.append(step.record)],
            )
        )
        assert sum(step.num_prefill_tokens for step in steps) == sum(
            output.record.num_prompt_tokens - 1 for output in outputs.values()
        )
        assert steps[0].num_waiting > steps[-1].num_waiting == 0
        assert all(step.times.schedule > 0 for step in steps)
        assert [step.start for step in steps] == sorted(step.start for step in steps)

    def test_controllers_keep_their_state_of_a_preempted_request(self, target: CausalLM) -> None:
        controller = Goodput(3)
        settings = SchedulerSettings(max_step_tokens=20, max_cache_tokens=80)
        engine = Engine(
            target,
            PROPOSERS["draft_model"](),
            None,
            controller,
            max_batch_size=4,
            scheduling=settings,
        )
        assert tokens_of(decode(engine)) == plain()


@pytest.mark.parametrize("name", ["max_step_tokens", "max_cache_tokens"])
@pytest.mark.parametrize("value", [0, -3, True])
def test_limits_must_be_whole_numbers(name: str, value: Any) -> None:
    with pytest.raises(
        ValueError, match=rf"scheduler\.{name}=.* must be a whole number from 1, or null"
    ):
        SchedulerSettings(**{name: value})
