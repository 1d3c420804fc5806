"""Did speculation change what the target says? Token for token for greedy runs, by scores of every token for sampled ones."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from specresearch.bench.output_check import CHANGED, OutputScores
from specresearch.bench.rows import GroupRow
from specresearch.metrics import Counts
from specresearch.models import CausalLM
from specresearch.rows import BASELINE, METHOD, RequestRow

MAX_EXAMINED = 8
SHAPES = ((1, 1), (1, 5), (1, 11), (2, 1), (2, 11))  # requests, nodes
TAIL = 24  # tokens
MAX_ROUNDINGS = 4  # a gap within so many of the largest change seen is a tie
ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 3e-2}


@dataclass(frozen=True)
class LogitGap:
    """Between the target's two likeliest tokens at some position.

    scale: the largest logit there. rounding: by how much such a gap changes with the shape of the pass, where it was
    measured. is_rounding: the gap is so small that a different order of summation may swap the two tokens.
    """

    gap: float
    scale: float
    dtype: str
    is_rounding: bool
    rounding: float | None = None

    @staticmethod
    def after(
        target: CausalLM, token_ids: Sequence[int], rounding: float | None = None
    ) -> "LogitGap":
        """Without a measured `rounding`, what is usual for the data type decides."""
        slot = target.acquire()
        assert slot is not None
        try:
            logits = target.extend([slot], [list(token_ids)]).logits[0, 0].double()
        finally:
            target.release(slot)
        first, second = logits.topk(2).values.tolist()
        scale = float(logits.abs().max())
        dtype = str(target.dtype).removeprefix("torch.")
        usual = ROUNDING.get(target.dtype, 3e-2) * scale
        resolution = torch.finfo(target.dtype).eps * scale
        limit = usual if rounding is None else MAX_ROUNDINGS * max(rounding, resolution)
        return LogitGap(first - second, scale, dtype, first - second <= limit, rounding)


@torch.inference_mode()
def measure_rounding(target: CausalLM, contexts: Iterable[Sequence[int]]) -> float:
    """The most that the gap between the two likeliest tokens changed between passes of different shapes.

    The end of every context is fed one token at a time, several at a time, and with a second request beside it where there
    is a slot for one.
    """
    worst = 0.0
    for context in contexts:
        slots = [slot for slot in (target.acquire(), target.acquire()) if slot is not None]
        tail = min(TAIL, len(context) - 1)
        try:
            target.extend(slots, [list(context[:-tail])] * len(slots), want_logits=False)
            rows = [
                _after_tail(target, slots[:n], context[-tail:], num)
                for n, num in SHAPES
                if n <= len(slots)
            ]
        finally:
            for slot in slots:
                target.release(slot)
        best = rows[0].topk(2).indices
        gaps = torch.stack([row[best[0]] - row[best[1]] for row in rows])
        worst = max(worst, float(gaps.max() - gaps.min()))
    return worst


def _after_tail(
    target: CausalLM, slots: Sequence[int], tail: Sequence[int], num_nodes: int
) -> Float[Tensor, " V"]:
    """The logits after tokens that are fed `num_nodes` at a time, and forgotten again."""
    before = [target.lengths[slot] for slot in slots]
    logits = torch.empty(0)
    for begin in range(0, len(tail), num_nodes):
        logits = target.extend(slots, [list(tail[begin : begin + num_nodes])] * len(slots)).logits
    target.truncate(slots, before)
    return logits[0, 0].double()


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
        if self.logits.rounding is not None:
            units = self.logits.gap / self.logits.rounding if self.logits.rounding else float("inf")
            cause = "a tie" if self.logits.is_rounding else "NOT A TIE: an error"
            return (
                f"{text}; the target's two best logits are {self.logits.gap:.2g} apart there, {units:.2g} times what the shape "
                f"of a pass changes in {self.logits.dtype}: {cause}"
            )
        cause = (
            f"within {self.logits.dtype} rounding"
            if self.logits.is_rounding
            else "more than rounding explains"
        )
        return (
            f"{text}; the target's two best logits are {self.logits.gap:.2g} apart there, {cause}"
        )


@dataclass(frozen=True)
class OutputComparison:
    """statement: the finding in words. num_compared, num_equal: requests; zero for sampled runs. scores, baseline: of the two
    sides' sampled outputs, where they were checked."""

    statement: str
    num_compared: int = 0
    num_equal: int = 0
    differences: tuple[Difference, ...] = ()
    scores: OutputScores | None = None
    baseline: OutputScores | None = None

    @property
    def num_ties(self) -> int:
        """Examined differences that rounding explains."""
        return sum(d.logits is not None and d.logits.is_rounding for d in self.differences)

    @property
    def p_values(self) -> tuple[float, ...]:
        """Of the side's sampled outputs and of plain decoding's; empty where they were not checked."""
        return tuple(
            scores.p_value for scores in (self.scores, self.baseline) if scores is not None
        )

    @property
    def is_wrong(self) -> bool:
        """Whether it differs by more than rounding explains, or is no sample of the target's distribution."""
        return self.num_equal + self.num_ties < self.num_compared or any(
            p < CHANGED for p in self.p_values
        )

    @staticmethod
    def of_nothing() -> "OutputComparison":
        return OutputComparison("plain decoding only; add +proposer=... to measure a method")

    @staticmethod
    def sampled(
        rule: str,
        *,
        lossless: bool,
        output_tv: float | None = None,
        scores: OutputScores | None = None,
        baseline: OutputScores | None = None,
    ) -> "OutputComparison":
        """output_tv: how far a lossy rule moved the output, where that was measured. scores, baseline: see the class."""
        if lossless and scores is not None and baseline is not None:
            return OutputComparison(
                _statement(rule, scores, baseline), scores=scores, baseline=baseline
            )
        if lossless:
            return OutputComparison(
                f"the output's distribution was not checked (rule {rule} is lossless)"
            )
        if output_tv is not None:
            moved = f"moved from the target's by a total variation of {output_tv:.3f} per token"
            return OutputComparison(f"distribution {moved} (rule {rule} is not lossless)")
        return OutputComparison(
            f"distribution may differ from the target's (rule {rule} is not lossless)"
        )

    @staticmethod
    def of_samples(
        rule: str, requests: Iterable[RequestRow], groups: Sequence[GroupRow], *, lossless: bool
    ) -> "OutputComparison":
        """Compare the sampled outputs of a run's rows; rule: its name."""
        moved = Counts.total([row.counts for row in requests if row.key.side == METHOD]).output_tv
        scores, baseline = (_scores(groups, side) for side in (METHOD, BASELINE))
        return OutputComparison.sampled(
            rule, lossless=lossless, output_tv=moved, scores=scores, baseline=baseline
        )

    @staticmethod
    def greedy(
        requests: Iterable[RequestRow],
        logit_gap: Callable[[RequestRow, int], LogitGap] | None = None,
        max_examined: int | None = MAX_EXAMINED,
        side: str = METHOD,
    ) -> "OutputComparison":
        """logit_gap(row, position): the target's gap where the baseline's row chose output token `position`.

        max_examined: differences to look into; None for all.
        """
        rows = list(requests)
        baseline = {(row.key.repeat, row.id): row for row in rows if row.key.side == BASELINE}
        pairs = [(baseline[row.key.repeat, row.id], row) for row in rows if row.key.side == side]
        unequal = [(plain, fast) for plain, fast in pairs if plain.token_ids != fast.token_ids]
        differences = []
        for plain, fast in unequal[:max_examined]:
            position = _first_difference(plain.token_ids, fast.token_ids)
            tokens = [_at(row.token_ids, position) for row in (plain, fast)]
            gap = logit_gap(plain, position) if logit_gap is not None else None
            differences.append(
                Difference(plain.key.repeat, plain.id, position, tokens[0], tokens[1], gap)
            )
        num, equal = len(pairs), len(pairs) - len(unequal)
        if not pairs:
            statement = "no outputs to compare yet"
        elif not unequal:
            statement = f"output unchanged: {num} of {num} greedy outputs equal token for token"
        else:
            worst = next(
                (d for d in differences if d.logits is None or not d.logits.is_rounding),
                differences[0],
            )
            ties = sum(d.logits is not None and d.logits.is_rounding for d in differences)
            looked = f"{ties} of {len(differences)} differences looked into are ties that rounding decides"
            statement = f"OUTPUT CHANGED: {equal} of {num} greedy outputs equal; {looked}; {worst}"
        return OutputComparison(statement, num, equal, tuple(differences))

    @property
    def figures(self) -> dict[str, Any]:
        return {
            "outputs_equal": self.num_equal == self.num_compared if self.num_compared else None,
            "num_outputs_equal": self.num_equal if self.num_compared else None,
            "num_outputs_compared": self.num_compared,
            "num_rounding_ties": self.num_ties,
            "output_statement": self.statement,
            "output_p_value": self.scores and self.scores.p_value,
            "baseline_output_p_value": self.baseline and self.baseline.p_value,
            "output_z": self.scores and self.scores.z,
            "baseline_output_z": self.baseline and self.baseline.z,
            "output_differences": [asdict(difference) for difference in self.differences],
        }


