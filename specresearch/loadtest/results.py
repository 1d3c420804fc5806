"""What results.json of a load test or a simulation holds."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from specresearch.bench.acceptance_profile import AcceptanceProfile
from specresearch.bench.side_comparison import MeanStepTimes, SideComparison
from specresearch.loadtest.definitions import LOAD_DEFINITIONS
from specresearch.loadtest.settings import PassSettings
from specresearch.loadtest.side import LoadSide
from specresearch.loadtest.summary import LoadFigures, summarize_load
from specresearch.rows import SCHEMA


@dataclass(frozen=True, kw_only=True)
class LoadResults(LoadFigures):
    """The figures of a load test and where they come from; docs/load.md explains each part.

    Attributes:
        complete: Whether every pass came to its end.
        failures: Requests that a server did not answer, by side and kind.
        kind: `load` or `simulation`.
    """

    complete: bool
    schema: int = SCHEMA
    kind: str = "load"
    outputs: dict[str, dict[str, Any]] = field(default_factory=dict)
    failures: dict[str, dict[str, int]] = field(default_factory=dict)
    limits: dict[str, float] = field(default_factory=dict)
    definitions: dict[str, str] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> "LoadResults":
        """Return results as they were written."""
        parsers = {
            "acceptance": AcceptanceProfile.from_json,
            "step_times": lambda times: MeanStepTimes(**times),
            "comparisons": SideComparison.from_json,
        }
        parts = dict(data)
        for name, parse in parsers.items():
            parts[name] = {side: parse(value) for side, value in data[name].items()}
        return LoadResults(**parts)

    @staticmethod
    def of(
        sides: Mapping[str, LoadSide],
        settings: PassSettings,
        setting: Mapping[str, Any],
        *,
        reset: bool = True,
        **rest: Any,
    ) -> "LoadResults":
        """Return the results of the sides.

        Args:
            setting: What was measured, `max_running` included, which opens the summary.
            reset: Whether controllers were reset before every pass.
            rest: The remaining fields.
        """
        figures = summarize_load(sides, settings.limits, setting["max_running"], reset=reset)
        parts = {part.name: getattr(figures, part.name) for part in fields(figures)}
        parts["summary"] = {**setting, **figures.summary}
        limits = asdict(settings.limits)
        return LoadResults(**parts, limits=limits, definitions=LOAD_DEFINITIONS, **rest)
