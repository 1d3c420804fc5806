"""Keep long pauses of the garbage collector out of the measurement."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def frozen_heap() -> Iterator[None]:
    """Exclude all objects alive now from garbage collection inside the block.

    Otherwise a full collection scans half a million objects of the libraries, which takes a fifth
    of a second and falls on whichever side happens to be decoding.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
