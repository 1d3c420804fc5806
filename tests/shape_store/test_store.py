"""Choices are kept by identity and workload; what is damaged or foreign is measured again."""

import json
from pathlib import Path

import pytest
import torch
from tiny_models import build

from specresearch import CausalLM
from specresearch.proposal import DraftForecast
from specresearch.proposers import DraftModel, NGram
from specresearch.proposers.draft_shape import AUTO, DraftShape
from specresearch.shape_store import Identity, ShapeChoice, ShapeStore, cache_folder

CHOICE = ShapeChoice(
    shape=DraftShape(3, "static", paths=((0,), (0, 0), (1,))),
    best=DraftShape(3, "static", paths=((0,), (0, 0), (1,))),
    expected_tokens=1.5,
    acceptance_length=1.75,
    predicted_speedup=1.25,
    measured="measured in a test",
    forecast=DraftForecast((0.5, 0.25), (0.75, 0.5), 0.75, 2, ((0, 0.0), (3, 0.02)), ((0, 0.1),)),
)
WORKLOAD = {"data": "abc", "sampling": {"temperature": 0.0}}


pytestmark = pytest.mark.filterwarnings("ignore:the target is:UserWarning")


def target(seed: int = 1) -> CausalLM:
    return CausalLM(build("llama", seed=seed), max_len=32)


def identity(batch_size: int = 1, seed: int = 1) -> Identity:
    return Identity.of(target(seed), NGram(AUTO), batch_size)


def test_returns_what_was_saved(tmp_path: Path) -> None:
    store = ShapeStore(identity(), tmp_path)
    assert store.load(WORKLOAD) is None
    store.save(WORKLOAD, CHOICE)
    again = ShapeStore(identity(), tmp_path)
    assert again.load(WORKLOAD) == CHOICE
    assert again.newest() == CHOICE
    assert again.load(WORKLOAD | {"data": "other"}) is None


def test_a_newer_choice_replaces_the_older_of_its_workload(tmp_path: Path) -> None:
    store = ShapeStore(identity(), tmp_path)
    other = ShapeChoice(DraftShape(0), DraftShape(1), 1.0, 1.0, 0.9, "later")
    store.save(WORKLOAD, CHOICE)
    store.save({"data": "other"}, CHOICE)
    store.save(WORKLOAD, other)
    assert store.load(WORKLOAD) == other
    assert store.newest() == other
    assert len(json.loads(store.file.read_text())["choices"]) == 2


@pytest.mark.parametrize("content", ["", "[]", '{"choices": [{"workload": {}}]}', '{"choices": 3}'])
def test_a_damaged_file_counts_as_none(tmp_path: Path, content: str) -> None:
    store = ShapeStore(identity(), tmp_path)
    store.save(WORKLOAD, CHOICE)
    store.file.write_text(content)
    assert store.load(WORKLOAD) is None
    store.save(WORKLOAD, CHOICE)
    assert store.load(WORKLOAD) == CHOICE


def test_other_weights_settings_batches_threads_and_calibrations_are_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys = {identity().key, identity(batch_size=2).key, identity(seed=2).key}
    plain = target()
    keys |= {Identity.of(plain, NGram(AUTO, n_max=3), 1).key}
    drafter = DraftModel(target(3), AUTO)
    drafter.bind(plain, 0)
    keys |= {Identity.of(plain, drafter, 1).key}
    with monkeypatch.context() as patch:
        patch.setattr(torch, "get_num_threads", lambda: 99)
        keys |= {identity().key}
    with monkeypatch.context() as patch:
        patch.setattr("specresearch.shape_store.identity.CALIBRATION", 99)
        keys |= {identity().key}
    assert len(keys) == 7
    assert identity().key == identity().key


def test_a_chosen_shape_does_not_change_the_identity() -> None:
    plain, proposer = target(), NGram(AUTO)
    before = Identity.of(plain, proposer, 1)
    proposer.draft_as(DraftShape(2))
    assert Identity.of(plain, proposer, 1).key == before.key


def test_a_variable_names_the_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPECRESEARCH_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"
    monkeypatch.delenv("SPECRESEARCH_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "specresearch"


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "shapes").write_text("a file where the folder should be")
    ShapeStore(identity(), tmp_path).save(WORKLOAD, CHOICE)
