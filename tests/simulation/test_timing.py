"""Timing models: what a machine of known speed says, and that a fit finds it."""

from pathlib import Path

import numpy as np
import pytest
from recorded import NGRAM, draft_model, ngram, record, requests_of

from specresearch.recording.recording import Recording
from specresearch.simulation import Fitted, Linear, Roofline, Timing, Work
from specresearch.simulation.parts import StepPart

pytestmark = pytest.mark.filterwarnings("ignore:the target is:UserWarning")


def known_seconds(
    recording: Recording, noise: float = 0.0, outliers: float = 0.0
) -> dict[str, np.ndarray]:
    """Times of the recorded steps on a machine that can be written down."""
    steps, rng = recording.steps, np.random.default_rng(0)
    can_draft = (steps["side"] != "baseline").to_numpy()
    tokens = (steps["num_rows"] + steps["num_drafts"]).to_numpy(dtype=float)
    parts = {
        "propose": can_draft * (1e-3 + 2e-3 * steps["longest"].to_numpy(dtype=float)),
        "verify": 0.02
        + 1e-3 * np.minimum(tokens, 8)
        + 3e-3 * np.maximum(tokens - 8, 0)
        + 1e-5 * steps["context"],
        "overhead": 2e-3 + 1e-4 * steps["num_rows"].to_numpy(dtype=float),
        "prefill": (steps["num_prefill_tokens"] > 0) * (3e-3 + 2e-4 * steps["num_prefill_tokens"]),
    }
    factor = np.exp(noise * rng.standard_normal(len(steps)))
    slow = np.where(rng.random(len(steps)) < outliers, 5.0, 1.0)
    return {name: np.asarray(seconds) * factor * slow for name, seconds in parts.items()}


def on_that_machine(recording: Recording, **noise: float) -> Recording:
    told = known_seconds(recording, **noise)
    for name in ("propose", "verify", "prefill"):
        recording.steps[name] = told[name]
    late = recording.steps["num_prefill_tokens"].where(recording.steps["side"] != "baseline", 0)
    recording.steps["num_lazy_prefill_tokens"], recording.steps["lazy_prefill"] = (
        late,
        (late > 0) * (2e-3 + 1e-4 * late),
    )
    recording.steps["prefill"] += recording.steps["lazy_prefill"]
    recording.steps["total"] = told["propose"] + told["verify"] + told["overhead"]
    recording.steps["schedule"], recording.steps["between"] = 0.0, 1e-3
    return recording


def step_seconds(timing: Timing, work: Work) -> float:
    """A whole step but for prefill and the time between steps."""
    seconds = (
        timing.propose_seconds(work) + timing.verify_seconds(work) + timing.overhead_seconds(work)
    )
    timing.between_seconds(work)
    return seconds


@pytest.fixture
def recording(tmp_path: Path) -> Recording:
    return record(tmp_path, ngram(), requests_of(10), config={"proposer": NGRAM})


def test_a_fit_finds_the_machine(recording: Recording) -> None:
    fitted = Fitted(noise=False)
    fitted.bind(on_that_machine(recording))
    drafting = Work(3, 6, 3, 4, 60, 22, 0, 207, can_draft=True)
    assert fitted.propose_seconds(drafting) == pytest.approx(1e-3 + 6e-3, rel=0.05)
    assert fitted.verify_seconds(drafting) == pytest.approx(0.02 + 8e-3 + 3e-3 + 6e-4, rel=0.03)
    assert fitted.overhead_seconds(drafting) == pytest.approx(2.3e-3, rel=0.05)
    assert fitted.between_seconds(drafting) == pytest.approx(1e-3, rel=0.01)
    assert fitted.prefill_seconds(drafting) == 0.0
    baseline = Work(1, 0, 0, 1, 20, 20, 9, 21)
    assert fitted.propose_seconds(baseline) == 0.0
    assert fitted.prefill_seconds(baseline) == pytest.approx(3e-3 + 18e-4, rel=0.2)
    assert fitted.describe().startswith(
        f"fitted to {len(recording.steps)} steps of up to 4 requests"
    )
    assert fitted.caution() is None


def test_noise_keeps_the_mean_and_hiccups_do_not_bend_the_fit(recording: Recording) -> None:
    fitted = Fitted()
    fitted.bind(on_that_machine(recording, noise=0.05, outliers=0.02))
    work = Work(4, 8, 4, 5, 80, 22, 0, 276, can_draft=True)
    many = np.array([step_seconds(fitted, work) for _ in range(6000)])
    exact = 1e-3 + 8e-3 + 0.02 + 8e-3 + 4 * 3e-3 + 8e-4 + 2.4e-3
    slow = 1 + 0.02 * 4
    assert many.mean() == pytest.approx(exact * slow, rel=0.1)
    assert np.median(many) == pytest.approx(exact, rel=0.1)
    assert many.std() > 0.03 * exact
    fitted.restart(1)
    first = [step_seconds(fitted, work) for _ in range(50)]
    fitted.restart(1)
    assert [step_seconds(fitted, work) for _ in range(50)] == first


