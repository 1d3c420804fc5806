"""Print a load test in 80 columns: what the method did to throughput and latencies."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from specresearch.bench.output_check import CHANGED, P_VALUES
from specresearch.loadtest.results import LoadResults
from specresearch.rows import BASELINE, METHOD


def print_load(results: LoadResults, folder: Path, console: Console | None = None) -> None:
    """Print the headline, warnings, settings and the figures of every side and class."""
    console = console or Console(highlight=False)
    console.print()
    console.print(Text(_headline(results), style="bold"), soft_wrap=False)
    if results.sides and results.summary["method"]:
        console.print(_output_statement(results))
    print_warnings(results, console)
    tables = [_settings_table(results)]
    if results.sides:
        tables.append(_sides_table(results))
    if results.classes:
        tables.append(_classes_table(results))
    for table in tables:
        console.print()
        console.print(table)
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
    for name, figures in results.sides.items():
        if figures["overloaded"] and f"; {name}, repeat" not in f"; {stopped}":
            overloaded.append(name)
        if figures.get("too_short"):
            too_short.append(name)
    warnings = [f"stopped: {stopped}"] if stopped else []
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
        (results.class_signature, "the median request is faster and the slowest 1% slower"),
        (results.class_unclear, "too few requests to tell whether the slowest 1% got slower"),
    )
    for names, message in messages:
        if names:
            warnings.append(f"{', '.join(names)}: {message}")
    return warnings


def _describe_load(summary: Mapping[str, Any]) -> str:
    """Return such as "poisson, 4 requests/s" or "closed loop of 8"."""
    if summary.get("concurrency"):
        return f"closed loop of {summary['concurrency']}"
    cv = f" (cv {summary['cv']:g})" if summary.get("cv") else ""
    qps = summary.get("qps")
    return f"{summary['arrivals']}{cv}, {qps:.3g} requests/s" if qps else str(summary["arrivals"])


def _headline(results: LoadResults) -> str:
    summary = results.summary
    prefix = "" if results.complete else "unfinished run: "
    load = f"on {results.provenance['dataset']['name']}, {_describe_load(summary)}"
    if not results.sides:
        return f"{prefix}no figures yet; no pass {load} has finished"
    if summary.get("throughput") is None:
        return (
            f"{prefix}no figures {load}: every pass was too short to have a middle between warm-up "
            "and tail; send more requests"
        )
    if summary.get("speedup") is None:
        name = summary["method"] or "plain decoding"
        return f"{prefix}{name} {load}: {summary['throughput']:,.1f} tokens/s"
    is_overloaded = summary["overloaded"] or summary["baseline_overloaded"]
    is_served = summary.get("concurrency") is None and not is_overloaded
    # Throughput says nothing if both sides answer all that arrives.
    by_latency = is_served and summary["e2el_p50_ratio"] is not None
    gain = _latency_gain(results) if by_latency else _throughput_gain(results)
    return f"{prefix}{summary['method']} with {summary['controller']} {load}: {gain}"


def _throughput_gain(results: LoadResults) -> str:
    summary, factor = results.summary, results.summary["speedup"]
    slower = "" if factor >= 1 else ", SLOWER"
    interval = _describe_interval(results.intervals.get("speedup"))
    gain = f"{factor:.2f}x the throughput of plain decoding{slower}{interval}"
    if summary["best_fixed"] is None or summary["speedup_over_best"] is None:
        return gain
    return f"{gain}, {summary['speedup_over_best']:.2f}x the best of plain and fixed lengths"


def _latency_gain(results: LoadResults) -> str:
    summary, ratio = results.summary, results.summary["e2el_p50_ratio"]
    slower = "" if ratio <= 1 else ", SLOWER"
    interval = _describe_interval(results.intervals.get("e2el_p50_ratio"))
    return (
        f"a request takes {ratio:.2f}x the time of plain decoding at the median{slower}{interval}, "
        f"{summary['e2el_p99_ratio']:.2f}x at the 99th percentile"
    )


def _output_statement(results: LoadResults) -> Text:
    summary = results.summary
    p_values = [summary.get(name) for name in P_VALUES]
    is_changed = any(p is not None and p < CHANGED for p in p_values)
    if is_changed or summary["outputs_equal_but_for_ties"] is False:
        style = "bold red"
    elif _is_unchanged(results):
        style = "bold green"
    else:
        style = "bold yellow"
    return Text(summary["output_statement"], style=style)


def _is_unchanged(results: LoadResults) -> bool:
    summary = results.summary
    lossless = results.provenance["method"]["lossless"]
    if summary["outputs_equal"] is None:
        return lossless
    # A lossy rule may change sampled outputs, but no greedy one.
    return summary["outputs_equal"] and (lossless or summary["temperature"] == 0)


def _settings_table(results: LoadResults) -> Table:
    provenance, summary = results.provenance, results.summary
    target, machine, workload = provenance["target"], provenance["machine"], provenance["workload"]
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    size = f"{target['num_parameters'] / 1e6:,.1f}M parameters, {target['dtype']}"
    table.add_row("target", f"{target['model']} ({size})")
    threads = f"{machine['num_torch_threads']} threads"
    table.add_row("machine", f"{machine['device']}, {target['device']}, {threads}")
    lengths = (
        f"prompts of {workload['mean_prompt_tokens']:.0f} tokens, outputs of at most "
        f"{workload['mean_max_new_tokens']:.0f} on average"
    )
    table.add_row("requests", f"{workload['num_requests']} a pass, {lengths}")
    table.add_row("running", f"at most {summary['max_running']} together")
    for key, label in (("trace", "trace"), ("dataset", "prompts")):
        origin = provenance.get(key)
        if origin:
            note = f"; {origin['note']}" if key == "trace" and origin["note"] else ""
            table.add_row(label, f"{origin['location']}, fingerprint {origin['fingerprint']}{note}")
    num_short, num_cut = workload.get("num_prompts_short"), workload.get("num_outputs_cut")
    if num_short:
        short = f"{num_short} prompts are shorter than in the trace: cut, or none is longer"
        table.add_row("short", short)
    if num_cut:
        table.add_row("cut", f"{num_cut} outputs are cut to sampling.max_new_tokens")
    table.add_row("repeats", str(summary["num_repeats"]))
    if summary.get("memory_peak"):
        start, end, peak = (summary[f"memory_{name}"] / 1e9 for name in ("start", "end", "peak"))
        memory = f"{start:.2f} GB resident at first, {end:.2f} GB at last, {peak:.2f} GB at most"
        table.add_row("memory", memory)
    limits = f"TTFT {results.limits['ttft']:g} s, TPOT {1e3 * results.limits['tpot']:g} ms"
    table.add_row("limits", f"{limits}; goodput counts requests within both")
    return table


def _sides_table(results: LoadResults) -> Table:
    """Return a row per side: times in milliseconds, medians and 99th percentiles."""
    names = ("tok/s", "ratio", "good/s", "TTFT", "p99", "TPOT", "p99", "acc.", "drafts", "wait")
    table = _table("ms", names)
    baseline = results.sides.get(BASELINE, {}).get("throughput")
    for side, figures in results.sides.items():
        drafts = side != BASELINE
        throughput = figures["throughput"]
        has_ratio = throughput and baseline and drafts
        cells = [
            _side_name(side, results),
            _number(throughput, 1),
            f"{throughput / baseline:.2f}" if has_ratio else "",
            _number(figures["goodput"], 2),
            *_milliseconds(figures, "ttft_p50", "ttft_p99", digits=0),
            *_milliseconds(figures, "tpot_p50", "tpot_p99", digits=1),
            _number(figures["draft_acceptance_rate"], 2) if drafts else "",
            _number(figures["mean_draft_length"], 1) if drafts else "",
            _number(figures["waiting_mean"], 1),
        ]
        table.add_row(*cells)
    return table


def _classes_table(results: LoadResults) -> Table:
    """Return a row per class and side: times in milliseconds."""
    names = ("requests", "TPOT", "p90", "p99", "E2EL", "p99", "acc.", "p10", "good")
    table = _table("class", names)
    for category, sides in results.classes.items():
        for side, figures in sides.items():
            drafts = side != BASELINE
            cells = [
                f"{category}: {_side_name(side, results)}",
                str(figures["num_requests"]),
                *_milliseconds(figures, "tpot_p50", "tpot_p90", "tpot_p99", digits=1),
                *_milliseconds(figures, "e2el_p50", "e2el_p99", digits=0),
                _number(figures["draft_acceptance_rate"], 2) if drafts else "",
                _number(figures["acceptance_p10"], 2) if drafts else "",
                f"{figures['share_within_limits']:.0%}",
            ]
            table.add_row(*cells)
    return table


def _table(first: str, others: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    table.add_column(first, style="dim")
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _side_name(side: str, results: LoadResults) -> str:
    return str(results.summary["controller"]) if side == METHOD else side


def _describe_interval(interval: Sequence[float] | None) -> str:
    if not interval:
        return " (too few requests for an interval)"
    return f" (95% interval {interval[0]:.2f} to {interval[1]:.2f})"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _milliseconds(figures: Mapping[str, Any], *names: str, digits: int) -> list[str]:
    cells = []
    for name in names:
        seconds = figures[name]
        cells.append(_number(None if seconds is None else 1e3 * seconds, digits))
    return cells
