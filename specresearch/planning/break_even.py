"""How much of the drafts must be accepted before drafting pays, by a roofline of the GPUs."""

from dataclasses import dataclass
from math import ceil
from typing import Any

from scipy.optimize import brentq

from specresearch.planning.deployment import Conditions, Deployment
from specresearch.planning.drafters import Drafter
from specresearch.planning.model_size import ModelSize
from specresearch.planning.precision import Precision
from specresearch.simulation.timing import Roofline, Work


@dataclass(frozen=True)
class TimingSettings:
    """What of the GPUs' figures is reached; as in `Roofline`, in seconds."""

    efficiency: float
    overhead: float
    step_overhead: float


@dataclass(frozen=True)
class LoadPoint:
    """Drafting beside plain decoding at one load.

    Attributes:
        num_plain, num_drafting: Requests that decode together on either side.
        context: Cached tokens of each.
        plain_step, drafting_step: Seconds of a step.
        tokens_per_step: Tokens of a request's step, accepted drafts plus one, from which on
            drafting has the higher throughput.
        acceptance: The probability that a draft is accepted once all before it were, for that many
            tokens, independently; None if no acceptance is enough, or for trees.
        acceptance_rate: The same as accepted drafts over drafts.
        speedup: Throughput over plain decoding's at the acceptance that was asked for; None for
            trees.
    """

    load: str
    num_plain: int
    num_drafting: int
    context: int
    plain_step: float
    drafting_step: float
    tokens_per_step: float
    acceptance: float | None
    acceptance_rate: float | None
    speedup: float | None


@dataclass(frozen=True)
class Pair:
    """A target and its drafter in their formats, on the GPUs."""

    conditions: Conditions
    target: ModelSize
    precision: Precision
    drafter: Drafter
    drafter_precision: Precision
    timing: TimingSettings

    def point(
        self, load: str, num_plain: int, num_drafting: int, context: int, acceptance: float
    ) -> LoadPoint:
        """Compare both sides at a load; `acceptance` is what `speedup` assumes of each draft."""
        plain = self.step_seconds(num_plain, context, drafts=False)
        drafting = self.step_seconds(num_drafting, context, drafts=True)
        needed = (num_plain / plain) * (drafting / num_drafting)
        depth, is_chain = self.drafter.depth, self.drafter.is_chain
        reached = needed < depth + 1
        speedup = tokens_per_step(acceptance, depth) / needed if is_chain else None
        return LoadPoint(
            load=load,
            num_plain=num_plain,
            num_drafting=num_drafting,
            context=context,
            plain_step=plain,
            drafting_step=drafting,
            tokens_per_step=needed,
            acceptance=acceptance_for(needed, depth) if is_chain and reached else None,
            acceptance_rate=max(needed - 1, 0.0) / depth if is_chain and reached else None,
            speedup=speedup,
        )

    def step_seconds(self, num_rows: int, context: int, *, drafts: bool) -> float:
        """Return the seconds of a step of so many requests."""
        num_drafts = num_rows * self.drafter.num_nodes if drafts else 0
        work = Work(
            num_rows=num_rows,
            num_drafts=num_drafts,
            longest=self.drafter.num_passes,
            context=num_rows * context,
        )
        roofline = self._roofline(num_rows + num_drafts, num_rows, context)
        seconds = roofline.verify_seconds(work) + roofline.overhead_seconds(work)
        return seconds + (roofline.propose_seconds(work) if drafts else 0.0)

    @property
    def num_saturated(self) -> int:
        """Requests whose plain steps are bound by arithmetic, were there no cache to read."""
        models = [(self.target, self.precision)]
        if self.drafter.model is not None:
            models.append((self.drafter.model, self.drafter_precision))
        gpus = self.conditions.gpus
        ratios = [model.weight_bytes(bits) / model.num_active for model, bits in models]
        return ceil(max(ratios) * gpus.flops / gpus.bandwidth / 2)

    def _roofline(self, num_tokens: int, num_rows: int, context: int) -> Roofline:
        """Return the GPUs' roofline for passes over so many tokens, of the drafter over rows."""
        gpus, context = self.conditions.gpus, max(context, 1)
        model, bits = self.drafter.model, self.drafter_precision
        weights = parameters = cache = 0.0
        if model is not None:
            weights, parameters = model.read_bytes(bits, num_rows), float(model.num_active)
            cache = self.conditions.kv_bytes(model.kv, context) / context
            if self.drafter.borrows_lm_head:
                lm_head = self.target.vocab_size * self.target.hidden
                weights += lm_head * self.precision.rest
                parameters += lm_head
        return Roofline(
            bandwidth=gpus.num * gpus.bandwidth,
            flops=gpus.num * gpus.flops,
            weight_bytes=self.target.read_bytes(self.precision, num_tokens),
            parameters=float(self.target.num_active),
            kv_bytes=self.conditions.kv_bytes(self.target.kv, context) / context,
            draft_weight_bytes=weights,
            draft_parameters=parameters,
            draft_kv_bytes=cache,
            **vars(self.timing),
        )


def load_points(
    pair: Pair, plain: Deployment, drafting: Deployment, acceptance: float
) -> list[LoadPoint]:
    """Return one request, as many as fit, and a load at which arithmetic decides.

    The last one has no cache to read: it stands for short contexts.
    """
    context = pair.conditions.context
    points = [pair.point("one request", 1, 1, context, acceptance)]
    if plain.fits and drafting.fits:
        full = (plain.requests, drafting.requests)
        points.append(pair.point("as many as fit", *full, context, acceptance))
    num = pair.num_saturated
    points.append(pair.point("compute saturated", num, num, 0, acceptance))
    return points


def tokens_per_step(acceptance: float, num_drafts: int) -> float:
    """Return the mean tokens of a step if each draft is accepted with this probability.

    Leviathan et al., arXiv 2211.17192, equation 1.
    """
    return sum(acceptance**i for i in range(num_drafts + 1))


def acceptance_for(tokens: float, num_drafts: int) -> float:
    """Return the acceptance at which a step has so many tokens, fewer than it can have."""
    if tokens <= 1:
        return 0.0
    root: Any = brentq(lambda share: tokens_per_step(share, num_drafts) - tokens, 0.0, 1.0)
    return float(root)
