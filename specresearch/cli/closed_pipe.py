"""What is printed into a pipe that nobody reads any more, as with `| head -1`, is dropped."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def closed_pipe_is_no_error() -> Iterator[None]:
    """Print what the block prints, as far as stdout is read."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes stdout once more as it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
