"""Are greedy outputs the likeliest tokens? In low precision a tie may fall either way, and is told apart from an error."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from specresearch.certification.enumeration import Toy, penalized
from specresearch.sampling import SamplingParams

TIE_ROUNDINGS = 4.0  # two logits, each of which the engine's passes may round twice as much as passes over whole prefixes do


@dataclass(frozen=True)
class GreedyFinding:
    """One greedy output. is_equal: every token is the likeliest after the tokens before it.

    is_tie: it is not, but every token is so close to it that rounding decides. position: the first token that is wrong; the
    number of tokens where only the length is.
    """

    is_equal: bool
    is_tie: bool
    position: int | None


class GreedyLaw:
    """What greedy outputs of a toy may be under one setting, given the prompts.

    A logit counts as equal to the largest if they differ by at most `TIE_ROUNDINGS` times the rounding error there: that of a
    pass over the whole prefix in the target's precision, or the median along the likeliest outputs if that is more. In
    float64 only the largest will do.
    """

    def __init__(
        self, toy: Toy, prompts: Sequence[tuple[int, ...]], sampling: SamplingParams
    ) -> None:
        self.toy, self.prompts, self.sampling = toy, prompts, sampling
        self.outputs = toy.greedy(prompts, sampling)
        pairs = zip(prompts, self.outputs, strict=True)
        self.usual_rounding = float(
            np.median(np.concatenate([self._rounding(*pair) for pair in pairs]))
        )

    def _rounding(
        self, prompt: tuple[int, ...], output: tuple[int, ...]
    ) -> Float[np.ndarray, " T"]:
        """The largest rounding error of a logit before each token of the output."""
        if self.toy.is_exact:
            return np.zeros(len(output))
        pairs = zip(
            self._scores(prompt, output), self._scores(prompt, output, exact=False), strict=True
        )
        return np.array([np.abs(exact - rounded).max() for exact, rounded in pairs])

    def _scores(
        self, prompt: tuple[int, ...], output: tuple[int, ...], *, exact: bool = True
    ) -> Iterator[Float[np.ndarray, " V"]]:
        """Logits with penalties, before each token of the output."""
        say = self.toy.logits if exact else self.toy.rounded_logits
        logits = say([(*prompt, *output[:i]) for i in range(len(output))]).numpy()
        for i, row in enumerate(logits):
            yield penalized(row, prompt, output[:i], self.sampling)

    def judge(self, number: int, output: tuple[int, ...]) -> GreedyFinding:
        """Compare an output of prompt `number` token by token, each with the likeliest one after the tokens before it."""
        prompt = self.prompts[number]
        scores = self._scores(prompt, output)
        short = np.array(
            [row.max() - row[token] for row, token in zip(scores, output, strict=True)]
        )
        allowed = TIE_ROUNDINGS * np.maximum(self._rounding(prompt, output), self.usual_rounding)
        wrong = np.flatnonzero(short > allowed).tolist()
        if not wrong and len(output) != len(self.outputs[number]):
            wrong = [len(output)]
        is_equal = not wrong and not short.any()
        return GreedyFinding(is_equal, not wrong and not is_equal, wrong[0] if wrong else None)
