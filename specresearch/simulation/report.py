"""Print a simulation's figures on one screen."""

from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from specresearch.loadtest.report import print_warnings
from specresearch.loadtest.results import LoadResults
from specresearch.rows import BASELINE

_LATENCIES = {
    "TTFT P50": "ttft_p50",
    "TTFT P99": "ttft_p99",
    "TPOT P50": "tpot_p50",
    "TPOT P99": "tpot_p99",
    "E2EL P50": "e2el_p50",
    "E2EL P99": "e2el_p99",
}
_NUMBERS = {
    "goodput, requests per second": "goodput",
    "tokens per forward": "tokens_per_target_forward",
    "acceptance rate": "draft_acceptance_rate",
    "acceptance rate, P10": "acceptance_p10",
    "drafts per step": "mean_draft_length",
    "running, mean": "running_mean",
    "waiting, most": "waiting_max",
    "preemptions": "num_preemptions",
}


def print_simulation(results: LoadResults, folder: Path, console: Console | None = None) -> None:
    """Print the figures of every side, what they rest on, and what to doubt."""
    console = console or Console(highlight=False)
    provenance, limits = results.provenance, results.limits
    console.print()
    console.print(_table(results))
    console.print(
        f"goodput: TTFT up to {_seconds(limits['ttft'])}, TPOT up to {_seconds(limits['tpot'])}"
    )
    console.print(f"times: {provenance['timing']}")
    console.print(f"drafts: {provenance['assumption']}")
    for caution in provenance["cautions"]:
        console.print(f"[yellow]caution[/]: {caution}")
    print_warnings(results, console)
    rate = provenance["requests_per_second_of_simulation"]
    speed = f" ({rate:,.0f} requests simulated per second)" if rate else ""
    console.print(f"{folder}/results.json{speed}")


def _table(results: LoadResults) -> Table:
    """Return a row per figure and a column per side, without figures that no side has."""
    sides = results.sides
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("simulated")
    for side in sides:
        table.add_column(side, justify="right", no_wrap=True)

    def add_row(label: str, name: str, show: Callable[[float], str]) -> None:
        values = [figures.get(name) for figures in sides.values()]
        if any(value is not None for value in values):
            table.add_row(label, *("-" if value is None else show(value) for value in values))

    baseline = sides.get(BASELINE, {}).get("throughput")
    add_row("tokens per second", "throughput", _number)
    add_row("speedup", "throughput", lambda rate: f"{rate / baseline:.2f}" if baseline else "-")
    for label, name in _LATENCIES.items():
        add_row(label, name, _seconds)
    for label, name in _NUMBERS.items():
        add_row(label, name, _number)
    return table


def _seconds(value: float) -> str:
    return f"{value:,.2f} s" if value >= 1 else f"{value * 1e3:,.3g} ms"


def _number(value: int | float) -> str:
    return f"{value:,.0f}" if isinstance(value, int) or value >= 100 else f"{value:,.2f}"
