"""How to carry a decision out on other people's servers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from specresearch.reporting.decision import Answer, Decision
from specresearch.reporting.flags import TRANSLATORS, ServerFlags, servers
from specresearch.reporting.speculation import Speculation, speculation_of

TITLE, TRIAL = "Flags for your server", "Flags to try it on your server"
NONE = "Start the server without any flag for speculation."
AS_STARTED = "Start the server with the flags that it had in this measurement."
SAME = "The flags carry over what was measured here; measure again on the server."


@dataclass(frozen=True)
class Serving:
    """What to start a server with.

    Attributes:
        lines: What the flags do, and what no server has.
        flags: Of every server; empty if nothing is to be drafted.
    """

    title: str
    lines: Sequence[str]
    flags: Sequence[ServerFlags] = ()


def serving(decision: Decision) -> Serving | None:
    """Return how to carry a decision out; None if nothing was decided."""
    if decision.answer is Answer.SPEED:
        return None
    speculation = speculation_of(decision)
    if speculation is None:
        return Serving(TITLE, (NONE,))
    if any(point.is_served for point in decision.points):
        return Serving(TITLE, (AS_STARTED,))
    title = TRIAL if decision.answer is Answer.MEASURE else TITLE
    flags = [translate(speculation) for translate in TRANSLATORS.values()]
    return Serving(title, tuple(_lines(speculation)), flags)


def shell_text(title: str, serving: Serving, name: str | None) -> str:
    """Return lines for a shell, with everything but commands as comments.

    Args:
        title: What the decision is about.
        name: Of a server; None for all.
    """
    lines = [f"# {line}" for line in (title, *serving.lines)]
    for flags in serving.flags:
        if name is None or flags.server is servers()[name]:
            lines += ["", f"# {flags.server.name}", *(f"# {note}" for note in flags.notes)]
            lines += [flags.block] if flags.block else []
    return "\n".join(lines)


def _lines(speculation: Speculation) -> Iterator[str]:
    """Yield what is drafted, and what no server has."""
    source = f" from {speculation.draft}" if speculation.draft else ""
    yield f"{speculation.method}{source}, {_amount(speculation)}. {SAME}"
    yield from speculation.notes


def _amount(speculation: Speculation) -> str:
    if speculation.tree is None:
        return f"drafts a step: {speculation.by_load}"
    nodes = f"{speculation.tree.num_nodes} nodes in {speculation.length} levels"
    if not speculation.stages:
        return nodes
    return f"{nodes}; levels: {speculation.by_load}"