def _scores(groups: Iterable[GroupRow], side: str) -> OutputScores | None:
    """Return the scores of a side's output; None where a group has none."""
    found = [row.scores for row in groups if row.key.side == side]
    known = [scores for scores in found if scores is not None]
    return sum(known, OutputScores()) if known and len(known) == len(found) else None


def _statement(rule: str, scores: OutputScores, baseline: OutputScores) -> str:
    p_value, control = scores.p_value, baseline.p_value
    told = f"{scores.num_tokens:,} tokens, p = {p_value:.2g}; plain decoding p = {control:.2g}"
    if control < CHANGED:
        return f"OUTPUT DISTRIBUTION CHANGED, BY PLAIN DECODING TOO: the sampler itself does not draw from p ({told})"
    if p_value < CHANGED:
        furthest = max(scores.z.items(), key=lambda item: abs(item[1]))
        why = f"{furthest[0]} is {furthest[1]:+.1f} standard deviations off"
        if scores.num_impossible:
            why = f"{scores.num_impossible:,} tokens that the target excludes"
        return f"OUTPUT DISTRIBUTION CHANGED: {why} ({told}), although rule {rule} claims to be lossless"
    return f"output consistent with the target's distribution ({told}; lossless rule {rule})"


def _first_difference(ours: Sequence[int], theirs: Sequence[int]) -> int:
    pairs = zip(ours, theirs, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(ours), len(theirs)))


def _at(tokens: Sequence[int], position: int) -> int:
    return tokens[position] if position < len(tokens) else -1
