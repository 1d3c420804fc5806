"""The figures on rows made by hand, where each can be worked out on paper."""

from dataclasses import replace

import pytest

from specresearch.bench.outputs import OutputComparison
from specresearch.bench.rows import GroupRow
from specresearch.bench.summary import summarize
from specresearch.metrics import Counts
from specresearch.metrics.shift import ShiftSums
from specresearch.rows import BASELINE, METHOD, PassKey, RequestRow
from specresearch.statistics import LEAST_UNITS

SAMPLED = OutputComparison.sampled("rejection", lossless=True)
LOSSY = OutputComparison.sampled("typical", lossless=False)
PLAIN_COUNTS = Counts(num_target_forwards=10, num_generated_tokens=10)
FAST_COUNTS = Counts(5, 4, 8, 5, 10, reached=[4, 3], accepted=[3, 2], expected=[2.8, 2.1])


def request(
    group: int, side: str, counts: Counts, repeat: int = 0, **changes: object
) -> RequestRow:
    row = RequestRow(
        key=PassKey(repeat, group, side),
        id=f"row{group}/0",
        row=f"row{group}",
        turn=0,
        category="",
        num_prompt_tokens=7,
        num_cut_tokens=0,
        finish_reason="length",
        counts=counts,
        ttft=0.5,
        tpot=0.1,
        e2el=1.4,
        prefill_time=0.4,
        itl=(0.1,) * 9,
        token_ids=tuple(range(10)),
        text="",
    )
    return replace(row, **changes)  # type: ignore[arg-type]


def group_row(group: int, side: str, *, repeat: int = 0, tokens: int = 10) -> GroupRow:
    baseline = GroupRow(
        key=PassKey(repeat, group, side),
        wall=5.0,
        prefill=1.0,
        propose=0.0,
        verify=3.5,
        accept=0.2,
        commit=0.1,
        num_steps=10,
        num_draft_passes=0,
        num_requests=1,
        num_generated_tokens=tokens,
    )
    if side == BASELINE:
        return baseline
    method = {"wall": 3.0, "propose": 0.4, "verify": 1.35, "accept": 0.1, "commit": 0.05}
    return replace(baseline, **method, num_steps=5, num_draft_passes=8)


def both_sides(
    num_groups: int, repeats: int = 1, tokens: int = 10
) -> tuple[list[RequestRow], list[GroupRow]]:
    places = [(repeat, group) for repeat in range(repeats) for group in range(num_groups)]
    requests = [
        request(group, side, counts, repeat)
        for repeat, group in places
        for side, counts in ((BASELINE, PLAIN_COUNTS), (METHOD, FAST_COUNTS))
    ]
    groups = [group_row(group, BASELINE, repeat=repeat) for repeat, group in places]
    groups += [group_row(group, METHOD, repeat=repeat, tokens=tokens) for repeat, group in places]
    return requests, groups


def test_times_of_equal_token_counts() -> None:
    summary = summarize(*both_sides(LEAST_UNITS), SAMPLED).summary
    assert summary["speedup"] == pytest.approx(5 / 3)
    assert summary["speedup_ci95"] == pytest.approx((5 / 3, 5 / 3))
    assert summary["speedup_basis"] == "wall time, equal token counts"
    assert summary["decode_speedup"] == pytest.approx(4 / 2)
    assert summary["ideal_speedup"] == pytest.approx(3.5 / 1.75)
    assert summary["efficiency"] == pytest.approx(1.0)
    assert summary["tokens_per_second"] == pytest.approx(10 / 3)
    assert summary["baseline_tokens_per_second"] == pytest.approx(2.0)
    assert summary["host_overhead"] == pytest.approx(1 - 1.75 / 2)
    assert summary["baseline_host_overhead"] == pytest.approx(1 - 3.5 / 4)
    assert summary["cost_ratio"] == pytest.approx((0.4 / 8) / (3.5 / 10))


