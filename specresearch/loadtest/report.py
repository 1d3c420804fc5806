"""Print a load test in 80 columns: what the method did to throughput and latencies."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from specresearch.bench.estimate import Estimate
from specresearch.bench.formatting import describe_target, with_caveats
from specresearch.bench.memory_use import describe_memory
from specresearch.bench.outcome import COMPARED, describe_gain, describe_interval
from specresearch.bench.printing import describe_machine, has_trees, output_text, settings_grid
from specresearch.bench.side_comparison import THROUGHPUT
from specresearch.loadtest.results import LoadResults
from specresearch.loadtest.tables import classes_table, sides_tables
from specresearch.rows import METHOD

FIXED = "fixed"  # the controller with a fixed draft length


def print_load(results: LoadResults, folder: Path, console: Console | None = None) -> None:
    """Print the headline, warnings, settings and the figures of every side and class."""
    console = console or Console(highlight=False)
    console.print()
    where = f"on {results.provenance['dataset']['name']}"
    console.print(Text(headline(results, where), style="bold"), soft_wrap=False)
    if results.sides and results.summary["method"]:
        console.print(output_text(results))
    print_warnings(results, console)
    console.print()
    console.print(_settings_table(results))
    console.print()
    trees = has_trees(results.provenance)
    for part in sides_tables(results, trees=trees):
        console.print(part)
    if results.classes:
        console.print()
        for part in classes_table(results, trees=trees):
            console.print(part)
    console.print()
    path = f"{folder}/results.json holds every figure with its definition"
    console.print(Text(path, style="dim"), soft_wrap=True)


def print_warnings(results: LoadResults, console: Console) -> None:
    for warning in load_warnings(results):
        console.print(Text(warning, style="bold yellow"))


def load_warnings(results: LoadResults) -> list[str]:
    """Return what a reader must know before the figures."""
    stopped = results.stopped or ""
    overloaded = []
    too_short = []
    none_finished = []
    for name, figures in results.sides.items():
        if figures["overloaded"] and f"; {name}, repeat" not in f"; {stopped}":
            overloaded.append(name)
        if figures.get("too_short"):
            too_short.append(name)
        if figures["request_throughput"] == 0:
            none_finished.append(name)
    warnings = [f"stopped: {stopped}"] if stopped else []
    if results.summary.get("unpaired"):
        warnings.append(unpaired_text(results.summary["unpaired"]))
    warnings += failures_text(results)
    messages = (
        (
            overloaded,
            "requests arrived faster than they were answered; throughput is the most it can do, "
            "and latencies grow with the length of the run",
        ),
        (
            too_short,
            "the run never reached steady state: the last request arrived before most were "
            "answered; send more requests",
        ),
        (none_finished, "no request finished between warm-up and tail; send more requests"),
        (results.class_signature, "the median request is faster and the slowest 1% slower"),
        (results.class_unclear, "too few requests to tell whether the slowest 1% got slower"),
    )
    for names, message in messages:
        if names:
            warnings.append(f"{', '.join(names)}: {message}")
    return warnings


def unpaired_text(reason: str) -> str:
    """Return what it means that sides were not measured together."""
    return f"unpaired: {reason}, so the speedup holds whatever else changed in between"


def failures_text(results: LoadResults) -> list[str]:
    """Return a sentence for each side of which requests failed."""
    sentences = []
    for name, kinds in results.failures.items():
        num_failed = sum(kinds.values())
        num_requests = num_failed + results.sides[name]["num_finished"]
        reasons = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
        sentences.append(
            f"{name}: {num_failed} of {num_requests} requests failed ({reasons}); figures are of "
            "the others, and failures.jsonl has a row for each"
        )
    return sentences


def describe_load(summary: Mapping[str, Any]) -> str:
    """Return such as "poisson, 4 requests/s" or "closed loop of 8"."""
    if summary.get("concurrency"):
        return f"closed loop of {summary['concurrency']}"
    cv = f" (cv {summary['cv']:g})" if summary.get("cv") else ""
    qps = summary.get("qps")
    return f"{summary['arrivals']}{cv}, {qps:.3g} requests/s" if qps else str(summary["arrivals"])


def describe_drafting(method: str, controller: str | None) -> str:
    """Return such as "ngram with the goodput controller"; a controller of yours has no name."""
    if controller is None:
        return method
    length = "a fixed draft length" if controller == FIXED else f"the {controller} controller"
    return f"{method} with {length}"


def headline(results: LoadResults, where: str) -> str:
    """Return the answer in one sentence.

    Args:
        where: What was decoded, such as "on sharegpt".
    """
    summary = results.summary
    prefix = "" if results.complete else "unfinished run: "
    load = f"{with_caveats(where, results.provenance)}, {describe_load(summary)}"
    if not results.sides:
        return f"{prefix}no figures yet; no pass {load} has finished"
    if summary.get("throughput") is None:
        return (
            f"{prefix}no figures {load}: every pass was too short to have a middle between warm-up "
            "and tail; send more requests"
        )
    comparison = results.comparisons.get(METHOD)
    if comparison is None or comparison.gain is None:
        name = summary["method"] or "plain decoding"
        return f"{prefix}{name} {load}: {summary['throughput']:,.1f} tokens/s"
    has_drafts = results.sides[METHOD]["mean_draft_length"] != 0
    verdict = describe_gain(
        comparison.gain, COMPARED[comparison.basis], "requests", has_drafts=has_drafts
    )
    if summary.get("unpaired"):
        verdict = f"unpaired, {verdict}"
    best = ""
    if comparison.basis == THROUGHPUT and summary["best_fixed"] is not None:
        best = _over_best(results)
    drafting = describe_drafting(summary["method"], summary["controller"])
    return f"{prefix}{drafting} {load}: {verdict}{best}"


def _over_best(results: LoadResults) -> str:
    """Compare with the best setting in hindsight."""
    ratio = Estimate.of(
        results.summary["speedup_over_best"], results.intervals.get("speedup_over_best")
    )
    if ratio is None:
        return ""
    interval = describe_interval(ratio) if ratio.has_interval else "no interval"
    return f"; {ratio.value:.2f}x the best of plain decoding and fixed lengths ({interval})"


def _settings_table(results: LoadResults) -> Table:
    provenance, summary = results.provenance, results.summary
    workload = provenance["workload"]
    table = settings_grid()
    table.add_row("target", describe_target(provenance["target"]))
    table.add_row("machine", describe_machine(provenance))
    lengths = f"outputs of at most {workload['mean_max_new_tokens']:.0f} tokens on average"
    if workload["mean_prompt_tokens"] is not None:
        lengths = f"prompts of {workload['mean_prompt_tokens']:.0f} tokens, {lengths}"
    table.add_row("requests", f"{workload['num_requests']} a pass, {lengths}")
    if summary["max_running"] is not None:
        table.add_row("running", f"at most {summary['max_running']} together")
    for key, label in (("trace", "trace"), ("dataset", "prompts")):
        origin = provenance.get(key)
        if origin:
            note = f"; {origin['note']}" if key == "trace" and origin["note"] else ""
            table.add_row(label, f"{origin['location']}, fingerprint {origin['fingerprint']}{note}")
    num_short, num_cut = workload.get("num_prompts_short"), workload.get("num_outputs_cut")
    if num_short:
        short = f"{num_short} are shorter than in the trace: cut to fit, or the longest there are"
        table.add_row("short", short)
    if num_cut:
        table.add_row("cut", f"{num_cut} outputs are cut to sampling.max_new_tokens")
    table.add_row("repeats", str(summary["num_repeats"]))
    memory = describe_memory(summary)
    if memory:
        table.add_row("memory", memory)
    if summary.get("memory_peak"):
        start, end, peak = (summary[f"memory_{name}"] / 1e9 for name in ("start", "end", "peak"))
        growth = (
            f"{start:.2f} GB resident at the start, {end:.2f} GB at the end, {peak:.2f} GB at most"
        )
        table.add_row("process", growth)
    limits = f"TTFT {results.limits['ttft']:g} s, TPOT {1e3 * results.limits['tpot']:g} ms"
    table.add_row("limits", f"{limits}; goodput counts requests within both")
    return table
