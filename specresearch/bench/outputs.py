"""Whether speculation changed the output.

Greedy outputs are compared with the baseline's token by token; sampled ones are checked against the
target's distribution (see `output_check`).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import zip_longest
from typing import Any

from specresearch.bench.logit_gap import LogitGap
from specresearch.bench.output_check import CHANGED, OutputScores
from specresearch.bench.output_verdict import OutputVerdict, judge
from specresearch.bench.rows import GroupRow
from specresearch.metrics import Counts
from specresearch.rows import BASELINE, METHOD, RequestRow

MAX_EXAMINED = 8
ENDED = -1


@dataclass(frozen=True)
class Difference:
    """The first token in which two outputs differ; a token of `ENDED` means that one had ended."""

    repeat: int
    request: str
    position: int
    baseline_token: int
    method_token: int
    logits: LogitGap | None = None

    @staticmethod
    def between(plain: RequestRow, other: RequestRow) -> "Difference":
        """Return the first difference of two outputs that are not equal."""
        position = 0
        pairs = list(zip_longest(plain.token_ids, other.token_ids, fillvalue=ENDED))
        while pairs[position][0] == pairs[position][1]:
            position += 1
        return Difference(plain.key.repeat, plain.id, position, *pairs[position])

    @property
    def is_tie(self) -> bool:
        """Return whether the target was asked and rounding explains the difference."""
        return self.logits is not None and self.logits.is_rounding

    def __str__(self) -> str:
        cause = "" if self.logits is None else f"; {self.logits}"
        return (
            f"request {self.request}, token {self.position}: {self.baseline_token} became "
            f"{self.method_token}{cause}"
        )


@dataclass(frozen=True)
class OutputComparison:
    """The outputs of a side, compared with the baseline's or with the target's distribution.

    Attributes:
        statement: The finding in words.
        num_compared: Greedy requests that were compared.
        num_equal: How many of these are equal.
        scores: Scores of the side's sampled outputs, if they were checked.
        baseline: Scores of the baseline's.
        num_unlike: Later turns of a conversation whose earlier replies differ already, so that
            they answer other prompts. They are not compared.
    """

    statement: str
    num_compared: int = 0
    num_equal: int = 0
    differences: tuple[Difference, ...] = ()
    scores: OutputScores | None = None
    baseline: OutputScores | None = None
    num_unlike: int = 0

    @property
    def num_ties(self) -> int:
        """Return the number of examined differences that rounding explains."""
        return sum(difference.is_tie for difference in self.differences)

    @property
    def num_examined(self) -> int:
        """Return the number of differences about which the target was asked."""
        return sum(difference.logits is not None for difference in self.differences)

    @property
    def p_values(self) -> tuple[float, ...]:
        """Return the p-values of the side and of the baseline; empty if they were not checked."""
        return tuple(side.p_value for side in (self.scores, self.baseline) if side is not None)

    @property
    def is_wrong(self) -> bool:
        """Return whether an output differs by more than rounding, or a p-value is too small."""
        num_different = self.num_compared - self.num_equal
        verdict = judge(num_different, self.num_examined, self.num_ties, self.p_values)
        return verdict is OutputVerdict.CHANGED

    @staticmethod
    def of_nothing() -> "OutputComparison":
        """Return the comparison of a run without a method."""
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
        """Return the comparison of sampled outputs.

        Args:
            rule: Name of the acceptance rule.
            output_tv: How far a lossy rule moved the output, if that was measured.
            scores: Scores of the side, if it was checked.
            baseline: Scores of the baseline.
        """
        if lossless and scores is not None and baseline is not None:
            statement = _check_statement(rule, scores, baseline)
            return OutputComparison(statement, scores=scores, baseline=baseline)
        if lossless:
            statement = f"the output's distribution was not checked (rule {rule} is lossless)"
        else:
            moved = "may differ from the target's"
            if output_tv is not None:
                moved = f"moved from the target's by a total variation of {output_tv:.3f} per token"
            statement = f"distribution {moved} (rule {rule} is not lossless)"
        return OutputComparison(statement)

    @staticmethod
    def of_samples(
        rule: str, requests: Iterable[RequestRow], groups: Sequence[GroupRow], *, lossless: bool
    ) -> "OutputComparison":
        """Compare the sampled outputs of a run's rows."""
        counts = Counts.total([row.counts for row in requests if row.key.side == METHOD])
        scores = {}
        for side in (METHOD, BASELINE):
            parts = [row.scores for row in groups if row.key.side == side]
            scores[side] = OutputScores.total(parts)
        return OutputComparison.sampled(
            rule,
            lossless=lossless,
            output_tv=counts.output_tv,
            scores=scores[METHOD],
            baseline=scores[BASELINE],
        )

    @staticmethod
    def greedy(
        requests: Iterable[RequestRow],
        logit_gap: Callable[[RequestRow, int], LogitGap] | None = None,
        max_examined: int | None = MAX_EXAMINED,
        side: str = METHOD,
    ) -> "OutputComparison":
        """Compare greedy outputs token by token.

        Args:
            requests: A turn of a conversation comes after those before it.
            logit_gap: Returns the target's gap at an output position of a baseline's row.
            max_examined: How many differences to examine; None for all.
        """
        rows = list(requests)
        baseline = {(row.key.repeat, row.id): row for row in rows if row.key.side == BASELINE}
        num_compared = num_unlike = 0
        unequal = []
        parted: set[tuple[int, str]] = set()  # conversations with a reply that differs
        for row in (row for row in rows if row.key.side == side):
            conversation = row.key.repeat, row.row
            if row.turn and conversation in parted:
                num_unlike += 1
                continue
            num_compared += 1
            plain = baseline[row.key.repeat, row.id]
            if plain.token_ids != row.token_ids:
                unequal.append((plain, row))
                parted.add(conversation)
        differences = []
        for plain, row in unequal[:max_examined]:
            difference = Difference.between(plain, row)
            if logit_gap is not None:
                difference = replace(difference, logits=logit_gap(plain, difference.position))
            differences.append(difference)
        num_equal = num_compared - len(unequal)
        statement = _greedy_statement(num_compared, num_equal, differences)
        if num_unlike:
            turns = "turn that answers" if num_unlike == 1 else "turns that answer"
            statement += f"; not compared: {num_unlike} later {turns} a reply that differs"
        return OutputComparison(
            statement, num_compared, num_equal, tuple(differences), num_unlike=num_unlike
        )

    @property
    def figures(self) -> dict[str, Any]:
        """Return the figures of the summary."""
        return {
            "outputs_equal": self.num_equal == self.num_compared if self.num_compared else None,
            "num_outputs_equal": self.num_equal if self.num_compared else None,
            "num_outputs_compared": self.num_compared,
            "num_outputs_unlike": self.num_unlike,
            "num_rounding_ties": self.num_ties,
            "output_statement": self.statement,
            "output_p_value": self.scores and self.scores.p_value,
            "baseline_output_p_value": self.baseline and self.baseline.p_value,
            "output_z": self.scores and self.scores.z,
            "baseline_output_z": self.baseline and self.baseline.z,
            "output_differences": [asdict(difference) for difference in self.differences],
        }


