"""What a certificate says: the tests behind it, the verdict they amount to, and how a person reads it."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from specresearch.certification.goodness import Fit
from specresearch.files import replace_text

CERTIFICATE = "certificate.json"
NEGLIGIBLE = 1e-9
SEEN_IF_WRONG = 0.5  # of the outputs that hold a draft; a test that would not see that many wrong ones says nothing of drafts
CERTIFIED, REFUTED, LOSSY, UNTESTED, REFUSED = (
    "certified",
    "refuted",
    "lossy as declared",
    "untested",
    "refused",
)
STYLES = {
    CERTIFIED: "bold green",
    REFUTED: "bold red",
    LOSSY: "bold yellow",
    UNTESTED: "bold red",
    REFUSED: "bold",
}


@dataclass(frozen=True)
class SampledTest:
    """Outputs of one drafter under one setting in one trial, beside the enumerated distribution.

    stress: the drafter is one of the adversaries. num_outputs: possible ones, the cells of the test. p_adjusted: by Holm, over
    the certificate's tests. asked_tv: total variation that the test must see; visible_tv: what it does see, with the
    certificate's power. rounding: how far rounding may move the outputs of a target in low precision, see `Law`.
    is_crowded: the trial's limits are there to preempt requests and to read prompts in chunks.
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
        """Return what happened too rarely for the test to see it go wrong, and how often it happened.

        Even with every draft in an output of its own, and `SEEN_IF_WRONG` of these outputs wrong, the outputs would deviate
        by less than the test sees. In a crowded trial the same holds for preempted requests and for prompts read in chunks.
        """
        counts = {"drafts": self.num_draft_tokens}
        if self.is_crowded:
            counts |= {
                "preempted requests": self.num_preempted,
                "prompts read in chunks": self.num_chunked,
            }
        enough = self.visible_tv * self.fit.num_samples / SEEN_IF_WRONG
        return {what: num for what, num in counts.items() if num < enough}


