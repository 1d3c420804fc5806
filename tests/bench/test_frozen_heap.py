"""While something is measured, collections leave out what was alive before."""

import gc
import weakref
from collections.abc import Callable
from contextlib import suppress

import pytest

from specresearch.batch import Batch
from specresearch.bench.frozen_heap import frozen_heap
from specresearch.bench.runner import Runner
from specresearch.controllers import Fixed
from specresearch.proposers import NGram


class Watching(Fixed):
    """Notes at every step how many objects are left out."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def budget(self, batch: Batch) -> list[int | None]:
        self.seen.append(gc.get_freeze_count())
        return super().budget(batch)


class Knot:
    """Garbage that only a collection finds."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def thawed() -> None:
    """Commands of earlier tests freeze what they import."""
    gc.unfreeze()


def test_the_heap_is_as_before_whatever_happens() -> None:
    before = gc.get_freeze_count()
    with suppress(KeyboardInterrupt), frozen_heap():
        assert gc.get_freeze_count() > before
        garbage = weakref.ref(Knot())
        gc.collect()
        assert garbage() is None
        raise KeyboardInterrupt
    assert gc.get_freeze_count() == before


def test_a_run_measures_so(make_runner: Callable[..., Runner]) -> None:
    controller = Watching()
    make_runner(proposer=NGram(2), controller=controller).run(progress=False)
    assert controller.seen[-1] > 10_000
    assert gc.get_freeze_count() == 0
