"""Drafters as trainable students, one file per method."""

from specresearch.training.students.base import Student, StudentStep
from specresearch.training.students.draft_model import DraftStudent
from specresearch.training.students.eagle import EagleStudent
from specresearch.training.students.early_exit import EarlyExitStudent
from specresearch.training.students.joint_medusa import JointMedusaStudent
from specresearch.training.students.medusa import MedusaStudent

__all__ = [
    "DraftStudent",
    "EagleStudent",
    "EarlyExitStudent",
    "JointMedusaStudent",
    "MedusaStudent",
    "Student",
    "StudentStep",
]
