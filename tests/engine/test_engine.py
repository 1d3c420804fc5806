import copy
from collections.abc import Callable

import pytest
import torch
from tiny_models import VOCAB, build, letters, letters_tokenizer

from specresearch import CausalLM, Engine, Request, SamplingParams
from specresearch.acceptance import Greedy
from specresearch.batch import Batch
from specresearch.clock import ManualClock
from specresearch.controllers import Fixed
from specresearch.metrics import Counts, StepRecord
from specresearch.proposers import DraftModel, NGram, Proposer

pytestmark = pytest.mark.filterwarnings("ignore:the target is:UserWarning")

MODEL = build("llama", seed=1)
LIMITS = {"a": 3, "b": 9, "c": 2, "d": 6, "e": 1}


@pytest.fixture(scope="module")
def target() -> CausalLM:
    return CausalLM(copy.deepcopy(MODEL), letters_tokenizer(), max_len=48)


@pytest.fixture(scope="module")
def self_draft() -> CausalLM:
    return CausalLM(copy.deepcopy(MODEL), letters_tokenizer(), max_len=48)


def requests(**sampling) -> list[Request]:
    return [
        Request((i + 1, i + 2), SamplingParams(max_new_tokens=n, **sampling), id)
        for i, (id, n) in enumerate(LIMITS.items())
    ]


def test_the_controllers_time_is_not_counted_as_drafting(target: CausalLM) -> None:
    clock = ManualClock()

    class Slow(Fixed):
        def budget(self, batch: Batch) -> list[int | None]:
            clock.advance(0.02)
            return super().budget(batch)

    steps: list[StepRecord] = []
    list(
        Engine(
            target,
            NGram(3, 2, 1),
            controller=Slow(),
            observers=[lambda step: steps.append(step.record)],
            clock=clock,
        ).generate(requests())
    )
    assert [step.times.control for step in steps] == pytest.approx([0.02] * len(steps))
    assert {step.times.propose for step in steps} == {0.0}


class TestRefill:
    def test_a_freed_slot_is_refilled_at_the_next_step(self, target: CausalLM) -> None:
        steps: list[StepRecord] = []
        engine = Engine(
            target, max_batch_size=2, observers=[lambda step: steps.append(step.record)]
        )
        finished = [output.id for output in engine.generate(requests())]
        assert [set(step.request_ids) for step in steps] == (
            [{"a", "b"}] * 3 + [{"c", "b"}] * 2 + [{"d", "b"}] * 4 + [{"d", "e"}] + [{"d"}]
        )
        assert finished == ["a", "c", "b", "e", "d"]

    def test_all_outputs_are_returned_in_the_order_of_the_requests(self, target: CausalLM) -> None:
        outputs = Engine(target, max_batch_size=2).generate_all(requests())
        assert [output.id for output in outputs] == list(LIMITS)
        assert [len(output.token_ids) for output in outputs] == list(LIMITS.values())

    def test_outputs_are_yielded_as_they_finish(self, target: CausalLM) -> None:
        steps: list[StepRecord] = []
        outputs = Engine(
            target, max_batch_size=2, observers=[lambda step: steps.append(step.record)]
        ).generate(requests())
        assert next(outputs).id == "a"
        assert len(steps) == 3
        assert next(outputs).id == "c"
        assert len(steps) == 5
        assert [output.id for output in outputs] == ["b", "e", "d"]

    def test_a_larger_cache_does_not_raise_the_limit(self, target: CausalLM) -> None:
        Engine(target, max_batch_size=5)
        steps: list[StepRecord] = []
        list(
            Engine(
                target, max_batch_size=2, observers=[lambda step: steps.append(step.record)]
            ).generate(requests())
        )
        assert max(len(step.request_ids) for step in steps) == 2

    def test_no_requests_give_no_outputs(self, target: CausalLM) -> None:
        assert list(Engine(target).generate([])) == []


class TestAbort:
    @pytest.mark.parametrize(
        "proposer", [lambda draft: NGram(3), lambda draft: DraftModel(draft, 3), lambda draft: None]
    )
    def test_closing_the_generator_early_frees_everything(
        self,
        target: CausalLM,
        self_draft: CausalLM,
        proposer: Callable[[CausalLM], Proposer | None],
    ) -> None:
        engine = Engine(target, proposer(self_draft), max_batch_size=2)
        expected = {output.id: output.token_ids for output in engine.generate(requests())}
        for output in engine.generate(requests()):
            assert output.token_ids == expected[output.id]
            break
        assert not engine.scheduler.has_work
        assert not engine.scheduler.counts
        assert not target.in_use
        assert {output.id: output.token_ids for output in engine.generate(requests())} == expected

    @pytest.mark.parametrize("where", ["start", "propose", "observe"])
    def test_an_error_in_the_middle_of_a_step_is_raised(
        self, target: CausalLM, monkeypatch: pytest.MonkeyPatch, where: str
    ) -> None:
        def broken(*_: object) -> None:
            raise ArithmeticError("broken on purpose")

        engine = Engine(target, NGram(3), max_batch_size=2)
        with monkeypatch.context() as patch:
            patch.setattr(engine.proposer, where, broken)
            with pytest.raises(ArithmeticError, match="on purpose"):
                list(engine.generate(requests()))
        assert len(list(engine.generate(requests()))) == len(LIMITS)


