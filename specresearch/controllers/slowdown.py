"""The bound on how much slower than plain decoding any request may become."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from specresearch.controllers.allocation import Affordable, Rows
from specresearch.controllers.evidence import RequestEvidence


class SlowdownBound:
    """Keeps account of how far each request is ahead of plain decoding.

    Args:
        max_slowdown: The most that a request's time per token may be, relative to plain steps.

    Raises:
        ValueError: If that is less than 1.
    """

    def __init__(self, max_slowdown: float) -> None:
        if not max_slowdown >= 1:
            raise ValueError(
                f"controller.max_slowdown={max_slowdown} must be at least 1, as slow as plain "
                "decoding; null sets no limit"
            )
        self.max_slowdown = max_slowdown

    def affordable(
        self, rows: Rows, requests: Sequence[RequestEvidence], plain: float, num_steps: int
    ) -> Affordable:
        """Return a function of draft lengths: the longest that a step of them may take.

        No row may fall behind, or fall further behind than by a plain step of `plain` seconds, in
        `num_steps` such steps.
        """
        allowed = self.max_slowdown * plain
        slack = np.array([request.slack for request in requests])
        spare = (slack / num_steps).clip(min=(1 - self.max_slowdown) * plain)

        def seconds(lengths: Int[np.ndarray, " R"]) -> float:
            return float((allowed * (1 + rows.accepted(lengths)) + spare).min())

        return seconds

    def observe(
        self,
        requests: Sequence[RequestEvidence],
        num_new_tokens: Sequence[int],
        plain: float,
        seconds: float,
    ) -> None:
        """Add a step of `seconds`, where a plain one takes `plain`."""
        allowed = self.max_slowdown * plain
        for request, num_new in zip(requests, num_new_tokens, strict=True):
            request.slack += num_new * allowed - seconds
