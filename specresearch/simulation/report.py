"""What a simulation says, on one screen."""

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from specresearch.loadtest.folder import LoadResults
from specresearch.loadtest.report import load_warnings
from specresearch.rows import BASELINE

_LATENCIES = [
    (f"{name} P{p}", f"{name.lower()}_p{p}") for name in ("TTFT", "TPOT", "E2EL") for p in (50, 99)
]


def print_simulation(results: LoadResults, folder: Path, console: Console | None = None) -> None:
    console = console or Console(highlight=False)
    told, limits = results.provenance, results.limits
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("simulated")
    for name in results.sides:
        table.add_column(name, justify="right", no_wrap=True)
    for label, values in _lines(results).items():
        if any(value is not None for value in values):
            table.add_row(label, *("-" if value is None else value for value in values))
    console.print()
    console.print(table)
    console.print(
        f"goodput: TTFT up to {_seconds(limits['ttft'])}, TPOT up to {_seconds(limits['tpot'])}"
    )
    console.print(f"times: {told['timing']}")
    console.print(f"drafts: {told['assumption']}")
    for caution in told["cautions"]:
        console.print(f"[yellow]caution[/]: {caution}")
    for warning in load_warnings(results):
        console.print(Text(warning, style="bold yellow"))
    rate = told["requests_per_second_of_simulation"]
    speed = f" ({rate:,.0f} requests simulated per second)" if rate else ""
    console.print(f"{folder}/results.json{speed}")


def _lines(results: LoadResults) -> dict[str, list[str | None]]:
    sides = results.sides
    plain = sides.get(BASELINE, {}).get("throughput")

    def row(name: str, show: Any) -> list[str | None]:
        return [None if side.get(name) is None else show(side[name]) for side in sides.values()]

    def speedup(throughput: float) -> str:
        return f"{throughput / plain:.2f}" if plain else "-"

    lines = {"tokens per second": row("throughput", _number), "speedup": row("throughput", speedup)}
    lines |= {label: row(name, _seconds) for label, name in _LATENCIES}
    lines |= {
        "goodput, requests per second": row("goodput", _number),
        "tokens per forward": row("tokens_per_target_forward", _number),
        "acceptance rate": row("draft_acceptance_rate", _number),
        "acceptance rate, P10": row("acceptance_p10", _number),
        "drafts per step": row("mean_draft_length", _number),
        "running, mean": row("running_mean", _number),
        "waiting, most": row("waiting_max", _number),
        "preemptions": row("num_preemptions", _number),
    }
    return lines


def _seconds(value: float) -> str:
    return f"{value:,.2f} s" if value >= 1 else f"{value * 1e3:,.3g} ms"


def _number(value: int | float) -> str:
    return f"{value:,.0f}" if isinstance(value, int) or value >= 100 else f"{value:,.2f}"
