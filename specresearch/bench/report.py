"""The results as a person reads them: the answer first, then what it rests on. Fits 80 columns."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from specresearch.bench.folder import Results
from specresearch.bench.output_check import CHANGED, P_VALUES

MEMORIES = {
    "cold": "cold: a request finds nothing of those before it",
    "warm": "warm: a request finds what those before it left, since the start of the repeat",
}
NUM_POSITIONS = 9  # shown
BARS = " ▁▂▃▄▅▆▇█"
RULE_OF_THUMB = (
    "Rule of thumb from the field, not from this run: below an acceptance rate of about 0.5 speculation usually costs time, "
    "above 0.65 it usually pays. The measured speedup decides."
)


def print_report(results: Results, folder: Path, console: Console | None = None) -> None:
    console = console or Console(highlight=False)
    summary = results.summary
    console.print()
    console.print(_headline(results), soft_wrap=False)
    console.print(_statement(results))
    console.print()
    console.print(_setting(results))
    console.print()
    console.print(_speed_table(summary))
    if summary["num_draft_tokens"]:
        console.print()
        console.print(_acceptance_table(results))
        console.print(Text(RULE_OF_THUMB, style="dim"))
    if summary["output_tv"] is not None:
        console.print()
        console.print(_shift_table(results))
    if results.by_category:
        console.print()
        console.print(_category_table(results.by_category))
    console.print()
    console.print(
        Text(f"{folder}/results.json holds every figure with its definition", style="dim"),
        soft_wrap=True,
    )


def _headline(results: Results) -> Text:
    summary = results.summary
    dataset = results.provenance["dataset"]["name"]
    prefix = "" if results.complete else "unfinished run: "
    if summary["speedup"] is None:
        speed = _number(summary["tokens_per_second"], 1)
        return Text(
            f"{prefix}{summary['method'] or 'plain decoding'} on {dataset}: {speed} tokens per second",
            style="bold",
        )
    factor = summary["speedup"]
    words = (
        f"{factor:.2f}x the speed of plain decoding"
        if factor >= 1
        else f"{factor:.2f}x, SLOWER than plain decoding"
    )
    interval = summary["speedup_ci95"]
    spread = (
        f" (95% interval {interval[0]:.2f} to {interval[1]:.2f})"
        if interval
        else " (too few groups for an interval)"
    )
    return Text(f"{prefix}{summary['method']} on {dataset}: {words}{spread}", style="bold")


def _statement(results: Results) -> Text:
    summary, method = results.summary, results.provenance["method"]
    if method is None:
        return Text(summary["output_statement"])
    is_sure = method["lossless"] or summary["outputs_equal"]
    p_values = [summary[name] for name in P_VALUES if summary[name] is not None]
    is_wrong = summary["outputs_equal"] is False or any(p < CHANGED for p in p_values)
    style = "bold red" if is_wrong else "bold green" if is_sure else "bold yellow"
    return Text(summary["output_statement"], style=style)


def _setting(results: Results) -> Table:
    summary, provenance = results.summary, results.provenance
    target, dataset, machine = provenance["target"], provenance["dataset"], provenance["machine"]
    table = _grid()
    size = f"{target['num_parameters'] / 1e6:,.1f}M parameters, {target['dtype']}"
    table.add_row("target", f"{target['model']} ({size})")
    table.add_row(
        "machine",
        f"{machine['device']}, {target['device']}, {machine['num_torch_threads']} threads",
    )
    prompts = f"{summary['num_prompts']} of {dataset['name']}, from {dataset['kind']} {dataset['location']}"
    table.add_row("prompts", f"{prompts}, fingerprint {dataset['fingerprint']}")
    method = provenance["method"]
    if method and method["description"]:
        table.add_row("drafter", method["description"])
    if method and method["memory"]:
        table.add_row("memory", _memory(method["memory"], provenance))
    if summary["num_prompts_cut"]:
        table.add_row(
            "cut",
            f"{summary['num_prompts_cut']} of {summary['num_requests']} prompts were shortened to fit",
        )
    if summary["num_repeats"] > 1:
        table.add_row("repeats", str(summary["num_repeats"]))
    if summary["speedup_basis"]:
        table.add_row("compared", summary["speedup_basis"])
    return table


def _memory(memory: str, provenance: dict[str, Any]) -> str:
    words = MEMORIES[memory]
    if memory == "warm" and provenance["num_sessions"] > 1:
        words += " or of a session that resumed it"
    shuffled = provenance["order"] == "shuffled"
    return f"{words}; prompts " + (
        f"shuffled by seed {provenance['seed']}" if shuffled else "in the dataset's order"
    )


def _speed_table(summary: dict[str, Any]) -> Table:
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
        plain, own = summary.get(f"baseline_{name}", summary[name]), summary[name]
        cells = [_number(plain, digits, scale)]
        if method:
            cells += [
                _number(own, digits, scale),
                f"{own / plain:.2f}" if ratio and own and plain else "",
            ]
        table.add_row(label, *cells)

    row("generated tokens", "num_generated_tokens", 0)
    row("tokens per second", "tokens_per_second", ratio=True)
    row("tokens per second without prefill", "decode_tokens_per_second", ratio=True)
    speedups = [summary["decode_speedup"], summary["draft_prefill_speedup"]]
    if None not in speedups and _number(speedups[0], 2) != _number(speedups[1], 2):
        table.add_row("  with the drafter's own prefill", "", "", _number(speedups[1], 2))
    row("time to first token, median ms", "ttft_p50", 1, 1e3)
    row("time per output token, median ms", "tpot_p50", 2, 1e3)
    row("request latency, median ms", "e2el_p50", 0, 1e3)
    row("request latency, 90th percentile ms", "e2el_p90", 0, 1e3)
    for part in ("prefill", "propose", "verify", "accept", "commit", "host"):
        row(f"share of time: {part} %", f"fraction_{part}", 1, 100.0)
    row("host overhead of decoding %", "host_overhead", 1, 100.0)
    if method:
        for label, name in (
            ("ideal speedup at these step times", "ideal_speedup"),
            ("efficiency", "efficiency"),
        ):
            table.add_row(label, "", _number(summary[name], 2), "")
        table.add_row(
            "cost of a draft token / target step", "", _number(summary["cost_ratio"], 3), ""
        )
    return table


def _acceptance_table(results: Results) -> Table:
    summary = results.summary
    table = _grid()
    labels = {
        "draft_acceptance_rate": "draft acceptance rate",
        "mean_acceptance_length": "mean acceptance length",
        "tokens_per_target_forward": "tokens per target forward",
    }
    for name, label in labels.items():
        interval = summary[f"{name}_ci95"]
        spread = f" ({interval[0]:.2f} to {interval[1]:.2f})" if interval else ""
        table.add_row(label, f"{_number(summary[name], 2)}{spread}")
    if summary["outputs_equal"] is None:
        table.add_row("expected acceptance", _number(summary["expected_acceptance"], 2))
    drafts = f"{summary['num_accepted_tokens']:,} of {summary['num_draft_tokens']:,} tokens in {summary['num_drafts']:,} drafts"
    table.add_row("accepted", f"{drafts}; {summary['num_target_forwards']:,} target forwards")
    shown = results.per_position[:NUM_POSITIONS]
    table.add_row(
        "accepted at position 1, 2, ...", " ".join(f"{at['unconditional']:.2f}" for at in shown)
    )
    table.add_row("  given all before were", " ".join(f"{at['conditional']:.2f}" for at in shown))
    rates = results.histogram["draft_acceptance_rate"]
    if rates["p50"] is not None:
        spread = f"10% {rates['p10']:.2f}, median {rates['p50']:.2f}, 90% {rates['p90']:.2f}"
        table.add_row("acceptance rate by request", f"0 {_bars(rates['counts'])} 1   {spread}")
    return table


def _shift_table(results: Results) -> Table:
    """How far a lossy rule moved the output."""
    summary = results.summary
    table = _grid()
    shown = results.per_position[:NUM_POSITIONS]
    labels = {
        "output_tv": "total variation from the target",
        "output_kl": "KL divergence from it, nats",
        "refused_rate": "refused by the exact rule",
    }
    for name, label in labels.items():
        interval = summary.get(f"{name}_ci95")
        spread = f" ({interval[0]:.3f} to {interval[1]:.3f})" if interval else ""
        value = _number(summary[name], 3)
        if name == "output_kl" and summary["num_infinite_kl"]:
            value = f"infinite (tokens that the target never says: {summary['num_infinite_kl']:,})"
        table.add_row(label, f"{value}{spread}")
        table.add_row("  at position 1, 2, ...", " ".join(_number(at[name], 2) for at in shown))
    return table


def _category_table(by_category: dict[str, dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("category", min_width=24)
    for name in ("prompts", "speedup", "accepted", "per forward"):
        table.add_column(name, justify="right")
    for category, figures in by_category.items():
        table.add_row(
            category,
            str(figures["num_prompts"]),
            _number(figures["speedup"], 2),
            _number(figures["draft_acceptance_rate"], 2),
            _number(figures["tokens_per_target_forward"], 2),
        )
    return table


def _grid() -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    return table


def _bars(counts: Sequence[int]) -> str:
    most = max(counts)
    return "".join(BARS[-(-8 * count // most)] if most else " " for count in counts)


def _number(value: int | float | None, digits: int, scale: float = 1.0) -> str:
    return "-" if value is None else f"{value * scale:,.{digits}f}"
