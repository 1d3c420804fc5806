"""Choose how much to draft by a short measurement."""

from specresearch.calibration.calibrate import Calibration
from specresearch.calibration.choose import settle_shape

__all__ = ["Calibration", "settle_shape"]
