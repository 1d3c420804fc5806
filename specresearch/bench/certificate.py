"""What a certificate says: the tests behind it, the verdict they amount to, and how a person reads it."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from specresearch.bench.goodness import Fit
from specresearch.files import replace_text

CERTIFICATE = "certificate.json"
NEGLIGIBLE = 1e-9
SEEN_IF_WRONG = (
    0.5  # of the outputs that hold a draft; a test that would not see that many wrong ones says nothing of drafts
)
CERTIFIED, REFUTED, LOSSY, UNTESTED, REFUSED = (
    "certified",
    "refuted",
    "lossy as declared",
    "untested",
    "refused",
)
STYLES = {CERTIFIED: "bold green", REFUTED: "bold red", LOSSY: "bold yellow", UNTESTED: "bold red", REFUSED: "bold"}


@dataclass(frozen=True)
class SampledTest:
    """Outputs of one drafter under one setting, beside the enumerated distribution.

    stress: the drafter is one of the adversaries. num_outputs: possible ones, the cells of the test. p_adjusted: by Holm, over
    the certificate's tests. visible_tv: total variation that the test sees with the certificate's power.
    """

    drafter: str
    stress: bool
    setting: str
    prompt: tuple[int, ...]
    num_outputs: int
    fit: Fit
    p_adjusted: float
    rejected: bool
    visible_tv: float
    num_draft_tokens: int
    num_accepted_tokens: int
    num_target_forwards: int
    num_generated_tokens: int

    @property
    def is_idle(self) -> bool:
        """Too little was drafted for the test to see a wrong rule: were every draft in an output of its own, and so many of
        these outputs wrong."""
        return SEEN_IF_WRONG * self.num_draft_tokens < self.visible_tv * self.fit.num_samples


@dataclass(frozen=True)
class GreedyTest:
    """Greedy outputs of one drafter, in float64, beside the likeliest token after every prefix.

    first_difference: request and position, where any differs.
    """

    drafter: str
    stress: bool
    setting: str
    num_requests: int
    num_equal: int
    num_tokens: int
    num_draft_tokens: int
    num_accepted_tokens: int
    first_difference: str | None = None

    @property
    def is_idle(self) -> bool:
        """Less was drafted than once a request."""
        return self.num_draft_tokens < self.num_requests


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
            *(test for test in self.greedy if test.num_equal < test.num_requests),
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
        return UNTESTED if self.speculates and any(test.is_idle for test in own) else CERTIFIED

    @property
    def statement(self) -> str:
        """The verdict in a sentence or two."""
        pair = f"{self.method} with {self.rule}"
        if self.verdict == REFUSED:
            return f"{pair}: {next(iter(self.refused.values()), 'nothing could be tried')}"
        if self.verdict == UNTESTED:
            return f"{pair} drafted too little to prove anything: {self._idle_words()}"
        if self.verdict == LOSSY:
            return f"{pair} does not claim to be lossless; {self._lossy_words()}"
        if self.verdict == REFUTED:
            return f"{pair} changes the target's output: {self._blame()}"
        if not self.sampled:
            return f"{pair}: greedy output unchanged, token for token; it does not sample"
        own = sum(not test.stress for test in self.sampled)
        return (
            f"{pair}: the target's distribution in all of {own} settings, where a total variation of {self.visible_tv:g} would "
            f"have shown with probability {self.power:g}; greedy output unchanged"
        )

    def _idle_words(self) -> str:
        """How much was drafted where that was least."""
        idle = [test for test in self._own if test.is_idle]
        least = min(idle, key=lambda test: test.num_draft_tokens)
        words = f"{least.num_draft_tokens:,} drafts in all outputs of {least.setting}"
        return words if len(idle) == 1 else f"{words}, and too few in {len(idle) - 1} others of {len(self._own)} tests"

    def _lossy_words(self) -> str:
        words = []
        own = [test for test in self.sampled if not test.stress]
        worst = max(own, key=lambda test: test.fit.tv, default=None)
        if worst is not None and worst.rejected:
            low, high = worst.fit.tv_low, worst.fit.tv_high
            words.append(f"total variation up to {worst.fit.tv:.3f} ({low:.3f} to {high:.3f}, setting {worst.setting})")
        elif worst is not None:
            words.append("no deviation was seen in its own drafts")
        greedy = [test for test in self.greedy if not test.stress]
        if greedy:
            num, num_equal = (sum(getattr(test, name) for test in greedy) for name in ("num_requests", "num_equal"))
            words.append(f"{num - num_equal} of {num} greedy outputs changed")
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
    if certificate.sampled:
        console.print()
        console.print(_sampled_table(certificate.sampled))
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
    for name in ("drafter", "setting"):
        table.add_column(name)
    for name in ("tokens", "accepted", "greedy equal"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("")
    unequal = [test for test in tests if test.num_equal < test.num_requests]
    for test in tests:
        if not test.stress or test in unequal:
            table.add_row(
                test.drafter,
                test.setting,
                f"{test.num_tokens:,}",
                _share(test.num_accepted_tokens, test.num_draft_tokens),
                f"{test.num_equal} of {test.num_requests}",
                test.first_difference or "",
                style="red" if test in unequal else "",
            )
    num_stress = sum(test.stress for test in tests)
    if num_stress and not any(test.stress for test in unequal):
        table.add_row("adversaries", "all", "", "", "all", "")
    return table


def _share(accepted: int, drafted: int) -> str:
    return f"{accepted / drafted:.2f}" if drafted else "-"