def _greedy_statement(num: int, num_equal: int, differences: Sequence[Difference]) -> str:
    if not num:
        return "no outputs to compare yet"
    if num_equal == num:
        return f"output unchanged: {num} of {num} greedy outputs equal token for token"
    ties = [difference for difference in differences if difference.is_tie]
    if num_equal + len(ties) == num:
        return (
            f"output unchanged but for rounding: {num_equal} of {num} greedy outputs equal, "
            f"{len(ties)} part at ties that rounding decides; {ties[0]}"
        )
    examined = [difference for difference in differences if difference.logits is not None]
    errors = [difference for difference in examined if not difference.is_tie]
    equal = f"{num_equal} of {num} greedy outputs equal"
    if errors:
        cause = (
            f"{len(ties)} of {len(examined)} examined differences are ties that rounding decides"
        )
        return f"OUTPUT CHANGED: {equal}; {cause}; {errors[0]}"
    cause = "no difference has been examined yet"
    if ties:
        examined_ties = f"the {len(ties)} differences examined are ties"
        if len(ties) == 1:
            examined_ties = "the only difference examined is a tie"
        cause = f"{examined_ties} that rounding decides"
    return f"output differs, perhaps only by rounding: {equal}; {cause}; {differences[0]}"


def _check_statement(rule: str, scores: OutputScores, baseline: OutputScores) -> str:
    evidence = (
        f"{scores.num_tokens:,} tokens, p = {scores.p_value:.2g}; "
        f"plain decoding p = {baseline.p_value:.2g}"
    )
    if baseline.p_value < CHANGED:
        return (
            "OUTPUT DISTRIBUTION CHANGED, BY PLAIN DECODING TOO: "
            f"the sampler itself does not draw from p ({evidence})"
        )
    if scores.p_value >= CHANGED:
        return (
            f"output consistent with the target's distribution ({evidence}; lossless rule {rule})"
        )
    name, z = max(scores.z.items(), key=lambda item: abs(item[1]))
    reason = f"{name} is {z:+.1f} standard deviations off"
    if scores.num_impossible:
        reason = f"{scores.num_impossible:,} tokens that the target excludes"
    return (
        f"OUTPUT DISTRIBUTION CHANGED: {reason} ({evidence}), "
        f"although rule {rule} claims to be lossless"
    )
