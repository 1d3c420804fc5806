"""Where a run's curves go besides its folder. Each is one file here and one YAML file in conf/tracker/."""

from specresearch.trackers.base import NoTracker, Tracker
from specresearch.trackers.wandb import WandbTracker

__all__ = ["NoTracker", "Tracker", "WandbTracker"]
