"""Write a certificate to disk, and print it for 80 columns."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from specresearch.certification.certificate import CERTIFICATE, STYLES, Certificate
from specresearch.certification.outcomes import GreedyTest, SampledTest
from specresearch.results.folder import write_json

NEGLIGIBLE = 1e-9


def write_certificate(certificate: Certificate, folder: Path) -> Path:
    """Write certificate.json, verdict and statement first, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / CERTIFICATE
    verdict = {"verdict": certificate.verdict, "statement": certificate.statement}
    write_json(path, verdict | asdict(certificate))
    return path


def print_certificate(certificate: Certificate, path: Path, console: Console | None = None) -> None:
    """Print the verdict, then the tests."""
    console = console or Console(highlight=False)
    console.print()
    console.print(Text(certificate.verdict.upper(), style=STYLES[certificate.verdict]))
    console.print(certificate.statement)
    if certificate.method_sampled or certificate.method_greedy:
        console.print()
        console.print(_scope(certificate))
    by_trial: dict[str, list[SampledTest]] = {}
    for test in certificate.sampled:
        by_trial.setdefault(test.trial, []).append(test)
    for trial, tests in by_trial.items():
        console.print()
        console.print(Text(_trial_heading(trial, tests), style="bold"))
        console.print(_sampled_table(tests))
    if certificate.sampled:
        note = (
            f"p is before Holm's correction for {len(certificate.sampled)} tests; the bounds of "
            "the total variation are 95%"
        )
        console.print(Text(note, style="dim"))
    if certificate.greedy:
        console.print()
        console.print(_greedy_table(certificate.greedy))
    by_reason: dict[str, list[str]] = {}
    for name, reason in certificate.refused.items():
        by_reason.setdefault(reason, []).append(name)
    for reason, names in by_reason.items():
        console.print(Text(f"not tested: {', '.join(names)}: {reason}", style="dim"))
    console.print()
    console.print(Text(str(path), style="dim"), soft_wrap=True)


def _scope(certificate: Certificate) -> str:
    """Return how much was tested, and what no certificate tests."""
    sampled, greedy = certificate.method_sampled, certificate.method_greedy
    trials = {test.trial: None for test in (*sampled, *greedy)}
    num_outputs = sum(test.fit.num_samples for test in sampled)
    num_greedy = sum(test.num_requests for test in greedy)
    num_drafts = sum(test.num_draft_tokens for test in (*sampled, *greedy))
    stressed = [test for test in certificate.sampled if test.stress]
    words = f"tested in {', '.join(trials)}: {num_outputs:,} sampled and {num_greedy:,} greedy "
    words += f"outputs, {num_drafts:,} drafts of the method"
    if stressed:
        num_stressed = sum(test.fit.num_samples for test in stressed)
        words += f"; {num_stressed:,} sampled outputs of adversaries"
    if certificate.chosen_drafts:
        words += f"\n{_chosen(certificate.chosen_drafts)}"
    return f"{words}\nnot tested: trained models, and outputs longer than those of the settings"


def _chosen(drafts: Mapping[str, str]) -> str:
    """Return what was drafted for `auto`, by the trials that drafted it."""
    by_shape: dict[str, list[str]] = {}
    for trial, shape in drafts.items():
        by_shape.setdefault(shape, []).append(trial)
    parts = [f"{shape} in {', '.join(trials)}" for shape, trials in by_shape.items()]
    return f"in place of auto: {'; '.join(parts)}"


def _trial_heading(trial: str, tests: Sequence[SampledTest]) -> str:
    """Return what the tests of the method in a trial detect."""
    tests = [test for test in tests if not test.stress]
    tv = max((test.asked_tv for test in tests), default=0)
    words = [f"{trial}: detects a total variation of {tv:g}"]
    if any(test.is_crowded for test in tests):
        num = sum(test.fit.num_samples for test in tests)
        preempted = sum(test.num_preempted for test in tests) / num
        chunked = sum(test.num_chunked for test in tests) / num
        words.append(f"{preempted:.0%} of requests preempted, {chunked:.0%} prefilled in chunks")
    rounding = max((test.rounding for test in tests), default=0.0)
    if rounding:
        words.append(f"rounding may shift the distribution by {rounding / 2:.1g}")
    return "; ".join(words)


def _sampled_table(tests: Sequence[SampledTest]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("drafter", "setting"):
        table.add_column(name, no_wrap=True)
    for name in ("samples", "accepted", "chi2/df", "p", "total variation"):
        table.add_column(name, justify="right", no_wrap=True)
    for test in tests:
        fit = test.fit
        cells = [
            test.drafter,
            test.setting,
            f"{fit.num_samples:,}",
            _acceptance(test),
            f"{fit.statistic:.0f}/{fit.degrees_of_freedom}",
            f"{fit.p_value:.2g}" if fit.p_value > NEGLIGIBLE else "0",
            f"{fit.tv_low:.3f} to {fit.tv_high:.3f}",
        ]
        table.add_row(*cells, style="red" if test.rejected else "")
    return table


def _greedy_table(tests: Sequence[GreedyTest]) -> Table:
    """Return the method's tests, and any other that failed."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("trial", "drafter", "setting"):
        table.add_column(name)
    for name in ("tokens", "accepted", "equal", "ties"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("")
    for test in tests:
        if test.stress and not test.num_wrong:
            continue
        cells = [
            test.trial,
            test.drafter,
            test.setting,
            f"{test.num_tokens:,}",
            _acceptance(test),
            f"{test.num_equal} of {test.num_requests}",
            str(test.num_ties),
            test.first_difference or "",
        ]
        table.add_row(*cells, style="red" if test.num_wrong else "")
    stress = [test for test in tests if test.stress]
    if stress and not any(test.num_wrong for test in stress):
        cells = ["", "adversaries", "all", "", "", "all", "", ""]
        table.add_row(*cells)
    return table


def _acceptance(test: SampledTest | GreedyTest) -> str:
    if not test.num_draft_tokens:
        return "-"
    return f"{test.num_accepted_tokens / test.num_draft_tokens:.2f}"
