"""Print a simulation: the answer, what was simulated, the figures of every side, what to doubt."""

from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from specresearch.bench.formatting import describe_target
from specresearch.bench.printing import settings_grid
from specresearch.loadtest.report import describe_load, headline, print_warnings
from specresearch.loadtest.results import LoadResults
from specresearch.loadtest.tables import seconds, sides_tables


def print_simulation(results: LoadResults, folder: Path, console: Console | None = None) -> None:
    """Print the figures of every side, what they rest on, and what to doubt."""
    console = console or Console(highlight=False)
    provenance = results.provenance
    recorded = provenance["recorded"]
    answer = f"simulated: {headline(results, 'on ' + recorded['target']['model'])}"
    console.print()
    console.print(Text(answer, style="bold"))
    console.print()
    console.print(_settings_table(results))
    console.print()
    for part in sides_tables(results, trees=bool(recorded["kind"]["trees"])):
        console.print(part)
    for caution in provenance["cautions"]:
        console.print(f"[yellow]caution[/]: {caution}")
    print_warnings(results, console)
    rate = provenance["requests_per_second_of_simulation"]
    speed = f" ({rate:,.0f} requests simulated per second)" if rate else ""
    console.print()
    console.print(Text(f"{folder}/results.json{speed}", style="dim"), soft_wrap=True)


def _settings_table(results: LoadResults) -> Table:
    provenance, summary, limits = results.provenance, results.summary, results.limits
    table = settings_grid()
    table.add_row("target", describe_target(provenance["recorded"]["target"]))
    requests = f"{provenance['num_requests']} requests a pass"
    together = f"up to {summary['max_running']} together"
    table.add_row("load", f"{describe_load(summary)}, {together}, {requests}")
    table.add_row("recorded", provenance["recording"])
    if provenance["not_recorded"]:
        table.add_row("changed", "; ".join(provenance["not_recorded"]))
    table.add_row("times", provenance["timing"])
    table.add_row("drafts", provenance["assumption"])
    kept = f"TTFT {seconds(limits['ttft'])}, TPOT {seconds(limits['tpot'])}"
    table.add_row("limits", kept)
    return table
