"""Imports of commands: what they leave out, and what they do to garbage collection."""

import gc
import subprocess
import sys

from specresearch.cli import quick_imports


def test_garbage_is_collected_again_after_imports() -> None:
    try:
        with quick_imports():
            assert not gc.isenabled()
        assert gc.isenabled()
        assert gc.get_freeze_count()
    finally:
        gc.unfreeze()


def test_a_run_imports_no_library_that_it_does_not_need() -> None:
    code = (
        "import sys, specresearch.bench.build;"
        "print(*sys.modules.keys() & {'pandas', 'scipy.stats', 'matplotlib',"
        "'wandb', 'datasets', 'sklearn'})"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.split() == []
