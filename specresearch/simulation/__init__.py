"""What a recording says of settings that were not measured: other draft lengths, rules, controllers, loads and machines."""

from specresearch.simulation.drafting import Drafting
from specresearch.simulation.events import Simulation
from specresearch.simulation.fitted import Fitted
from specresearch.simulation.method import Method
from specresearch.simulation.recordings import open_recording
from specresearch.simulation.replays import Replays
from specresearch.simulation.simulator import SimulationSettings, Simulator
from specresearch.simulation.timing import Linear, Roofline, Timing, Work

__all__ = [
    "Drafting",
    "Fitted",
    "Linear",
    "Method",
    "Replays",
    "Roofline",
    "Simulation",
    "SimulationSettings",
    "Simulator",
    "Timing",
    "Work",
    "open_recording",
]
