"""Keeps long pauses of the garbage collector out of what is measured."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def frozen_heap() -> Iterator[None]:
    """Collections inside leave out whatever was alive before. A full one otherwise walks half a million objects of the libraries,
    which takes a fifth of a second and falls on whichever side happens to be decoding."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
