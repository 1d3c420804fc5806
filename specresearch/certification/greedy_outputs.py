"""Compare greedy outputs with the likeliest tokens.

In low precision a tie may fall either way, so ties are told apart from errors.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Float

from specresearch.certification.cases import Case
from specresearch.certification.outcomes import GreedyTest
from specresearch.certification.reference_sampling import penalized
from specresearch.certification.targets import Toy
from specresearch.engine import RequestOutput
from specresearch.sampling import SamplingParams

# two logits, each of which the engine's passes may round twice as much as passes over whole
# prefixes do
TIE_ROUNDINGS = 4.0


class GreedyReference:
    """Which greedy outputs of a toy target are right under one setting, for given prompts.

    A logit counts as equal to the largest if they differ by at most `TIE_ROUNDINGS` times the
    rounding error there. That is the error of a pass over the whole prefix in the target's
    precision, but at least the median error along the likeliest outputs. In float64 it is 0.
    """

    def __init__(
        self, toy: Toy, prompts: Sequence[tuple[int, ...]], sampling: SamplingParams
    ) -> None:
        self.toy, self.prompts, self.sampling = toy, prompts, sampling
        self.outputs = toy.greedy(prompts, sampling)
        pairs = zip(prompts, self.outputs, strict=True)
        errors = [self._rounding(prompt, output) for prompt, output in pairs]
        self.usual_rounding = float(np.median(np.concatenate(errors)))

    def _rounding(
        self, prompt: tuple[int, ...], output: tuple[int, ...]
    ) -> Float[np.ndarray, " T"]:
        """Return the largest rounding error of a logit before each token of the output."""
        if self.toy.is_exact:
            return np.zeros(len(output))
        exact = self._scores(prompt, output)
        rounded = self._scores(prompt, output, exact=False)
        pairs = zip(exact, rounded, strict=True)
        return np.array([np.abs(one - other).max() for one, other in pairs])

    def _scores(
        self, prompt: tuple[int, ...], output: tuple[int, ...], *, exact: bool = True
    ) -> Iterator[Float[np.ndarray, " V"]]:
        """Yield the penalized logits before each token of the output."""
        logits_after = self.toy.logits if exact else self.toy.rounded_logits
        logits = logits_after([(*prompt, *output[:i]) for i in range(len(output))]).numpy()
        for i, row in enumerate(logits):
            yield penalized(row, prompt, output[:i], self.sampling)

    def judge(self, index: int, output: tuple[int, ...]) -> tuple[bool, int | None]:
        """Compare an output of prompt `index` with the likeliest token after each of its prefixes.

        Returns:
            Whether every token is the likeliest one, and the position of the first token for
            which rounding is no excuse; the output's length if only that is wrong.
        """
        prompt = self.prompts[index]
        pairs = zip(self._scores(prompt, output), output, strict=True)
        shortfall = np.array([row.max() - row[token] for row, token in pairs])
        rounding = np.maximum(self._rounding(prompt, output), self.usual_rounding)
        wrong = np.flatnonzero(shortfall > TIE_ROUNDINGS * rounding).tolist()
        if not wrong and len(output) != len(self.outputs[index]):
            wrong = [len(output)]
        is_equal = not wrong and not shortfall.any()
        return is_equal, wrong[0] if wrong else None


def greedy_test(
    case: Case, setting: str, reference: GreedyReference, outputs: Sequence[RequestOutput]
) -> GreedyTest:
    """Judge outputs whose ids are the indices of the reference's prompts."""
    num_equal = 0
    wrong: list[tuple[int, int]] = []
    for output in outputs:
        is_equal, position = reference.judge(int(output.id), output.token_ids)
        num_equal += is_equal
        if position is not None:
            wrong.append((int(output.id), position))
    counts = [output.record.counts for output in outputs]
    return GreedyTest(
        trial=case.trial.name,
        drafter=case.drafter,
        stress=case.stress,
        setting=setting,
        num_requests=len(outputs),
        num_equal=num_equal,
        num_ties=len(outputs) - num_equal - len(wrong),
        num_tokens=sum(len(output.token_ids) for output in outputs),
        num_draft_tokens=sum(count.num_draft_tokens for count in counts),
        num_accepted_tokens=sum(count.num_accepted_tokens for count in counts),
        first_difference="request {}, token {}".format(*min(wrong)) if wrong else None,
    )
