"""The load that a recording was made under, from which simulations start."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hydra.utils import instantiate

from specresearch.loadtest.arrivals import Arrivals, ClosedLoop
from specresearch.loadtest.report import describe_load


@dataclass(frozen=True)
class RecordedArrivals:
    """Stands for the recorded arrivals in a configuration, with these changes.

    Attributes:
        concurrency: Of a closed loop; None as recorded.
        qps: Of open arrivals; None as recorded.
    """

    concurrency: int | None = None
    qps: float | None = None

    def resolve(self, load: "RecordedLoad") -> Arrivals:
        """Return the arrivals to simulate, or raise ValueError if the recorded have no such key."""
        settings = load.arrivals
        for key, value in vars(self).items():
            if value is None:
                continue
            if key not in settings:
                choice = "closed_loop" if key == "concurrency" else "poisson"
                raise ValueError(
                    f"arrivals.{key}={value}: the recorded arrivals ({load.name}) have no {key}; "
                    f"add arrivals={choice}"
                )
            settings = {**settings, key: value}
        return instantiate(settings, _convert_="all")


@dataclass(frozen=True)
class RecordedLoad:
    """When requests arrived and how many decoded together.

    Attributes:
        arrivals: Settings of the arrivals. Groups of a run are a closed loop of its batch size.
    """

    arrivals: dict[str, Any]
    max_running: int

    @staticmethod
    def of(config: Mapping[str, Any], num_requests: int) -> "RecordedLoad":
        """Return the load of a recorded run or load test.

        Args:
            config: Its settings.
            num_requests: How many different requests were recorded.

        Raises:
            ValueError: If the recording was made in code, without these settings.
        """
        if "arrivals" in config:
            arrivals = dict(config["arrivals"])
            max_running = config["max_running"]
            if "concurrency" in arrivals:
                max_running = min(max_running, arrivals["concurrency"])
            return RecordedLoad(arrivals, max_running)
        if "batch_size" not in config:
            raise ValueError(
                "the recording does not say under which load it was made; record with "
                "python -m specresearch.run or load, or use the class Simulator, which is told one"
            )
        batch_size = max(1, min(config["batch_size"], num_requests))
        target = f"{ClosedLoop.__module__}.{ClosedLoop.__name__}"
        return RecordedLoad({"_target_": target, "concurrency": batch_size}, batch_size)

    @property
    def name(self) -> str:
        return str(self.arrivals["_target_"]).rpartition(".")[2]

    def changes(self, arrivals: Arrivals, max_running: int) -> list[str]:
        """Return how another load differs from this one, a phrase for each difference."""
        recorded = instantiate(self.arrivals, _convert_="all")
        new, old = (describe_load(load.describe()) for load in (arrivals, recorded))
        changes = []
        if new != old:
            changes.append(f"{new} (recorded: {old})")
        if max_running != self.max_running:
            changes.append(f"up to {max_running} together (recorded: {self.max_running})")
        return changes

    def running(self, arrivals: Arrivals) -> int:
        """Return how many requests decode together: as recorded, or all of a larger closed loop."""
        return max(self.max_running, arrivals.concurrency or 0)
