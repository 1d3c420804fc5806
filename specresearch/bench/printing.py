"""What a terminal shows of a run and of a load test alike."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

from specresearch.bench.output_verdict import OutputVerdict, outputs_of


@dataclass(frozen=True)
class AcceptanceFigure:
    """A figure by which drafts are judged.

    Attributes:
        name: Its key among the figures of a side.
        less: Subtracted from it.
    """

    label: str
    name: str
    less: float = 0.0

    def shown(self, figure: float) -> float:
        """Return the value under the label."""
        return figure - self.less


FORWARDS = AcceptanceFigure("tokens per target forward", "tokens_per_target_forward")
CHAIN = (
    AcceptanceFigure("draft acceptance rate", "draft_acceptance_rate"),
    AcceptanceFigure("mean acceptance length", "mean_acceptance_length"),
    FORWARDS,
)
TREE = (AcceptanceFigure("accepted tokens per tree", "mean_acceptance_length", 1.0), FORWARDS)


def has_trees(provenance: Mapping[str, Any]) -> bool:
    """Return whether drafts branch, so that a rate per node says little."""
    method = provenance.get("method")
    return bool(method and method.get("trees"))


def acceptance_by(*, trees: bool) -> tuple[AcceptanceFigure, ...]:
    """Return the figures that judge trees by their paths, and chains by their tokens."""
    return TREE if trees else CHAIN


def by_position_label(*, trees: bool) -> str:
    """Return what stands beside the acceptance at every position."""
    return f"accepted at {'depth' if trees else 'position'} 1, 2, ..."


def output_text(results: Any) -> Text:
    """Return the statement on outputs, coloured by the worst side.

    Args:
        results: The `Results` of a run, or the `LoadResults` of a load test.
    """
    verdicts = {output.verdict for output in outputs_of(vars(results)).values()}
    style = "bold yellow" if verdicts else ""
    if OutputVerdict.CHANGED in verdicts:
        style = "bold red"
    elif verdicts == {OutputVerdict.SAME}:
        style = "bold green"
    return Text(results.summary["output_statement"], style=style)


def settings_grid() -> Table:
    """Return an empty table of names and what they stand for."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    return table


def describe_machine(provenance: Mapping[str, Any]) -> str:
    """Return a machine such as "AMD EPYC, cpu, 2 threads"."""
    target, machine = provenance["target"], provenance["machine"]
    if target.get("url"):
        return f"the server at {target['url']}, measured from here ({machine['device']})"
    threads = machine["num_torch_threads"]
    unit = "thread" if threads == 1 else "threads"
    return f"{machine['device']}, {target['device']}, {threads} {unit}"
