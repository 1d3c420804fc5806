"""The rows that runs, load tests, recordings and simulations write and the report reads."""

from specresearch.rows.key import BASELINE, FIXED, METHOD, PassKey
from specresearch.rows.request import RequestRow
from specresearch.rows.schema import SCHEMA, check_schema
from specresearch.rows.step import STEP_SCHEMA, StepLog, step_row

__all__ = [
    "BASELINE",
    "FIXED",
    "METHOD",
    "SCHEMA",
    "STEP_SCHEMA",
    "PassKey",
    "RequestRow",
    "StepLog",
    "check_schema",
    "step_row",
]
