"""A model card says what is known about a drafter, and says plainly what is not."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from specresearch.training.publishing.card import model_card

PROVENANCE: dict[str, Any] = {
    "started": "2026-01-02T03:04:05+00:00",
    "packages": {"specresearch": "0.1.0"},
    "target": {"model": "someone/large", "num_parameters": 8_000_000, "dtype": "bfloat16"},
    "dataset": {
        "name": "gsm8k",
        "kind": "hub",
        "location": "openai/gsm8k main train @ 1234",
        "fingerprint": "00ff",
        "num_rows": 7473,
    },
    "corpus": {"name": "mix", "target": 0.75, "fixed": 0.25, "generation": {"temperature": 0.7}},
    "objective": {"name": "forward_kl", "temperature": 1.0},
    "train": {
        "steps": 2000,
        "batch_size": 8,
        "accumulate": 2,
        "learning_rate": 0.001,
        "schedule": "cosine",
    },
    "num_processes": 4,
    "begun_from": {"checkpoint": "someone/small"},
    "decodes_with": "the target",
    "figures": {
        "predicted/mean_acceptance_length": 3.0,
        "predicted/acceptance_at_1": 0.8,
        "predicted/acceptance_at_2": 0.64,
        "t0/mean_acceptance_length": 3.21,
        "t0/predicted_mean_acceptance_length": 3.19,
        "t0/sample": "a|b",
        "t1/mean_acceptance_length": 2.5,
    },
}


def metadata(card: str) -> dict[str, Any]:
    return yaml.safe_load(card.split("---\n")[1])


def test_a_card_has_the_hubs_metadata_and_what_training_recorded() -> None:
    card = model_card("me/head", "eagle3", "someone/large", PROVENANCE, license="apache-2.0")
    assert metadata(card) == {
        "base_model": "someone/large",
        "datasets": ["openai/gsm8k"],
        "library_name": "specresearch",
        "license": "apache-2.0",
        "tags": ["speculative-decoding", "specresearch", "eagle3"],
    }
    for line in (
        "# me/head",
        "| 0 | 3.21 | 3.19 |",
        "| 1 | 2.50 | - |",
        "| position of the draft | 1 | 2 |",
        "| accepted, predicted | 0.80 | 0.64 |",
        "| target | someone/large (8,000,000 parameters, bfloat16) |",
        "| begun from | someone/small |",
        "| prompts | gsm8k, from openai/gsm8k main train @ 1234 (7,473 rows, fingerprint 00ff) |",
        "| text | 25% replies of the dataset, 75% written by the target, at temperature 0.7 |",
        "| objective | forward_kl |",
        "| steps | 2,000 |",
        "| examples in a step | 64 |",
        "specresearch run +proposer=eagle3 proposer.head=me/head \\",
        "    target=local target.model=someone/large",
    ):
        assert line in card.splitlines()


def test_a_draft_model_is_based_on_the_model_that_training_began_from() -> None:
    card = model_card("me/draft", "draft_model", "someone/large", PROVENANCE)
    assert metadata(card)["base_model"] == "someone/small"
    assert metadata(card)["library_name"] == "transformers"
    assert '\'{"method": "draft_model", "model": "me/draft", ' in card


def test_a_card_without_a_licence_says_so() -> None:
    card = model_card("me/head", "medusa", "someone/large", PROVENANCE)
    assert "license" not in metadata(card)
    assert "No licence is set." in card


def test_a_card_without_provenance_says_so() -> None:
    card = model_card("me/head", "medusa", "someone/large", {"corpus": "gsm8k"})
    assert "How these weights were trained is not known" in card
    assert "None are known" in card


def test_a_card_does_not_show_the_folders_of_this_machine(tmp_path: Path) -> None:
    target = tmp_path / "my-model"
    target.mkdir()
    local = {
        **PROVENANCE,
        "target": {**PROVENANCE["target"], "model": str(target)},
        "dataset": {**PROVENANCE["dataset"], "kind": "file", "location": f"{tmp_path}/mine.jsonl"},
        "begun_from": None,
    }
    card = model_card("me/head", "eagle", str(target), local)
    assert str(tmp_path) not in card
    assert "speculative decoding with my-model" in card
    assert "from the file mine.jsonl" in card
    assert "target.model=TARGET" in card
    assert "base_model" not in metadata(card)
    assert "datasets" not in metadata(card)


def test_a_changed_target_is_pointed_out() -> None:
    card = model_card("me/head", "medusa", "a/b", {**PROVENANCE, "decodes_with": "backbone"})
    assert "a retrained target, which is in the folder `backbone/`" in card


@pytest.mark.parametrize(
    ("layout", "method", "command"),
    [
        (None, "eagle3", "specresearch export head=me/head format=speculators"),
        (None, "eagle", "specresearch export head=me/head format=eagle_sglang"),
        ("eagle", "eagle", '{"method": "eagle", "model": "me/head", '),
        ("eagle_sglang", "eagle", "--speculative-algorithm EAGLE --speculative-draft-model-path"),
        ("eagle3", "eagle3", "--speculative-algorithm EAGLE3 --speculative-draft-model-path"),
        ("speculators", "eagle3", "vllm serve me/head"),
    ],
)
def test_each_layout_says_who_serves_it(layout: str | None, method: str, command: str) -> None:
    card = model_card("me/head", method, "someone/large", {}, layout=layout)
    assert command in card
    assert ("export it first" in card) == (layout is None)
