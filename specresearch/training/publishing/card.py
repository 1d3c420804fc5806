"""The model card of a drafter: what it is for, how it was trained, what was measured."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCardData
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id
from jinja2 import Environment, FileSystemLoader, StrictUndefined

CARD = "README.md"
TITLES = {
    "draft_model": "Draft model",
    "medusa": "Medusa heads",
    "eagle": "EAGLE head",
    "eagle3": "EAGLE-3 head",
    "layer_skip": "Target that drafts for itself",
}
PLACEHOLDER = "TARGET"  # stands in commands for a target that others do not have under its name
TEXTS = {
    "fixed": "replies of the dataset",
    "text": "plain text",
    "target": "written by the target",
    "draft": "written by the drafter",
}


def model_card(
    name: str,
    method: str,
    target: str,
    provenance: Mapping[str, Any],
    *,
    layout: str | None = None,
    license: str | None = None,
) -> str:
    """Return the text of README.md, with the hub's metadata at its head.

    Args:
        name: user/name on the hub, or the folder's name.
        method: Proposer that drafts with it.
        target: Folder, hub id or zoo name.
        provenance: How it was trained, with its last evaluation as `figures`; empty if unknown.
        layout: The layout of an exported head; None as training saves it.
        license: None states that no licence is set.
    """
    folder = Path(__file__).parent
    environment = Environment(
        loader=FileSystemLoader(folder),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    figures = _section(provenance, "figures")
    return environment.get_template("card.md.jinja").render(
        metadata=_metadata(method, target, provenance, license).to_yaml(),
        name=name,
        title=TITLES[method],
        method=method,
        layout=layout,
        target=_display(target),
        target_argument=target if _display(target) == target else PLACEHOLDER,
        license=license,
        training=list(_training(provenance)),
        lengths=list(_lengths(figures)),
        acceptance=list(_acceptance(figures)),
        backbone=provenance.get("decodes_with") == "backbone",
    )


def is_hub_id(name: str) -> bool:
    """Return whether a model's name is one of the hub, and not a folder or a zoo name."""
    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return not Path(name).exists()


def _display(model: str) -> str:
    """Return the name of a model without the folders of this machine."""
    return model if is_hub_id(model) or ":" in model else Path(model).name


def _metadata(
    method: str, target: str, provenance: Mapping[str, Any], license: str | None
) -> ModelCardData:
    base = target
    if method == "draft_model":
        base = _section(provenance, "begun_from").get("checkpoint", "")
    dataset = _section(provenance, "dataset")
    datasets = None
    if dataset.get("kind") in ("hub", "cache"):
        datasets = [dataset["location"].split()[0]]
    return ModelCardData(
        base_model=base if is_hub_id(base) else None,
        library_name="transformers" if method == "draft_model" else "specresearch",
        license=license,
        datasets=datasets,
        tags=["speculative-decoding", "specresearch", method],
    )


def _section(provenance: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a section of the provenance; empty if it is missing or of somebody else's form."""
    section = provenance.get(name)
    return section if isinstance(section, Mapping) else {}


def _training(provenance: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the rows of the table of training: what, and its value."""
    target = _section(provenance, "target")
    if target:
        size = f"{target['num_parameters']:,} parameters, {target['dtype']}"
        yield "target", f"{_display(target['model'])} ({size})"
    start = _section(provenance, "begun_from")
    if start:
        yield "begun from", _display(start["checkpoint"])
    dataset = _section(provenance, "dataset")
    if dataset:
        source = dataset["location"]
        if dataset["kind"] == "file":
            source = f"the file {Path(source).name}"
        rows = f"{dataset['num_rows']:,} rows, fingerprint {dataset['fingerprint']}"
        yield "prompts", f"{dataset['name']}, from {source} ({rows})"
    corpus = _section(provenance, "corpus")
    weights = {text: corpus.get(key, 0) for key, text in TEXTS.items()}
    texts = [f"{weight:.0%} {text}" for text, weight in weights.items() if weight]
    if texts:
        temperature = corpus["generation"]["temperature"]
        yield "text", f"{', '.join(texts)}, at temperature {temperature:g}"
    objective = provenance.get("objective")
    if objective:
        yield "objective", objective if isinstance(objective, str) else objective["name"]
    train = _section(provenance, "train")
    steps = train.get("steps", provenance.get("steps"))
    if steps:
        yield "steps", f"{steps:,}"
    if train:
        batch = train["batch_size"] * train["accumulate"] * provenance.get("num_processes", 1)
        yield "examples in a step", f"{batch:,}"
        yield "learning rate", f"{train['learning_rate']:g}, {train['schedule']}"
    if "started" in provenance:
        version = _section(provenance, "packages").get("specresearch", "")
        yield "started", f"{provenance['started']}, with specresearch {version}".rstrip()


def _lengths(figures: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield temperature, measured and predicted mean acceptance length of each evaluation."""
    for key, measured in figures.items():
        prefix, _, rest = key.partition("/")
        if rest == "mean_acceptance_length" and prefix != "predicted":
            predicted = figures.get(f"{prefix}/predicted_mean_acceptance_length")
            shown = "-" if predicted is None else f"{predicted:.2f}"
            yield prefix.removeprefix("t"), f"{measured:.2f}", shown


def _acceptance(figures: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield position and predicted acceptance of each draft."""
    for key, rate in figures.items():
        position = key.removeprefix("predicted/acceptance_at_")
        if position != key:
            yield position, f"{rate:.2f}"
