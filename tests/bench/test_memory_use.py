"""Memory of target and drafter in the results."""

from collections.abc import Callable

import pytest
from tiny_models import build, letters_tokenizer

from specresearch import CausalLM
from specresearch.bench import Runner
from specresearch.bench.decoding_memory import Forecast
from specresearch.bench.memory_use import MEMORY_DEFINITIONS, describe_memory, memory_use
from specresearch.bench.summary import RUN_DEFINITIONS
from specresearch.loadtest.definitions import LOAD_DEFINITIONS
from specresearch.models.slot_model import SlotModel
from specresearch.proposers import Cascade, DraftModel, Eagle, Medusa, NGram, Proposer

Make = Callable[..., Runner]
BYTES = 8  # float64


def drafter(kind: str, target: CausalLM) -> Proposer:
    if kind == "draft_model":
        return DraftModel(CausalLM(build("llama", seed=4), letters_tokenizer(), max_len=60))
    return {"eagle": Eagle, "medusa": Medusa}[kind].toy(target, 0)


@pytest.mark.filterwarnings("ignore:the target is:UserWarning")
@pytest.mark.parametrize("kind", ["draft_model", "eagle", "medusa"])
def test_weights_and_caches_of_both_models_are_in_the_results(
    make_runner: Make, target: CausalLM, kind: str
) -> None:
    proposer = drafter(kind, target)
    runner = make_runner(proposer=proposer, method=kind)
    summary = runner.run().summary
    (model,) = proposer.models
    module = model.module if isinstance(model, SlotModel) else model
    num_parameters = sum(parameter.numel() for parameter in module.parameters())
    assert summary["memory_draft_weights"] >= BYTES * num_parameters
    assert summary["memory_target_weights"] >= BYTES * target.num_parameters
    assert summary["memory_target_cache"] == target.cache.num_bytes > 0
    assert (summary["memory_draft_cache"] > 0) == (kind != "medusa")
    assert summary["memory_device_peak"] > summary["memory_target_weights"]


def test_a_cascade_has_the_models_of_its_parts(target: CausalLM) -> None:
    draft = drafter("draft_model", target)
    assert Cascade([NGram(), draft]).models == draft.models
    assert NGram().models == ()


def test_plain_decoding_has_no_drafter(make_runner: Make) -> None:
    summary = make_runner().run().summary
    assert summary["memory_draft_weights"] is summary["memory_draft_cache"] is None
    words = describe_memory(summary)
    assert words is not None
    assert words.startswith("target ")
    assert "drafter" not in words
    assert describe_memory({}) is None  # results of an earlier version


def test_a_resumed_run_keeps_the_larger_figure(make_runner: Make, target: CausalLM) -> None:
    before = {"memory_target_cache": 10**12, "memory_target_weights": 1}
    figures = memory_use(target, None, before, Forecast(target, None, []).of(1))
    assert figures["memory_target_cache"] == 10**12
    assert (figures["memory_target_weights"] or 0) > 1


def test_every_figure_is_defined(target: CausalLM) -> None:
    named = ", ".join(MEMORY_DEFINITIONS).split(", ")
    assert sorted(named) == sorted(memory_use(target, None, {}, Forecast(target, None, []).of(1)))
    assert MEMORY_DEFINITIONS.keys() <= RUN_DEFINITIONS.keys() & LOAD_DEFINITIONS.keys()
