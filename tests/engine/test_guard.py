"""A step succeeds as a whole or not at all, and other threads may submit meanwhile."""

import copy
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from scenarios import ALL, MAX_LEN, MODEL, decode, plain, prompts, requests, shared_draft, tokens_of
from tiny_models import letters_tokenizer

from specresearch import CausalLM, Engine, Request, SamplingParams
from specresearch.engine import Step
from specresearch.proposers import DraftModel, NGram

pytestmark = pytest.mark.filterwarnings(
    "ignore:the target is:UserWarning", "ignore:the draft has:UserWarning"
)


@pytest.fixture
def own_target() -> CausalLM:
    """Return a target whose cache no other test has used."""
    return CausalLM(copy.deepcopy(MODEL), letters_tokenizer(), max_len=MAX_LEN, self_test=False)


def run(engine: Engine) -> dict[str, tuple[int, ...]]:
    """Step until no work is left; return the tokens of each request."""
    outputs = {}
    while engine.has_work:
        engine.step()
        outputs |= {output.id: output.token_ids for output in engine.pop_finished()}
    return outputs


def broken(*_: object, **__: object) -> None:
    raise ArithmeticError("broken on purpose")


BREAKABLE: dict[str, Callable[[Engine], tuple[object, str]]] = {
    "prefill": lambda engine: (engine.prefill, "run"),
    "start": lambda engine: (engine.proposer, "start"),
    "propose": lambda engine: (engine.proposer, "propose"),
    "forward": lambda engine: (engine.target, "forward"),
    "acceptance": lambda engine: (engine._judge, "rule"),
    "commit": lambda engine: (engine.target, "commit"),
    "observe": lambda engine: (engine.proposer, "observe"),
    "record": lambda engine: (engine.controller, "observe"),
    "release": lambda engine: (engine.target, "release"),
    "finish": lambda engine: (engine.proposer, "finish"),
}


