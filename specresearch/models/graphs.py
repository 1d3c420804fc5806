"""Functions of tensors as CUDA graphs: captured once, then launched as one.

A graph replays kernels at fixed addresses. So what a function reads is copied into buffers that
stay, padded to a few sizes, and whatever the host decides is part of the graph's key. Elsewhere
than on a GPU the function itself runs on the same buffers, so that everything but the capture is
tested on every machine.
"""

import gc
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import torch
from jaxtyping import Shaped
from torch import Tensor

from specresearch.models.kv_cache import available_bytes
from specresearch.models.load_errors import first_line

logger = logging.getLogger(__name__)

Tensors = tuple[Tensor, ...]
NUM_WARMUPS = 2
RESERVE = 1 << 30  # bytes of a GPU that are left free
# Of the largest number, between a replay and the function. Doubles may be token ids.
TOLERANCE = {torch.float64: 1e-9}
COARSE = 0.05  # otherwise


@dataclass(frozen=True)
class GraphInput:
    """What a function reads.

    Attributes:
        values: Copied into the leading corner of a buffer.
        padding: Makes what the buffer holds at first; behind the corner, it may later hold values
            of earlier calls. None: the buffer has the shape of the values.
    """

    values: Shaped[Tensor, "*shape"]
    padding: Callable[[], Shaped[Tensor, "*padded"]] | None = None

    @staticmethod
    def padded(
        values: Shaped[Tensor, "*shape"], shape: Sequence[int], fill: int = 0
    ) -> "GraphInput":
        """Pad the first axes to `shape` with a number."""
        whole = (*shape, *values.shape[len(shape) :])
        return GraphInput(values, lambda: values.new_full(whole, fill))

    def buffer(self) -> Shaped[Tensor, "*padded"]:
        whole = self.values if self.padding is None else self.padding()
        return whole.clone(memory_format=torch.contiguous_format)


class _Pool:
    """Memory that graphs share; once they are all gone, its handle serves no further capture."""

    def __init__(self) -> None:
        self.handle: Any = torch.cuda.graph_pool_handle()


_pools: WeakValueDictionary[torch.device, _Pool] = WeakValueDictionary()


@dataclass(frozen=True)
class _Graph:
    """A capture, and what must stay in memory for it.

    Attributes:
        function: Holds the tensors that it reads beside its inputs.
        pool: Lives as long as any graph that was captured into it.
    """

    inputs: Tensors
    replay: Callable[[], Tensors]
    function: Callable[..., Tensors]
    pool: _Pool | None = None