def test_ideal_speedup_is_tau_over_relative_step_cost() -> None:
    summary = summarize(*both_sides(2), SAMPLED).summary
    tau, one, step = 10 / 5, 3.5 / 10, (0.4 + 1.35) / 5
    assert summary["ideal_speedup"] == pytest.approx(tau * one / step)


def test_different_token_counts_are_compared_per_token() -> None:
    summary = summarize(*both_sides(3, tokens=20), SAMPLED).summary
    assert summary["speedup"] == pytest.approx((5 / 10) / (3 / 20))
    assert "per generated token" in summary["speedup_basis"]


def test_acceptance_figures() -> None:
    figures = summarize(*both_sides(4), SAMPLED)
    summary = figures.summary
    assert summary["mean_acceptance_length"] == pytest.approx(1 + 5 / 4)
    assert summary["draft_acceptance_rate"] == pytest.approx(5 / 8)
    assert summary["tokens_per_target_forward"] == pytest.approx(10 / 5)
    assert (summary["num_drafts"], summary["num_draft_tokens"], summary["num_accepted_tokens"]) == (
        16,
        32,
        20,
    )
    assert [at["unconditional"] for at in figures.per_position] == pytest.approx([3 / 4, 2 / 4])
    assert [at["conditional"] for at in figures.per_position] == pytest.approx([3 / 4, 2 / 3])
    assert sum(figures.histogram["draft_acceptance_rate"]["counts"]) == 4


def test_a_lossless_rule_has_no_shift() -> None:
    figures = summarize(*both_sides(3), SAMPLED)
    shift = ("output_tv", "output_kl", "num_infinite_kl", "refused_rate")
    assert [figures.summary[name] for name in shift] == [None] * 4
    assert not any(name in figures.intervals or name in figures.per_position[0] for name in shift)


def test_shift_of_a_lossy_rule() -> None:
    """Every request has 10 tokens and 5 accepted drafts; 4 drafts reached depth 1, 3 depth 2."""
    requests, groups = both_sides(LEAST_UNITS)
    sums = ShiftSums([1.2, 0.3], [0.8, 0.6], [0, 0], [0.9, 1.1])
    moved = [
        row if row.key.side == BASELINE else replace(row, counts=replace(row.counts, shift=sums))
        for row in requests
    ]
    figures = summarize(moved, groups, LOSSY)
    summary = figures.summary
    assert summary["output_tv"] == pytest.approx(1.5 / 10)
    assert summary["output_kl"] == pytest.approx(1.4 / 10)
    assert summary["refused_rate"] == pytest.approx(2 / 5)
    assert summary["output_tv_ci95"] == pytest.approx((0.15, 0.15))
    assert figures.intervals["refused_rate"] == {
        "value": summary["refused_rate"],
        "ci95": pytest.approx((0.4, 0.4)),
        "unit": "prompt",
    }
    assert [at["output_tv"] for at in figures.per_position] == pytest.approx([1.2 / 4, 0.3 / 3])
    assert [at["output_kl"] for at in figures.per_position] == pytest.approx([0.8 / 4, 0.6 / 3])
    assert [at["refused_rate"] for at in figures.per_position] == pytest.approx([0.9 / 3, 1.1 / 2])


def test_one_token_that_the_target_never_says_makes_the_divergence_infinite() -> None:
    requests, groups = both_sides(2)
    shifts = {
        f"row{group}": ShiftSums([1.0, 0.5], [0.2, 0.4], [0, group], [1.0, 0.5])
        for group in range(2)
    }
    moved = [
        row
        if row.key.side == BASELINE
        else replace(row, counts=replace(row.counts, shift=shifts[row.row]))
        for row in requests
    ]
    figures = summarize(moved, groups, LOSSY)
    assert (figures.summary["output_kl"], figures.summary["num_infinite_kl"]) == (None, 1)
    assert "output_kl" not in figures.intervals
    assert [at["output_kl"] for at in figures.per_position] == [pytest.approx(0.4 / 8), None]
    assert figures.summary["output_tv"] == pytest.approx(1.5 / 10)


