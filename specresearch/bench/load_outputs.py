"""Did a side change what the target says? Greedy requests are compared with plain decoding's, token for token."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from specresearch.acceptance import AcceptanceSampler
from specresearch.bench.load_records import PLAIN, LoadRow
from specresearch.bench.outputs import LogitGap, OutputComparison
from specresearch.bench.records import RequestRow
from specresearch.bench.workload import Workload
from specresearch.models import CausalLM

MAX_EXAMINED = 32  # differences of a side that are looked into


def compare_outputs(
    requests: Iterable[LoadRow], sides: Sequence[str], workload: Workload, target: CausalLM, rule: AcceptanceSampler
) -> dict[str, OutputComparison]:
    """Of every side but plain decoding. Requests that another temperature made random are not compared."""
    if not workload.has_greedy:
        same = OutputComparison.sampled(type(rule).__name__.lower(), lossless=rule.lossless)
        return {side: same for side in sides if side != PLAIN}
    greedy = [row for row in requests if row.token_ids is not None]
    plain = [row for row in greedy if row.place.side == PLAIN]
    answered = {(row.place.repeat, row.id) for row in plain}

    def gap(row: RequestRow, position: int) -> LogitGap:
        prompt = workload.requests[int(row.row)].prompt_ids
        return LogitGap.after(target, [*prompt, *row.token_ids[:position]])

    def compare(side: str) -> OutputComparison:
        own = [row for row in greedy if row.place.side == side and (row.place.repeat, row.id) in answered]
        return OutputComparison.greedy([row.as_request() for row in (*plain, *own)], gap, MAX_EXAMINED)

    return {side: compare(side) for side in sides if side != PLAIN}


def joined(outputs: Mapping[str, OutputComparison]) -> dict[str, Any]:
    """Of all sides together: the figures of results.json, and the statement of the first side that is not as it should be."""
    found = list(outputs.values())
    num_compared, num_equal = (sum(getattr(o, name) for o in found) for name in ("num_compared", "num_equal"))
    worst = [side for side, o in outputs.items() if o.num_equal < o.num_compared]
    told = OutputComparison.of_nothing() if not found else outputs[worst[0]] if worst else found[0]
    statement = f"{worst[0]}: {told.statement}" if worst and len(found) > 1 else told.statement
    if num_compared and not worst:
        statement = (
            f"output unchanged: {num_equal} of {num_compared} greedy outputs equal plain decoding's token for token"
        )
    num_ties = sum(o.num_ties for o in found)
    return {
        "outputs_equal": not worst if num_compared else None,
        "outputs_equal_but_for_ties": num_equal + num_ties == num_compared if num_compared else None,
        "num_outputs_equal": num_equal if num_compared else None,
        "num_outputs_compared": num_compared,
        "num_rounding_ties": num_ties,
        "output_statement": statement,
    }
