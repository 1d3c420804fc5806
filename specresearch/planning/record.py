"""A plan as plan.json has it."""

from collections import Counter
from dataclasses import asdict
from typing import Any

from specresearch.planning.deployment import Deployment
from specresearch.planning.findings import NOT_PLANNED, findings
from specresearch.planning.model_size import ModelSize
from specresearch.planning.plan import ServingPlan


def plan_record(plan: ServingPlan) -> dict[str, Any]:
    """Return every figure of a plan, with bytes and seconds as units."""
    drafter = plan.drafter
    return {
        "conditions": asdict(plan.conditions) | {"usable": plan.conditions.usable},
        "target": _model(plan.target),
        "drafter": None
        if drafter is None
        else asdict(drafter) | {"model": None if drafter.model is None else _model(drafter.model)},
        "plain": _deployment(plan.plain),
        "drafting": None if plan.drafting is None else _deployment(plan.drafting),
        "others": [_deployment(other) for other in plan.others],
        "draft_acceptance": plan.acceptance,
        "loads": [asdict(point) for point in plan.loads],
        "findings": findings(plan),
        "not_planned": list(NOT_PLANNED),
    }


def _model(size: ModelSize) -> dict[str, Any]:
    layers = [asdict(layer) | {"num_layers": n} for layer, n in Counter(size.kv).items()]
    return asdict(size) | {"num_active": size.num_active, "kv": layers}


def _deployment(deployment: Deployment) -> dict[str, Any]:
    names = ("weights", "kv_per_token", "fits")
    return asdict(deployment) | {name: getattr(deployment, name) for name in names}