def test_fractions_of_a_side_add_up_to_one() -> None:
    summary = summarize(*both_sides(2), SAMPLED).summary
    parts = ("prefill", "propose", "verify", "accept", "commit", "host")
    for prefix in ("", "baseline_"):
        assert sum(summary[f"{prefix}fraction_{part}"] for part in parts) == pytest.approx(1.0)


def test_repeats_are_added_up_before_resampling() -> None:
    """Three repeats of a prompt are one observation, so that these are too few for an interval."""
    num = LEAST_UNITS - 1
    summary = summarize(*both_sides(num, repeats=3), SAMPLED).summary
    assert summary["speedup_ci95"] is None
    assert (summary["num_prompts"], summary["num_requests"], summary["num_repeats"]) == (
        num,
        3 * num,
        3,
    )


def test_plain_decoding_has_no_method_figures() -> None:
    requests, groups = both_sides(3)
    plain = (
        [row for row in requests if row.key.side == BASELINE],
        [row for row in groups if row.key.side == BASELINE],
    )
    summary = summarize(*plain, None).summary
    assert summary["speedup"] is None
    assert summary["outputs_equal"] is None
    assert summary["ideal_speedup"] is None
    assert (
        summary["tokens_per_second"] == summary["baseline_tokens_per_second"] == pytest.approx(2.0)
    )
    assert summary["num_generated_tokens"] == 30


def test_nothing_decoded_yet() -> None:
    summary = summarize([], [], SAMPLED).summary
    assert summary["speedup"] is None
    assert summary["num_prompts"] == 0


def test_cut_prompts_are_counted_once_for_both_sides_and_all_repeats() -> None:
    requests, groups = both_sides(2, repeats=2)
    cut = [replace(row, num_cut_tokens=3) if row.row == "row1" else row for row in requests]
    assert summarize(cut, groups, SAMPLED).summary["num_prompts_cut"] == 1


def test_categories() -> None:
    requests, groups = both_sides(4)
    named = [replace(row, category="code" if row.key.group < 3 else "chat") for row in requests]
    table = summarize(named, groups, SAMPLED).by_category
    assert {name: row["num_prompts"] for name, row in table.items()} == {"chat": 1, "code": 3}
    assert table["code"]["speedup"] == pytest.approx(5 / 3)


def test_a_group_of_mixed_categories_has_no_speedup_by_category() -> None:
    requests, groups = both_sides(1)
    mixed = [*requests, *(replace(row, row="other", category="chat") for row in requests)]
    table = summarize(
        [replace(row, category=row.category or "code") for row in mixed], groups, SAMPLED
    ).by_category
    assert table["code"]["speedup"] is None
    assert table["chat"]["speedup"] is None


def test_equal_and_unequal_outputs() -> None:
    requests, _ = both_sides(3)
    same = OutputComparison.greedy(requests)
    assert same.statement == "output unchanged: 3 of 3 greedy outputs equal token for token"
    other = [
        replace(row, token_ids=(0, 1, 9)) if row.row == "row2" and row.key.side == METHOD else row
        for row in requests
    ]
    changed = OutputComparison.greedy(other)
    assert changed.figures["outputs_equal"] is False
    assert changed.num_equal == 2
    (difference,) = changed.differences
    assert (
        difference.request,
        difference.position,
        difference.baseline_token,
        difference.method_token,
    ) == (
        "row2/0",
        2,
        2,
        9,
    )
    assert "request row2/0, token 2" in changed.statement


def test_an_output_that_ends_early_differs_where_it_ends() -> None:
    requests, _ = both_sides(1)
    short = [replace(row, token_ids=(0, 1)) if row.key.side == METHOD else row for row in requests]
    (difference,) = OutputComparison.greedy(short).differences
    assert (difference.position, difference.method_token) == (2, -1)


def test_sampled_runs_say_what_they_rest_on() -> None:
    assert (
        SAMPLED.statement
        == "the output's distribution was not checked (rule rejection is lossless)"
    )
    assert "may differ" in LOSSY.statement
    assert SAMPLED.figures["outputs_equal"] is None
