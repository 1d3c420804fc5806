"""Every notebook runs from top to bottom, on recorded results or its own measurements."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
LONG = {"load_to_decision", "trees", "write_a_drafter"}  # with measurements of their own
RUNS = [
    pytest.param(path, id=path.stem, marks=[pytest.mark.slow] if path.stem in LONG else [])
    for path in NOTEBOOKS
]


@pytest.mark.parametrize("path", RUNS)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::RuntimeWarning")
def test_a_notebook_runs_from_top_to_bottom(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SPECRESEARCH_RESULTS", "SPECRESEARCH_RUN", "SPECRESEARCH_LOAD"):
        monkeypatch.delenv(name, raising=False)
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(FOLDER)}}).execute()
    assert holds_a_figure(notebook)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_committed_with_its_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    assert holds_a_figure(notebook)
    errors = [output for output in outputs_of(notebook) if output.output_type == "error"]
    assert errors == []


def outputs_of(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


def holds_a_figure(notebook: nbformat.NotebookNode) -> bool:
    return any("image/png" in output.get("data", {}) for output in outputs_of(notebook))
