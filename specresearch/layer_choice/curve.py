"""Acceptance and predicted speed of early exits, and of ever more skipped sublayers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from specresearch.layer_choice.costs import SublayerCosts
from specresearch.layer_choice.texts import TargetTexts, TextAcceptance, mean_tokens_per_step
from specresearch.models.layer_view import Sublayers, lists_of
from specresearch.progress import Progress

EXIT, SKIP = "exit", "skip"
NUM_RECHECKED = 3  # of the least harmful sublayers, before one is skipped


@dataclass(frozen=True)
class Depth:
    """What drafting without some sublayers gives.

    Attributes:
        way: exit, or skip for sublayers that were chosen one by one.
        cost: Time of a draft token, in passes of the target over one token.
        acceptance: Mean over the tokens of the target's text, by temperature.
        num_draft_tokens: The fastest length of a chain.
        tokens_per_step: With it, the mean over temperatures.
        speedup: Predicted, over plain decoding, without prefill and host costs.
        break_even: The acceptance at which the best length for it is as fast as plain decoding.
    """

    way: str
    skipped: Sublayers
    cost: float
    acceptance: dict[float, float]
    num_draft_tokens: int
    tokens_per_step: float
    speedup: float
    break_even: float

    def row(self) -> dict[str, Any]:
        """Return a row of a table."""
        accepted = {f"acceptance_t{t:g}": round(a, 4) for t, a in self.acceptance.items()}
        return {
            "way": self.way,
            **lists_of(self.skipped),
            "cost": round(self.cost, 4),
            **accepted,
            "break_even": round(self.break_even, 4),
            "num_draft_tokens": self.num_draft_tokens,
            "tokens_per_step": round(self.tokens_per_step, 4),
            "predicted_speedup": round(self.speedup, 4),
        }


class DepthCurve:
    """Predicts the speed of a target that drafts with less and less of itself."""

    def __init__(self, texts: TargetTexts, costs: SublayerCosts, max_draft_tokens: int) -> None:
        self.texts, self.costs, self.max_draft_tokens = texts, costs, max_draft_tokens
        self.num_layers = texts.target.num_layers

    def exits(self) -> list[Depth]:
        """Return an exit after each layer but the last, the earliest first."""
        depths = []
        with Progress(self.num_layers - 1, "exits", what="measuring exits") as progress:
            for exit_layer in range(1, self.num_layers):
                skipped = Sublayers.behind(exit_layer, self.num_layers)
                depths.append(self._depth(EXIT, skipped))
                progress.advance()
        return depths

    def skips(self, num_skipped: int) -> list[Depth]:
        """Skip one sublayer after another, that whose loss leaves the highest predicted speed.

        What a loss does is measured again for few candidates only: those that did least harm when
        they were measured last.
        """
        harm = dict.fromkeys(single_sublayers(self.num_layers), 1.0)
        current = Sublayers()
        depths: list[Depth] = []
        total = len(harm) + NUM_RECHECKED * (num_skipped - 1)
        with Progress(total, "passes", what="choosing sublayers") as progress:
            while len(current) < num_skipped:
                candidates = sorted(harm, key=lambda one: harm[one])
                candidates = [one for one in candidates if self._may_skip(current | one)]
                measured: dict[Sublayers, Depth] = {}
                before = _mean(depths[-1].acceptance) if depths else 1.0
                for one in candidates[: NUM_RECHECKED if depths else None]:
                    measured[one] = self._depth(SKIP, current | one)
                    harm[one] = before - _mean(measured[one].acceptance)
                    progress.advance()
                best = max(measured, key=lambda one: measured[one].speedup)
                current |= best
                depths.append(measured[best])
                del harm[best]
        return depths

    def _may_skip(self, skipped: Sublayers) -> bool:
        return len(skipped.attention) < self.num_layers

    def _depth(self, way: str, skipped: Sublayers) -> Depth:
        acceptance = self.texts.acceptance_without(skipped)
        cost = self.costs.draft_pass(skipped)
        lengths = range(1, self.max_draft_tokens + 1)
        temperatures = self.texts.temperatures
        tokens = {
            length: mean_tokens_per_step(acceptance, length, temperatures) for length in lengths
        }
        speedups = {length: self.costs.speedup(tokens[length], length, cost) for length in lengths}
        best = max(lengths, key=lambda length: speedups[length])
        return Depth(
            way=way,
            skipped=skipped,
            cost=cost,
            acceptance=_by_temperature(acceptance, temperatures),
            num_draft_tokens=best,
            tokens_per_step=tokens[best],
            speedup=speedups[best],
            break_even=min(self.costs.break_even(length, cost) for length in lengths),
        )


def single_sublayers(num_layers: int) -> Iterator[Sublayers]:
    """Yield every sublayer."""
    for layer in range(num_layers):
        yield Sublayers.of(attention=[layer])
        yield Sublayers.of(mlp=[layer])


def fastest(depths: Sequence[Depth]) -> Depth:
    """Return the depth of the highest predicted speed."""
    return max(depths, key=lambda depth: depth.speedup)


def _by_temperature(
    acceptance: TextAcceptance, temperatures: Sequence[float]
) -> dict[float, float]:
    return {temperature: acceptance.mean(temperature) for temperature in temperatures}


def _mean(acceptance: dict[float, float]) -> float:
    return sum(acceptance.values()) / len(acceptance)
