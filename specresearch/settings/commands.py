"""The schema of each command's settings."""

from importlib import import_module

from specresearch.settings.base import Settings

SCHEMAS = {
    "run": "measuring.RunSchema",
    "load": "measuring.LoadSchema",
    "plan": "planning.PlanSchema",
    "serve": "serving.ServeSchema",
    "simulate": "measuring.SimulateSchema",
    "penalty": "penalty.PenaltySchema",
    "certify": "certifying.CertifySchema",
    "layers": "layers.LayersSchema",
    "tree": "training.TreeSchema",
    "distill": "training.DistillSchema",
    "export": "training.ExportSchema",
}


def schema_of(command: str) -> type[Settings]:
    """Return the schema of conf/<command>.yaml; only its own module is imported."""
    module, _, name = SCHEMAS[command].partition(".")
    return getattr(import_module(f"{__package__}.{module}"), name)
