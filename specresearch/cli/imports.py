"""Import the large libraries faster, and without their warnings."""

import gc
import logging
from collections.abc import Iterator
from contextlib import contextmanager

# Of kernels for other devices, and of types that they register in an old way.
CHATTY = ("torchao", "torch.utils._pytree")


@contextmanager
def quick_imports() -> Iterator[None]:
    """Import quietly, without collecting garbage, and never look at what was imported again.

    Imports create about a million objects that live on. Collections that scan them find nothing,
    and take a fifth of the time until a model is loaded.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    for name in CHATTY:
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        yield
    finally:
        for name in CHATTY:
            logging.getLogger(name).setLevel(logging.NOTSET)
        if not gc.get_freeze_count():  # later calls, as of a sweep's jobs, would keep garbage
            gc.freeze()
        if was_enabled:
            gc.enable()
