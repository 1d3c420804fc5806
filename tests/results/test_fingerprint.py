"""The fingerprint of the code that decoded a run."""

import subprocess
import sys

import pytest

from specresearch.bench.folder import ResultsFolder
from specresearch.loadtest.folder import LoadFolder
from specresearch.results.fingerprint import DECODING, PACKAGE
from specresearch.results.folder import RunFolder

LOADED = """
import sys
import specresearch.engine
for name, module in sys.modules.items():
    if name.startswith("specresearch.") and module.__file__:
        print(name, end=" ")
"""


def test_every_module_that_decoding_loads_is_fingerprinted() -> None:
    """A new module outside the fingerprint would let a run resume with other code."""
    printed = subprocess.run(
        [sys.executable, "-c", LOADED], check=True, capture_output=True, text=True
    ).stdout
    parts = {name.split(".")[1] for name in printed.split()}
    fingerprinted = {name.removesuffix(".py") for name in DECODING}
    assert parts <= fingerprinted, f"add {sorted(parts - fingerprinted)} to DECODING"


@pytest.mark.parametrize("folder", [ResultsFolder, LoadFolder])
def test_fingerprinted_code_exists(folder: type[RunFolder]) -> None:
    assert [path for path in folder.code if not (PACKAGE / path).exists()] == []
