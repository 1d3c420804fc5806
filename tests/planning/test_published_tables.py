"""A plan has the figures of a published table, a 70B with an 8B draft on two H100, and corrects it.

The table's sums of weights are 156, 86, 78, 51 and 39 GB.
"""

import pytest
from planned import AS_PUBLISHED, PAIR, SEVENTY, planned, row

from specresearch.planning import ServingPlan
from specresearch.planning.findings import findings

GB = 1e9
TABLE = [  # target, draft, published sum, exact sum, exact room, tokens at 0.9
    ("bfloat16", "bfloat16", 156, 157.17, -13.17, 0),
    ("int8", "bfloat16", 86, 88.72, 55.28, 120_507),
    ("int8", "int8", 78, 81.74, 62.26, 135_721),
    ("int4", "bfloat16", 51, 55.83, 88.17, 192_199),
    ("int4", "int4", 39, 45.50, 98.50, 214_722),
]


@pytest.fixture(scope="module")
def published() -> ServingPlan:
    return planned(*PAIR, *AS_PUBLISHED)


@pytest.mark.parametrize(("target", "draft", "rough", "exact", "room", "tokens"), TABLE)
def test_the_table_of_two_h100(
    published: ServingPlan,
    target: str,
    draft: str,
    rough: int,
    exact: float,
    room: float,
    tokens: int,
) -> None:
    deployment = row(published, target, "Llama-3.1-8B", draft)
    assert deployment.rule_of_thumb == rough * GB
    assert deployment.weights / GB == pytest.approx(exact, abs=0.005)
    assert deployment.left / GB == pytest.approx(room, abs=0.005)
    assert deployment.tokens == tokens
    assert deployment.kv_per_token == 458_752


@pytest.mark.parametrize(
    ("utilization", "rooms"),
    [
        (1.0, [2.83, 71.28, 78.26, 104.17, 114.50]),
        (0.92, [-9.97, 58.48, 65.46, 91.37, 101.70]),
    ],
)
def test_the_table_at_other_utilizations(utilization: float, rooms: list[float]) -> None:
    plan = planned(*PAIR, "gpu_memory=80", f"utilization={utilization}", "weights_only=true")
    for (target, draft, *_), room in zip(TABLE, rooms, strict=True):
        left = row(plan, target, "Llama-3.1-8B", draft).left
        assert left / GB == pytest.approx(room, abs=0.006)


def test_the_table_of_two_h200() -> None:
    """Its 126 GB beside the weights are 1.7 times the 74 GB of the H100's INT8 row."""
    plan = planned(*PAIR, *AS_PUBLISHED, "gpu=2xh200", "gpu_memory=141")
    rough = row(plan, "bfloat16", "Llama-3.1-8B", "bfloat16").rule_of_thumb
    assert 2 * 141 * GB - rough == 126 * GB
    assert (plan.conditions.usable - rough) / GB == pytest.approx(97.8)


def test_the_line_that_the_table_lacks(published: ServingPlan) -> None:
    """The draft takes 45% of the tokens, half of that by weights: it is no one-for-one exchange."""
    plain = row(published, "int8")
    drafting = row(published, "int8", "Llama-3.1-8B", "bfloat16")
    assert plain.tokens == 217_723
    assert drafting.share_of_plain == pytest.approx(1 - 0.45, abs=0.005)
    assert (plain.left - drafting.left) / plain.left == pytest.approx(0.225, abs=0.005)
    assert drafting.drafter_kv_per_token / plain.kv_per_token == pytest.approx(0.4)


def test_an_eagle3_head_takes_a_twentieth(published: ServingPlan) -> None:
    head = row(published, "int8", "new EAGLE-3 head", "bfloat16")
    assert head.drafter_weights / GB == pytest.approx(2.81, abs=0.005)
    assert head.drafter_kv_per_token == 4096
    assert head.share_of_plain == pytest.approx(0.95, abs=0.005)
    left = published.conditions.usable - 70 * GB  # with the published sum for the target
    assert left // 327_680 == 225_830
    tokens = (left - head.drafter_weights) // (327_680 + 4096)
    assert tokens == pytest.approx(214_584, rel=1e-4)


def test_the_pair_in_bfloat16_does_not_fit_by_measured_memory_either() -> None:
    plan = planned(*PAIR, "weights_only=true")
    assert plan.conditions.usable / GB == pytest.approx(156.5, abs=0.05)
    assert plan.drafting is not None
    assert plan.drafting.left < 0
    assert not plan.drafting.fits
    assert any("does not fit: 0.69" in sentence for sentence in findings(plan))


def test_an_int4_pair_on_one_h100_is_hardly_a_deployment() -> None:
    plan = planned(*PAIR, *AS_PUBLISHED, "gpu=h100", "precision.target=int4")
    assert plan.drafting is not None
    assert plan.drafting.left / GB == pytest.approx(16.2, abs=0.05)
    assert plan.drafting.tokens == pytest.approx(35_248, rel=1e-4)  # of 16.17 GB


def test_activations_of_a_prefill_take_about_one_gb() -> None:
    plan = planned(*SEVENTY, "max_running=1")
    assert plan.plain.passes / 2 / GB == pytest.approx(1.0, abs=0.01)


def test_findings_name_what_drafting_costs() -> None:
    told = " | ".join(findings(planned(*PAIR, *AS_PUBLISHED, "precision.target=int8")))
    assert "drafting takes 45% of the tokens that fit: 23% by its weights" in told
    assert "new EAGLE-3 head in bfloat16 5%" in told
    assert "the weights take 88.72 GB; sizes in names times bits make 86 GB" in told
    assert "compute saturated: drafting pays above 6.57 tokens, more than a step can have" in told