def test_a_machine_that_attends_row_by_row_is_not_taken_for_one_that_pads(
    recording: Recording,
) -> None:
    recording = on_that_machine(recording)
    rng, steps = np.random.default_rng(1), recording.steps
    drafts = rng.integers(0, 8, (len(steps), 4))
    context = rng.integers(10, 500, (len(steps), 4))
    attended = ((drafts + 1) * (context + drafts + 1)).sum(1)
    steps["num_rows"], steps["num_drafts"], steps["num_nodes"] = 4, drafts.sum(1), drafts.max(1) + 1
    steps["context"], steps["max_context"], steps["attended"] = (
        context.sum(1),
        context.max(1),
        attended,
    )
    steps["verify"] = 0.01 + 2e-5 * attended
    fitted = Fitted(noise=False)
    fitted.bind(recording)
    uneven = Work(4, 7, 7, 8, 560, 500, 0, 3 * 21 + 8 * 508, can_draft=True)
    assert fitted.verify_seconds(uneven) == pytest.approx(
        0.01 + 2e-5 * (3 * 21 + 8 * 508), rel=0.05
    )


def test_a_pass_is_slower_behind_a_prompt_and_that_is_told_apart(recording: Recording) -> None:
    steps = on_that_machine(recording).steps
    steps["verify"] += 5e-3 * (steps["num_prefill_tokens"] > 0)
    fitted = Fitted(noise=False)
    fitted.bind(recording)
    behind, alone = (fitted.verify_seconds(Work(3, 0, 0, 1, 60, 22, num, 63)) for num in (9, 0))
    assert alone == pytest.approx(0.02 + 3e-3 + 6e-4, rel=0.05)
    assert behind - alone == pytest.approx(5e-3, rel=0.1)


def test_more_work_is_never_faster(recording: Recording) -> None:
    fitted = Fitted(noise=False)
    fitted.bind(on_that_machine(recording, noise=0.3))
    seconds = []
    for n in range(1, 60):
        work = Work(n, 2 * n, 2, 3, 20 * n, 20, 0, 69 * n, can_draft=True)
        seconds.append(fitted.verify_seconds(work))
        fitted.between_seconds(work)
    assert seconds == sorted(seconds)
    caution = fitted.caution()
    assert caution is not None
    assert "are larger than any recorded" in caution


def test_a_fit_needs_steps_and_one_machine(recording: Recording, tmp_path: Path) -> None:
    other = tmp_path / "other"
    record(other, draft_model(3), requests_of(2))
    Fitted(recordings=[str(other)]).bind(recording)
    recording.header.target["model"] = "another"  # type: ignore[index]
    with pytest.raises(
        ValueError, match=r"another target than .*: model is 'tiny' and not 'another'"
    ):
        Fitted(recordings=[str(other)]).bind(recording)
    recording.steps = recording.steps.head(3)
    with pytest.raises(ValueError, match="holds 3 steps, and a timing model needs 20; record more"):
        Fitted().bind(recording)
    assert StepPart.fit(lambda work: [1.0], [], np.zeros(0)).seconds(Work(1)) == 0.0


def test_roofline_is_the_longer_of_bytes_and_arithmetic() -> None:
    machine = Roofline(
        1e12,
        1e14,
        10e9,
        5e9,
        1e6,
        1e9,
        0.5e9,
        1e5,
        efficiency=0.5,
        overhead=1e-4,
        step_overhead=1e-3,
    )
    few = Work(2, 8, 4, 5, 1000, 600, can_draft=True)
    assert machine.verify_seconds(few) == pytest.approx((10e9 + 1e9) / 0.5e12 + 1e-4)
    assert machine.propose_seconds(few) == pytest.approx(4 * ((1e9 + 1e8) / 0.5e12 + 1e-4))
    assert machine.overhead_seconds(few) == 1e-3
    many = Work(1000, 0, 0, 1, 0, 0, 100_000)
    assert machine.verify_seconds(many) == pytest.approx(2 * 5e9 * 1000 / 0.5e14 + 1e-4)
    assert machine.prefill_seconds(many) == pytest.approx(2 * 5e9 * 100_000 / 0.5e14 + 1e-4)
    assert machine.propose_seconds(many) == 0.0
    with pytest.raises(ValueError, match=r"timing.bandwidth=0.0 must be above 0"):
        Roofline(0.0, 1.0, 1.0, 1.0, 1.0)
    with pytest.raises(ValueError, match=r"timing.efficiency=2.0 is a share"):
        Roofline(1.0, 1.0, 1.0, 1.0, 1.0, efficiency=2.0)
    with pytest.raises(ValueError, match=r"timing.draft=-1.0 must be 0 or more"):
        Linear(1.0, draft=-1.0)


def test_drafting_takes_time_even_without_drafts_and_lazy_prefill_when_it_happens(
    recording: Recording,
) -> None:
    fitted = Fitted(noise=False)
    fitted.bind(on_that_machine(recording))
    nothing_found = Work(4, 0, 0, 1, 80, 22, 0, 84, can_draft=True)
    assert fitted.propose_seconds(nothing_found) > 0
    assert fitted.lazy_prefill_seconds(nothing_found) == 0
    few = Work(num_lazy_prefill_tokens=9)
    assert fitted.lazy_prefill_seconds(few) == pytest.approx(2e-3 + 9e-4, rel=0.1)
    roofline = Roofline(1e12, 1e14, 10e9, 5e9, 1e6, 1e9, 0.5e9, 1e5, efficiency=0.5)
    many = Work(num_lazy_prefill_tokens=10_000)
    assert roofline.lazy_prefill_seconds(many) == pytest.approx(2 * 0.5e9 * 10_000 / 0.5e14)
    linear = Linear(1e-3, lazy_prefill_token=1e-5)
    assert linear.lazy_prefill_seconds(Work(num_lazy_prefill_tokens=200)) == pytest.approx(2e-3)
