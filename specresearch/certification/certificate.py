"""A certificate: the outcomes of all tests, and the verdict that follows from them."""

from dataclasses import dataclass, field
from typing import Any

from specresearch.certification.outcomes import GreedyTest, SampledTest

CERTIFICATE = "certificate.json"
CERTIFIED = "certified"
REFUTED = "refuted"
LOSSY = "lossy as declared"
UNTESTED = "untested"
REFUSED = "refused"
STYLES = {
    CERTIFIED: "bold green",
    REFUTED: "bold red",
    LOSSY: "bold yellow",
    UNTESTED: "bold red",
    REFUSED: "bold",
}


@dataclass(frozen=True)
class Certificate:
    """The certificate of one method with one acceptance rule.

    Attributes:
        lossless_claimed: the rule says that it leaves the target's distribution unchanged.
        speculates: the method drafts at all; plain decoding does not.
        refused: settings and adversaries that the rule refuses to judge, and why.
        chosen_drafts: what is drafted in each trial where the method leaves it to `auto`.
        config: the command's configuration.
        provenance: when, where and with which software the tests ran.
    """

    method: str
    rule: str
    lossless_claimed: bool
    speculates: bool
    alpha: float
    power: float
    visible_tv: float
    sampled: tuple[SampledTest, ...] = ()
    greedy: tuple[GreedyTest, ...] = ()
    refused: dict[str, str] = field(default_factory=dict)
    chosen_drafts: dict[str, str] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)

    @property
    def failures(self) -> list[SampledTest | GreedyTest]:
        sampled = [test for test in self.sampled if test.rejected]
        greedy = [test for test in self.greedy if test.num_wrong]
        return [*sampled, *greedy]

    @property
    def method_sampled(self) -> list[SampledTest]:
        """The sampled tests of the method's own drafts."""
        return [test for test in self.sampled if not test.stress]

    @property
    def method_greedy(self) -> list[GreedyTest]:
        """The greedy tests of the method's own drafts."""
        return [test for test in self.greedy if not test.stress]

    @property
    def verdict(self) -> str:
        tests = [*self.method_sampled, *self.method_greedy]
        if not tests:
            return REFUSED
        if not self.lossless_claimed:
            return LOSSY
        if self.failures:
            return REFUTED
        if self.speculates and any(test.too_few for test in tests):
            return UNTESTED
        return CERTIFIED

    @property
    def statement(self) -> str:
        """Return the verdict with the reason for it."""
        pair, verdict = f"{self.method} with {self.rule}", self.verdict
        if verdict == REFUSED:
            reasons = [*self.refused.values(), "nothing could be tested"]
            return f"{pair}: {reasons[0]}"
        if verdict == UNTESTED:
            return f"{pair} was tested too little to prove anything: {self._rarest_events()}"
        if verdict == LOSSY:
            return f"{pair} does not claim to be lossless; {self._deviations()}"
        if verdict == REFUTED:
            return f"{pair} changes the target's output: {self._cause()}"
        if not self.sampled:
            return f"{pair}: greedy output is unchanged, token for token; the rule does not sample"
        return (
            f"{pair}: output follows the target's distribution in all "
            f"{len(self.method_sampled)} tests, which detect a total variation of "
            f"{self._visible_tvs()} with probability {self.power:g}; greedy output is "
            f"unchanged{self._ties()}"
        )

    def _visible_tvs(self) -> str:
        """Return the total variation that the tests detect, and the trials that detect less."""
        coarser: dict[float, list[str]] = {}
        for test in self.method_sampled:
            if test.asked_tv > self.visible_tv:
                trials = coarser.setdefault(test.asked_tv, [])
                if test.trial not in trials:
                    trials.append(test.trial)
        exceptions = "; ".join(f"{tv:g} in {', '.join(coarser[tv])}" for tv in sorted(coarser))
        return f"{self.visible_tv:g}" + (f" ({exceptions})" if exceptions else "")

    def _ties(self) -> str:
        ties = sum(test.num_ties for test in self.greedy)
        return f", except for ties decided by rounding in {ties} outputs" if ties else ""

    def _rarest_events(self) -> str:
        """Return which event was rarest, and in which test."""
        tests = [*self.method_sampled, *self.method_greedy]
        untested = [test for test in tests if test.too_few]
        rarest = min(untested, key=lambda test: min(test.too_few.values()))
        num, event = min((num, event) for event, num in rarest.too_few.items())
        words = f"{num:,} {event} in all outputs of {rarest.setting} in {rarest.trial}"
        if isinstance(rarest, SampledTest):
            words += f", where {rarest.num_needed:,.0f} are needed"
        if len(untested) == 1:
            return words
        return f"{words}, and too few in {len(untested) - 1} more of {len(tests)} tests"

    def _deviations(self) -> str:
        """Return how far a lossy method's outputs are from the target's."""
        words = []
        if self.method_sampled:
            worst = max(
                self.method_sampled,
                key=lambda test: (test.rejected, test.fit.tv_low, test.fit.tv),
            )
            fit = worst.fit
            if worst.rejected:
                words.append(
                    f"total variation up to {fit.tv:.3f} ({fit.tv_low:.3f} to {fit.tv_high:.3f}, "
                    f"setting {worst.setting} in {worst.trial})"
                )
            else:
                words.append("its own drafts showed no deviation")
        if self.method_greedy:
            num_wrong = sum(test.num_wrong for test in self.method_greedy)
            num = sum(test.num_requests for test in self.method_greedy)
            words.append(f"{num_wrong} of {num} greedy outputs changed")
        return "; ".join(words)

    def _cause(self) -> str:
        """Return whether the rule or the drafts are at fault."""
        drafters = list(dict.fromkeys(test.drafter for test in self.failures))
        if any(test.stress for test in self.failures):
            return f"with the drafts of {', '.join(drafters)}, so the rule is at fault"
        if any(test.stress for test in self.sampled):
            return (
                "the rule withstood every adversary, so the method probably declares its drafts "
                "wrongly"
            )
        return "no adversary was tried, so either may be at fault"
