"""Plan the memory of a deployment with speculation, and when drafting pays, from configurations."""

from specresearch.planning.plan import ServingPlan, make_plan
from specresearch.planning.record import plan_record
from specresearch.planning.report import print_plan

__all__ = ["ServingPlan", "make_plan", "plan_record", "print_plan"]
