"""What follows from a plan, in sentences; each also answers a rule of thumb that is often wrong."""

from collections.abc import Iterator

from specresearch.planning.break_even import LoadPoint
from specresearch.planning.deployment import Deployment
from specresearch.planning.plan import GB, ServingPlan

LEAST_SHOWN = 0.005  # as a share; less is no finding
NOT_PLANNED = (
    "pipeline, expert and data parallelism",
    "the time that GPUs take to exchange activations",
    "prefixes that requests share",
    "fragmentation",
)


def findings(plan: ServingPlan) -> list[str]:
    """Return what to learn from the figures, most important first."""
    return [
        *_room(plan),
        *_rule_of_thumb(plan.drafting or plan.plain),
        *_price(plan),
        *_pays(plan.loads),
    ]


def _room(plan: ServingPlan) -> Iterator[str]:
    """Say what does not fit, or which limit binds."""
    for deployment in filter(None, (plan.plain, plan.drafting)):
        what = _name(deployment)
        if deployment.left < 0:
            yield (
                f"{what} does not fit: {-deployment.left / GB:,.2f} GB are missing before the first"
                " token is cached"
            )
        elif not deployment.fits:
            yield f"{what}: no request of {plan.conditions.context:,} tokens fits"
        elif deployment.requests == plan.conditions.max_running:
            yield (
                f"{what}: max_running={deployment.requests} limits the requests; memory has room "
                "for more"
            )


def _rule_of_thumb(deployment: Deployment) -> Iterator[str]:
    exact, rough = deployment.weights, deployment.rule_of_thumb
    if abs(exact - rough) < LEAST_SHOWN * exact:
        return
    yield (
        f"the weights take {exact / GB:,.2f} GB; sizes in names times bits make {rough / GB:,.0f} "
        "GB, because names are rounded and quantised models keep embeddings and scales"
    )


def _price(plan: ServingPlan) -> Iterator[str]:
    """Say what drafting costs in capacity: weights first, then cache."""
    plain, drafting = plan.plain, plan.drafting
    if drafting is None or not plain.tokens or drafting.left < 0:
        return
    lost = 1 - drafting.tokens / plain.tokens
    if lost < LEAST_SHOWN:
        return
    by_weights = (plain.left - drafting.left) / plain.left
    more = drafting.drafter_kv_per_token / plain.kv_per_token
    yield (
        f"drafting takes {lost:.0%} of the tokens that fit: {by_weights:.0%} by its weights and "
        f"buffers, the rest because each token takes {more:.1%} more cache"
    )
    cheaper = [
        f"{other.drafter} in {other.drafter_precision} {1 - other.share_of_plain:.0%}"
        for other in plan.others
        if other.target_precision == plain.target_precision
        and other.share_of_plain is not None
        and other.tokens > drafting.tokens
    ]
    if cheaper:
        yield f"other drafters take less: {', '.join(cheaper)}"
    if drafting.requests and plain.requests > drafting.requests:
        ratio = plain.requests / drafting.requests
        yield (
            f"where memory limits the requests, each must decode more than {ratio:.2f} times as "
            "fast for the same throughput"
        )


def _pays(points: list[LoadPoint]) -> Iterator[str]:
    for point in points:
        if point.acceptance is None or point.acceptance_rate is None:
            limit = "" if point.speedup is None else ", more than a step can have"
            yield f"{point.load}: drafting pays above {point.tokens_per_step:.2f} tokens{limit}"
        elif point.acceptance < LEAST_SHOWN:
            yield f"{point.load}: drafting pays at any acceptance"
        else:
            yield (
                f"{point.load}: drafting pays above an acceptance of {point.acceptance:.2f} for "
                f"each draft, which engines report as a rate of {point.acceptance_rate:.2f} "
                "accepted of all drafted"
            )


def _name(deployment: Deployment) -> str:
    target = f"{deployment.target} in {deployment.target_precision}"
    if deployment.drafter is None:
        return target
    precision = deployment.drafter_precision
    return f"{target} with {deployment.drafter}" + (f" in {precision}" if precision else "")
