"""Choose the fastest shape by what was measured, or one that was chosen before."""

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from specresearch.acceptance import AcceptanceSampler, Rejection
from specresearch.calibration.calibrate import Calibration, RequestCosts
from specresearch.calibration.measurement import PLAIN, Prediction
from specresearch.calibration.scope import Scope
from specresearch.controllers import Controller, Fixed
from specresearch.engine.requests import as_requests
from specresearch.models import CausalLM
from specresearch.proposers import Proposer
from specresearch.sampling import SamplingParams
from specresearch.shape_store import Identity, ShapeChoice, ShapeStore

LEAST_GAIN = 1.03  # predicted speedup that is worth a drafter
DOUBT = 0.1  # how far from it one confirmation tells which side the speedup is on
MOST_CONFIRMATIONS = 4

logger = logging.getLogger(__name__)


def fastest(
    predictions: Iterable[Prediction], plain: Prediction, costs: RequestCosts, batch_size: int
) -> tuple[Prediction, float]:
    """Return the fastest of several shapes, and its speed over plain decoding."""
    best = min(predictions, key=lambda prediction: costs.seconds(prediction, batch_size))
    return best, costs.seconds(plain, batch_size) / costs.seconds(best, batch_size)


def choose(calibration: Calibration, scope: Scope) -> ShapeChoice:
    """Measure the shapes, and return the fastest, or none if that is faster."""
    batch_size = calibration.batch_size
    first = calibration.measure(scope)
    costs = calibration.request_costs()
    likely, _ = fastest(first.predictions(), first.plain(batch_size), costs, batch_size)
    second, best, speedup = None, likely, LEAST_GAIN
    for _ in range(MOST_CONFIRMATIONS):
        if abs(speedup - LEAST_GAIN) > DOUBT:
            break
        second = calibration.confirm(likely.shape, second)
        best, plain = second.confirmed(likely), second.plain(batch_size)
        _, speedup = fastest([best], plain, calibration.request_costs(), batch_size)
    pays = speedup >= LEAST_GAIN or not scope.is_num_auto
    return ShapeChoice(
        shape=best.shape if pays else PLAIN,
        best=best.shape,
        expected_tokens=best.tokens,
        acceptance_length=best.acceptance_length,
        predicted_speedup=speedup,
        measured=calibration.describe(),
        forecast=first.forecast(best, second),
    )


def settle_shape(
    calibration: Calibration,
    controller: Controller,
    data: str,
    earlier: Mapping[str, Any] | None = None,
    *,
    is_shared: bool = False,
) -> ShapeChoice | None:
    """Let a proposer draft in the shape that suits it best, from the next engine on.

    What was chosen before with the same models, on the same machine and for the same kind of
    requests is used again. A controller that chooses lengths itself gets the largest shape of the
    best kind; or none, where requests are decoded one by one and the best shape is expected to be
    slower than plain decoding.

    Args:
        data: Identifies the prompts.
        earlier: The provenance of the run that is resumed, which keeps its shape.
        is_shared: Other controllers are to steer the same proposer.

    Returns:
        The choice, or None if there was none to make.

    Raises:
        ValueError: If the controller asks for more drafts than `auto` considers.
    """
    proposer = calibration.proposer
    if not proposer.shapes:
        return None
    kept = ((earlier or {}).get("method") or {}).get("shape")
    if kept is not None:
        choice = ShapeChoice.from_json(kept)
        choice.take_effect(proposer)
        return choice
    is_alone = calibration.batch_size == 1 and not is_shared
    scope = Scope.of(proposer, calibration.acceptance, controller, is_alone=is_alone)
    if scope.only is not None:
        proposer.draft_as(scope.only)
        return None
    proposer.bind(calibration.target, 0)
    store = ShapeStore(Identity.of(calibration.target, proposer, calibration.batch_size))
    workload = _workload(calibration, scope, data)
    choice = store.load(workload)
    if choice is None:
        choice = choose(calibration, scope)
        store.save(workload, choice)
    else:
        choice = replace(choice, measured=f"{choice.measured}, kept in {store.file}")
    if scope.is_steered:
        loses = scope.may_be_plain and choice.predicted_speedup < 1
        kinds = {shape.kind: shape for shape in scope.shapes}
        choice = replace(choice, shape=PLAIN if loses else kinds[choice.best.kind])
    logger.info("%s", choice)
    choice.take_effect(proposer)
    return choice


def leave_to_controller(
    target: CausalLM,
    proposer: Proposer,
    acceptance: AcceptanceSampler,
    controller: Controller,
    batch_size: int,
) -> None:
    """Let a proposer draft as much as its controller may ask for, without measuring anything.

    Nothing happens if the controller leaves the number of drafts to the proposer, or its settings
    say what to draft. Of several kinds of drafts it takes the one that was fastest before with
    these models, on this machine; else the first.
    """
    if not (proposer.shapes and Scope.is_steered_by(controller)):
        return
    kinds = {shape.kind: shape for shape in Scope.of(proposer, acceptance, controller).shapes}
    proposer.bind(target, 0)
    kept = ShapeStore(Identity.of(target, proposer, batch_size)).newest()
    if kept is not None and kept.best.kind in kinds:
        replace(kept, shape=kinds[kept.best.kind]).take_effect(proposer)
    else:
        proposer.draft_as(next(iter(kinds.values())))


def calibrate(
    target: CausalLM,
    proposer: Proposer,
    prompts: Sequence[str | Sequence[int]],
    sampling: SamplingParams | None = None,
    *,
    acceptance: AcceptanceSampler | None = None,
    batch_size: int = 1,
) -> ShapeChoice:
    """Measure what suits a proposer that leaves its shape to `auto`, and let it draft so.

    Engines of other processes with the same models, machine and batch size use the result too, if
    their proposer leaves its shape to `auto` and was not calibrated.

    Args:
        prompts: Text or token ids of the kind to decode; ten or more.

    Raises:
        ValueError: If the proposer's settings say what to draft.
    """
    if not proposer.shapes:
        raise ValueError(
            f"the settings of {type(proposer).__name__} say what to draft, so there is nothing to "
            "calibrate; leave num_draft_tokens to 'auto'"
        )
    requests = list(as_requests(prompts, sampling, target.tokenizer))
    calibration = Calibration(
        target,
        proposer,
        [request.prompt_ids for request in requests],
        sampling or SamplingParams(),
        acceptance=acceptance or Rejection(),
        batch_size=batch_size,
    )
    proposer.bind(target, 0)
    store = ShapeStore(Identity.of(target, proposer, batch_size))
    scope = Scope.of(proposer, calibration.acceptance, Fixed())
    choice = choose(calibration, scope)
    digest = hashlib.sha256(json.dumps([list(r.prompt_ids) for r in requests]).encode())
    store.save(_workload(calibration, scope, digest.hexdigest()[:16]), choice)
    choice.take_effect(proposer)
    return choice


def _workload(calibration: Calibration, scope: Scope, data: str) -> dict[str, Any]:
    """Return what speed and acceptance depend on beside the identity."""
    sampling = asdict(replace(calibration.sampling, seed=None))
    workload = {
        "data": data,
        "sampling": sampling,
        "acceptance": {"rule": type(calibration.acceptance).__name__}
        | vars(calibration.acceptance),
        "shapes": [asdict(shape) for shape in scope.shapes],
        "is_num_auto": scope.is_num_auto,
    }
    return json.loads(json.dumps(workload, default=str))