@pytest.mark.parametrize("drafter", ["ngram", "draft_model", "eagle", "token_recycling"])
@pytest.mark.parametrize("function", BREAKABLE)
def test_after_an_exception_the_engine_refuses_work_until_it_is_aborted(
    own_target: CausalLM, function: str, drafter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(own_target, ALL[drafter](), max_batch_size=3)
    for request in requests():
        engine.submit(request)
    with monkeypatch.context() as patch:
        patch.setattr(*BREAKABLE[function](engine), broken)
        with pytest.raises(ArithmeticError, match="on purpose"):
            run(engine)
    popped = {output.id: output.token_ids for output in engine.pop_finished()}
    for refused in (engine.step, lambda: engine.submit(Request((1,)))):
        with pytest.raises(
            RuntimeError,
            match=r"failed \(ArithmeticError: broken on purpose\).*abort\(\) drops them",
        ):
            refused()
    engine.abort()
    assert not engine.has_work
    assert not own_target.in_use
    assert not engine.scheduler.counts
    assert popped.items() <= plain().items()
    assert tokens_of(decode(engine)) == plain()


@pytest.mark.parametrize("function", ["release", "finish"])
def test_a_failure_after_the_last_request_loses_no_output_and_no_slot(
    own_target: CausalLM, function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(own_target, NGram(3))
    engine.submit(Request((1, 2), SamplingParams(max_new_tokens=1), "only"))
    with monkeypatch.context() as patch:
        patch.setattr(*BREAKABLE[function](engine), broken)
        with pytest.raises(ArithmeticError, match="on purpose"):
            engine.step()
    assert [output.id for output in engine.pop_finished()] == ["only"]
    with pytest.raises(RuntimeError, match=r"abort\(\) drops them"):
        engine.step()
    engine.abort()
    assert not own_target.in_use
    assert tokens_of(decode(engine)) == plain()


def test_a_full_target_does_not_fail_the_engine(own_target: CausalLM) -> None:
    first = Engine(own_target, max_batch_size=1)
    second = Engine(own_target, max_batch_size=1)
    first.submit(Request((1, 2), SamplingParams(max_new_tokens=3), "a"))
    first.step()
    second.submit(Request((3, 4), SamplingParams(max_new_tokens=3), "b"))
    with pytest.raises(RuntimeError, match="in use by another engine"):
        second.step()
    assert list(run(first)) == ["a"]
    assert list(run(second)) == ["b"]


class TestGenerate:
    def test_interleaved_calls_get_their_own_outputs(self, own_target: CausalLM) -> None:
        engine = Engine(own_target, NGram(3), max_batch_size=2)
        halves = [engine.generate(requests()[::2]), engine.generate(requests()[1::2])]
        outputs: list[dict[str, tuple[int, ...]]] = [{}, {}]
        for _ in range(3):
            for half, tokens in zip(halves, outputs, strict=True):
                output = next(half)
                tokens[output.id] = output.token_ids
        assert [next(half, None) for half in halves] == [None, None]
        assert [sorted(tokens) for tokens in outputs] == [["0", "2", "4"], ["1", "3", "5"]]
        assert outputs[0] | outputs[1] == plain()

    def test_two_calls_may_not_use_one_id(self, own_target: CausalLM) -> None:
        engine = Engine(own_target)
        first = engine.generate([[1], [2]])
        next(first)
        with pytest.raises(
            ValueError,
            match="request id '1' is in use by a request whose output has not been taken",
        ):
            list(engine.generate([[1], [2]]))
        assert next(first).id == "1"

    def test_leaving_one_call_leaves_the_other(self, own_target: CausalLM) -> None:
        engine = Engine(own_target, max_batch_size=2)
        closed = engine.generate(requests()[::2])
        other = engine.generate(requests()[1::2])
        first = next(other)
        next(closed)
        closed.close()  # pyright: ignore[reportAttributeAccessIssue]
        assert [first.id, *(output.id for output in other)] == ["1", "3", "5"]
        assert not own_target.in_use


class TestCancel:
    def test_waiting_running_and_finished_requests_can_be_cancelled(
        self, own_target: CausalLM
    ) -> None:
        engine = Engine(own_target, NGram(3), max_batch_size=2)
        for request in requests(max_new_tokens=20):
            engine.submit(request)
        engine.submit(Request((1,), SamplingParams(max_new_tokens=1), "short"))
        engine.step()
        engine.cancel("0", "5", "nobody")
        assert sum(row.id == "0" for row in engine.scheduler.running) == 0
        assert len(own_target._free) == 1
        outputs = run(engine)
        assert sorted(outputs) == ["1", "2", "3", "4", "short"]

    def test_unpopped_outputs_survive_an_abort(self, own_target: CausalLM) -> None:
        engine = Engine(own_target, max_batch_size=2)
        engine.submit(Request((1, 2), SamplingParams(max_new_tokens=1), "done"))
        engine.submit(Request((1, 2), SamplingParams(max_new_tokens=9), "dropped"))
        engine.step()
        engine.abort()
        assert [output.id for output in engine.pop_finished()] == ["done"]
        assert not engine.has_work
        assert not own_target.in_use

    def test_an_id_is_free_again_once_its_output_is_popped_or_dropped(
        self, own_target: CausalLM
    ) -> None:
        engine = Engine(own_target, max_batch_size=2)
        for _ in range(2):
            engine.submit(Request((1, 2), SamplingParams(max_new_tokens=1), "a"))
            assert list(run(engine)) == ["a"]
            engine.submit(Request((1, 2), id="b"))
            engine.cancel("b")

    def test_cancelling_inside_a_step_takes_effect_at_its_end(self, own_target: CausalLM) -> None:
        engine = Engine(own_target, max_batch_size=2, observers=[lambda step: engine.cancel("a")])
        engine.submit(Request((1, 2), id="a"))
        engine.submit(Request((1, 2), SamplingParams(max_new_tokens=2), "b"))
        engine.step()
        assert [row.id for row in engine.scheduler.running] == ["b"]
        assert list(run(engine)) == ["b"]

    def test_requests_without_an_id_get_one(self, own_target: CausalLM) -> None:
        engine = Engine(own_target, max_batch_size=2)
        ids = [engine.submit(Request((1, 2), SamplingParams(max_new_tokens=1))) for _ in range(5)]
        assert len(set(ids)) == 5
        assert set(run(engine)) == set(ids)


class TestThreads:
    def test_a_step_belongs_to_one_thread(self, own_target: CausalLM) -> None:
        inside = threading.Event()
        finish = threading.Event()

        def wait(step: Step) -> None:
            inside.set()
            finish.wait(10)

        engine = Engine(own_target, observers=[wait])
        engine.submit(Request((1, 2), SamplingParams(max_new_tokens=1)))
        thread = threading.Thread(target=engine.step)
        thread.start()
        assert inside.wait(10)
        with pytest.raises(RuntimeError, match="in the middle of a step; let one thread step it"):
            engine.step()
        # Submitting neither blocks nor loses the request.
        later = engine.submit(Request((3, 4), SamplingParams(max_new_tokens=2)))
        engine.abort()
        finish.set()
        thread.join()
        assert engine.scheduler.running == []
        assert later not in run(engine)
        assert not own_target.in_use

    def test_requests_are_submitted_and_cancelled_from_many_threads(
        self, own_target: CausalLM
    ) -> None:
        """No output is lost or doubled, no slot leaks, and every output equals plain decoding."""
        engine = Engine(own_target, DraftModel(shared_draft(), 3), max_batch_size=3)
        kept: list[tuple[str, int]] = []
        dropped: list[str] = []

        def submit(thread: int) -> None:
            for number in range(12):
                prompt = (thread + number) % len(prompts())
                request = Request(
                    prompts()[prompt], SamplingParams(max_new_tokens=12), f"{thread}/{number}"
                )
                id = engine.submit(request)
                if number % 3 == 2:
                    time.sleep(0.002 * thread)
                    engine.cancel(id)
                    dropped.append(id)
                else:
                    kept.append((id, prompt))

        threads = [threading.Thread(target=submit, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        outputs: dict[str, tuple[int, ...]] = {}
        while any(thread.is_alive() for thread in threads) or engine.has_work:
            engine.step()
            for output in engine.pop_finished():
                assert output.id not in outputs
                outputs[output.id] = output.token_ids
        assert len(kept) == 32
        assert {id: outputs[id] for id, _ in kept} == {
            id: plain()[str(prompt)] for id, prompt in kept
        }
        assert outputs.keys() - {id for id, _ in kept} <= set(dropped)
        assert not own_target.in_use


class TestOneTarget:
    @pytest.mark.parametrize(
        "drafter", ["draft_model", "medusa", "token_recycling", "eagle", "lookahead"]
    )
    def test_a_second_engine_that_grows_the_cache_does_not_affect_the_first(
        self, own_target: CausalLM, drafter: str
    ) -> None:
        first = Engine(own_target, ALL[drafter](), max_batch_size=2)
        expected = tokens_of(decode(first))
        second = Engine(own_target, NGram(3), max_batch_size=6)
        assert tokens_of(decode(second)) == expected
        # The lowest slots are taken now, and the free ones are new to the first engine.
        second.submit(Request((1, 2), SamplingParams(max_new_tokens=4), "long"))
        second.step()
        first.submit(Request((1, 2, 3), SamplingParams(max_new_tokens=4), "mine"))
        assert list(run(first)) == ["mine"]
        assert list(run(second)) == ["long"]
        assert tokens_of(decode(first)) == expected == plain()

    def test_a_draft_keeps_its_own_length(self, own_target: CausalLM) -> None:
        draft = CausalLM(copy.deepcopy(shared_draft().model), max_len=MAX_LEN)
        short = CausalLM(copy.deepcopy(MODEL), letters_tokenizer(), max_len=32)
        list(
            Engine(short, DraftModel(draft, 3)).generate(
                [[1, 2]], SamplingParams(max_new_tokens=30)
            )
        )
        assert draft.max_len == MAX_LEN
        assert draft.cache.num_columns < MAX_LEN
        assert (
            tokens_of(decode(Engine(own_target, DraftModel(draft, 3), max_batch_size=2))) == plain()
        )


def test_a_new_engine_resets_a_warm_proposer(own_target: CausalLM) -> None:
    """Its first draws may equal those of the engine that taught the proposer."""
    proposer: Any = ALL["token_recycling"]()
    proposer.warm = True
    decode(Engine(own_target, proposer, max_batch_size=2))
    assert proposer._successors.any()
    Engine(own_target, proposer, max_batch_size=2)
    assert not proposer._successors.any()
