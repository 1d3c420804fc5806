"""Outcomes of a certificate's tests: each tests one drafter under one setting in one trial."""

from collections.abc import Sequence
from dataclasses import dataclass

from specresearch.certification.cases import Case, SampledSetting
from specresearch.certification.counts import Tally, events_needed, rare_events
from specresearch.certification.goodness_of_fit import Fit, holm, strictest_level, visible_tv


@dataclass(frozen=True)
class SampledTest:
    """Sampled outputs compared with the enumerated distribution.

    Attributes:
        stress: the drafter is an adversary.
        num_outputs: possible outputs, which are the cells of the test.
        p_adjusted: p-value by Holm's correction over the certificate's tests.
        asked_tv, visible_tv: total variation that the test must detect, and that it does detect.
        rounding: how far rounding may move the outputs; see `OutputDistribution`.
        is_crowded: the trial's limits should preempt requests and chunk prompts.
    """

    trial: str
    drafter: str
    stress: bool
    setting: str
    prompt: tuple[int, ...]
    num_outputs: int
    fit: Fit
    p_adjusted: float
    rejected: bool
    asked_tv: float
    visible_tv: float
    rounding: float
    is_crowded: bool
    num_draft_tokens: int
    num_accepted_tokens: int
    num_target_forwards: int
    num_generated_tokens: int
    num_preempted: int
    num_chunked: int

    @property
    def too_few(self) -> dict[str, int]:
        """Return the events that were too rare for the test to show their errors."""
        return rare_events(self, self.num_needed, is_crowded=self.is_crowded)

    @property
    def num_needed(self) -> float:
        """Return how many of each event the test needs to show their errors."""
        return events_needed(self.visible_tv, self.fit.num_samples)


@dataclass(frozen=True)
class GreedyTest:
    """Greedy outputs compared with the likeliest token after every prefix.

    Attributes:
        num_ties: outputs with a token so close to the likeliest one that rounding in the target's
            precision decides; never in float64.
        first_difference: request and position of the first wrong token.
    """

    trial: str
    drafter: str
    stress: bool
    setting: str
    num_requests: int
    num_equal: int
    num_ties: int
    num_tokens: int
    num_draft_tokens: int
    num_accepted_tokens: int
    first_difference: str | None = None

    @property
    def num_wrong(self) -> int:
        return self.num_requests - self.num_equal - self.num_ties

    @property
    def too_few(self) -> dict[str, int]:
        """Return the number of drafts if there were fewer than requests."""
        if self.num_draft_tokens >= self.num_requests:
            return {}
        return {"drafts": self.num_draft_tokens}


def sampled_tests(
    observed: Sequence[tuple[Case, SampledSetting, Tally]], alpha: float, power: float
) -> tuple[SampledTest, ...]:
    """Test all tallies together, with Holm's correction at level `alpha`."""
    fits = [tally.fit(setting.distribution) for _, setting, tally in observed]
    adjusted = holm([fit.p_value for fit in fits])
    level = strictest_level(alpha, len(fits))
    tests = []
    for (case, setting, tally), fit, p_adjusted in zip(observed, fits, adjusted, strict=True):
        rounding, probs = setting.distribution.rounding, setting.distribution.probs
        counts = tally.scalars()
        del counts["num_impossible"]
        test = SampledTest(
            trial=case.trial.name,
            drafter=case.drafter,
            stress=case.stress,
            setting=setting.name,
            prompt=setting.prompt,
            num_outputs=len(probs),
            fit=fit,
            p_adjusted=p_adjusted,
            rejected=p_adjusted < alpha,
            asked_tv=case.asked_tv,
            visible_tv=visible_tv(fit.num_samples, probs, level, power, rounding),
            rounding=rounding,
            is_crowded=case.trial.settings.is_crowded,
            **counts,
        )
        tests.append(test)
    return tuple(tests)