class TestInput:
    def test_text_token_ids_and_requests_are_accepted_as_prompts(self, target: CausalLM) -> None:
        assert target.tokenizer is not None
        ids = target.tokenizer("abcab")["input_ids"]
        sampling = SamplingParams(max_new_tokens=4)
        outputs = list(
            Engine(target, max_batch_size=3).generate(
                ["abcab", ids, Request(ids, sampling, "2")], sampling
            )
        )
        assert len({output.token_ids for output in outputs}) == 1
        assert sorted(output.id for output in outputs) == ["0", "1", "2"]
        assert outputs[0].text == letters(outputs[0].token_ids)

    def test_text_needs_a_tokenizer(self) -> None:
        with pytest.raises(ValueError, match="no tokenizer"):
            list(Engine(CausalLM(copy.deepcopy(MODEL), max_len=16)).generate(["abc"]))

    def test_an_empty_prompt_is_rejected(self, target: CausalLM) -> None:
        with pytest.raises(ValueError, match="'1' has an empty prompt"):
            list(Engine(target).generate([[1], []]))

    @pytest.mark.parametrize("length", [48, 60])
    def test_a_prompt_without_room_for_a_token_is_rejected(
        self, target: CausalLM, length: int
    ) -> None:
        with pytest.raises(
            ValueError, match=f"prompt of {length} tokens and max_len is 48; .* target.max_len"
        ):
            list(Engine(target).generate([[1] * length]))

    def test_the_longest_possible_prompt_leaves_one_token(self, target: CausalLM) -> None:
        (output,) = Engine(target, NGram(5)).generate([[1] * 47])
        assert len(output.token_ids) == 1

    @pytest.mark.parametrize("token", [-1, VOCAB, 10_000])
    def test_a_token_id_outside_the_vocabulary_is_rejected(
        self, target: CausalLM, token: int
    ) -> None:
        with pytest.raises(
            ValueError, match=f"token id {token}, outside this target's vocabulary of {VOCAB}"
        ):
            list(Engine(target).generate([[1, token]]))

    def test_a_rejected_request_leaves_nothing_behind(self, target: CausalLM) -> None:
        engine = Engine(target)
        with pytest.raises(ValueError, match="empty prompt"):
            list(engine.generate([[1], []]))
        assert not engine.scheduler.has_work

    def test_a_batch_size_of_0_is_rejected(self, target: CausalLM) -> None:
        with pytest.raises(ValueError, match="max_batch_size=0 must be at least 1"):
            Engine(target, max_batch_size=0)

    def test_greedy_acceptance_rejects_a_temperature(self, target: CausalLM) -> None:
        with pytest.raises(ValueError, match=r"temperature=0\.5; use acceptance=rejection"):
            list(
                Engine(target, acceptance=Greedy()).generate([[1]], SamplingParams(temperature=0.5))
            )


