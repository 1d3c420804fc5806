"""Choose how much to draft by a short measurement."""

from specresearch.calibration.calibrate import Calibration, RequestCosts
from specresearch.calibration.choose import calibrate, fastest, leave_to_controller, settle_shape
from specresearch.calibration.scope import Scope

__all__ = [
    "Calibration",
    "RequestCosts",
    "Scope",
    "calibrate",
    "fastest",
    "leave_to_controller",
    "settle_shape",
]
