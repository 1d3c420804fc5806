"""Calibration finds the fastest shape of a machine whose times are known."""

import pytest
from machine import Machine, calibration_of

from specresearch import Engine
from specresearch.acceptance import Rejection
from specresearch.calibration import leave_to_controller, settle_shape
from specresearch.calibration.calibrate import LEAST_STEPS, LEAST_STEPS_OF_LOOKUPS
from specresearch.calibration.choose import choose
from specresearch.calibration.scope import Scope
from specresearch.controllers import Confidence, Fixed, Goodput, Heuristic
from specresearch.proposers import Cascade, DraftModel, NGram
from specresearch.shape_store import ShapeChoice

NEAR = 0.95  # of the best speed: acceptance is known from few steps


def speed(machine: Machine, acceptance: float, length: int) -> float:
    tokens = sum(acceptance**i for i in range(length + 1))
    return tokens / machine.seconds(length)


def choice_of(machine: Machine, acceptance: float) -> ShapeChoice:
    calibration = calibration_of(machine, acceptance)
    scope = Scope.of(calibration.proposer, Rejection(), Fixed())
    return choose(calibration, scope)


@pytest.mark.parametrize(
    ("machine", "acceptance"),
    [
        (Machine(node=0.01, draft=0.02), 0.9),  # 10 drafts
        (Machine(node=0.1, draft=0.2), 0.6),  # 1
    ],
)
def test_chooses_nearly_the_best_length(machine: Machine, acceptance: float) -> None:
    best = max(speed(machine, acceptance, length) for length in range(11))
    choice = choice_of(machine, acceptance)
    assert speed(machine, acceptance, choice.shape.num_draft_tokens) >= NEAR * best
    predicted = sum(acceptance**i for i in range(choice.best.num_draft_tokens + 1))
    assert choice.expected_tokens == pytest.approx(predicted, rel=0.15)
    gain = speed(machine, acceptance, choice.best.num_draft_tokens) / speed(machine, acceptance, 0)
    assert choice.predicted_speedup == pytest.approx(gain, rel=0.15)
    assert choice.forecast is not None
    assert choice.forecast.drafted == pytest.approx(1.0)
    expected = [acceptance ** (level + 1) for level in range(len(choice.forecast.survival))]
    assert choice.forecast.survival == pytest.approx(expected, abs=0.1)
    assert choice.forecast.nodes == pytest.approx([1.0] * len(expected))
    assert choice.forecast.num_rows == 1
    for levels, seconds in choice.forecast.draft_seconds:
        assert seconds == pytest.approx(machine.draft * levels)
    assert {levels for levels, _ in choice.forecast.draft_seconds} >= {0, 1, 10}
    sizes = [num_drafts for num_drafts, _ in choice.forecast.rest_seconds]
    assert sizes[0] == 0
    assert choice.best.num_draft_tokens in sizes
    assert sizes[-1] >= min(4 * choice.best.num_draft_tokens, 10)
    for num_drafts, seconds in choice.forecast.rest_seconds:
        assert seconds == pytest.approx(machine.base + machine.node * (1 + num_drafts))


@pytest.mark.parametrize(
    ("machine", "acceptance"),
    [
        (Machine(node=0.1, draft=0.1), 0.0),  # a drafter that is never right
        (Machine(node=0.5, draft=0.5), 0.5),  # and one that costs more than it saves
    ],
)
def test_a_drafter_that_does_not_pay_drafts_nothing(machine: Machine, acceptance: float) -> None:
    choice = choice_of(machine, acceptance)
    assert choice.shape.num_draft_tokens == 0
    assert choice.best.num_draft_tokens > 0
    assert choice.forecast is not None
    assert choice.forecast.survival == pytest.approx([acceptance] * 1 + [0.0] * 9, abs=0.3)
    assert choice.predicted_speedup < 1.03
    assert str(choice).startswith("auto decodes plainly, since no draft is expected to pay")


@pytest.mark.filterwarnings("ignore:the target is:UserWarning")
def test_a_cascade_is_decoded_as_long_as_its_lookup() -> None:
    draft = calibration_of(Machine(), 0.5).target
    num_steps: list[int] = []
    parts = [NGram(), DraftModel(draft)]
    for proposer in (DraftModel(draft, "auto"), Cascade(parts, "auto")):
        calibration = calibration_of(Machine(), 0.5)
        calibration.proposer = proposer
        calibration.measure(Scope.of(proposer, Rejection(), Fixed()))
        num_steps.append(calibration._num_steps)
    assert num_steps == [LEAST_STEPS, LEAST_STEPS_OF_LOOKUPS]


@pytest.mark.filterwarnings("ignore:the target is:UserWarning")
def test_a_kind_is_judged_by_all_the_sizes_that_its_controller_may_ask_for() -> None:
    """At ten drafts a tree may be the faster kind, and at one or two a chain."""
    proposer = DraftModel(calibration_of(Machine(), 0.5).target, 10, tree="auto")
    steered, fixed = (
        Scope.of(proposer, Rejection(), controller) for controller in (Goodput(), Fixed())
    )
    assert {shape.tree for shape in steered.shapes} == {"chain", "dynamic"}
    assert {shape.num_draft_tokens for shape in steered.shapes} == {10}
    assert (steered.is_num_auto, fixed.is_num_auto) == (True, False)


