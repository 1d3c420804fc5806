"""Keep long pauses of the garbage collector out of the measurement."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_NEVER = 2**31 - 1


@contextmanager
def no_full_collections() -> Iterator[None]:
    """Collect all garbage before the block, and only what is young inside it.

    A full collection scans whatever is alive, up to half a million objects of the libraries. That
    takes a fifth of a second, and falls on whichever side happens to be decoding. What grows old
    inside the block waits for its end; decoding leaves no garbage that only a collection finds.
    """
    gc.collect()
    young, middle, full = gc.get_threshold()
    gc.set_threshold(young, middle, _NEVER)
    try:
        yield
    finally:
        gc.set_threshold(young, middle, full)
