"""How one request wants its tokens chosen, checked when it is said."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np

LARGEST_SEED = (1 << 64) - 1


@dataclass(frozen=True)
class _Rule:
    """What one number among the settings may be.

    low, high: bounds, included unless `open_low` or `open_high`. or_zero: 0 is allowed too.
    """

    name: str
    low: int | float
    high: int | float
    meaning: str
    integer: bool = False
    optional: bool = False
    or_zero: bool = False
    open_low: bool = False
    open_high: bool = False

    def read(self, value: Any) -> Any:
        """The value as a Python number. Raises ValueError for what is no such number."""
        if value is None and self.optional:
            return None
        kinds = (int, np.integer) if self.integer else (int, float, np.integer, np.floating)
        if isinstance(value, bool) or not isinstance(value, kinds) or not self._allows(value):
            noun = "a whole number" if self.integer else "a number"
            raise ValueError(f"sampling.{self.name}={value!r} must be {noun} {self.meaning}")
        return int(value) if self.integer else float(value)

    def _allows(self, value: Any) -> bool:
        if self.or_zero and value == 0:
            return True
        above = value > self.low if self.open_low else value >= self.low
        return bool(above and (value < self.high if self.open_high else value <= self.high))


_RULES = (
    _Rule("temperature", 1e-5, 1e5, "from 1e-5 to 1e5, or 0 (greedy)", or_zero=True),
    _Rule("top_k", 0, math.inf, "from 0 (off)", integer=True),
    _Rule("top_p", 0, 1, "in (0, 1]; 1 turns it off", open_low=True),
    _Rule("min_p", 0, 1, "in [0, 1); 0 turns it off", open_high=True),
    _Rule("repetition_penalty", 0.01, 100, "from 0.01 to 100; 1 turns it off"),
    _Rule("presence_penalty", -1e4, 1e4, "from -1e4 to 1e4; 0 turns it off"),
    _Rule("frequency_penalty", -1e4, 1e4, "from -1e4 to 1e4; 0 turns it off"),
    _Rule("seed", 0, LARGEST_SEED, "from 0 to 2**64 - 1, or null", integer=True, optional=True),
    _Rule("max_new_tokens", 1, math.inf, "from 1", integer=True),
    _Rule("logprobs", 0, math.inf, "from 0, or null", integer=True, optional=True),
    _Rule(
        "draft_threshold",
        0,
        1,
        "in [0, 1], for it is compared with a probability, or null",
        optional=True,
    ),
)


def _tuple_of(name: str, values: Any, kind: type, noun: str) -> tuple[Any, ...]:
    try:
        found = tuple(values)
    except TypeError:
        found = (values,)
    strange = [value for value in found if not isinstance(value, kind) or isinstance(value, bool)]
    if strange:
        raise ValueError(
            f"sampling.{name}={values!r} must be a list of {noun}; {strange[0]!r} is none"
        )
    return found


@dataclass(frozen=True)
class SamplingParams:
    """Per-request settings. Raises ValueError for a value of the wrong type or out of range.

    temperature: 0 is greedy. top_k: 0 is off. top_p in (0, 1]. min_p in [0, 1): drop tokens less likely than min_p times
    the likeliest. Applied in this order: penalties, temperature, top-k, top-p, min-p.
    repetition_penalty: divides (multiplies, when negative) the logits of tokens in prompt or output.
    presence_penalty, frequency_penalty: subtracted from the logits of output tokens, once / once per occurrence.
    seed: fixes the request's draws; None derives one from the engine's seed and the number of the
    submission. What a seed promises depends on the engine: see `Engine.isolates_requests`.
    stop: strings that end the output, which is cut before them; stop_token_ids: token ids that end it, kept.
    logprobs: None, or the number of alternatives to report beside each token's own log-probability (raw logits).
    draft_threshold: how sure the drafter must be of a token for acceptance=threshold; None takes the rule's own.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    max_new_tokens: int = 128
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    draft_threshold: float | None = None

    def __post_init__(self) -> None:
        stop = (self.stop,) if isinstance(self.stop, str) else self.stop
        self._set("stop", _tuple_of("stop", stop, str, "strings"))
        ends = _tuple_of("stop_token_ids", self.stop_token_ids, Integral, "token ids")
        self._set("stop_token_ids", tuple(map(int, ends)))
        for rule in _RULES:
            self._set(rule.name, rule.read(getattr(self, rule.name)))
        if not isinstance(self.ignore_eos, bool):
            raise ValueError(f"sampling.ignore_eos={self.ignore_eos!r} must be true or false")
        if not all(self.stop):
            raise ValueError(
                f"sampling.stop={self.stop!r} must not hold an empty string, which would stop every output at once"
            )

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0

    @property
    def has_penalty(self) -> bool:
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (
            1.0,
            0.0,
            0.0,
        )
