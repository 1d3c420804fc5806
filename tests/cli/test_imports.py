"""Imports of commands: what they leave out, and what they do to garbage collection."""

import gc
import subprocess
import sys

from specresearch.cli import quick_imports


def test_garbage_is_collected_again_after_imports() -> None:
    gc.unfreeze()
    with quick_imports():
        assert not gc.isenabled()
    assert gc.isenabled()
    frozen = gc.get_freeze_count()
    assert frozen
    with quick_imports():
        later = [object()]
    assert any(each is later for each in gc.get_objects())  # which leaves out what is frozen
    assert gc.get_freeze_count() <= frozen  # what is frozen may go meanwhile


def test_a_run_imports_no_library_that_it_does_not_need() -> None:
    code = (
        "import sys, specresearch.bench.build;"
        "print(*sys.modules.keys() & {'pandas', 'scipy.stats', 'matplotlib',"
        "'wandb', 'datasets', 'sklearn'})"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.split() == []
