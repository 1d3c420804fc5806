"""Did drafting change the answers? Greedy ones are compared as text with plain decoding's."""

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

from specresearch.bench.outputs import OutputComparison
from specresearch.loadtest.outputs import SideOutputs, combined_figures
from specresearch.loadtest.servers.workload import ServerWorkload
from specresearch.rows import BASELINE, RequestRow

UNCHECKED = "the answers' distribution was not checked, since servers do not say probabilities"
NO_PAIRS = "no request was answered greedily by both sides: nothing to compare"
ALONE = "only one side was measured; nothing to compare the answers with"


class TextOutputs(SideOutputs):
    """Answers that were compared as text, not token for token."""

    @property
    def figures(self) -> dict[str, Any]:
        return super().figures | {"is_text": True}


def compare_texts(
    requests: Sequence[RequestRow], sides: Sequence[str], workload: ServerWorkload
) -> dict[str, SideOutputs]:
    """Compare the answers of every side with the baseline's."""
    if BASELINE not in sides:
        return {}
    planned = workload.requests
    greedy = [row for row in requests if planned[int(row.id)].sampling.is_greedy]
    baseline = {(row.key.repeat, row.id): row for row in greedy if row.key.side == BASELINE}
    outputs = {}
    for side in sides:
        if side != BASELINE:
            rows = [row for row in greedy if row.key.side == side]
            outputs[side] = _compare(rows, baseline, workload)
    return outputs


def text_figures(outputs: Mapping[str, SideOutputs]) -> dict[str, Any]:
    """Return the figures of all sides together, and the statement of one that differs, if any."""
    statement = ALONE
    for name, side in sorted(outputs.items(), key=lambda item: not item[1].differs):
        statement = f"{name}: {side.statement}" if len(outputs) > 1 else side.statement
        break
    return combined_figures(outputs) | {"output_statement": statement}


def _compare(
    rows: Sequence[RequestRow],
    baseline: Mapping[tuple[int, str], RequestRow],
    workload: ServerWorkload,
) -> SideOutputs:
    greedy = _compare_greedy(rows, baseline) if workload.has_greedy else None
    sampled = OutputComparison(UNCHECKED) if workload.has_sampled else None
    return TextOutputs(greedy, sampled)


def _compare_greedy(
    rows: Sequence[RequestRow], baseline: Mapping[tuple[int, str], RequestRow]
) -> OutputComparison:
    pairs = []
    for row in rows:
        plain = baseline.get((row.key.repeat, row.id))
        if plain is not None:
            pairs.append((plain, row))
    different = [(plain, row) for plain, row in pairs if plain.text != row.text]
    num_equal = len(pairs) - len(different)
    if not pairs:
        return OutputComparison(NO_PAIRS)
    if not different:
        statement = f"output unchanged: {num_equal} of {num_equal} greedy answers are the same text"
    else:
        statement = (
            f"output differs, perhaps only by rounding: {num_equal} of {len(pairs)} greedy answers "
            f"are the same text; {_first_difference(*different[0])}"
        )
    return OutputComparison(statement, len(pairs), num_equal)


def _first_difference(plain: RequestRow, row: RequestRow) -> str:
    letters = zip_longest(plain.text, row.text)
    position = next(i for i, (before, after) in enumerate(letters) if before != after)
    return f"request {row.id} parts at character {position}"
