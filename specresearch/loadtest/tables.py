"""The tables of a load test or simulation: a column per side, and a row per class of requests."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from specresearch.bench.formatting import by_position, number
from specresearch.bench.outcome import EXPLANATION, Outcome, describe_interval
from specresearch.bench.printing import acceptance_by, by_position_label
from specresearch.loadtest.results import LoadResults

SIDES_PER_TABLE = 4  # that fit 80 columns
TIMES = {
    "time to first token": "ttft",
    "time per output token": "tpot",
    "request latency": "e2el",
}
COUNTS = {
    "requests in the window": "num_requests",
    "drafts per step": "mean_draft_length",
    "requests running, mean": "running_mean",
    "requests waiting, mean": "waiting_mean",
    "requests waiting, most": "waiting_max",
    "preemptions": "num_preemptions",
}
CLASSES_EXPLANATION = (
    "TPOT: time per output token, and E2EL: request latency, in ms, each as median, then "
    "percentiles. accepted: {accepted}. in limits: share of requests within both limits."
)
CHAIN_RATE = "draft acceptance rate, then its 10th percentile of requests"
TREE_LENGTH = "tokens per tree"


def sides_tables(results: LoadResults, *, trees: bool) -> Iterator[RenderableType]:
    """Yield tables with a row per figure and a column per side, and what explains them.

    Args:
        trees: Drafts branch, so that a rate per node says little.
    """
    names = list(results.sides)
    for begin in range(0, len(names), SIDES_PER_TABLE):
        yield _sides_table(results, names[begin : begin + SIDES_PER_TABLE], trees=trees)
    if trees:
        yield from _depths(results)
    if len(names) > 1:
        yield Text(EXPLANATION, style="dim")


def _sides_table(results: LoadResults, names: list[str], *, trees: bool) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    table.add_column("", no_wrap=True)
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)

    compared = results.comparisons
    gains = [compared[name].gain if name in compared else None for name in names]

    def add(label: str, values: Sequence[Any], show: Callable[[Any], str]) -> None:
        if any(value is not None for value in values):
            table.add_row(label, *("-" if value is None else show(value) for value in values))

    def add_figure(label: str, key: str, show: Callable[[Any], str] = _count) -> None:
        add(label, [results.sides[name].get(key) for name in names], show)

    add("speedup over plain decoding", gains, lambda gain: f"{gain.value:.2f}")
    add("  95% interval", gains, lambda gain: describe_interval(gain, "-"))
    add("  verdict", gains, lambda gain: Outcome.of(gain).value)
    add_figure("tokens per second", "throughput")
    # Where none finished, 0 would say that all broke the limits; a warning says that none did.
    sides = [results.sides[name] for name in names]
    goodputs = [side["goodput"] if side["request_throughput"] else None for side in sides]
    add("requests per second in limits", goodputs, _count)
    for label, key in TIMES.items():
        add_figure(f"{label}, median", f"{key}_p50", seconds)
        add_figure("  99th percentile", f"{key}_p99", seconds)
    for figure in acceptance_by(trees=trees):
        add_figure(
            figure.label, figure.name, lambda value, shown=figure.shown: _count(shown(value))
        )
        if figure.name == "draft_acceptance_rate":
            add_figure("  10th percentile of requests", "acceptance_p10")
    for label, key in COUNTS.items():
        add_figure(label, key)
    return table


def classes_table(results: LoadResults, *, trees: bool) -> Iterator[RenderableType]:
    """Yield a table with a row per class and side, and what explains it."""
    accepted = ("accepted",) if trees else ("accepted", "10%")
    heads = ("requests", "TPOT", "90%", "99%", "E2EL", "99%", *accepted, "in limits")
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    table.add_column("class", style="dim")
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    for category, sides in results.classes.items():
        for side, figures in sides.items():
            cells = [
                f"{category}: {side}",
                str(figures["num_requests"]),
                *_milliseconds(figures, "tpot_p50", "tpot_p90", "tpot_p99", digits=1),
                *_milliseconds(figures, "e2el_p50", "e2el_p99", digits=0),
                *_accepted(figures, trees=trees),
                f"{figures['share_within_limits']:.0%}",
            ]
            table.add_row(*cells)
    yield table
    meaning = TREE_LENGTH if trees else CHAIN_RATE
    yield Text(CLASSES_EXPLANATION.format(accepted=meaning), style="dim")


def _accepted(figures: Mapping[str, Any], *, trees: bool) -> list[str]:
    first = acceptance_by(trees=trees)[0]
    value = figures[first.name]
    cells = [number(value if value is None else first.shown(value), 2)]
    return cells if trees else [*cells, number(figures["acceptance_p10"], 2)]


def seconds(value: float) -> str:
    return f"{value:,.2f} s" if value >= 1 else f"{value * 1e3:,.3g} ms"


def _depths(results: LoadResults) -> Iterator[Text]:
    for name, profile in results.acceptance.items():
        rates = []
        for position in profile.positions:
            rates.append(None if position.unconditional is None else position.unconditional.value)
        label = f"{name}: {by_position_label(trees=True)}"
        yield Text(f"{label}  {by_position(rates)}")


def _count(value: int | float) -> str:
    return f"{value:,.0f}" if isinstance(value, int) or value >= 100 else f"{value:,.2f}"


def _milliseconds(figures: Mapping[str, Any], *names: str, digits: int) -> list[str]:
    return [number(figures[name], digits, 1e3) for name in names]
