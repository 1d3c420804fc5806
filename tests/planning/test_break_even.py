"""From which acceptance on drafting pays: by hand at the two ends, by the roofline in between."""

import pytest
from planned import PAIR, SEVENTY, planned

from specresearch.planning.break_even import LoadPoint, acceptance_for, tokens_per_step

RATIO = 70_553_706_496 / 8_030_261_248


def points(*overrides: str) -> dict[str, LoadPoint]:
    return {point.load: point for point in planned(*PAIR, *overrides).loads}


def test_one_request_pays_for_the_drafts_passes_alone() -> None:
    """An article calls 1.90 accepted of 5 a case for switching off: it is 1.85 times as fast."""
    point = points("context=1")["one request"]
    assert point.tokens_per_step == pytest.approx(1 + 5 / RATIO, rel=1e-4)
    assert point.acceptance == pytest.approx(0.365, abs=1e-3)
    assert point.acceptance_rate == pytest.approx(0.114, abs=5e-4)
    assert 2.90 / point.tokens_per_step == pytest.approx(1.85, abs=0.005)


def test_saturated_gpus_pay_for_every_token() -> None:
    point = points()["compute saturated"]
    assert point.tokens_per_step == pytest.approx(6 + 5 / RATIO, rel=1e-4)
    assert (point.acceptance, point.acceptance_rate) == (None, None)
    assert 2.90 / point.tokens_per_step == pytest.approx(0.44, abs=0.005)


def test_full_memory_adds_the_requests_that_the_draft_displaces() -> None:
    plan = planned(*PAIR, "precision.target=int8")
    point = {point.load: point for point in plan.loads}["as many as fit"]
    assert plan.drafting is not None
    assert (point.num_plain, point.num_drafting) == (plan.plain.requests, plan.drafting.requests)
    slower = point.drafting_step / point.plain_step
    fewer = plan.plain.requests / plan.drafting.requests
    assert point.tokens_per_step == pytest.approx(slower * fewer)
    assert point.speedup == pytest.approx(tokens_per_step(0.8, 5) / point.tokens_per_step)


def test_a_pair_that_does_not_fit_has_no_full_memory() -> None:
    assert "as many as fit" not in points()


def test_drafts_from_the_host_cost_nothing_at_one_request() -> None:
    plan = planned(*SEVENTY, "+proposer=ngram")
    assert plan.loads[0].tokens_per_step == pytest.approx(1)
    assert plan.loads[0].acceptance == pytest.approx(0)


def test_trees_have_tokens_but_no_acceptance() -> None:
    plan = planned(*SEVENTY, "+proposer=eagle3", "proposer.tree=dynamic")
    assert plan.drafter is not None
    assert (plan.drafter.num_nodes, plan.drafter.num_passes) == (60, 7)
    assert plan.loads[0].tokens_per_step > 1
    assert (plan.loads[0].acceptance, plan.loads[0].speedup) == (None, None)


def test_drafts_of_a_sparse_model_wake_more_experts() -> None:
    """One token reads 8 of 256 experts, and six up to 48: verifying is not free."""
    overrides = ["target=local", "target.model=deepseek-ai/DeepSeek-V3", "gpu=8xh200"]
    plan = planned(*overrides, "+proposer=ngram", "context=1")
    assert plan.loads[0].tokens_per_step > 2


@pytest.mark.parametrize(
    ("rate", "acceptance"), [(0.38, 0.694), (0.5, 0.777), (0.65, 0.860), (0.76, 0.910)]
)
def test_an_engines_rate_is_not_the_acceptance_of_a_draft(rate: float, acceptance: float) -> None:
    assert acceptance_for(1 + 5 * rate, 5) == pytest.approx(acceptance, abs=1.1e-3)


@pytest.mark.parametrize("acceptance", [0.0, 0.3, 0.9])
def test_acceptance_is_found_again_from_its_tokens(acceptance: float) -> None:
    tokens = tokens_per_step(acceptance, 4)
    if acceptance:
        assert tokens == pytest.approx((1 - acceptance**5) / (1 - acceptance))
    assert acceptance_for(tokens, 4) == pytest.approx(acceptance)
