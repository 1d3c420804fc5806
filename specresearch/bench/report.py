"""Print the results of a run within 80 columns: the answer first, then the evidence."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from specresearch.bench.folder import Results
from specresearch.bench.output_check import CHANGED, P_VALUES
from specresearch.bench.side import PARTS

MEMORIES = {
    "cold": "cold: a request finds nothing of those before it",
    "warm": "warm: a request finds what those before it left, since the start of the repeat",
}
NUM_POSITIONS = 9  # shown
BARS = " ▁▂▃▄▅▆▇█"
RULE_OF_THUMB = (
    "Rule of thumb from the field, not from this run: below an acceptance rate of about 0.5 "
    "speculation usually costs time, above 0.65 it usually pays. The measured speedup decides."
)


def print_report(results: Results, folder: Path, console: Console | None = None) -> None:
    """Print the results of a run.

    Args:
        folder: The run's folder, which the last line names.
    """
    console = console or Console(highlight=False)
    console.print()
    console.print(_headline(results), soft_wrap=False)
    console.print(_statement(results))
    sections: list[RenderableType] = [_setting(results), _speed_table(results.summary)]
    if results.summary["num_draft_tokens"]:
        sections.append(_acceptance_table(results))
    if results.summary["output_tv"] is not None:
        sections.append(_shift_table(results))
    if results.by_category:
        sections.append(_category_table(results.by_category))
    for section in sections:
        console.print()
        console.print(section)
    console.print()
    footer = f"{folder}/results.json holds every figure with its definition"
    console.print(Text(footer, style="dim"), soft_wrap=True)


def _headline(results: Results) -> Text:
    summary = results.summary
    dataset = results.provenance["dataset"]["name"]
    prefix = "" if results.complete else "unfinished run: "
    name = f"{prefix}{summary['method'] or 'plain decoding'} on {dataset}"
    factor = summary["speedup"]
    if factor is None:
        speed = _number(summary["tokens_per_second"], 1)
        return Text(f"{name}: {speed} tokens per second", style="bold")
    is_faster = factor >= 1
    words = " the speed of plain decoding" if is_faster else ", SLOWER than plain decoding"
    interval = summary["speedup_ci95"]
    spread = "too few groups for an interval"
    if interval:
        spread = f"95% interval {interval[0]:.2f} to {interval[1]:.2f}"
    return Text(f"{name}: {factor:.2f}x{words} ({spread})", style="bold")


def _statement(results: Results) -> Text:
    summary, method = results.summary, results.provenance["method"]
    if method is None:
        return Text(summary["output_statement"])
    p_values = [summary[name] for name in P_VALUES if summary[name] is not None]
    style = "bold yellow"
    num_unchanged = (summary["num_outputs_equal"] or 0) + summary["num_rounding_ties"]
    has_error = num_unchanged < summary["num_outputs_compared"]
    if has_error or any(p_value < CHANGED for p_value in p_values):
        style = "bold red"
    elif method["lossless"] or summary["outputs_equal"]:
        style = "bold green"
    return Text(summary["output_statement"], style=style)


def _setting(results: Results) -> Table:
    summary, provenance = results.summary, results.provenance
    target, dataset, machine = provenance["target"], provenance["dataset"], provenance["machine"]
    table = _grid()
    size = f"{target['num_parameters'] / 1e6:,.1f}M parameters, {target['dtype']}"
    table.add_row("target", f"{target['model']} ({size})")
    threads = f"{machine['num_torch_threads']} threads"
    table.add_row("machine", f"{machine['device']}, {target['device']}, {threads}")
    source = f"{dataset['kind']} {dataset['location']}, fingerprint {dataset['fingerprint']}"
    table.add_row("prompts", f"{summary['num_prompts']} of {dataset['name']}, from {source}")
    method = provenance["method"]
    if method and method["description"]:
        table.add_row("drafter", method["description"])
    if method and method["memory"]:
        table.add_row("memory", _memory(method["memory"], provenance))
    if summary["num_prompts_cut"]:
        cut = f"{summary['num_prompts_cut']} of {summary['num_requests']}"
        table.add_row("cut", f"{cut} prompts were shortened to fit")
    if summary["num_repeats"] > 1:
        table.add_row("repeats", str(summary["num_repeats"]))
    if summary["speedup_basis"]:
        table.add_row("compared", summary["speedup_basis"])
    return table


def _memory(memory: str, provenance: Mapping[str, Any]) -> str:
    words = MEMORIES[memory]
    if memory == "warm" and provenance["num_sessions"] > 1:
        words += " or of a session that resumed it"
    order = "in the dataset's order"
    if provenance["order"] == "shuffled":
        order = f"shuffled by seed {provenance['seed']}"
    return f"{words}; prompts {order}"


def _speed_table(summary: Mapping[str, Any]) -> Table:
    method = summary["method"]
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("", min_width=38)
    table.add_column("plain", justify="right", min_width=10)
    if method:
        table.add_column(method, justify="right", min_width=10)
        table.add_column("ratio", justify="right", min_width=8)

    def row(
        label: str, name: str, digits: int = 1, scale: float = 1.0, *, ratio: bool = False
    ) -> None:
        value = summary[name]
        plain = summary.get(f"baseline_{name}", value)
        cells = [_number(plain, digits, scale)]
        if method:
            cells.append(_number(value, digits, scale))
            cells.append(f"{value / plain:.2f}" if ratio and value and plain else "")
        table.add_row(label, *cells)

    row("generated tokens", "num_generated_tokens", 0)
    row("tokens per second", "tokens_per_second", ratio=True)
    row("tokens per second without prefill", "decode_tokens_per_second", ratio=True)
    with_draft_prefill = _number(summary["draft_prefill_speedup"], 2)
    if _number(summary["decode_speedup"], 2) != with_draft_prefill != "-":
        table.add_row("  with the drafter's own prefill", "", "", with_draft_prefill)
    row("time to first token, median ms", "ttft_p50", 1, 1e3)
    row("time per output token, median ms", "tpot_p50", 2, 1e3)
    row("request latency, median ms", "e2el_p50", 0, 1e3)
    row("request latency, 90th percentile ms", "e2el_p90", 0, 1e3)
    for part in PARTS:
        row(f"share of time: {part} %", f"fraction_{part}", 1, 100.0)
    row("host overhead of decoding %", "host_overhead", 1, 100.0)
    if method:
        cost = _number(summary["cost_ratio"], 3)
        ideal = _number(summary["ideal_speedup"], 2)
        table.add_row("ideal speedup at these step times", "", ideal, "")
        table.add_row("efficiency", "", _number(summary["efficiency"], 2), "")
        table.add_row("cost of a draft token / target step", "", cost, "")
    return table


def _acceptance_table(results: Results) -> RenderableType:
    summary = results.summary
    table = _grid()
    labels = {
        "draft_acceptance_rate": "draft acceptance rate",
        "mean_acceptance_length": "mean acceptance length",
        "tokens_per_target_forward": "tokens per target forward",
    }
    for name, label in labels.items():
        table.add_row(label, f"{_number(summary[name], 2)}{_interval(summary, name, 2)}")
    if summary["outputs_equal"] is None:
        table.add_row("expected acceptance", _number(summary["expected_acceptance"], 2))
    tokens = f"{summary['num_accepted_tokens']:,} of {summary['num_draft_tokens']:,} tokens"
    forwards = f"{summary['num_target_forwards']:,} target forwards"
    table.add_row("accepted", f"{tokens} in {summary['num_drafts']:,} drafts; {forwards}")
    table.add_row("accepted at position 1, 2, ...", _by_position(results, "unconditional"))
    table.add_row("  given all before were", _by_position(results, "conditional"))
    rates = results.histogram["draft_acceptance_rate"]
    if rates["p50"] is not None:
        spread = f"10% {rates['p10']:.2f}, median {rates['p50']:.2f}, 90% {rates['p90']:.2f}"
        table.add_row("acceptance rate by request", f"0 {_bars(rates['counts'])} 1   {spread}")
    return Group(table, Text(RULE_OF_THUMB, style="dim"))


def _shift_table(results: Results) -> Table:
    summary = results.summary
    table = _grid()
    labels = {
        "output_tv": "total variation from the target",
        "output_kl": "KL divergence from it, nats",
        "refused_rate": "refused by the exact rule",
    }
    for name, label in labels.items():
        value = _number(summary[name], 3)
        if name == "output_kl" and summary["num_infinite_kl"]:
            value = f"infinite (tokens that the target never says: {summary['num_infinite_kl']:,})"
        table.add_row(label, f"{value}{_interval(summary, name, 3)}")
        table.add_row("  at position 1, 2, ...", _by_position(results, name))
    return table


def _category_table(by_category: Mapping[str, Mapping[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("category", min_width=24)
    columns = {
        "speedup": "speedup",
        "accepted": "draft_acceptance_rate",
        "per forward": "tokens_per_target_forward",
    }
    for header in ("prompts", *columns):
        table.add_column(header, justify="right")
    for category, figures in by_category.items():
        cells = [_number(figures[name], 2) for name in columns.values()]
        table.add_row(category, str(figures["num_prompts"]), *cells)
    return table


def _grid() -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    return table


def _by_position(results: Results, name: str) -> str:
    shown = results.per_position[:NUM_POSITIONS]
    return " ".join(_number(entry[name], 2) for entry in shown)


def _interval(summary: Mapping[str, Any], name: str, digits: int) -> str:
    low_high = summary.get(f"{name}_ci95")
    return " ({:.{d}f} to {:.{d}f})".format(*low_high, d=digits) if low_high else ""


def _bars(counts: Sequence[int]) -> str:
    """Draw one character per bin; a count above 0 shows."""
    most = max(counts)
    return "".join(BARS[-(-8 * count // most)] if most else " " for count in counts)


def _number(value: int | float | None, digits: int, scale: float = 1.0) -> str:
    return "-" if value is None else f"{value * scale:,.{digits}f}"
