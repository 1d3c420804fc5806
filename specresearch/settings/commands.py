"""The schema of each command's settings."""

from importlib import import_module

from specresearch.settings.base import Settings

SCHEMAS = {
    "run": "measuring.Run",
    "load": "measuring.Load",
    "simulate": "measuring.Simulate",
    "certify": "certifying.Certify",
    "tree": "training.Tree",
    "distill": "training.Distill",
    "export": "training.Export",
}


def schema_of(command: str) -> type[Settings]:
    """Return the schema of conf/<command>.yaml; only its own module is imported."""
    module, _, name = SCHEMAS[command].partition(".")
    return getattr(import_module(f"{__package__}.{module}"), name)
