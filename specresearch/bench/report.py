"""Print the results of a run within 80 columns: the answer first, then the evidence."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from specresearch.bench.estimate import Estimate
from specresearch.bench.folder import Results
from specresearch.bench.formatting import by_position, describe_target, number, with_caveats
from specresearch.bench.memory_use import describe_memory
from specresearch.bench.outcome import describe_gain
from specresearch.bench.printing import (
    acceptance_by,
    by_position_label,
    describe_machine,
    has_trees,
    output_text,
    settings_grid,
)
from specresearch.bench.side import PARTS

MEMORIES = {
    "cold": "cold: no request learns from earlier ones",
    "warm": "warm: requests learn from all earlier ones since the start of the repeat",
}
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
    console.print(output_text(results))
    sections: list[RenderableType] = [_setting(results), _speed_table(results.summary)]
    if results.summary["num_draft_tokens"]:
        sections.append(_acceptance_table(results))
    if results.summary["output_tv"] is not None:
        sections.append(_shift_table(results))
    if results.by_category:
        sections.append(_category_table(results))
    for section in sections:
        console.print()
        console.print(section)
    if results.advice:
        console.print()
        console.print(Text(results.advice, style="bold"))
    console.print()
    footer = f"{folder}/results.json holds every figure with its definition"
    console.print(Text(footer, style="dim"), soft_wrap=True)


def _headline(results: Results) -> Text:
    summary = results.summary
    dataset = results.provenance["dataset"]["name"]
    prefix = "" if results.complete else "unfinished run: "
    method = summary["method"] or "plain decoding"
    name = with_caveats(f"{prefix}{method} on {dataset}", results.provenance)
    gain = Estimate.of(summary["speedup"], summary["speedup_ci95"])
    if gain is None:
        speed = number(summary["tokens_per_second"], 1)
        return Text(f"{name}: {speed} tokens per second", style="bold")
    verdict = describe_gain(gain, has_drafts=summary["num_draft_tokens"] > 0)
    return Text(f"{name}: {verdict}", style="bold")


def _setting(results: Results) -> Table:
    summary, provenance = results.summary, results.provenance
    dataset = provenance["dataset"]
    table = settings_grid()
    table.add_row("target", describe_target(provenance["target"]))
    table.add_row("machine", describe_machine(provenance))
    source = f"{dataset['kind']} {dataset['location']}, fingerprint {dataset['fingerprint']}"
    table.add_row("prompts", f"{summary['num_prompts']} of {dataset['name']}, from {source}")
    method = provenance["method"]
    if method and method["description"]:
        table.add_row("drafter", method["description"])
    if method and method.get("foretold"):
        table.add_row("pair", method["foretold"]["summary"])
    for model in (method or {}).get("models", ()):
        table.add_row("draft model", describe_target(model))
    if method and method.get("shape"):
        table.add_row("drafts", method["shape"]["summary"])
    if method and method["memory"]:
        table.add_row("learning", _memory(method["memory"], provenance))
    if summary["num_prompts_cut"]:
        cut = f"{summary['num_prompts_cut']} of {summary['num_requests']}"
        table.add_row("cut", f"{cut} prompts were shortened to fit")
    if summary["num_repeats"] > 1:
        table.add_row("repeats", str(summary["num_repeats"]))
    memory = describe_memory(summary)
    if memory:
        table.add_row("memory", memory)
    if summary["speedup_basis"]:
        table.add_row("compared", summary["speedup_basis"])
    return table


def _memory(memory: str, provenance: Mapping[str, Any]) -> str:
    words = MEMORIES[memory]
    if memory == "warm" and provenance["num_sessions"] > 1:
        words += " or since a session resumed it"
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
        table.add_column("speedup", justify="right", min_width=8)

    def row(
        label: str, name: str, digits: int = 1, scale: float = 1.0, *, speedup: bool = False
    ) -> None:
        value = summary[name]
        plain = summary.get(f"baseline_{name}", value)
        cells = [number(plain, digits, scale)]
        if method:
            cells.append(number(value, digits, scale))
            cells.append(f"{value / plain:.2f}" if speedup and value and plain else "")
        table.add_row(label, *cells)

    row("generated tokens", "num_generated_tokens", 0)
    row("tokens per second", "tokens_per_second", speedup=True)
    row("tokens per second without prefill", "decode_tokens_per_second", speedup=True)
    with_draft_prefill = number(summary["draft_prefill_speedup"], 2)
    if number(summary["decode_speedup"], 2) != with_draft_prefill != "-":
        table.add_row("  with the drafter's own prefill", "", "", with_draft_prefill)
    row("time to first token, median ms", "ttft_p50", 1, 1e3)
    row("time per output token, median ms", "tpot_p50", 2, 1e3)
    row("request latency, median ms", "e2el_p50", 0, 1e3)
    row("request latency, 90th percentile ms", "e2el_p90", 0, 1e3)
    for part in PARTS:
        row(f"share of time: {part} %", f"fraction_{part}", 1, 100.0)
    row("host overhead of decoding %", "host_overhead", 1, 100.0)
    if method:
        cost = number(summary["cost_ratio"], 3)
        ideal = number(summary["ideal_speedup"], 2)
        table.add_row("ideal speedup, if the host cost nothing", "", ideal, "")
        efficiency = number(summary["efficiency"], 2)
        table.add_row("efficiency: decode speedup / ideal", "", efficiency, "")
        table.add_row("cost of a draft token / target step", "", cost, "")
    return table


def _acceptance_table(results: Results) -> RenderableType:
    """Return how much was accepted: of chains by token, of trees by the length of their paths."""
    summary, trees = results.summary, has_trees(results.provenance)
    table = settings_grid()
    for figure in acceptance_by(trees=trees):
        table.add_row(figure.label, _estimate(summary, figure.name, 2, figure.shown))
    if summary["outputs_equal"] is None:
        table.add_row("expected acceptance", number(summary["expected_acceptance"], 2))
    num_drafts, num_tokens = summary["num_drafts"], summary["num_draft_tokens"]
    counts = f"{summary['num_accepted_tokens']:,} of {num_tokens:,} tokens in {num_drafts:,} drafts"
    if trees:
        nodes = number(num_tokens / num_drafts, 1)
        counts = (
            f"{summary['num_accepted_tokens']:,} tokens in {num_drafts:,} trees of {nodes} drafts "
            "on average"
        )
    table.add_row("accepted", f"{counts}; {summary['num_target_forwards']:,} target forwards")
    table.add_row(by_position_label(trees=trees), _positions(results, "unconditional"))
    table.add_row("  given all before were", _positions(results, "conditional"))
    if trees:
        spread = _spread(results.histogram["mean_acceptance_length"], less=1.0)
        table.add_row("accepted per tree by request", spread)
        return table
    rates = results.histogram["draft_acceptance_rate"]
    table.add_row("acceptance rate by request", f"0 {_bars(rates['counts'])} 1   {_spread(rates)}")
    return Group(table, Text(RULE_OF_THUMB, style="dim"))


def _spread(percentiles: Mapping[str, Any], less: float = 0.0) -> str:
    names = {"10%": "p10", "median": "p50", "90%": "p90"}
    return ", ".join(f"{name} {percentiles[key] - less:.2f}" for name, key in names.items())


def _shift_table(results: Results) -> Table:
    summary = results.summary
    table = settings_grid()
    labels = {
        "output_tv": "total variation from the target",
        "output_kl": "KL divergence from it, nats",
        "refused_rate": "refused by the exact rule",
    }
    for name, label in labels.items():
        value = _estimate(summary, name, 3)
        if name == "output_kl" and summary["num_infinite_kl"]:
            value = f"infinite (tokens that the target never says: {summary['num_infinite_kl']:,})"
        table.add_row(label, value)
        table.add_row("  at position 1, 2, ...", _positions(results, name))
    return table


def _category_table(results: Results) -> Table:
    columns = {
        "speedup": "speedup",
        "acceptance rate": "draft_acceptance_rate",
        "tokens per forward": "tokens_per_target_forward",
    }
    if has_trees(results.provenance):
        del columns["acceptance rate"]
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("category", min_width=24)
    for header in ("prompts", *columns):
        table.add_column(header, justify="right")
    for category, figures in results.by_category.items():
        cells = [number(figures[name], 2) for name in columns.values()]
        table.add_row(category, str(figures["num_prompts"]), *cells)
    return table


def _positions(results: Results, name: str) -> str:
    """Return a figure at each position; a dash stands where no draft of that depth was judged."""
    return by_position(
        [entry[name] if entry["num_reached"] else None for entry in results.per_position]
    )


def _estimate(
    summary: Mapping[str, Any],
    name: str,
    digits: int,
    shown: Callable[[float], float] = lambda value: value,
) -> str:
    """Return a figure with its interval, if it has one, each as `shown` returns it."""
    value, interval = summary[name], summary.get(f"{name}_ci95")
    if value is None:
        return number(value, digits)
    words = number(shown(value), digits)
    if not interval:
        return words
    low, high = (number(shown(end), digits) for end in interval)
    return f"{words} ({low} to {high})"


def _bars(counts: Sequence[int]) -> str:
    """Draw one character per bin; a count above 0 shows."""
    most = max(counts)
    return "".join(BARS[-(-8 * count // most)] if most else " " for count in counts)
