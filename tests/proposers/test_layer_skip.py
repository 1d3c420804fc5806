import copy
import json
from pathlib import Path
from typing import Any

import pytest
from tiny_models import VOCAB, build

from specresearch import CausalLM, Engine, SamplingParams
from specresearch.acceptance import Rejection
from specresearch.controllers import Goodput
from specresearch.engine import SchedulerSettings
from specresearch.models.layer_view import Sublayers
from specresearch.proposers import LayerSkip

LAYERS = 4
MODEL = build("llama", seed=1, num_hidden_layers=LAYERS, spread=0.8)
PROMPTS = [(5,), (1, 2, 3, 4, 5, 6, 7) * 3, (8, 8)]


@pytest.fixture(scope="module")
def target() -> CausalLM:
    return CausalLM(copy.deepcopy(MODEL), max_len=64, prefill_chunk=5)


def skipped(target: CausalLM, **settings: Any) -> Sublayers:
    proposer = LayerSkip(**settings)
    proposer.bind(target, 0)
    assert str(proposer.skipped_of(target)) in proposer.describe()
    return proposer.skipped_of(target)


def test_what_is_skipped(target: CausalLM, tmp_path: Path) -> None:
    file = tmp_path / "layers.json"
    file.write_text(json.dumps({"skip_attention": [1], "skip_mlp": [1, 2], "other": 1}))
    upper_half = Sublayers.of([2, 3], [2, 3])
    assert skipped(target) == upper_half
    assert skipped(target, exit_layer=2) == upper_half
    assert skipped(target, skip_mlp=[0]) == Sublayers.of([], [0])
    assert skipped(target, skip_file=str(file)) == Sublayers.of([1], [1, 2])
    assert skipped(target, skip_file=str(file), exit_layer=3, skip_attention=[0]) == Sublayers.of(
        [0, 1, 3], [1, 2, 3]
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"exit_layer": 5}, r"exit_layer=5 must lie between 1 and 4, the target's number of"),
        ({"exit_layer": 0}, r"exit_layer=0 must lie between 1 and 4"),
        ({"skip_mlp": [7]}, r"layer 7 cannot be skipped: the layers of .* are 0 to 3"),
        ({"skip_attention": range(4)}, r"the attention of all 4 layers"),
    ],
)
def test_layers_that_cannot_be_skipped(
    target: CausalLM, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        LayerSkip(**settings).bind(target, 0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "there is no such file; write one with python -m specresearch.layers"),
        ("[1]", "no lists skip_attention and skip_mlp .*TypeError"),
        ('{"skip_attention": [1]}', "no lists .*KeyError"),
        ('{"skip_attention": ["a"], "skip_mlp": []}', "no lists .*ValueError"),
    ],
)
def test_files_that_do_not_say_what_to_skip(
    tmp_path: Path, content: str | None, message: str
) -> None:
    file = tmp_path / "layers.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ValueError, match=message):
        LayerSkip(skip_file=str(file))


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0, "seed": 3}], ids=["greedy", "drawn"])
def test_an_exit_after_the_last_layer_drafts_what_the_target_says(
    target: CausalLM, sampling: dict[str, Any]
) -> None:
    proposer = LayerSkip(LAYERS, num_draft_tokens=3)
    outputs = Engine(target, proposer, Rejection(), max_batch_size=3).generate_all(
        PROMPTS, SamplingParams(max_new_tokens=13, **sampling)
    )
    counts = [output.checked().record.counts for output in outputs]
    assert [count.num_accepted_tokens for count in counts] == [
        count.num_draft_tokens for count in counts
    ]


def test_controllers_and_reused_prefixes(target: CausalLM) -> None:
    """The view prefills lazily and reuses columns as draft models do."""
    params = SamplingParams(max_new_tokens=9)
    plain = Engine(target).generate_all([PROMPTS[1], (*PROMPTS[1], 3, 4)], params)
    engine = Engine(
        target,
        LayerSkip(3, num_draft_tokens=3),
        controller=Goodput(2),
        scheduling=SchedulerSettings(reuse_prefixes=True),
    )
    first = engine.generate_all([PROMPTS[1]], params)
    second = engine.generate_all([(*PROMPTS[1], 3, 4)], params)
    assert [o.token_ids for o in (*first, *second)] == [o.token_ids for o in plain]
    assert second[0].record.num_reused_tokens > 0
    proposer = engine.proposer
    assert isinstance(proposer, LayerSkip)
    assert proposer.draft.cache is not target.cache


def test_toys_skip_layers_that_they_have() -> None:
    toy = CausalLM(build("llama", num_hidden_layers=3), max_len=32)
    for settings in ({"exit_layer": 20}, {"skip_attention": [17], "skip_mlp": []}, {}):
        proposer = LayerSkip.toy(toy, 0, **settings, num_draft_tokens=2)
        proposer.bind(toy, 0)
        assert 0 < len(proposer.skipped_of(toy)) < 6


def test_models_of_another_vocabulary_are_viewed_anew(target: CausalLM) -> None:
    """One proposer may serve several targets, one after another."""
    proposer = LayerSkip(1, num_draft_tokens=2)
    proposer.bind(target, 1)
    first = proposer.draft
    proposer.bind(target, 2)
    assert proposer.draft is first
    other = CausalLM(build("llama", vocab_size=VOCAB + 2), max_len=32)
    proposer.bind(other, 1)
    assert proposer.draft.vocab_size == VOCAB + 2
