"""A folder gives a comparison for every side."""

import json
from pathlib import Path

import pytest

from specresearch.bench.estimate import Estimate
from specresearch.reporting import Requirements, gather
from specresearch.reporting.decision import decide
from specresearch.reporting.draft_lengths import OVER_BEST, draft_length
from tests.reporting.folders import (
    labels,
    write_load,
    write_run,
)

BOUNDED = {"bounded": ({"max_slowdown": 1.05}, (1.7, 1.6, 1.8))}


def test_a_load_folder_gives_a_comparison_for_every_side(tmp_path: Path) -> None:
    write_load(tmp_path / "a", fixed={2: 1.4, 5: 0.9})
    material = gather([tmp_path])
    gains = {c.setting.label: c.gain.value for c in material.comparisons if c.gain}
    assert gains == {
        "ngram, goodput controller": 1.5,
        "ngram, 2 drafts": pytest.approx(1.4),
        "ngram, 5 drafts": pytest.approx(0.9),
    }
    over_best = [each.over_best for each in material.comparisons]
    assert over_best == [Estimate(1.01, 0.99, 1.03), None, None]


def test_the_length_of_a_fixed_controller_is_what_the_proposer_was_bound_to(tmp_path: Path) -> None:
    write_load(tmp_path / "a", controller="fixed", bound=7)
    assert [c.setting.label for c in gather([tmp_path]).comparisons] == ["ngram, 7 drafts"]


@pytest.mark.parametrize(
    ("controller", "how"), [("fixed", "2 drafts"), ("batch_size_cutoff", "cutoff controller")]
)
def test_a_variant_is_a_setting_of_its_own(tmp_path: Path, controller: str, how: str) -> None:
    variants = {"short": ({"num_draft_tokens": 2}, (1.2, 1.1, 1.3))}
    write_load(tmp_path / "a", controller=controller, variants=variants, limits={})
    run, short = gather([tmp_path]).comparisons
    assert run.setting.label == (
        "ngram, 10 drafts" if controller == "fixed" else "ngram, batch_size_cutoff controller"
    )
    assert short.setting.label.endswith(f"{how} (short)".replace("cutoff", "batch_size_cutoff"))
    assert short.gain is not None
    assert (short.gain.low, short.gain.high) == (1.1, 1.3)
    (decision,) = decide([run, short], Requirements())
    assert len(decision.others) == 1


def test_drafts_of_a_tree_are_its_nodes(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", length=None)
    results = json.loads((folder / "results.json").read_text())
    results["provenance"]["method"] |= {"num_draft_tokens": 60, "trees": True}
    (folder / "results.json").write_text(json.dumps(results))
    assert labels(folder) == ["ngram, 60-node tree"]


def test_every_variant_has_its_own_controller_figures(tmp_path: Path) -> None:
    estimates = {"repeat": 0.0, "step": 100.0, "estimated_seconds": 0.02, "measured_seconds": 0.03}
    write_load(
        tmp_path / "a",
        variants=BOUNDED,
        fixed={2: 1.1},
        controller_estimates=[estimates],
        concurrency=8,
    )
    material = gather([tmp_path])
    assert "ngram, goodput controller (bounded)" in labels(tmp_path)
    free, bounded = (each for each in material.comparisons if not each.setting.is_fixed)
    for comparison, speedup in ((free, 1.01), (bounded, 1.05)):
        assert comparison.over_best is not None
        assert comparison.over_best.value == speedup
        assert comparison.step_seconds == (0.02, 0.03)
    (decision,) = decide(material.comparisons, Requirements())
    lines = draft_length(decision).lines
    assert "it estimated 20.0 ms for a step that took 30.0 ms" in " ".join(lines)
    assert f"{OVER_BEST}: 1.05 (1.02 to 1.08)" in " ".join(lines)
