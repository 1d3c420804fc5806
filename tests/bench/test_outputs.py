"""A changed output is a tie that rounding decides, or an error; the two must not be confused."""

import copy
from collections.abc import Callable
from dataclasses import replace

import torch
from tiny_models import build, letters_tokenizer

from specresearch import CausalLM
from specresearch.acceptance import Greedy
from specresearch.bench import Runner, RunSettings
from specresearch.bench.logit_gap import LogitGap, measure_rounding
from specresearch.bench.output_verdict import Output, OutputVerdict
from specresearch.bench.outputs import OutputComparison
from specresearch.proposal import Proposal, Verdict
from specresearch.proposers import NGram
from specresearch.rows import RequestRow
from tests.loadtest.load_rows import request

Make = Callable[..., Runner]
CHECKED = RunSettings(warmup=0, verify_greedy=True)


def in_dtype(dtype: torch.dtype) -> CausalLM:
    model = copy.deepcopy(build("llama", seed=3))
    model.to(dtype=dtype)  # pyright: ignore[reportCallIssue]
    target = CausalLM(model, letters_tokenizer(), max_len=60, name="letters")
    target.allocate(2, 12)
    return target


class SecondBest(Greedy):
    """Sometimes emits the second-best token: an error, however small the gap is on average."""

    def __call__(self, proposal: Proposal, target_logits, sampling) -> Verdict:
        verdict = super().__call__(proposal, target_logits, sampling)
        end = verdict.path.gather(1, verdict.num_accepted[:, None])[:, 0]
        second = target_logits[torch.arange(len(end)), end].topk(2).indices[:, 1]
        return replace(
            verdict,
            next_token=torch.where(sampling_position(sampling) == 5, second, verdict.next_token),
        )


def sampling_position(sampling) -> torch.Tensor:
    return torch.tensor(list(sampling.positions))


def test_errors_are_called_errors(make_runner: Make) -> None:
    results = make_runner(
        proposer=NGram(1, 1, 1), method="broken", acceptance=SecondBest(), settings=CHECKED
    ).run(progress=False)
    assert results.summary["outputs_equal"] is False
    assert results.summary["num_rounding_ties"] == 0
    assert "NOT A TIE: an error" in results.summary["output_statement"]


def test_rounding_is_measured_in_the_precision_of_the_run() -> None:
    contexts = [[(3 * i + j) % 27 for i in range(30)] for j in range(8)]
    double, single = (
        measure_rounding(in_dtype(dtype), contexts) for dtype in (torch.float64, torch.float32)
    )
    assert double < 1e-12 < single < 1e-4


def test_a_gap_is_judged_by_what_was_measured() -> None:
    target = in_dtype(torch.float64)
    gap = LogitGap.after(target, [1, 2, 3]).gap
    assert LogitGap.after(target, [1, 2, 3], rounding=gap / 2).is_rounding
    assert not LogitGap.after(target, [1, 2, 3], rounding=gap / 10).is_rounding


def test_slots_and_lengths_are_restored() -> None:
    target = in_dtype(torch.float64)
    measure_rounding(target, [[1, 2, 3, 4]])
    assert (target.acquire(), target.acquire()) == (0, 1)


def test_ties_alone_leave_the_output_unchanged() -> None:
    plain = replace(request(0, 0.0), token_ids=(1, 2))
    other = replace(request(0, 0.0, side="method"), token_ids=(1, 3))

    def compare(is_rounding: bool) -> OutputComparison:
        gap = LogitGap(0.0, 1.0, "bfloat16", is_rounding=is_rounding)
        return OutputComparison.greedy([plain, other], lambda row, position: gap)

    assert compare(True).statement.startswith("output unchanged but for rounding: 0 of 1")
    assert not compare(True).is_wrong
    assert compare(False).statement.startswith("OUTPUT CHANGED")
    assert "0 of 1 examined" in compare(False).statement
    assert compare(False).is_wrong


def test_differences_that_nobody_examined_are_not_called_changes() -> None:
    """As while a run goes on, or if more differ than are examined."""
    rows = []
    for number in range(2):
        plain = replace(request(number, 0.0), token_ids=(1, 2))
        rows += [plain, replace(request(number, 0.0, side="method"), token_ids=(1, 3))]
    tie, error = (LogitGap(0.0, 1.0, "bfloat16", is_rounding=is_tie) for is_tie in (True, False))
    unexamined = OutputComparison.greedy(rows)
    half = OutputComparison.greedy(rows, lambda row, position: tie, max_examined=1)
    wrong = OutputComparison.greedy(rows, lambda row, position: error, max_examined=1)
    words = "output differs, perhaps only by rounding: 0 of 2 greedy outputs equal; "
    assert f"{words}no difference has been examined yet" in unexamined.statement
    assert f"{words}the only difference examined is a tie" in half.statement
    assert wrong.statement.startswith("OUTPUT CHANGED")
    found = [Output.of(each.figures, lossless=True).verdict for each in (unexamined, half, wrong)]
    assert found == [OutputVerdict.UNKNOWN, OutputVerdict.UNKNOWN, OutputVerdict.CHANGED]
    assert [each.is_wrong for each in (unexamined, half, wrong)] == [False, False, True]
    assert Output.of(wrong.figures, lossless=False).verdict is OutputVerdict.LOSSY


def turn(number: int, side: str, token_ids: tuple[int, ...]) -> RequestRow:
    row = request(number, 0.0, side=side)
    return replace(row, id=f"chat/{number}", row="chat", turn=number, token_ids=token_ids)


def test_a_turn_that_answers_another_reply_is_no_change() -> None:
    """Its prompt differs, so the target's logits after the baseline's say nothing about it."""
    error = LogitGap(9.0, 9.0, "bfloat16", is_rounding=False)
    tie = LogitGap(0.0, 9.0, "bfloat16", is_rounding=True)
    plain = [turn(number, "baseline", (1, 2)) for number in range(4)]
    other = [turn(number, "method", (1, 2)) for number in range(4)]
    other[1], other[2] = turn(1, "method", (1, 3)), turn(2, "method", (7, 7))

    def gap(row: RequestRow, position: int) -> LogitGap:
        return tie if row.turn == 1 else error

    found = OutputComparison.greedy([*plain, *other], gap)
    assert found.statement.startswith("output unchanged but for rounding: 1 of 2")
    later = "not compared: 2 later turns that answer a reply that differs"
    assert found.statement.endswith(f"; {later}")
    assert found.figures["num_outputs_unlike"] == 2
    assert not found.is_wrong

    other[1] = turn(1, "method", (1, 2))
    alone = OutputComparison.greedy([*plain, *other], gap)
    assert (alone.num_compared, alone.num_unlike) == (3, 1)
    assert alone.is_wrong  # its prompt was the same
