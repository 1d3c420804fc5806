"""A load run as a person reads it: what the method did to throughput and to latencies, side by side. Fits 80 columns."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from specresearch.bench.output_check import CHANGED, P_VALUES
from specresearch.loadtest.folder import LoadResults
from specresearch.rows import BASELINE, METHOD


def print_load(results: LoadResults, folder: Path, console: Console | None = None) -> None:
    console = console or Console(highlight=False)
    console.print()
    console.print(_headline(results), soft_wrap=False)
    if results.sides and results.summary["method"]:
        console.print(_statement(results))
    for warning in load_warnings(results):
        console.print(Text(warning, style="bold yellow"))
    console.print()
    console.print(_setting(results))
    if results.sides:
        console.print()
        console.print(_sides_table(results))
    if results.classes:
        console.print()
        console.print(_classes_table(results))
    console.print()
    console.print(
        Text(f"{folder}/results.json holds every figure with its definition", style="dim"),
        soft_wrap=True,
    )


def load_in_words(summary: Mapping[str, Any]) -> str:
    """Such as "poisson, 4 requests/s" or "closed loop of 8"."""
    if summary.get("concurrency"):
        return f"closed loop of {summary['concurrency']}"
    cv = f" (cv {summary['cv']:g})" if summary.get("cv") else ""
    qps = summary.get("qps")
    return f"{summary['arrivals']}{cv}, {qps:.3g} requests/s" if qps else str(summary["arrivals"])


def _headline(results: LoadResults) -> Text:
    summary = results.summary
    prefix = "" if results.complete else "unfinished run: "
    load = f"on {results.provenance['dataset']['name']}, {load_in_words(summary)}"
    if not results.sides:
        return Text(f"{prefix}no pass {load} has come to its end yet: no figures", style="bold")
    if summary.get("throughput") is None:
        short = (
            "every pass was too short to have a middle between warm-up and tail; send more requests"
        )
        return Text(f"{prefix}no figures {load}: {short}", style="bold")
    if summary.get("speedup") is None:
        name = summary["method"] or "plain decoding"
        return Text(f"{prefix}{name} {load}: {summary['throughput']:,.1f} tokens/s", style="bold")
    method = f"{prefix}{summary['method']} with {summary['controller']} {load}"
    is_served = not (summary["overloaded"] or summary["baseline_overloaded"])
    if summary.get("concurrency") is None and is_served and summary["e2el_p50_ratio"] is not None:
        return Text(f"{method}: {_latency_in_words(results)}", style="bold")
    factor = summary["speedup"]
    slower = "" if factor >= 1 else ", SLOWER"
    words = f"{factor:.2f}x the throughput of plain decoding{slower}{_between(results.intervals.get('speedup'))}"
    if summary["best_fixed"] is not None and summary["speedup_over_best"] is not None:
        words += f", {summary['speedup_over_best']:.2f}x the best of plain and fixed lengths"
    return Text(f"{method}: {words}", style="bold")


def _latency_in_words(results: LoadResults) -> str:
    """Both sides answer all that comes, so that their throughput says nothing."""
    summary, ratio = results.summary, results.summary["e2el_p50_ratio"]
    between = _between(results.intervals.get("e2el_p50_ratio"))
    slower = "" if ratio <= 1 else ", SLOWER"
    words = (
        f"a request takes {ratio:.2f}x the time of plain decoding at the median{slower}{between}"
    )
    return f"{words}, {summary['e2el_p99_ratio']:.2f}x at the 99th percentile"


def _statement(results: LoadResults) -> Text:
    summary = results.summary
    lossless = results.provenance["method"]["lossless"]
    is_exact = (
        lossless or summary["temperature"] == 0
    )  # a lossy rule may change sampled outputs and no greedy one
    is_same = (
        lossless if summary["outputs_equal"] is None else summary["outputs_equal"] and is_exact
    )
    p_values = [summary.get(name) for name in P_VALUES]
    is_changed = any(p is not None and p < CHANGED for p in p_values)
    is_wrong = is_changed or summary["outputs_equal_but_for_ties"] is False
    style = "bold red" if is_wrong else "bold green" if is_same else "bold yellow"
    return Text(summary["output_statement"], style=style)


def load_warnings(results: LoadResults) -> list[str]:
    """What a reader of the figures must know first."""
    told = [f"stopped: {results.stopped}"] if results.stopped else []
    late = [name for name, figures in results.sides.items() if figures["overloaded"]]
    late = [name for name in late if f"; {name}, repeat" not in f"; {results.stopped or ''}"]
    if late:
        words = "requests came faster than they were answered; throughput is what it can do, and latencies grow with the run"
        told.append(f"{', '.join(late)}: {words}")
    short = [name for name, figures in results.sides.items() if figures.get("too_short")]
    if short:
        told.append(
            f"{', '.join(short)}: the last request came before most could be answered, so that rates are those of a beginning; "
            "send more requests"
        )
    if results.class_signature:
        told.append(
            f"{', '.join(results.class_signature)}: the median request is faster and the slowest 1% slower"
        )
    if results.class_unclear:
        told.append(
            f"{', '.join(results.class_unclear)}: not measurable, by so few requests, whether the slowest 1% pay for the median"
        )
    return told


def _setting(results: LoadResults) -> Table:
    provenance, summary = results.provenance, results.summary
    target, machine, workload = provenance["target"], provenance["machine"], provenance["workload"]
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    size = f"{target['num_parameters'] / 1e6:,.1f}M parameters, {target['dtype']}"
    table.add_row("target", f"{target['model']} ({size})")
    table.add_row(
        "machine",
        f"{machine['device']}, {target['device']}, {machine['num_torch_threads']} threads",
    )
    lengths = f"prompts of {workload['mean_prompt_tokens']:.0f} tokens, answers of at most {workload['mean_max_new_tokens']:.0f}"
    table.add_row("requests", f"{workload['num_requests']} a pass, {lengths} on average")
    table.add_row("running", f"at most {summary['max_running']} together")
    for key, label in (("trace", "trace"), ("dataset", "prompts")):
        origin = provenance.get(key)
        if origin:
            note = f"; {origin['note']}" if key == "trace" and origin["note"] else ""
            table.add_row(label, f"{origin['location']}, fingerprint {origin['fingerprint']}{note}")
    if workload.get("num_prompts_short"):
        table.add_row(
            "short",
            f"{workload['num_prompts_short']} prompts are shorter than in the trace: there are no longer ones, or they are cut",
        )
    if workload.get("num_outputs_cut"):
        table.add_row(
            "cut", f"{workload['num_outputs_cut']} answers are cut to sampling.max_new_tokens"
        )
    table.add_row("repeats", str(summary["num_repeats"]))
    if summary.get("memory_peak"):
        start, end, peak = (summary[f"memory_{name}"] / 1e9 for name in ("start", "end", "peak"))
        table.add_row(
            "memory",
            f"{start:.2f} GB resident at first, {end:.2f} GB at last, never more than {peak:.2f} GB",
        )
    limits = f"TTFT {results.limits['ttft']:g} s, TPOT {1e3 * results.limits['tpot']:g} ms"
    table.add_row("limits", f"{limits}; goodput counts requests within both")
    return table


def _sides_table(results: LoadResults) -> Table:
    """Times in milliseconds; medians, and 99th percentiles behind them."""
    table = _table(
        "ms", ("tok/s", "ratio", "good/s", "TTFT", "p99", "TPOT", "p99", "acc.", "drafts", "wait")
    )
    plain = results.sides.get(BASELINE, {}).get("throughput")
    for side, figures in results.sides.items():
        own, drafts = figures["throughput"], side != BASELINE
        table.add_row(
            _name(side, results),
            _number(own, 1),
            f"{own / plain:.2f}" if own and plain and drafts else "",
            _number(figures["goodput"], 2),
            _number(figures["ttft_p50"], 0, 1e3),
            _number(figures["ttft_p99"], 0, 1e3),
            _number(figures["tpot_p50"], 1, 1e3),
            _number(figures["tpot_p99"], 1, 1e3),
            _number(figures["draft_acceptance_rate"], 2) if drafts else "",
            _number(figures["mean_draft_length"], 1) if drafts else "",
            _number(figures["waiting_mean"], 1),
        )
    return table


def _classes_table(results: LoadResults) -> Table:
    table = _table(
        "class", ("requests", "TPOT", "p90", "p99", "E2EL", "p99", "acc.", "p10", "good")
    )
    for category, of_sides in results.classes.items():
        for side, figures in of_sides.items():
            names = ("draft_acceptance_rate", "acceptance_p10")
            table.add_row(
                f"{category}: {_name(side, results)}",
                str(figures["num_requests"]),
                *(_number(figures[f"tpot_p{p}"], 1, 1e3) for p in (50, 90, 99)),
                *(_number(figures[f"e2el_p{p}"], 0, 1e3) for p in (50, 99)),
                *(_number(figures[name], 2) if side != BASELINE else "" for name in names),
                f"{figures['share_within_limits']:.0%}",
            )
    return table


def _table(first: str, others: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    table.add_column(first, style="dim")
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _name(side: str, results: LoadResults) -> str:
    return str(results.summary["controller"]) if side == METHOD else side


def _between(interval: Any) -> str:
    return (
        f" (95% interval {interval[0]:.2f} to {interval[1]:.2f})"
        if interval
        else " (too few requests for an interval)"
    )


def _number(value: float | None, digits: int, scale: float = 1.0) -> str:
    return "-" if value is None else f"{value * scale:,.{digits}f}"