class TestLogprobs:
    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    @pytest.mark.parametrize("kind", ["none", "ngram", "self_draft"])
    def test_equal_a_plain_forward(
        self, target: CausalLM, self_draft: CausalLM, kind: str, temperature: float
    ) -> None:
        proposer = {"none": None, "ngram": NGram(4, 2, 1), "self_draft": DraftModel(self_draft, 4)}[
            kind
        ]
        sampling = SamplingParams(temperature=temperature, max_new_tokens=11, logprobs=3, seed=5)
        prompts = [(1, 2, 1, 2), (7,), (3, 3, 3)]
        accepted = 0
        for output in Engine(target, proposer, max_batch_size=2).generate(prompts, sampling):
            prompt = prompts[int(output.id)]
            with torch.no_grad():
                logits = MODEL(torch.tensor([[*prompt, *output.token_ids]])).logits[
                    0, len(prompt) - 1 : -1
                ]
            expected_logprobs = logits.log_softmax(-1)
            assert len(output.logprobs) == len(output.token_ids) == 11
            for token, at, actual in zip(
                output.token_ids, expected_logprobs, output.logprobs, strict=True
            ):
                assert actual.logprob == pytest.approx(float(at[token]), abs=1e-5)
                assert [id for id, _ in actual.top] == at.topk(3).indices.tolist()
                assert [value for _, value in actual.top] == pytest.approx(
                    at.topk(3).values.tolist(), abs=1e-5
                )
            accepted += output.record.counts.num_accepted_tokens
        assert accepted > 0 or kind == "none" or (kind, temperature) == ("ngram", 1.0)

    def test_they_are_cut_like_the_tokens(self, target: CausalLM, self_draft: CausalLM) -> None:
        for limit in (1, 2, 4):
            sampling = SamplingParams(max_new_tokens=limit, logprobs=0)
            (output,) = Engine(target, DraftModel(self_draft, 5)).generate([[1, 2]], sampling)
            assert len(output.logprobs) == limit
            assert output.logprobs[0].top == ()

    def test_they_are_returned_only_if_requested(self, target: CausalLM) -> None:
        (output,) = Engine(target).generate([[1, 2]], SamplingParams(max_new_tokens=2))
        assert output.logprobs == ()


class TestRecords:
    def test_a_draft_equal_to_the_target_is_always_accepted(
        self, target: CausalLM, self_draft: CausalLM
    ) -> None:
        (output,) = Engine(target, DraftModel(self_draft, 4)).generate(
            [[1, 2, 3]], SamplingParams(max_new_tokens=13)
        )
        counts = output.record.counts
        assert counts == Counts(
            num_target_forwards=3,
            num_drafts=3,
            num_draft_tokens=10,
            num_accepted_tokens=10,
            num_generated_tokens=13,
            reached=[3, 3, 2, 2],
            accepted=[3, 3, 2, 2],
            expected=[3.0, 3.0, 2.0, 2.0],
        )
        assert counts.mean_acceptance_length == 1 + 10 / 3

    @pytest.mark.usefixtures("untyped")
    def test_a_draft_equal_to_the_target_has_acceptance_one_however_outputs_end(
        self, target: CausalLM, self_draft: CausalLM
    ) -> None:
        proposer, counts = DraftModel(self_draft, 4), []
        for seed in range(40):
            sampling = SamplingParams(
                temperature=1.0, seed=seed, max_new_tokens=24, stop_token_ids=(3, 7, 11, 19)
            )
            (output,) = Engine(target, proposer).generate([[1, 2, 3]], sampling)
            counts.append(output.record.counts)
        total = Counts.total(counts)
        assert total.num_unjudged_tokens > 10
        assert total.draft_acceptance_rate == 1.0
        assert total.conditional_acceptance_at_position == total.acceptance_at_position == [1.0] * 4

    def test_every_generated_token_is_an_accepted_draft_or_the_targets_own(
        self, target: CausalLM
    ) -> None:
        for output in Engine(target, NGram(3, 2, 1), max_batch_size=2).generate(requests()):
            counts = output.record.counts
            assert counts.num_generated_tokens == len(output.token_ids)
            assert (
                counts.num_generated_tokens
                <= counts.num_accepted_tokens + counts.num_target_forwards
            )
            assert counts.num_accepted_tokens <= counts.num_draft_tokens

    def test_plain_decoding_counts_no_drafts(self, target: CausalLM) -> None:
        for output in Engine(target, NGram(3, 2, 1), controller=Fixed(0)).generate(requests()):
            counts = output.record.counts
            assert counts.num_drafts == counts.num_draft_tokens == 0
            assert counts.num_target_forwards == len(output.token_ids)

    def test_times_are_ordered(self, target: CausalLM) -> None:
        for output in Engine(target, max_batch_size=2).generate(requests()):
            record = output.record
            assert 0 < record.ttft <= record.e2el
            assert len(record.itl) == len(output.token_ids) - 1
            assert sum(record.itl) == pytest.approx(record.e2el - record.ttft)

    def test_step_times_cover_the_step(self, target: CausalLM) -> None:
        steps: list[StepRecord] = []
        list(
            Engine(target, NGram(3), observers=[lambda step: steps.append(step.record)]).generate(
                [[1, 2, 1, 2]], SamplingParams(max_new_tokens=5)
            )
        )
        for step in steps:
            times = step.times
            assert times.total >= times.propose + times.verify + times.accept + times.commit > 0
        assert steps[0].times.prefill > 0
        assert {step.times.prefill for step in steps[1:]} == {0}


def test_a_negative_draft_length_is_rejected() -> None:
    with pytest.raises(ValueError, match="num_draft_tokens=-1"):
        Fixed(-1)
