"""How much to draft: what the controller chooses, and which fixed length was best."""

from specresearch.bench.estimate import Estimate
from specresearch.reporting.decision import Decision
from specresearch.reporting.formatting import inline, listed
from specresearch.reporting.workload import BATCH


def draft_length(decision: Decision) -> tuple[tuple[str, ...], str]:
    """Return lines about the draft length, and the command that compares others or ""."""
    policy, lengths = decision.policy, decision.fixed_lengths
    lines = [] if policy.is_fixed else [_chosen(decision)]
    if len(lengths) > 1:
        return (*lines, _best(decision)), ""
    if policy.length is None or not policy.is_fixed:
        return tuple(lines), ""
    lines.append(f"{policy.length}, the only one measured. To compare others, add")
    is_batch = decision.axis == BATCH
    return tuple(lines), "-m proposer.num_draft_tokens=2,4,8" if is_batch else '"compare=[2,4,8]"'


def _chosen(decision: Decision) -> str:
    """Return how much the controller drafts on average."""
    averages = []
    for point in decision.points:
        length = point.comparison.speculative["mean_draft_length"]
        if length is not None:
            averages.append(f"{length.value:.1f} at {point.load.amount_label}")
    words = f": on average {listed(averages)} {decision.unit}" if averages else ""
    return f"The controller chooses{words}."


def _best(decision: Decision) -> str:
    best = []
    for load in decision.loads:
        point = decision.best_fixed(load)
        if point is not None:
            length, gain = point.comparison.policy.length, inline(point.comparison.gain)
            best.append(f"{length} at {load.amount_label} ({gain})")
    measured = listed([str(length) for length in decision.fixed_lengths])
    return f"Of the fixed lengths {measured}, best in hindsight: {listed(best)}.{_ties(decision)}"


def _ties(decision: Decision) -> str:
    """Return which lengths cannot be told from the best at the lowest load."""
    load = decision.loads[0]
    best = decision.best_fixed(load)
    if best is None or best.comparison.gain is None or best.comparison.gain.low is None:
        return ""
    own = best.comparison.policy
    ties = set()
    for point in decision.at(load):
        policy = point.comparison.policy
        is_alternative = policy.is_fixed and policy.method == own.method
        if is_alternative and _highest(point.comparison.gain) >= best.comparison.gain.low:
            ties.add(policy.length or 0)
    ties -= {own.length}
    if not ties:
        return ""
    words = listed([str(length) for length in sorted(ties)])
    return f" At {load.amount_label}, {words} cannot be told from {own.length}."


def _highest(gain: Estimate | None) -> float:
    if gain is None:
        return 0.0
    return gain.value if gain.high is None else gain.high
