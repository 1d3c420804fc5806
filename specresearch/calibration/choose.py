"""Choose the fastest shape by what was measured, or one that was chosen before."""

import json
import logging
from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import Any

from specresearch.calibration.calibrate import Calibration, RequestCosts
from specresearch.calibration.measurement import PLAIN, Prediction
from specresearch.calibration.scope import Scope
from specresearch.controllers import Controller
from specresearch.shape_store import Identity, ShapeChoice, ShapeStore

LEAST_GAIN = 1.03  # predicted speedup that is worth a drafter, within the error of a prediction

logger = logging.getLogger(__name__)


def fastest(
    predictions: Iterable[Prediction], plain: Prediction, costs: RequestCosts, batch_size: int
) -> tuple[Prediction, float]:
    """Return the fastest of several shapes, and its speed over plain decoding."""
    best = min(predictions, key=lambda prediction: costs.seconds(prediction, batch_size))
    return best, costs.seconds(plain, batch_size) / costs.seconds(best, batch_size)


def choose(calibration: Calibration, scope: Scope) -> ShapeChoice:
    """Measure the shapes, and return the fastest, or none if that is faster."""
    measurement = calibration.measure(scope)
    batch_size = calibration.batch_size
    plain = measurement.plain(batch_size)
    predictions = measurement.predictions()
    best, speedup = fastest(predictions, plain, calibration.request_costs(), batch_size)
    pays = speedup >= LEAST_GAIN or not scope.is_num_auto
    return ShapeChoice(
        shape=best.shape if pays else PLAIN,
        best=best.shape,
        expected_tokens=best.tokens,
        acceptance_length=best.acceptance_length,
        predicted_speedup=speedup,
        measured=calibration.describe(),
    )


def settle_shape(
    calibration: Calibration,
    controller: Controller,
    data: str,
    kept: ShapeChoice | None = None,
) -> ShapeChoice | None:
    """Let a proposer draft in the shape that suits it best, from the next engine on.

    What was chosen before with the same models, on the same machine and for the same kind of
    requests is used again. A controller that chooses lengths itself gets the largest shape of the
    best kind.

    Args:
        data: Identifies the prompts.
        kept: What this run chose when it began.

    Returns:
        The choice, or None if there was none to make.

    Raises:
        ValueError: If the controller asks for more drafts than `auto` considers.
    """
    proposer = calibration.proposer
    if not proposer.shapes:
        return None
    if kept is not None:
        proposer.draft_as(kept.shape)
        return kept
    scope = Scope.of(proposer, calibration.acceptance, controller)
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
        kinds = {shape.tree: shape for shape in scope.shapes}
        choice = replace(choice, shape=kinds[choice.best.tree])
    logger.info("%s", choice)
    proposer.draft_as(choice.shape)
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
