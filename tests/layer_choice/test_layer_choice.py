"""Acceptance and cost by depth, and the choice of what to skip."""

import copy
import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from cut_models import LAYERS
from tiny_models import build, letters_tokenizer

from specresearch import CausalLM, Engine, SamplingParams
from specresearch.layer_choice.costs import SublayerCosts, measure_costs
from specresearch.layer_choice.curve import EXIT, SKIP, DepthCurve, fastest, single_sublayers
from specresearch.layer_choice.output import print_curve, save_curve
from specresearch.layer_choice.texts import TargetTexts, TextAcceptance
from specresearch.models.layer_view import Sublayers
from specresearch.proposers import LayerSkip

MODEL = build("llama", seed=1, num_hidden_layers=LAYERS, spread=0.8)
PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8], [9]]
COSTS = SublayerCosts(attention=0.08, mlp=0.12, verification={1: 1.0, 2: 1.1, 5: 1.4}, seconds=0.01)


@pytest.fixture(scope="module")
def target() -> CausalLM:
    return CausalLM(copy.deepcopy(MODEL), letters_tokenizer(), max_len=64)


@pytest.fixture(scope="module")
def texts(target: CausalLM) -> TargetTexts:
    return TargetTexts(target, PROMPTS, [0.0, 1.0], 14)


@pytest.fixture(scope="module")
def curve(texts: TargetTexts) -> DepthCurve:
    return DepthCurve(texts, COSTS, 4)


def test_the_whole_target_accepts_all_of_its_text(texts: TargetTexts) -> None:
    acceptance = texts.acceptance_without(Sublayers())
    assert acceptance.mean() == pytest.approx(1.0)
    # the last token of an output is never drafted
    assert acceptance.tokens_per_step(3) == pytest.approx(14 / 4)
    assert texts.num_tokens == 2 * 3 * 14


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_acceptance_is_that_of_decoding(target: CausalLM, temperature: float) -> None:
    skipped = Sublayers.of([2], [1, 3])
    texts = TargetTexts(target, PROMPTS * 20, [temperature], 14)
    predicted = texts.acceptance_without(skipped).tokens_per_step(2)
    proposer = LayerSkip(skip_attention=[2], skip_mlp=[1, 3], num_draft_tokens=2)
    outputs = Engine(target, proposer, max_batch_size=30, seed=3).generate_all(
        PROMPTS * 20, SamplingParams(temperature=temperature, max_new_tokens=14, ignore_eos=True)
    )
    steps = sum(output.record.counts.num_target_forwards for output in outputs)
    assert 14 * len(outputs) / steps == pytest.approx(predicted, rel=0.06)


def test_costs_add_up() -> None:
    assert COSTS.draft_pass(Sublayers()) == 1.0
    assert COSTS.draft_pass(Sublayers.of([0], [1, 2])) == pytest.approx(1 - 0.08 - 2 * 0.12)
    assert COSTS.verify(2) == pytest.approx(1.2)
    assert COSTS.speedup(1.8, 1, 0.5) == pytest.approx(1.8 / 1.6)


@pytest.mark.parametrize("length", [1, 4])
def test_at_break_even_a_chain_is_as_fast_as_plain_decoding(length: int) -> None:
    acceptance = COSTS.break_even(length, 0.2)
    tokens = sum(acceptance**i for i in range(length + 1))
    assert COSTS.speedup(tokens, length, 0.2) == pytest.approx(1.0)
    assert COSTS.break_even(1, 0.2) == pytest.approx(0.2 + 0.1)


def test_costs_are_shares_of_the_target(target: CausalLM) -> None:
    costs = measure_costs(target, 4)
    assert 0 <= costs.attention * (LAYERS - 1) < 1
    assert 0 <= costs.mlp * (LAYERS - 1) < 1
    assert costs.verification[1] == 1.0
    assert sorted(costs.verification) == [1, 2, 3, 5]
    assert not target.in_use


def test_exits_and_skips(curve: DepthCurve) -> None:
    exits, skips = curve.exits(), curve.skips(4)
    assert [depth.way for depth in (*exits, *skips)] == [EXIT] * (LAYERS - 1) + [SKIP] * 4
    assert [len(depth.skipped) for depth in exits] == [6, 4, 2]
    assert [len(depth.skipped) for depth in skips] == [1, 2, 3, 4]
    for before, after in pairwise(skips):
        assert len(after.skipped - before.skipped) == 1
        assert len(before.skipped - after.skipped) == 0
    alone = [curve._depth(SKIP, one) for one in single_sublayers(LAYERS)]
    assert skips[0] == fastest(alone)
    for depth in (*exits, *skips):
        assert set(depth.acceptance) == {0.0, 1.0}
        assert depth.cost == COSTS.draft_pass(depth.skipped)


def test_attention_of_one_layer_stays(curve: DepthCurve) -> None:
    (*_, deepest) = curve.skips(2 * LAYERS - 1)
    assert len(deepest.skipped.attention) == LAYERS - 1


def test_files_hold_what_a_proposer_reads(curve: DepthCurve, tmp_path: Path) -> None:
    depths = [*curve.exits(), *curve.skips(2)]
    file = tmp_path / "new" / "layers.json"
    save_curve(depths, LAYERS, {"target": "t"}, file)
    best = fastest(depths).skipped
    assert LayerSkip(skip_file=str(file)).skipped == best
    assert json.loads(file.read_text())["depths"][0]["way"] == EXIT
    assert len(file.with_suffix(".csv").read_text().splitlines()) == len(depths) + 1
    assert file.with_suffix(".png").stat().st_size > 0


def test_the_table_says_if_nothing_pays(
    curve: DepthCurve, capsys: pytest.CaptureFixture[str]
) -> None:
    print_curve(curve.exits())
    assert "layers from 1 on" in capsys.readouterr().out
    slow = DepthCurve(curve.texts, SublayerCosts(0.0, 0.0, {1: 1.0, 5: 5.0}, 0.01), 4)
    print_curve(slow.skips(2))
    text = capsys.readouterr().out
    assert "+ " in text
    assert "No depth is predicted to be faster" in text


def test_means_of_one_temperature() -> None:
    acceptance = TextAcceptance(((0.0, np.array([1.0, 0.0])), (1.0, np.array([0.5, 0.5]))))
    assert acceptance.mean() == acceptance.mean(0.0) == acceptance.mean(1.0) == 0.5