class Graphs:
    """Graphs of one device, by key.

    A function that cannot be captured, or whose replay gives other numbers, runs as it is from then
    on, and so does everything new once memory is short; a warning says so once.

    Args:
        around: Returns a context for every run of a function, such as `CompiledLayers.running`.

    Attributes:
        num_bytes: Memory that captures have taken, beside the buffers.
        refused: Keys of what runs as it is.
        paused: Stops a clock for the duration of a capture, which takes many times as long as what
            it captures and happens once.
    """

    def __init__(
        self,
        device: torch.device,
        around: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.device = device
        self.around = around
        self.num_bytes = 0
        self.paused: Callable[..., AbstractContextManager[None]] = _running
        self._graphs: dict[tuple[Any, ...], _Graph] = {}
        self.refused: set[tuple[Any, ...]] = set()

    def __len__(self) -> int:
        return len(self._graphs)

    @property
    def keys(self) -> tuple[tuple[Any, ...], ...]:
        """The keys of all graphs, in the order of their captures."""
        return tuple(self._graphs)

    def clear(self) -> None:
        """Drop all graphs, as when memory that they read moves."""
        self._graphs.clear()
        self.refused.clear()
        self.num_bytes = 0

    def run(
        self,
        key: tuple[Any, ...],
        function: Callable[..., Tensors],
        inputs: Sequence[GraphInput],
        crop: Callable[[Tensors], Tensors] = lambda outputs: outputs,
    ) -> Tensors:
        """Return what the function makes of the inputs.

        Args:
            key: Names the function and everything it depends on beside the inputs.
            function: Takes the padded inputs. It must never wait for the device, and what it reads
                of the host must not change under this key.
            crop: Drops what comes of padding from the outputs.
        """

        def run(*buffers: Tensor) -> Tensors:
            with self.around():
                return function(*buffers)

        graph = self._graphs.get(key)
        if graph is None:
            buffers = tuple([part.buffer() for part in inputs])
            _fill(buffers, inputs)
            if key in self.refused:
                return crop(run(*buffers))
            return self._capture(key, run, buffers, crop)
        _fill(graph.inputs, inputs)
        return _cloned(crop(graph.replay()))

    def _capture(
        self,
        key: tuple[Any, ...],
        function: Callable[..., Tensors],
        buffers: Tensors,
        crop: Callable[[Tensors], Tensors],
    ) -> Tensors:
        """Run the function, and keep it as a graph."""
        if self.device.type != "cuda":
            self._graphs[key] = _Graph(buffers, lambda: function(*buffers), function)
            return crop(function(*buffers))
        with self.paused(wait=True):
            graph = self._try_capture(key, function, buffers, crop)
        if graph is None:
            return crop(function(*buffers))
        self._graphs[key] = graph
        return _cloned(crop(graph.replay()))

    def _try_capture(
        self,
        key: tuple[Any, ...],
        function: Callable[..., Tensors],
        buffers: Tensors,
        crop: Callable[[Tensors], Tensors],
    ) -> _Graph | None:
        """Capture a function whose replay gives its own numbers; None if that cannot be."""
        if available_bytes(self.device) < RESERVE:
            self._refuse(key, f"less than {RESERVE / 1e9:.1f} GB of memory are free")
            return None
        expected = _cloned(crop(_warmed_up(function, buffers)))
        before = torch.cuda.memory_reserved(self.device)
        try:
            graph = _captured(function, buffers, self.device)
            if not all(map(_is_close, _cloned(crop(graph.replay())), expected)):
                raise RuntimeError("its replay gives other numbers")
        except (RuntimeError, AssertionError) as error:  # out of memory is a RuntimeError, too
            self._refuse(key, first_line(error))
            return None
        self.num_bytes += torch.cuda.memory_reserved(self.device) - before
        return graph

    def _refuse(self, key: tuple[Any, ...], reason: str) -> None:
        if not self.refused:
            logger.warning("some passes run without CUDA graphs: %s", reason)
        self.refused.add(key)


@contextmanager
def _running(*, wait: bool = False) -> Iterator[None]:
    """Stop no clock."""
    yield


def _fill(buffers: Tensors, inputs: Sequence[GraphInput]) -> None:
    for buffer, part in zip(buffers, inputs, strict=True):
        corner = tuple([slice(0, size) for size in part.values.shape])
        buffer[corner].copy_(part.values, non_blocking=True)


def _cloned(outputs: Tensors) -> Tensors:
    """Copy outputs: the next replay writes to the same memory."""
    return tuple([output.clone() for output in outputs])


def _warmed_up(function: Callable[..., Tensors], buffers: Tensors) -> Tensors:
    """Run the function aside, so that libraries set themselves up before the capture."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    outputs: Tensors = ()
    with torch.cuda.stream(stream):
        for _ in range(NUM_WARMUPS):
            outputs = function(*buffers)
    torch.cuda.current_stream().wait_stream(stream)
    return outputs


def _captured(function: Callable[..., Tensors], buffers: Tensors, device: torch.device) -> _Graph:
    pool, graph = _pools.setdefault(device, _Pool()), torch.cuda.CUDAGraph()
    try:
        with (
            _no_collections(),
            torch.cuda.graph(graph, pool=pool.handle, capture_error_mode="thread_local"),
        ):
            outputs = function(*buffers)
    except BaseException:  # an interruption, too
        _forget_capture(device)
        raise

    def replay() -> Tensors:
        graph.replay()
        return outputs

    return _Graph(buffers, replay, function, pool)


@contextmanager
def _no_collections() -> Iterator[None]:
    """Put garbage collections off: one that frees another graph makes a capture fail."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _forget_capture(device: torch.device) -> None:
    """Let a capture that failed harm nothing: torch keeps its pool and random numbers in use."""
    _pools.pop(device, None)
    index = torch.cuda.current_device() if device.index is None else device.index
    for generator in torch.cuda.default_generators[index : index + 1]:
        renewed = torch.Generator(device)
        renewed.set_state(generator.get_state())
        generator.graphsafe_set_state(renewed)


def _is_close(actual: Tensor, expected: Tensor) -> bool:
    if not expected.is_floating_point():
        return torch.equal(actual, expected)
    tolerance = TOLERANCE.get(expected.dtype, COARSE)
    actual, expected = actual.double().nan_to_num(), expected.double().nan_to_num()
    if expected.numel() == 0:
        return True
    largest = expected.abs().amax().clamp(min=1e-30)
    return bool((actual - expected).abs().amax() <= tolerance * largest)
