"""Did speculation change what the target says? Token for token for greedy runs, by the rule's own proof for sampled ones."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from specresearch.bench.records import BASELINE, METHOD, RequestRow
from specresearch.models import CausalLM

MAX_EXAMINED = 8
ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 3e-2}


@dataclass(frozen=True)
class LogitGap:
    """Between the target's two likeliest tokens at some position; scale: the largest logit there."""

    gap: float
    scale: float
    dtype: str
    is_rounding: bool

    @staticmethod
    def after(target: CausalLM, token_ids: Sequence[int]) -> "LogitGap":
        """is_rounding: the gap is so small that a different order of summation may swap the two tokens."""
        slot = target.acquire()
        assert slot is not None
        try:
            logits = target.extend([slot], [list(token_ids)]).logits[0, 0].double()
        finally:
            target.release(slot)
        first, second = logits.topk(2).values.tolist()
        scale = float(logits.abs().max())
        dtype = str(target.dtype).removeprefix("torch.")
        return LogitGap(first - second, scale, dtype, first - second <= ROUNDING.get(target.dtype, 3e-2) * scale)


@dataclass(frozen=True)
class Difference:
    """The first token in which two outputs differ; -1 stands for an output that had ended."""

    repeat: int
    request: str
    position: int
    baseline_token: int
    method_token: int
    logits: LogitGap | None = None

    def __str__(self) -> str:
        text = f"request {self.request}, token {self.position}: {self.baseline_token} became {self.method_token}"
        if self.logits is None:
            return text
        cause = f"within {self.logits.dtype} rounding" if self.logits.is_rounding else "more than rounding explains"
        return f"{text}; the target's two best logits are {self.logits.gap:.2g} apart there, {cause}"


@dataclass(frozen=True)
class OutputComparison:
    """statement: the finding in words. num_compared, num_equal: requests; zero for sampled runs."""

    statement: str
    num_compared: int = 0
    num_equal: int = 0
    differences: tuple[Difference, ...] = ()

    @staticmethod
    def of_nothing() -> "OutputComparison":
        return OutputComparison("plain decoding only; add +proposer=... to measure a method")

    @staticmethod
    def sampled(rule: str, *, lossless: bool) -> "OutputComparison":
        if lossless:
            return OutputComparison(f"same distribution by construction (lossless rule {rule})")
        return OutputComparison(f"distribution may differ from the target's (rule {rule} is not lossless)")

    @staticmethod
    def greedy(
        requests: Iterable[RequestRow], logit_gap: Callable[[RequestRow, int], LogitGap] | None = None
    ) -> "OutputComparison":
        """logit_gap(row, position): the target's gap where the baseline's row chose output token `position`."""
        rows = list(requests)
        baseline = {(row.place.repeat, row.id): row for row in rows if row.place.side == BASELINE}
        pairs = [(baseline[row.place.repeat, row.id], row) for row in rows if row.place.side == METHOD]
        unequal = [(plain, fast) for plain, fast in pairs if plain.token_ids != fast.token_ids]
        differences = []
        for plain, fast in unequal[:MAX_EXAMINED]:
            position = _first_difference(plain.token_ids, fast.token_ids)
            tokens = [_at(row.token_ids, position) for row in (plain, fast)]
            gap = logit_gap(plain, position) if logit_gap is not None else None
            differences.append(Difference(plain.place.repeat, plain.id, position, tokens[0], tokens[1], gap))
        num, equal = len(pairs), len(pairs) - len(unequal)
        if not pairs:
            statement = "no outputs to compare yet"
        elif not unequal:
            statement = f"output unchanged: {num} of {num} greedy outputs equal token for token"
        else:
            statement = f"OUTPUT CHANGED: {equal} of {num} greedy outputs equal; first difference in {differences[0]}"
        return OutputComparison(statement, num, equal, tuple(differences))

    @property
    def figures(self) -> dict[str, Any]:
        return {
            "outputs_equal": self.num_equal == self.num_compared if self.num_compared else None,
            "num_outputs_equal": self.num_equal if self.num_compared else None,
            "num_outputs_compared": self.num_compared,
            "output_statement": self.statement,
            "output_differences": [asdict(difference) for difference in self.differences],
        }


def _first_difference(ours: Sequence[int], theirs: Sequence[int]) -> int:
    pairs = zip(ours, theirs, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(ours), len(theirs)))


def _at(tokens: Sequence[int], position: int) -> int:
    return tokens[position] if position < len(tokens) else -1
