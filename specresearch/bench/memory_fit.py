"""How many requests, and how long a context, fit into free memory: `batch_size=auto`."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from specresearch.bench.decoding_memory import Available, DecodingMemory, Forecast
from specresearch.bench.formatting import amount
from specresearch.engine.memory_relief import REMEDY
from specresearch.models.load_errors import first_line
from specresearch.models.memory import is_out_of_memory
from specresearch.results.folder import RunFolder

logger = logging.getLogger(__name__)

AUTO = "auto"
RESERVE = {"cuda": 0.1, "cpu": 0.5}  # share of free memory that is left to others
MOST_RUNNING = {"cuda": 256, "cpu": 16}  # a larger batch is seldom faster there
MIN_PROMPT = 32  # tokens that a shortened context leaves beside the longest output


@dataclass(frozen=True)
class MemoryFit:
    """What was chosen, what it takes, and why.

    Attributes:
        num_running: Requests of each side that decode together.
        max_len: The longest context in tokens.
        reason: Why it is not more; None if nothing was chosen.
    """

    num_running: int
    max_len: int
    memory: DecodingMemory
    available: Available
    reason: str | None = None

    def describe(self) -> str:
        """Return the forecast in one line."""
        memory = self.memory
        weights, caches = [amount(memory.target_weights)], [amount(memory.target_cache)]
        if memory.draft_weights:
            weights.append(f"{amount(memory.draft_weights)} (drafter)")
        if memory.draft_cache:
            caches.append(f"{amount(memory.draft_cache)} (drafter)")
        requests = f"{self.num_running} request{'' if self.num_running == 1 else 's'}"
        state = f", state {amount(memory.draft_state)}" if memory.draft_state else ""
        return (
            f"memory forecast for {requests} of up to {self.max_len} tokens: weights "
            f"{' + '.join(weights)}, loaded already; on top of them caches {' + '.join(caches)}"
            f"{state}, and at most {amount(memory.passes)} for a pass (prefill "
            f"{amount(max(memory.target_prefill, memory.draft_prefill))}, step "
            f"{amount(memory.step)}): {amount(memory.additional)}, with "
            f"{amount(self.available.total)} free"
        )

    def to_json(self) -> dict[str, Any]:
        """Return what results keep as provenance."""
        return {
            "num_running": self.num_running,
            "max_len": self.max_len,
            "foretold": self.memory.by_part(),
            "available": self.available.total,
            "reserve": self.available.reserve,
            "reason": self.reason,
        }


def fit_as_set(forecast: Forecast, num_running: int) -> MemoryFit:
    """Return what a given number of requests takes, whether or not it fits."""
    available = _available(forecast)
    return MemoryFit(num_running, forecast.target.max_len, forecast.of(num_running), available)


def choose_fit(
    forecast: Forecast,
    limits: Mapping[str, int],
    max_new_tokens: int,
    *,
    may_shorten: bool = True,
) -> MemoryFit:
    """Choose the largest number of requests that fits and, if not even one does, the context.

    A shorter context becomes the target's `max_len`.

    Args:
        limits: Other reasons for a smaller number, and the most requests that each allows.
        max_new_tokens: The longest output, for which a shorter context must have room.
        may_shorten: Whether the context may be shortened.

    Raises:
        MemoryError: If not even one request fits.
    """
    target, available = forecast.target, _available(forecast)
    kind = target.device.type
    limits = {**limits, f"more are seldom faster on {_NAMES[kind]}": MOST_RUNNING[kind]}
    why, most = min(limits.items(), key=lambda limit: limit[1])
    number = _largest(0, most, lambda number: available.holds(forecast.of(number)))
    if number:
        if number < most:
            why = f"one more would leave less than {available.reserve:.0%} of free memory"
        return MemoryFit(number, target.max_len, forecast.of(number), available, why)
    least = max_new_tokens + MIN_PROMPT
    max_len = _largest(
        least - 1, target.max_len, lambda length: available.holds(forecast.of(1, length))
    )
    if max_len < least or not may_shorten:
        raise MemoryError(_too_little(forecast, available, least))
    why = f"a context of {target.max_len} tokens does not fit even once, one of {max_len} does"
    forecast.set_max_len(max_len)
    return MemoryFit(1, max_len, forecast.of(1, max_len), available, why)


@dataclass(frozen=True)
class BatchSetting:
    """A setting of how many requests decode together.

    Attributes:
        key: Its name.
        value: The number, or `AUTO`.
        folder: Where a number that is chosen takes the setting's place; a resumed run keeps it.
        num_requests: The most requests that are there at once.
        max_step_tokens: The scheduler's limit.
    """

    key: str
    value: int | str
    folder: RunFolder
    num_requests: int
    max_step_tokens: int | None = None

    def fit(
        self, forecast: Forecast, max_new_tokens: int, *, may_shorten: bool = True
    ) -> MemoryFit:
        """Return the number and what it will take.

        Args:
            max_new_tokens: As in `choose_fit`, like `may_shorten`.

        Raises:
            MemoryError: As `choose_fit`.
        """
        value, folder = self.value, self.folder
        if value == AUTO and folder.is_resumed:
            value = folder.config[self.key]
            forecast.set_max_len(folder.provenance()["target"]["max_len"])
        if value != AUTO:
            return fit_as_set(forecast, min(int(value), self.num_requests))
        limits = {"there are no more requests": self.num_requests}
        if self.max_step_tokens is not None:
            reason = f"scheduler.max_step_tokens={self.max_step_tokens} must exceed it"
            limits[reason] = self.max_step_tokens - 1
        fit = choose_fit(forecast, limits, max_new_tokens, may_shorten=may_shorten)
        folder.config[self.key] = fit.num_running
        return fit

    def log(self, fit: MemoryFit) -> None:
        """Say what was chosen and what it takes."""
        if fit.reason is not None:
            logger.info("%s=auto is %d: %s", self.key, fit.num_running, fit.reason)
        logger.info("%s", fit.describe())


def shortage_of(error: Exception) -> MemoryError:
    """Return an error about memory as one sentence; raise any other again."""
    if isinstance(error, MemoryError):
        return error
    if not is_out_of_memory(error):
        raise error
    return MemoryError(f"out of memory ({first_line(error)}); {REMEDY}")


def _available(forecast: Forecast) -> Available:
    return Available.of(forecast, RESERVE[forecast.target.device.type])


_NAMES = {"cuda": "a GPU", "cpu": "a CPU"}


def _largest(least: int, most: int, fits: Callable[[int], bool]) -> int:
    """Return the largest number up to `most` that fits; `least` if no larger one does.

    Whatever is smaller than a number that fits must fit too.
    """
    while least < most:
        middle = (least + most + 1) // 2
        if fits(middle):
            least = middle
        else:
            most = middle - 1
    return least


def _too_little(forecast: Forecast, available: Available, least: int) -> str:
    full, short = forecast.of(1), forecast.of(1, min(least, forecast.target.max_len))
    return (
        f"not even one request fits: it needs {full.additional:,} bytes on top of the weights with "
        f"target.max_len={forecast.target.max_len}, or {short.additional:,} with the shortest "
        f"context, and {available.usable:,} of {available.total:,} free bytes may be used; lower "
        "sampling.max_new_tokens and target.max_len, or use a smaller dtype, target.quantization "
        "or a smaller drafter"
    )
