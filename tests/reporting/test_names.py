"""What would be called the same gets names that tell it apart."""

from pathlib import Path
from typing import Any

import pytest

from specresearch.reporting import gather
from specresearch.reporting.workload import Load
from tests.reporting.folders import labels, write_load, write_run


def test_machines_and_lengths_of_one_name_are_kept_apart_and_told_apart(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    write_run(tmp_path / "b", machine="GPU")
    labels = [comparison.workload.label for comparison in gather([tmp_path]).comparisons]
    assert labels == [
        "cnndm, temperature 0 (CPU, 1 thread)",
        "cnndm, temperature 0 (GPU, 1 thread)",
    ]


def test_variants_of_one_setting_are_told_apart(tmp_path: Path) -> None:
    for name, n_max in (("a", 3), ("b", 4)):
        folder = write_run(tmp_path / name)
        config = (
            (folder / "config.yaml")
            .read_text()
            .replace("num_draft_tokens: 5", f"num_draft_tokens: 5\n  n_max: {n_max}")
        )
        (folder / "config.yaml").write_text(config)
    labels = [comparison.setting.label for comparison in gather([tmp_path]).comparisons]
    assert labels == ["ngram, 5 drafts (n_max 3)", "ngram, 5 drafts (n_max 4)"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ([{"settings": {"num_draft_tokens": n}} for n in (2, 4)], "controller.num_draft_tokens {}"),
        ([{"proposer": {"num_draft_tokens": n}} for n in (2, 4)], "num_draft_tokens {}"),
        ([{"proposer": {"draft": {"model": f"zoo:{n}"}}} for n in (2, 4)], "draft zoo:{}"),
    ],
)
def test_settings_that_differ_between_folders_are_told_apart(
    tmp_path: Path, changes: list[dict[str, Any]], words: str
) -> None:
    for number, own in enumerate(changes):
        write_load(tmp_path / str(number), **own)
    assert labels(tmp_path) == [f"ngram, goodput controller ({words.format(n)})" for n in (2, 4)]


def test_many_requests_in_flight_are_counted_in_full() -> None:
    assert Load("concurrency", 1024.0).label == "1024 requests at a time"
    assert Load("poisson", 2.5).label == "2.5 requests per second"
