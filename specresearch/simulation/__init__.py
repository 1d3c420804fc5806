"""Predict from a recording what was not measured: other draft lengths, controllers and machines."""

from specresearch.simulation.drafting import Drafting
from specresearch.simulation.fitted import Fitted
from specresearch.simulation.method import Method
from specresearch.simulation.one_pass import Simulation
from specresearch.simulation.recorded_load import RecordedArrivals
from specresearch.simulation.recordings import open_recording
from specresearch.simulation.replays import Replays
from specresearch.simulation.simulator import SimulationSettings, Simulator
from specresearch.simulation.timing import Linear, Roofline, Timing, Work

__all__ = [
    "Drafting",
    "Fitted",
    "Linear",
    "Method",
    "RecordedArrivals",
    "Replays",
    "Roofline",
    "Simulation",
    "SimulationSettings",
    "Simulator",
    "Timing",
    "Work",
    "open_recording",
]
