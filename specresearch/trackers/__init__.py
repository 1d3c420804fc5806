"""Experiment trackers beside the results folder: one file each, and one YAML in conf/tracker/."""

from specresearch.trackers.base import NoTracker, Tracker
from specresearch.trackers.wandb import WandbTracker

__all__ = ["NoTracker", "Tracker", "WandbTracker"]