def test_requests_of_a_second_confirmation_are_others() -> None:
    calibration = calibration_of(Machine(), 0.5)
    (shape,) = calibration.proposer.shapes
    measurement = calibration.confirm(shape)
    requests = measurement.tables[shape.kind]._requests
    first = set(requests)
    calibration.confirm(shape, measurement)
    assert len(requests) > 1.5 * len(first)


def test_a_measured_shape_is_kept_and_used_again() -> None:
    machine = Machine(node=0.05, draft=0.1)
    first = settle_shape(calibration_of(machine, 0.8), Fixed(), "prompts")
    slower = Machine(node=1.0, draft=1.0)  # would choose otherwise, but is not measured
    again = settle_shape(calibration_of(slower, 0.8), Fixed(), "prompts")
    other = settle_shape(calibration_of(slower, 0.8), Fixed(), "other prompts")
    assert first is not None
    assert again is not None
    assert other is not None
    assert again.shape == first.shape
    assert "kept in" in again.measured
    assert other.shape.num_draft_tokens == 0


def test_a_resumed_run_keeps_its_shape() -> None:
    calibration = calibration_of(Machine(node=0.05, draft=0.1), 0.8)
    kept = choice_of(Machine(draft=5.0), 0.1)
    earlier = {"method": {"shape": kept.to_json()}}
    assert settle_shape(calibration, Fixed(), "prompts", earlier) == kept
    assert calibration.proposer.num_draft_tokens == 0


def test_numbers_win_over_auto() -> None:
    calibration = calibration_of(Machine(node=1.0, draft=1.0), 0.1)
    assert settle_shape(calibration, Fixed(4), "prompts") is None
    assert calibration.proposer.num_draft_tokens == 4


SLOW = Machine(node=1.0, draft=1.0)


def test_a_controller_that_chooses_lengths_gets_the_largest_shape() -> None:
    calibration = calibration_of(Machine(node=0.05, draft=0.1), 0.8)
    choice = settle_shape(calibration, Goodput(), "prompts")
    assert choice is not None
    assert choice.shape.num_draft_tokens == calibration.proposer.num_draft_tokens == 10
    assert choice.best.num_draft_tokens < 10
    assert calibration.proposer.forecast == choice.forecast


def test_one_by_one_requests_whose_drafts_lose_are_not_left_to_a_controller() -> None:
    calibration = calibration_of(SLOW, 0.1)
    choice = settle_shape(calibration, Goodput(), "prompts")
    assert choice is not None
    assert choice.predicted_speedup < 1
    assert str(choice).startswith("auto decodes plainly, since no draft is expected to pay")
    assert calibration.proposer.num_draft_tokens == 0
    engine = Engine(calibration.target, calibration.proposer, controller=Goodput())
    assert type(engine.controller) is Fixed


def test_drafts_that_lose_are_left_to_a_controller_that_may_meet_another_load() -> None:
    batched, shared = calibration_of(SLOW, 0.1, batch_size=2), calibration_of(SLOW, 0.1)
    choices = [
        settle_shape(batched, Goodput(), "prompts"),
        settle_shape(shared, Goodput(), "prompts", is_shared=True),
    ]
    for choice, proposer in zip(choices, (batched.proposer, shared.proposer), strict=True):
        assert choice is not None
        assert choice.predicted_speedup < 1
        assert choice.shape.num_draft_tokens == proposer.num_draft_tokens == 10
        assert proposer.forecast == choice.forecast is not None


def test_nothing_is_measured_of_one_kind_for_a_controller_that_takes_no_forecast() -> None:
    calibration = calibration_of(SLOW, 0.1, batch_size=2)
    assert settle_shape(calibration, Heuristic(), "prompts") is None
    assert calibration.proposer.num_draft_tokens == 10
    assert calibration.proposer.forecast is None


def test_a_controller_that_cannot_steer_such_drafts_is_not_left_without_any() -> None:
    """So that the engine says why, and nothing is measured before."""
    proposer = calibration_of(SLOW, 0.1).proposer
    scope = Scope.of(proposer, Rejection(), Confidence(), is_alone=True)
    assert not scope.may_be_plain
    assert scope.only == proposer.shapes[0]


def test_unmeasured_a_controller_that_chooses_lengths_has_the_largest_shape_too() -> None:
    calibration = calibration_of(Machine(node=0.5, draft=0.5), 0.5)
    proposer = calibration.proposer
    leave_to_controller(calibration.target, proposer, Rejection(), Goodput(), 1)
    assert proposer.num_draft_tokens == 10
    proposer.chosen = None
    leave_to_controller(calibration.target, proposer, Rejection(), Fixed(), 1)
    assert proposer.chosen is None


def test_more_drafts_than_auto_considers_are_refused() -> None:
    calibration = calibration_of(Machine(), 0.5)
    with pytest.raises(ValueError, match=r"controller\.num_draft_tokens=11 is more than the 10"):
        settle_shape(calibration, Fixed(11), "prompts")
