"""While something is measured, there are no full collections."""

import gc
import weakref
from collections.abc import Callable
from contextlib import nullcontext, suppress

import pytest

from specresearch import CausalLM, Engine, Request, SamplingParams
from specresearch.batch import Batch
from specresearch.bench.full_collections import no_full_collections
from specresearch.bench.runner import Runner
from specresearch.controllers import Fixed
from specresearch.proposers import NGram


class Knot:
    """Garbage that only a collection finds."""

    def __init__(self) -> None:
        self.itself = self


class Littering(Fixed):
    """Leaves much young garbage at every step, and counts full collections."""

    def __init__(self) -> None:
        super().__init__()
        self.num_full: list[int] = []

    def budget(self, batch: Batch) -> list[int | None]:
        kept = [[Knot()] for _ in range(20_000)]
        self.num_full.append(gc.get_stats()[-1]["collections"])
        del kept
        return super().budget(batch)


def test_all_is_as_before_whatever_happens() -> None:
    before = gc.get_threshold()
    old = Knot()
    gc.collect()
    garbage = weakref.ref(old)
    del old
    with suppress(KeyboardInterrupt), no_full_collections():
        assert garbage() is None
        assert gc.get_threshold() != before
        raise KeyboardInterrupt
    assert gc.get_threshold() == before


@pytest.mark.parametrize("is_kept_out", [True, False])
def test_full_collections_are_kept_out(is_kept_out: bool) -> None:
    """Without it, as many objects are followed by a full collection."""
    kept = []
    with no_full_collections() if is_kept_out else nullcontext():
        begin = gc.get_stats()[-1]["collections"]
        for _ in range(40):
            kept.append([[] for _ in range(50_000)])
        num_full = gc.get_stats()[-1]["collections"] - begin
    assert (num_full == 0) == is_kept_out


def test_young_garbage_is_still_collected() -> None:
    with no_full_collections():
        garbage = weakref.ref(Knot())
        kept = [[] for _ in range(50_000)]
        assert garbage() is None
        assert len(kept) == 50_000


def test_a_run_measures_so(make_runner: Callable[..., Runner]) -> None:
    controller = Littering()
    make_runner(proposer=NGram(2), controller=controller).run(progress=False)
    assert len(controller.num_full) > 3
    assert len(set(controller.num_full)) == 1


@pytest.mark.parametrize("proposer", [None, NGram(3)])
def test_decoding_leaves_no_garbage_that_only_a_collection_finds(
    proposer: NGram | None, target: CausalLM
) -> None:
    engine = Engine(target, proposer)
    requests = [Request([1, 2, 3, 1, 2], SamplingParams(1.0, max_new_tokens=8))] * 2
    engine.generate(requests)
    gc.collect()
    gc.disable()
    try:
        engine.generate(requests)
        assert gc.collect() == 0
    finally:
        gc.enable()
