"""How the tokens of one request are chosen, validated on construction."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, cast

import numpy as np

LARGEST_SEED = (1 << 64) - 1
MOST_BIAS = 100
COLDEST, HOTTEST = 1e-5, 1e5  # temperatures, besides 0


@dataclass(frozen=True)
class _NumberRule:
    """The values that one numeric parameter may take.

    Attributes:
        meaning: The allowed values in words, for the error.
        or_zero: 0 is allowed besides the range.
        open_low: `low` itself is excluded.
        open_high: `high` itself is excluded.
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

    def parse(self, value: Any) -> Any:
        """Return the value as a Python number; raises ValueError unless it is allowed."""
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
        is_above = value > self.low if self.open_low else value >= self.low
        is_below = value < self.high if self.open_high else value <= self.high
        return bool(is_above and is_below)


_NUMBER_RULES = (
    _NumberRule("temperature", COLDEST, HOTTEST, "from 1e-5 to 1e5, or 0 (greedy)", or_zero=True),
    _NumberRule("top_k", 0, math.inf, "from 0 (off)", integer=True),
    _NumberRule("top_p", 0, 1, "in (0, 1]; 1 turns it off", open_low=True),
    _NumberRule("min_p", 0, 1, "in [0, 1); 0 turns it off", open_high=True),
    _NumberRule("repetition_penalty", 0.01, 100, "from 0.01 to 100; 1 turns it off"),
    _NumberRule("presence_penalty", -1e4, 1e4, "from -1e4 to 1e4; 0 turns it off"),
    _NumberRule("frequency_penalty", -1e4, 1e4, "from -1e4 to 1e4; 0 turns it off"),
    _NumberRule(
        "seed", 0, LARGEST_SEED, "from 0 to 2**64 - 1, or null", integer=True, optional=True
    ),
    _NumberRule("max_new_tokens", 1, math.inf, "from 1", integer=True),
    _NumberRule("logprobs", 0, math.inf, "from 0, or null", integer=True, optional=True),
    _NumberRule("draft_threshold", 0, 1, "in [0, 1] (a probability), or null", optional=True),
)


def _tuple_of(name: str, values: Any, kind: type, noun: str) -> tuple[Any, ...]:
    """Return the values, or a single value, as a tuple; raises ValueError for another type."""
    try:
        items = tuple(values)
    except TypeError:
        items = (values,)
    for item in items:
        if not isinstance(item, kind) or isinstance(item, bool):
            raise ValueError(
                f"sampling.{name}={values!r} must be a list of {noun}; {item!r} is not one"
            )
    return items


def _pairs_of(bias: Any) -> tuple[tuple[int, float], ...]:
    """Return a logit bias as sorted pairs; raises ValueError if it is none."""
    pairs = sorted(bias.items() if isinstance(bias, Mapping) else bias)
    for token, value in pairs:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not isinstance(token, int) or isinstance(token, bool) or token < 0:
            raise ValueError(f"sampling.logit_bias has {token!r}, which is no token id")
        if not is_number or not abs(value) <= MOST_BIAS:
            raise ValueError(
                f"sampling.logit_bias of token {token} is {value!r}; it must be a number from "
                f"-{MOST_BIAS} to {MOST_BIAS}"
            )
    return tuple((token, float(value)) for token, value in pairs)


@dataclass(frozen=True)
class SamplingParams:
    """How the tokens of one request are chosen.

    Applied in this order: bias, penalties, temperature, top-k, top-p, min-p.

    Attributes:
        temperature: 0 is greedy.
        top_k: 0 is off.
        top_p: In (0, 1]; 1 is off.
        min_p: In [0, 1). Drops tokens less likely than `min_p` times the likeliest.
        repetition_penalty: Divides the positive and multiplies the negative logits of tokens in
            the prompt or the output.
        presence_penalty: Subtracted once from the logits of output tokens.
        frequency_penalty: Subtracted from the logits of output tokens for each occurrence.
        seed: Fixes the request's draws. None derives one from the engine's seed and the number
            of the submission. `Engine.isolates_requests` tells what a seed guarantees.
        stop: Strings that end the output, which is cut before them.
        stop_token_ids: Token ids that end the output, which keeps them.
        logprobs: The number of alternatives to report beside each token's own log-probability
            (from raw logits), or None for no report.
        logit_bias: Added to the logits of these token ids, before penalties.
        draft_threshold: The drafter's probability that acceptance=threshold asks of a token. None
            uses the rule's own.

    Raises:
        ValueError: For a value of the wrong type or out of range.
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
    logit_bias: Mapping[int, float] | Sequence[tuple[int, float]] = ()

    def __post_init__(self) -> None:
        stop = (self.stop,) if isinstance(self.stop, str) else self.stop
        self._set("stop", _tuple_of("stop", stop, str, "strings"))
        token_ids = _tuple_of("stop_token_ids", self.stop_token_ids, Integral, "token ids")
        self._set("stop_token_ids", tuple(map(int, token_ids)))
        for rule in _NUMBER_RULES:
            self._set(rule.name, rule.parse(getattr(self, rule.name)))
        self._set("logit_bias", _pairs_of(self.logit_bias))
        if not isinstance(self.ignore_eos, bool):
            raise ValueError(f"sampling.ignore_eos={self.ignore_eos!r} must be true or false")
        if not all(self.stop):
            raise ValueError(
                f"sampling.stop={self.stop!r} must not hold an empty string, "
                "which would stop every output at once"
            )

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0

    @property
    def token_biases(self) -> tuple[tuple[int, float], ...]:
        """The logit bias as pairs of token id and number, sorted."""
        return cast(tuple[tuple[int, float], ...], self.logit_bias)

    @property
    def has_penalty(self) -> bool:
        """Whether the logits of some tokens are changed."""
        penalties = (self.repetition_penalty, self.presence_penalty, self.frequency_penalty)
        return penalties != (1.0, 0.0, 0.0) or bool(self.logit_bias)
