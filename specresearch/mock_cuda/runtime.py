"""The parts of `torch.cuda` that the pretended device answers for."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch
from weakref import WeakSet

import torch

from specresearch.mock_cuda.activity import Activity, CapturedOperation

CAPABILITY = (9, 0)
MEMORY = 80 << 30  # bytes


class MockStream:
    """The one stream of the device."""

    def __init__(self, activity: Activity) -> None:
        self._activity = activity

    def synchronize(self) -> None:
        self._activity.wait("Stream.synchronize")

    def wait_stream(self, stream: "MockStream") -> None:
        pass


class MockPool:
    """The handle of a memory pool of graphs."""

    def __init__(self) -> None:
        self.graphs: WeakSet[MockGraph] = WeakSet()
        self.is_used = False


class MockGraph:
    """A graph, whose replay is one launch."""

    def __init__(self, activity: Activity) -> None:
        self._activity = activity
        self.operations: list[CapturedOperation] = []

    @contextmanager
    def capture(self, pool: MockPool) -> Iterator[None]:
        """Note the operations of this block.

        Raises:
            RuntimeError: If the graphs of the pool are all gone.
        """
        if pool.is_used and not pool.graphs:
            raise RuntimeError("use_count > 0 INTERNAL ASSERT FAILED")
        pool.is_used = True
        pool.graphs.add(self)
        self._activity.captured = self.operations
        try:
            yield
        finally:
            self._activity.captured = None

    def replay(self) -> None:
        self._activity.launch("graph")
        for operation in self.operations:
            operation.replay()


class MockEvent:
    """A mark in the stream, done as soon as the host has waited for anything queued after it."""

    def __init__(self, activity: Activity) -> None:
        self._activity = activity
        self._position = 0
        self._seconds = 0.0

    def record(self, stream: MockStream | None = None) -> None:
        self._activity.num_queued += 1
        self._position = self._activity.num_queued
        self._seconds = time.perf_counter()

    def query(self) -> bool:
        return self._position <= self._activity.num_done

    def synchronize(self) -> None:
        if not self.query():
            self._activity.wait("Event.synchronize")

    def elapsed_time(self, end: "MockEvent") -> float:
        """Return milliseconds between two marks; RuntimeError unless both are done."""
        if not (self.query() and end.query()):
            raise RuntimeError("both events must be completed before calculating elapsed time")
        return (end._seconds - self._seconds) * 1e3


@contextmanager
def mocked_runtime(activity: Activity, free: int = MEMORY) -> Iterator[None]:
    """Let `torch.cuda` speak for the pretended device in this block.

    Args:
        free: Bytes of its memory that are free.
    """
    stream = MockStream(activity)
    answers: dict[str, Any] = {
        "_lazy_init": lambda: None,
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "is_bf16_supported": lambda including_emulation=True: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_name": lambda device=None: "pretended CUDA device",
        "get_device_capability": lambda device=None: CAPABILITY,
        "get_device_properties": lambda device=None: SimpleNamespace(
            name="pretended CUDA device",
            major=CAPABILITY[0],
            minor=CAPABILITY[1],
            total_memory=MEMORY,
            multi_processor_count=132,
        ),
        "mem_get_info": lambda device=None: (free, MEMORY),
        "memory_allocated": lambda device=None: 0,
        "memory_reserved": lambda device=None: 0,
        "max_memory_allocated": lambda device=None: 0,
        "reset_peak_memory_stats": lambda device=None: None,
        "empty_cache": lambda: None,
        "Event": lambda enable_timing=False, **_: MockEvent(activity),
        "current_stream": lambda device=None: stream,
        "Stream": lambda device=None: stream,
        "stream": lambda stream: nullcontext(),
        "CUDAGraph": lambda: MockGraph(activity),
        "graph": lambda graph, pool=None, **_: graph.capture(pool or MockPool()),
        "graph_pool_handle": MockPool,
        "synchronize": lambda device=None: activity.wait("torch.cuda.synchronize"),
    }
    with ExitStack() as patches:
        for name, answer in answers.items():
            patches.enter_context(patch.object(torch.cuda, name, answer))
        yield
