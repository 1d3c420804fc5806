"""Decoding accepts what training predicts: exactly if greedy, within sampling error if not."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from shape_checks import unchecked
from tiny_models import VOCAB, build, config_of
from torch import Tensor, nn

from specresearch import CausalLM, SamplingParams
from specresearch.models.eagle import EagleModel
from specresearch.models.eagle_format import FORMATS
from specresearch.models.eagle_head import EagleHead
from specresearch.models.medusa import MedusaHeads
from specresearch.training.acceptance_estimate import (
    AcceptanceEstimate,
    AcceptancePredictor,
    expected_steps,
)
from specresearch.training.parity import DecodedText, Parity, compare, decode
from specresearch.training.parity_causes import likely_cause, shift_features
from specresearch.training.students import DraftStudent, EagleStudent, MedusaStudent, Student

NUM_DRAFTS, NUM_NEW, HOT = 4, 30, 3.0
TARGET = CausalLM(build("llama", seed=1, num_hidden_layers=5), max_len=60)


def randomize(module: nn.Module, deviation: float) -> None:
    torch.manual_seed(4)
    for parameter in module.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=deviation)


def draft() -> Student:
    return DraftStudent(CausalLM(build("llama", seed=2, num_hidden_layers=1), max_len=60), TARGET)


def medusa(reduced: bool = False) -> Student:
    target_ids = torch.randperm(VOCAB)[:19].sort().values if reduced else None
    heads = MedusaHeads(16, 19 if reduced else VOCAB, 3, target_ids=target_ids).double()
    randomize(heads, 0.4)
    return MedusaStudent(heads, TARGET)


def eagle(version: int, reduced: bool = False, normed: bool = False) -> EagleStudent:
    if version == 1:
        vocabulary, width = None, 2 * 16
    else:
        vocabulary, width = 19 if reduced else VOCAB, 3 * 16
    config: Any = config_of("llama", num_hidden_layers=1)
    head = EagleHead.of(
        FORMATS[version](config, width, draft_vocab_size=vocabulary, norm_output=normed)
    ).double()
    randomize(head, 0.3)
    if reduced:
        head.target_ids = torch.randperm(VOCAB)[:19].sort().values
    return EagleStudent(EagleModel(head, TARGET, layer_ids=None if version == 1 else (1, 2, 3)))


STUDENTS: dict[str, Callable[[], Student]] = {
    "draft_model": draft,
    "medusa": medusa,
    "medusa, reduced vocabulary": lambda: medusa(reduced=True),
    "eagle": lambda: eagle(1),
    "eagle3": lambda: eagle(3),
    "eagle3, reduced vocabulary": lambda: eagle(3, reduced=True),
    "eagle3, normed feedback": lambda: eagle(3, normed=True),
}


def prompts(number: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(VOCAB, (3 + i % 4,), generator=generator).tolist() for i in range(number)]


def predictor(student: Student, temperature: float) -> AcceptancePredictor:
    return AcceptancePredictor(student, TARGET, NUM_DRAFTS, temperature)


def run(student: Student, temperature: float, number: int) -> list[DecodedText]:
    """Decode that many prompts, at first at least half of them side by side."""
    sampling = SamplingParams(temperature=temperature, max_new_tokens=NUM_NEW)
    with unchecked():
        return decode(
            predictor(student, temperature), prompts(number), sampling, max(8, number // 2)
        )


def parity_of(student: Student, trials: list[DecodedText], temperature: float) -> Parity:
    return compare(predictor(student, temperature), trials)


def cause_of_mismatch(student: Student, trials: list[DecodedText], temperature: float) -> str:
    assert not parity_of(student, trials, temperature).holds
    return likely_cause(predictor(student, temperature), trials)


@cache
def decoded(name: str, temperature: float) -> tuple[Student, list[DecodedText]]:
    student = STUDENTS[name]()
    return student, run(student, temperature, 12 if temperature == 0 else 40)


def expectation(student: Student, trial: DecodedText, temperature: float) -> AcceptanceEstimate:
    probs = predictor(student, temperature).probs(trial.prompt, trial.output)
    return expected_steps(probs, len(trial.prompt))


@pytest.mark.parametrize("name", STUDENTS)
def test_greedy_steps_are_predicted_one_by_one(name: str) -> None:
    student, trials = decoded(name, 0.0)
    assert [expectation(student, trial, 0.0).steps for trial in trials] == [
        len(trial.steps) for trial in trials
    ]
    assert sum(accepted for trial in trials for _, _, accepted in trial.steps) > 0
    parity = parity_of(student, trials, 0.0)
    assert parity.holds
    assert parity.measured == parity.predicted.mean_acceptance_length


@pytest.mark.parametrize("name", STUDENTS)
def test_sampled_drafts_are_accepted_as_predicted(name: str) -> None:
    student, trials = decoded(name, HOT)
    parity = parity_of(student, trials, HOT)
    assert parity.holds
    assert parity.flipped == 0
    if student.samples:
        assert len(parity.z) >= 2, "too few uncertain drafts to see anything"
        assert abs(parity.z).max() < 4.5
    else:
        assert parity.measured == parity.predicted.mean_acceptance_length > 1


def test_the_targets_logits_are_read_once_for_a_token_and_never_if_the_text_decides(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    student, trials = decoded("eagle3, reduced vocabulary", HOT)
    num_rows: list[int] = []
    readout = TARGET.readout

    def counted(states: Tensor) -> Tensor:
        num_rows.append(len(states))
        return readout(states)

    monkeypatch.setattr(TARGET, "readout", counted)
    text = trials[0]
    predictor(student, HOT).probs(text.prompt, text.output)
    assert sum(num_rows) == len(text.output)
    num_rows.clear()
    predictor(student, 0.0).probs(text.prompt, text.output)
    assert not num_rows


def test_expected_steps_are_those_of_many_runs() -> None:
    student, trials = decoded("draft_model", HOT)
    differences = [len(trial.steps) - expectation(student, trial, HOT).steps for trial in trials]
    assert abs(np.sum(differences)) < 4.5 * np.std(differences) * len(differences) ** 0.5
    texts = [(trial.prompt, trial.output) for trial in trials]
    total = predictor(student, HOT).estimate(texts)
    measured = parity_of(student, trials, HOT).measured
    assert total.mean_acceptance_length == pytest.approx(measured, rel=0.05)
    assert (np.diff(total.acceptance_by_position) < 0).all()


def test_expected_steps_equal_those_computed_by_hand() -> None:
    """Four output tokens, two drafts a step, each accepted with probability 1/2."""
    table = torch.full((2, 6), 0.5, dtype=torch.float64)
    estimate = expected_steps(table, 2)
    # Expected steps with that many tokens to go, where 2, 2, 1 and 0 drafts fit.
    one, two = 1.0, 1 + 0.5
    three = 1 + 0.5 * two + 0.25 * one
    four = 1 + 0.5 * three + 0.25 * two + 0.25 * one
    assert estimate.steps == pytest.approx(four)
    assert estimate.mean_acceptance_length == pytest.approx(4 / four)


@pytest.mark.parametrize("temperature", [0.0, HOT])
@pytest.mark.parametrize("name", ["medusa", "eagle", "eagle3"])
def test_features_off_by_one_are_named(name: str, temperature: float) -> None:
    student, trials = decoded(name, temperature)
    shifted = shift_features(student, 1)
    with unchecked():
        cause = cause_of_mismatch(shifted, trials, temperature)
    assert "features one token later" in cause


@pytest.mark.parametrize("temperature", [0.0, HOT])
@pytest.mark.parametrize("name", ["draft_model", "eagle", "eagle3"])
def test_another_rotary_base_is_named(name: str, temperature: float) -> None:
    student = STUDENTS[name]()
    for module_name, module in student.module.named_modules():
        if module_name.endswith("layers"):
            randomize(module, 3.0)
    trials = run(student, temperature, 16)
    for buffer_name, table in student.module.named_buffers():
        if buffer_name.endswith("inv_freq"):
            table.mul_(torch.tensor([3.0, 5.0]))
    with unchecked():
        cause = cause_of_mismatch(student, trials, temperature)
    assert "a rotary base of 10,000" in cause


def test_a_separate_embedding_is_named() -> None:
    student, trials = decoded("eagle", HOT)
    assert isinstance(student, EagleStudent)
    student.model.head.embed_tokens = nn.Embedding(VOCAB, 16).double()
    try:
        assert "the embeddings are not shared" in cause_of_mismatch(student, trials, HOT)
    finally:
        student.model.head.embed_tokens = None


def test_other_weights_are_noticed() -> None:
    student, trials = decoded("draft_model", HOT)
    other = DraftStudent(CausalLM(build("llama", seed=3, num_hidden_layers=1), max_len=60), TARGET)
    assert parity_of(student, trials, HOT).holds
    assert "were the weights changed" in cause_of_mismatch(other, trials, HOT)
