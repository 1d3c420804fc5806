"""Print a plan: what fits, what else would, from which acceptance on drafting pays."""

from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from specresearch.bench.formatting import number
from specresearch.bench.printing import settings_grid
from specresearch.planning.deployment import Deployment
from specresearch.planning.findings import NOT_PLANNED, findings
from specresearch.planning.plan import GB, ServingPlan


def print_plan(plan: ServingPlan, file: Path, console: Console | None = None) -> None:
    """Print the tables of a plan and what follows from them."""
    console = console or Console(highlight=False)
    console.print()
    console.print(_settings(plan))
    console.print()
    console.print(_memory(plan))
    if plan.others:
        console.print(_others(plan))
    if plan.loads:
        console.print(_loads(plan))
    for sentence in findings(plan):
        console.print(Text(f"- {sentence}"))
    console.print(Text(f"not planned: {', '.join(NOT_PLANNED)}", style="dim"))
    console.print()
    console.print(Text(str(file), style="dim"), soft_wrap=True)


def _settings(plan: ServingPlan) -> Table:
    conditions, target, drafter = plan.conditions, plan.target, plan.drafter
    gpus = conditions.gpus
    table = settings_grid()
    table.add_row("target", f"{target.name} ({target.num_parameters:,} parameters)")
    if drafter is not None:
        shape = f"{drafter.num_nodes} drafts a step"
        if drafter.model is not None:
            shape = f"{drafter.model.num_parameters:,} parameters, {shape}"
        table.add_row("drafter", f"{drafter.label} ({shape})")
    memory = f"{gpus.memory / GB:,.1f} GB each, {gpus.memory_source}"
    table.add_row("GPUs", f"{gpus}, {memory}; the engine takes {conditions.utilization:.0%}")
    table.add_row("requests", f"{conditions.context:,} tokens, prompt and output together")
    return table


def _memory(plan: ServingPlan) -> Table:
    table = _table("Memory of all GPUs, in GB")
    table.add_column("")
    sides = [plan.plain] if plan.drafting is None else [plan.plain, plan.drafting]
    for name in ("plain", "drafting")[: len(sides)]:
        table.add_column(name, justify="right")
    for label, values in _memory_rows(plan, sides):
        table.add_row(label, *values)
    return table


def _memory_rows(plan: ServingPlan, sides: list[Deployment]) -> Iterator[tuple[str, list[str]]]:
    yield "usable", [_gb(plan.conditions.usable) for _ in sides]
    yield "weights of the target", [_gb(side.target_weights) for side in sides]
    if plan.drafting is not None:
        yield "weights of the drafter", [_gb(side.drafter_weights) for side in sides]
    yield "largest pass", [_gb(side.passes) for side in sides]
    yield "graphs and runtime", [_gb(side.graphs) for side in sides]
    yield "left for keys and values", [_gb(side.left) for side in sides]
    yield "bytes a cached token", [number(side.kv_per_token, 0) for side in sides]
    yield "tokens that fit", [number(side.tokens, 0) for side in sides]
    yield "requests that fit", [number(side.requests, 0) for side in sides]


def _others(plan: ServingPlan) -> Table:
    table = _table("Formats and drafters")
    for name in ("target", "drafter", "in"):
        table.add_column(name)
    for name in ("weights", "by names", "left", "tokens", "of plain", "requests"):
        table.add_column(name, justify="right")
    last = None
    for other in plan.others:
        if last not in (None, other.target_precision):
            table.add_section()
        last = other.target_precision
        share = other.share_of_plain
        table.add_row(
            other.target_precision,
            other.drafter or "-",
            other.drafter_precision or "",
            _gb(other.weights),
            number(other.rule_of_thumb / GB, 0),
            _gb(other.left),
            number(other.tokens, 0),
            "" if share is None else f"{share:.0%}",
            number(other.requests, 0),
        )
    return table


def _loads(plan: ServingPlan) -> Table:
    table = _table("Drafting pays from here on")
    table.add_column("load", no_wrap=True)
    for name in ("plain", "drafting"):
        table.add_column(f"{name}: requests", justify="right")
        table.add_column("ms a step", justify="right")
    for name in ("tokens a step", "acceptance", "rate", f"speedup at {plan.acceptance:g}"):
        table.add_column(name, justify="right")
    for point in plan.loads:
        table.add_row(
            point.load,
            number(point.num_plain, 0),
            number(point.plain_step, 1, 1e3),
            number(point.num_drafting, 0),
            number(point.drafting_step, 1, 1e3),
            number(point.tokens_per_step, 2),
            number(point.acceptance, 2),
            number(point.acceptance_rate, 2),
            number(point.speedup, 2),
        )
    return table


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))


def _gb(num_bytes: float) -> str:
    return number(num_bytes / GB, 2)
