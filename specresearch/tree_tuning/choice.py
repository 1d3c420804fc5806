"""Choose the fastest static tree by measured times and acceptance (Sequoia, 2402.12374)."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.tree import Tree

from specresearch.bench.formatting import by_position
from specresearch.proposers.sequoia import BestTree, best_trees, path_acceptance
from specresearch.tree_tuning.measurement import TreeMeasurement

NUM_SIZES = 5  # shown
EXPLANATION = (
    "Predicted speedup: over plain decoding, above 1 is faster, without prefill and host costs. "
    "Both figures include the steps without drafts."
)


@dataclass(frozen=True)
class TreeChoice:
    """A tree and its predicted speed.

    Attributes:
        paths: Paths of child ranks for proposer.paths, the likeliest to be accepted first.
        expected_tokens: Per step of a request; steps without drafts deliver one.
        predicted_speedup: Over plain decoding, without prefill and host costs.
    """

    paths: tuple[tuple[int, ...], ...]
    num_draft_tokens: int
    depth: int
    expected_tokens: float
    predicted_speedup: float


def choose(measurement: TreeMeasurement, max_draft_tokens: int, max_depth: int) -> list[TreeChoice]:
    """Return the best tree of every size, the fastest first."""
    by_size: dict[int, TreeChoice] = {}
    for tree in best_trees(measurement.falling_acceptance, max_draft_tokens, max_depth):
        choice = _predict(measurement, tree)
        best = by_size.get(choice.num_draft_tokens)
        if choice.paths and (best is None or choice.predicted_speedup > best.predicted_speedup):
            by_size[choice.num_draft_tokens] = choice
    return sorted(by_size.values(), key=lambda choice: -choice.predicted_speedup)


def _predict(measurement: TreeMeasurement, tree: BestTree) -> TreeChoice:
    plain_seconds = measurement.step_time(0, 1)
    seconds = measurement.step_time(tree.depth, len(tree.paths) + 1)
    return TreeChoice(
        paths=tree.paths,
        num_draft_tokens=len(tree.paths),
        depth=tree.depth,
        expected_tokens=measurement.tokens_per_step(tree.expected),
        predicted_speedup=plain_seconds / measurement.time_per_token(tree.expected, seconds),
    )


def print_choice(
    measurement: TreeMeasurement, choices: Sequence[TreeChoice], console: Console | None = None
) -> None:
    """Print acceptance by rank, the best sizes, and a picture of the fastest tree."""
    console = console or Console(highlight=False)
    console.print(_measured(measurement))
    console.print()
    sizes = Table(box=None, pad_edge=False, header_style="bold")
    for header in ("drafts", "depth", "tokens per step", "predicted speedup"):
        sizes.add_column(header, justify="right")
    for choice in choices[:NUM_SIZES]:
        sizes.add_row(
            str(choice.num_draft_tokens),
            str(choice.depth),
            f"{choice.expected_tokens:.2f}",
            f"{choice.predicted_speedup:.2f}",
        )
    console.print(sizes)
    console.print(EXPLANATION, style="dim")
    if choices[0].predicted_speedup < 1:
        console.print("No tree is predicted to be faster than plain decoding.", style="bold")
    console.print()
    console.print(_picture(choices[0], measurement))
    console.print("Each node is the rank of a child, and how likely it is accepted.", style="dim")


def _measured(measurement: TreeMeasurement) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    level, node = 1e3 * measurement.draft_level, 1e3 * measurement.draft_node
    base, verified = 1e3 * measurement.verify_base, 1e3 * measurement.verify_node
    rates = by_position(measurement.rank_acceptance)
    table.add_row("accepted, child of rank 0, 1, ...", rates)
    table.add_row("  nodes that had one", by_position(measurement.num_visits, 0))
    undrafted = measurement.undrafted
    num_without = undrafted.num_rows - undrafted.num_drafted
    share = f"{num_without:,} of {undrafted.num_rows:,} ({num_without / undrafted.num_rows:.0%})"
    table.add_row("steps of a request without drafts", share)
    table.add_row("drafting", f"{level:.2f} ms a level + {node:.3f} ms a node")
    table.add_row("verifying", f"{base:.2f} ms + {verified:.3f} ms a node")
    return table


def _picture(choice: TreeChoice, measurement: TreeMeasurement) -> Tree:
    root = Tree("fastest tree")
    branches: dict[tuple[int, ...], Tree] = {(): root}
    for path in choice.paths:
        probability = path_acceptance(path, measurement.falling_acceptance)
        label = f"{path[-1]}  [dim]{probability:.3f}[/dim]"
        branches[path] = branches[path[:-1]].add(label)
    return root


def use(choice: TreeChoice, proposer: Mapping[str, Any], output: str | None) -> str | None:
    """Return the settings with which a proposer drafts a tree, saved to `output`.

    Args:
        proposer: The proposer's settings. Without paths, it may still draft a chain.
    """
    if output:
        return _paths(output, proposer)
    is_chain = choice.depth == choice.num_draft_tokens
    if is_chain and "paths" not in proposer and "num_draft_tokens" in proposer:
        return f"proposer.num_draft_tokens={choice.num_draft_tokens}"
    if is_chain and proposer.get("tree") == "chain":
        return f"proposer.tree=chain proposer.num_draft_tokens={choice.num_draft_tokens}"
    return None


def _paths(file: str, proposer: Mapping[str, Any]) -> str:
    return f"{'proposer.tree=static ' if 'tree' in proposer else ''}proposer.paths={file}"


def save_choice(
    choice: TreeChoice, measurement: TreeMeasurement, runs: Sequence[Path], output: Path
) -> None:
    """Write a JSON file that `proposer.paths` reads."""
    content = asdict(choice) | {"runs": list(map(str, runs)), "measured": asdict(measurement)}
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