@dataclass(frozen=True)
class GreedyTest:
    """Greedy outputs of one drafter in one trial, beside the likeliest token after every prefix.

    num_ties: outputs in which a token is not the likeliest, but so close to it that rounding in the target's precision decides;
    never in float64. first_difference: request and position of the first token that is neither.
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
        """Return the number of drafts if there were fewer than one for each request."""
        return (
            {"drafts": self.num_draft_tokens} if self.num_draft_tokens < self.num_requests else {}
        )


@dataclass(frozen=True)
class Certificate:
    """One method with one rule. `config` holds the settings, `provenance` where and with what they were tried.

    refused: what could not be tried, and why: a setting or an adversary that the rule says it cannot judge.
    speculates: the method drafts at all; plain decoding does not.
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
    config: dict[str, Any] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)

    @property
    def failures(self) -> list[SampledTest | GreedyTest]:
        return [
            *(test for test in self.sampled if test.rejected),
            *(test for test in self.greedy if test.num_wrong),
        ]

    @property
    def _own(self) -> list[SampledTest | GreedyTest]:
        """Tests of the method's own drafts."""
        return [test for test in (*self.sampled, *self.greedy) if not test.stress]

    @property
    def verdict(self) -> str:
        own = self._own
        if not own:
            return REFUSED
        if not self.lossless_claimed:
            return LOSSY
        if self.failures:
            return REFUTED
        return UNTESTED if self.speculates and any(test.too_few for test in own) else CERTIFIED

    @property
    def statement(self) -> str:
        """The verdict in a sentence or two."""
        pair = f"{self.method} with {self.rule}"
        if self.verdict == REFUSED:
            return f"{pair}: {next(iter(self.refused.values()), 'nothing could be tried')}"
        if self.verdict == UNTESTED:
            return f"{pair} was tried too little to prove anything: {self._idle_words()}"
        if self.verdict == LOSSY:
            return f"{pair} does not claim to be lossless; {self._lossy_words()}"
        if self.verdict == REFUTED:
            return f"{pair} changes the target's output: {self._blame()}"
        if not self.sampled:
            return f"{pair}: greedy output unchanged, token for token; it does not sample"
        own = sum(not test.stress for test in self.sampled)
        return (
            f"{pair}: the target's distribution in all of {own} tests, where a total variation of {self._seen_words()} would "
            f"have shown with probability {self.power:g}; greedy output unchanged{self._tie_words()}"
        )

    def _seen_words(self) -> str:
        """The total variation that the method's tests see, and the trials that see less."""
        coarser: dict[float, list[str]] = {}
        for test in self.sampled:
            if not test.stress and test.asked_tv > self.visible_tv:
                coarser.setdefault(test.asked_tv, []).append(test.trial)
        words = [
            f"{tv:g} in {', '.join(dict.fromkeys(names))}" for tv, names in sorted(coarser.items())
        ]
        return f"{self.visible_tv:g}" + (f" ({'; '.join(words)})" if words else "")

    def _tie_words(self) -> str:
        ties = sum(test.num_ties for test in self.greedy)
        return f" but for {ties} outputs with ties that rounding decides" if ties else ""

    def _idle_words(self) -> str:
        """What was missing most, and where."""
        idle = [test for test in self._own if test.too_few]
        least = min(idle, key=lambda test: min(test.too_few.values()))
        what, num = min(least.too_few.items(), key=lambda told: told[1])
        words = f"{num:,} {what} in all outputs of {least.trial} {least.setting}"
        return (
            words
            if len(idle) == 1
            else f"{words}, and too few in {len(idle) - 1} others of {len(self._own)} tests"
        )

    def _lossy_words(self) -> str:
        words = []
        own = [test for test in self.sampled if not test.stress]
        worst = max(
            own, key=lambda test: (test.rejected, test.fit.tv_low, test.fit.tv), default=None
        )
        if worst is not None and worst.rejected:
            low, high = worst.fit.tv_low, worst.fit.tv_high
            where = f"{worst.setting} in {worst.trial}"
            words.append(
                f"total variation up to {worst.fit.tv:.3f} ({low:.3f} to {high:.3f}, setting {where})"
            )
        elif worst is not None:
            words.append("no deviation was seen in its own drafts")
        greedy = [test for test in self.greedy if not test.stress]
        if greedy:
            num, num_wrong = (
                sum(getattr(test, name) for test in greedy)
                for name in ("num_requests", "num_wrong")
            )
            words.append(f"{num_wrong} of {num} greedy outputs changed")
        return "; ".join(words)

    def _blame(self) -> str:
        names = list(dict.fromkeys(test.drafter for test in self.failures))
        if any(test.stress for test in self.failures):
            return f"with the drafts of {', '.join(names)}, so the rule is at fault"
        if any(test.stress for test in self.sampled):
            return "the rule withstood every adversary, so these drafts are probably not what they are said to be"
        return "no adversary was tried, so either may be at fault"

    def write(self, folder: Path) -> Path:
        """certificate.json, verdict and statement first."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / CERTIFICATE
        told = {"verdict": self.verdict, "statement": self.statement} | asdict(self)
        replace_text(path, json.dumps(told, indent=2, ensure_ascii=False) + "\n")
        return path


def print_certificate(certificate: Certificate, path: Path, console: Console | None = None) -> None:
    """The verdict first, then the tests. Fits 80 columns."""
    console = console or Console(highlight=False)
    console.print()
    console.print(Text(certificate.verdict.upper(), style=STYLES[certificate.verdict]))
    console.print(certificate.statement)
    for trial in dict.fromkeys(test.trial for test in certificate.sampled):
        tests = [test for test in certificate.sampled if test.trial == trial]
        console.print()
        console.print(Text(_trial_words(trial, tests), style="bold"))
        console.print(_sampled_table(tests))
    if certificate.sampled:
        words = f"p before Holm's correction over {len(certificate.sampled)} tests; bounds of the total variation, 95%"
        console.print(Text(words, style="dim"))
    if certificate.greedy:
        console.print()
        console.print(_greedy_table(certificate.greedy))
    reasons = {
        why: [what for what, other in certificate.refused.items() if other == why]
        for why in certificate.refused.values()
    }
    for why, what in reasons.items():
        console.print(Text(f"not tried: {', '.join(what)}: {why}", style="dim"))
    console.print()
    console.print(Text(str(path), style="dim"), soft_wrap=True)


def _trial_words(trial: str, tests: Sequence[SampledTest]) -> str:
    own = [test for test in tests if not test.stress]
    words = [
        f"{trial}: a total variation of {max((test.asked_tv for test in own), default=0):g} shows"
    ]
    if any(test.is_crowded for test in own):
        num = sum(test.fit.num_samples for test in own)
        shares = [
            sum(getattr(test, name) for test in own) / num
            for name in ("num_preempted", "num_chunked")
        ]
        words.append(f"{shares[0]:.0%} of requests preempted, {shares[1]:.0%} read in chunks")
    rounding = max((test.rounding for test in own), default=0.0)
    if rounding:
        words.append(f"rounding may move outputs by {rounding / 2:.1g}")
    return "; ".join(words)


def _sampled_table(tests: Sequence[SampledTest]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("drafter", "setting"):
        table.add_column(name, no_wrap=True)
    for name in ("samples", "accepted", "chi2/df", "p", "total variation"):
        table.add_column(name, justify="right", no_wrap=True)
    for test in tests:
        fit = test.fit
        table.add_row(
            test.drafter,
            test.setting,
            f"{fit.num_samples:,}",
            _share(test.num_accepted_tokens, test.num_draft_tokens),
            f"{fit.statistic:.0f}/{fit.degrees_of_freedom}",
            f"{fit.p_value:.2g}" if fit.p_value > NEGLIGIBLE else "0",
            f"{fit.tv_low:.3f} to {fit.tv_high:.3f}",
            style="red" if test.rejected else "",
        )
    return table


def _greedy_table(tests: Sequence[GreedyTest]) -> Table:
    """The method's tests, and any other that failed."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("trial", "drafter", "setting"):
        table.add_column(name)
    for name in ("tokens", "accepted", "equal", "ties"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("")
    unequal = [test for test in tests if test.num_wrong]
    for test in tests:
        if not test.stress or test in unequal:
            table.add_row(
                test.trial,
                test.drafter,
                test.setting,
                f"{test.num_tokens:,}",
                _share(test.num_accepted_tokens, test.num_draft_tokens),
                f"{test.num_equal} of {test.num_requests}",
                str(test.num_ties),
                test.first_difference or "",
                style="red" if test in unequal else "",
            )
    num_stress = sum(test.stress for test in tests)
    if num_stress and not any(test.stress for test in unequal):
        table.add_row("", "adversaries", "all", "", "", "all", "", "")
    return table


def _share(accepted: int, drafted: int) -> str:
    return f"{accepted / drafted:.2f}" if drafted else "-"
