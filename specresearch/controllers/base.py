"""What every controller is: a budget of drafts for each row of a step, and a look at what came of it."""

from typing import Protocol, runtime_checkable

from specresearch.batch import Batch
from specresearch.metrics import StepRecord


@runtime_checkable
class Controller(Protocol):
    """Lives on the host: a budget must be known before anything is launched."""

    def budget(self, batch: Batch) -> list[int | None]:
        """Drafts allowed for each row; 0 = decode plainly, None = as many as the proposer likes."""
        ...

    def observe(self, record: StepRecord) -> None: ...
