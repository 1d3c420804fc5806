"""A step with a large tree tells what every smaller one would have had accepted."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import VOCAB, build, letters_tokenizer

from specresearch import CausalLM, Engine, Request, SamplingParams, Step
from specresearch.calibration.acceptance_table import AcceptanceTable
from specresearch.calibration.measurement import PLAIN, ShapeMeasurement
from specresearch.calibration.shape_times import Medians
from specresearch.proposal import DraftForecast
from specresearch.proposers import DraftModel
from specresearch.proposers.draft_shape import DraftShape
from specresearch.proposers.sequoia import RankTable, likeliest_paths

pytestmark = pytest.mark.filterwarnings("ignore:the target is:UserWarning")

LARGEST = DraftShape(20, "dynamic", 4)
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


def model(noise: float = 0.0) -> CausalLM:
    """Return a target, or a draft model that nearly agrees with it."""
    built = build("llama", seed=1, max_position_embeddings=64)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in built.parameters():
            weight += noise * torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
    return CausalLM(built, letters_tokenizer(VOCAB), max_len=64)


def first_step(
    shape: DraftShape, prompt: Sequence[int], temperature: float
) -> tuple[AcceptanceTable, int]:
    """Return what the first step after a prompt tells, and the number of accepted drafts.

    It draws the same numbers for every shape.
    """
    table = AcceptanceTable(LARGEST)
    num_accepted: list[int] = []

    def observe(step: Step) -> None:
        if not num_accepted:
            table.add(step, shape)
        num_accepted.append(int(step.delivery.verdict.num_accepted[0]))

    drafter = DraftModel(model(0.1), shape.num_draft_tokens, tree="dynamic", depth=4, top_k=4)
    if shape != LARGEST:
        drafter.draft_as(shape)
    engine = Engine(model(), drafter, observers=[observe])
    sampling = SamplingParams(temperature=temperature, max_new_tokens=30, seed=7)
    engine.generate_all([prompt], sampling)
    return table, num_accepted[0]


@pytest.mark.parametrize("temperature", [pytest.param(0.0, marks=pytest.mark.slow), 1.0])
def test_a_smaller_tree_accepts_what_the_larger_one_foretells(temperature: float) -> None:
    accepted = set()
    for begin in range(4):
        prompt = PROMPT[begin:] + PROMPT[:begin]
        table, _ = first_step(LARGEST, prompt, temperature)
        for shape in (DraftShape(2, "dynamic", 2), DraftShape(6, "dynamic", 3), LARGEST):
            _, num_accepted = first_step(shape, prompt, temperature)
            assert table.acceptance(shape).tokens == pytest.approx(1 + num_accepted)
            accepted.add(num_accepted)
    assert len(accepted) > 2, "all trees had equally much accepted, which tests nothing"


def test_steps_count_by_the_text_they_stand_for() -> None:
    """Half of the text is predictable; half of the steps in it would overstate it."""
    table = AcceptanceTable(DraftShape(9, "chain"))
    for id, num_accepted in (("easy", 9), ("hard", 0)):
        table._lengths[id] = 500
        stretch = table._stretch(id)
        stretch.num_steps = 10
        stretch.num_tokens = 100
        stretch.drafted[:] = 1000
        stretch.accepted[:, :num_accepted] = 1000
    tokens = table.acceptance(DraftShape(9, "chain")).tokens
    assert tokens == pytest.approx(2 / (1 / 10 + 1 / 1), rel=0.02)  # as in a run of both
    assert table.evenness(DraftShape(9, "chain")) == pytest.approx(tokens / 5.5)


def test_a_request_counts_by_its_output_or_by_what_it_may_still_become() -> None:
    shape = DraftShape(2, "chain")
    table = AcceptanceTable(shape)
    drafter = DraftModel(model(0.1), 2)
    engine = Engine(
        model(), drafter, max_batch_size=2, observers=[lambda step: table.add(step, shape)]
    )
    (output,) = engine.generate_all([PROMPT], SamplingParams(temperature=0.0, max_new_tokens=7))
    last = output.token_ids[-1]
    ended = SamplingParams(temperature=0.0, max_new_tokens=30, stop_token_ids=[last])
    engine.submit(Request(PROMPT, ended, id="ended"))
    unfinished = SamplingParams(temperature=0.0, max_new_tokens=40)
    engine.submit(Request(PROMPT[::-1], unfinished, id="unfinished"))
    while "ended" not in {finished.id for finished in engine.pop_finished()}:
        engine.step()
    engine.abort()
    assert table._lengths["ended"] == 1 + list(output.token_ids).index(last)
    assert table._lengths["unfinished"] == 40


def test_places_that_a_stretch_has_seldom_drafted_follow_its_other_places() -> None:
    """One long draft in twelve: the mean of easy and hard text says little about either."""
    table = AcceptanceTable(DraftShape(9, "chain"))
    for id, is_easy in (("easy", True), ("hard", False)):
        table._lengths[id] = 500
        stretch = table._stretch(id)
        stretch.num_steps, stretch.num_tokens = 12, 100
        stretch.drafted[:] = [12] + [1] * 8
        stretch.accepted[:] = stretch.drafted * is_easy
    tokens = table.acceptance(DraftShape(9, "chain")).tokens
    assert tokens == pytest.approx(2 / (1 / 10 + 1 / 1), rel=0.25)


def test_without_any_step_nothing_is_accepted() -> None:
    measurement = ShapeMeasurement([DraftShape(3, "chain")])
    table = measurement.tables[DraftShape(3, "chain").kind]
    assert table.acceptance(DraftShape(3, "chain")).tokens == 1


def test_a_static_tree_without_branches_is_measured_by_rank() -> None:
    shape = DraftShape(2, "static", paths=((0,), (0, 0)))
    measurement = ShapeMeasurement([shape])
    drafter = DraftModel(model(0.1), 2, tree="static", paths=shape.paths)
    engine = Engine(model(), drafter, observers=[lambda step: measurement.add(step, shape)])
    sampling = SamplingParams(temperature=0.0, max_new_tokens=30)
    engine.generate_all([PROMPT], sampling)
    plain = Engine(model(), observers=[lambda step: measurement.add(step, PLAIN)])
    plain.generate_all([PROMPT], sampling)
    table = measurement.tables[shape.kind]
    visits, rows = table.by_rank.visits[0][0], table.num_rows
    assert visits == rows > 5
    assert len(list(measurement.predictions())) == 2
    _, whole = measurement.predictions()
    forecast = measurement.forecast(whole)
    first = np.cumprod([rates[0] for rates in table.by_rank.acceptance()])
    assert forecast.survival == pytest.approx(first * table.evenness(shape), rel=0.3)
    assert 1 + sum(forecast.survival) == pytest.approx(whole.tokens)
    assert forecast.nodes == (1.0, 1.0)


@pytest.mark.parametrize("shape", [LARGEST, DraftShape(4, "chain")])
def test_a_forecast_tells_what_scores_of_point_masses_mean(shape: DraftShape) -> None:
    """Of every node whose parent was accepted; the chain is sampled."""
    measurement, drafts, accepted = ShapeMeasurement([shape]), [], []

    def observe(step: Step) -> None:
        measurement.add(step, shape)
        drafts.append(step.record.num_draft_tokens[0])
        accepted.append(step.record.num_accepted_tokens[0])

    tree = shape.tree or "chain"
    drafter = DraftModel(model(0.1), shape.num_draft_tokens, tree=tree, depth=4)
    sampling = SamplingParams(temperature=1.0, max_new_tokens=30)
    Engine(model(), drafter, observers=[observe]).generate_all([PROMPT], sampling)
    plain = Engine(model(), observers=[lambda step: measurement.add(step, PLAIN)])
    plain.generate_all([PROMPT], sampling)
    forecast = measurement.forecast(next(iter(measurement.predictions())))
    if tree == "chain":
        assert forecast.judged_scores == forecast.accepted_scores == ()
        return
    num_judged, num_accepted = np.array([forecast.judged_scores, forecast.accepted_scores]).sum(2)
    # The last step ends within its draft, and is not judged.
    assert sum(accepted[:-1]) <= num_accepted.sum() <= sum(accepted)
    assert num_accepted.sum() < num_judged.sum() < sum(drafts)
    assert len(num_judged) <= 4
    kept = DraftForecast.from_json(json.loads(json.dumps(asdict(forecast))))
    assert kept == forecast


def test_the_likeliest_paths_of_counted_ranks() -> None:
    counted: Any = RankTable()
    for _ in range(60):
        counted.add([0, 0], [2, 2, 0])
    for _ in range(40):
        counted.add([1], [2, 2])
    paths = likeliest_paths(counted.acceptance(), 10)
    assert [path for path, _ in paths] == [(0,), (1,), (0, 0), (1, 0), (0, 1), (1, 1)]
    assert paths[0][1] == pytest.approx(0.6, abs=0.01)
    assert paths[2][1] == pytest.approx(0.36, abs=0.03)


def test_sizes_far_beyond_what_is_enough_are_left_out() -> None:
    medians = Medians()
    for size in (1, 3, 6, 25, 80):
        medians.add(size, float(size))
    assert [size for size, _ in medians.at_some(8)] == [1, 3, 6, 25, 80]
    assert [size for size, _ in medians.at_some(8, 2, enough=6)] == [3, 6]
    assert [size for size, _ in medians.at_some(8, enough=7)] == [1, 3, 6, 25]
    assert [size for size, _ in medians.at_some(2, enough=7)] == [1, 25]


def test_sizes_that_were_measured_better_are_replaced() -> None:
    first, better = Medians(), Medians()
    for size, seconds in ((1, 1.0), (2, 2.0), (3, 3.0)):
        first.add(size, seconds)
    better.add(2, 1.5)
    assert first.replaced(better).at([1, 2, 3]) == pytest.approx([1.0, 1.5, 3.0])
    assert first.at([2]) == pytest.approx([2.0])


def test_a_time_from_few_samples_is_outvoted_by_those_of_larger_sizes() -> None:
    medians = Medians()
    for size, seconds, number in ((1, 1.0, 20), (2, 5.0, 2), (3, 1.2, 20), (9, 2.0, 20)):
        for _ in range(number):
            medians.add(size, seconds)
    times = medians.at([1, 2, 3, 9])
    assert (np.diff(times) >= 0).all()
    assert times[2] < 1.6
    assert times[3] == 2.0
