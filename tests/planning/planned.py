"""Plans from command-line settings, without the command."""

from functools import cache

from hydra import compose, initialize_config_dir

from specresearch.cli import conf_dir
from specresearch.planning import ServingPlan, make_plan
from specresearch.planning.deployment import Deployment

SEVENTY = ["target=llama3_1_70b", "gpu=2xh100"]
PAIR = [*SEVENTY, "+proposer=draft_model", "draft=meta-llama/Llama-3.1-8B-Instruct"]
AS_PUBLISHED = ["gpu_memory=80", "utilization=0.9", "weights_only=true"]


@cache
def planned(*overrides: str) -> ServingPlan:
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        return make_plan(compose("plan", list(overrides)))


def row(
    plan: ServingPlan, target: str, drafter: str | None = None, precision: str | None = None
) -> Deployment:
    """Return the deployment of a plan's table; `drafter` is the beginning of its last word."""
    found: list[Deployment] = []
    for other in plan.others:
        name = (other.drafter or "").rpartition("/")[2]
        is_drafter = other.drafter is None if drafter is None else name.startswith(drafter)
        if is_drafter and (other.target_precision, other.drafter_precision) == (target, precision):
            found.append(other)
    (deployment,) = found
    return deployment
