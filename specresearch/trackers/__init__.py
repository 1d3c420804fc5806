"""Experiment trackers beside the results folder: one file each, and one YAML in conf/tracker/."""

from specresearch.trackers.base import NoTracker, Tracker
from specresearch.trackers.metrics import MetricsTracker
from specresearch.trackers.mlflow import MlflowTracker
from specresearch.trackers.tensorboard import TensorBoardTracker
from specresearch.trackers.wandb import WandbTracker

__all__ = [
    "MetricsTracker",
    "MlflowTracker",
    "NoTracker",
    "TensorBoardTracker",
    "Tracker",
    "WandbTracker",
]
