"""Several tensors brought from the device to the host in one transfer."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Shaped
from torch import Tensor


@dataclass
class Pending:
    """A tensor on its way to the host.

    Attributes:
        values: On the device until `Readback.fetch`, afterwards on the host.
    """

    values: Shaped[Tensor, "*shape"]


class Readback:
    """Collects tensors that the host needs, and waits for the device once, for all of them.

    They travel as doubles, which hold every token id exactly.
    """

    def __init__(self) -> None:
        self._pending: list[Pending] = []

    def add(self, values: Shaped[Tensor, "*shape"]) -> Pending:
        """Bring these values with the others, in the dtype that they have."""
        pending = Pending(values)
        self._pending.append(pending)
        return pending

    def add_all(self, values: Sequence[Shaped[Tensor, "..."]]) -> list[Pending]:
        return [self.add(part) for part in values]

    def fetch(self) -> None:
        """Wait for the device, unless all values are on the host anyway."""
        away = [pending for pending in self._pending if not pending.values.is_cpu]
        self._pending.clear()
        if not away:
            return
        flat = [pending.values.flatten().double() for pending in away]
        joined = (torch.cat(flat) if flat[1:] else flat[0]).cpu()  # sync
        sizes = [pending.values.numel() for pending in away]
        for pending, part in zip(away, joined.split(sizes), strict=True):
            pending.values = part.view(pending.values.shape).to(pending.values.dtype)
