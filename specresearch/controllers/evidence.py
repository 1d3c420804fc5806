"""What steps have shown about drafts: how many were accepted, and how many were made at all."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf
from operator import mul
from statistics import fmean

import numpy as np
from jaxtyping import Int

from specresearch.controllers.per_request import PerRequest
from specresearch.metrics import StepRecord
from specresearch.request import RequestState

_REQUEST_MEMORY = 40.0  # steps after which what a request has shown counts 1/e
_RUN_MEMORY = 50.0  # the same for the whole run, in steps that drafted
_IDLE_MEMORY = 2000.0  # and in steps that did not
_SUPPLY_WEIGHT = 5.0  # steps until a request's own supply counts as much as the run's mean
_MIN_RATE, _MAX_RATE = 0.01, 0.99  # acceptance is never assumed to be certain
_NEWS = 2.0  # standard errors of the acceptance in a step that make it news


@dataclass
class FadingRate:
    """How often something happened out of how often it could have; both fade."""

    happened: float = 0.0
    tried: float = 0.0

    def add(self, happened: float, tried: int, memory: float) -> None:
        self.happened += happened - self.happened / memory
        self.tried += tried - self.tried / memory

    def rate(self, prior: float, weight: float) -> float:
        """Return the rate, shrunk towards a prior that counts as much as `weight` tries."""
        return (self.happened + weight * prior) / (self.tried + weight)


@dataclass
class RequestEvidence:
    """What the steps of one request have shown.

    Attributes:
        acceptance: Accepted drafts out of judged ones, whose predecessors were all accepted.
        supply: Steps with a draft out of those in which one was asked for.
        num_prefilled: Tokens at its last draft, which a lazy drafter has prefilled.
        num_asked: Drafts asked for in all steps.
        slack: Seconds that it may still lose before it is slower than the slowdown bound allows.
    """

    acceptance: FadingRate = field(default_factory=FadingRate)
    supply: FadingRate = field(default_factory=FadingRate)
    num_prefilled: int = 0
    num_asked: int = 0
    slack: float = 0.0


class Evidence:
    """The evidence of every request and of the whole run.

    Args:
        prior_weight: Drafts of its own after which a request's acceptance counts as much as the
            run's mean.

    Attributes:
        whole_trees: A tree counts as one draft, and its acceptance may be above 1.
    """

    def __init__(self, prior_weight: float) -> None:
        self.prior_weight = prior_weight
        self.whole_trees = False
        self.requests = PerRequest(RequestEvidence)
        self.clear()

    def clear(self) -> None:
        self.requests.clear()
        self._acceptance = FadingRate()
        self._supply = FadingRate()

    def acceptance(
        self, requests: Sequence[RequestEvidence], optimism: float = 0.0, trust: float = 1.0
    ) -> list[float]:
        """Return the acceptance rate of each request, shrunk towards the run's.

        Args:
            optimism: Standard errors by which the run's rate is raised. It starts at a half.
            trust: How many times as much as usual a request's own evidence counts.
        """
        mean = self._acceptance.rate(0.5, 1.0)
        weight = self.prior_weight / trust
        spread = self._variance(mean) / (self._acceptance.tried + 1)
        mean += optimism * spread**0.5
        rates = (request.acceptance.rate(mean, weight) for request in requests)
        most = inf if self.whole_trees else _MAX_RATE
        return [min(max(rate, _MIN_RATE), most) for rate in rates]

    def _variance(self, rate: float) -> float:
        """Return the variance of a draft's accepted tokens: of a coin, or of a count for trees."""
        return rate if self.whole_trees else rate * (1 - rate)

    def supply(self, requests: Sequence[RequestEvidence], trust: float = 1.0) -> list[float]:
        """Return each request's share of drafts that are made when asked for.

        It is shrunk towards the run's, which starts at 1.
        """
        mean = self._supply.rate(1.0, 1.0)
        weight = _SUPPLY_WEIGHT / trust
        return [max(request.supply.rate(mean, weight), _MIN_RATE) for request in requests]

    def num_unprefilled(
        self, rows: Sequence[RequestState], num_drafts: int
    ) -> Int[np.ndarray, " R"]:
        """Return the tokens of each selected row that a lazy drafter has yet to prefill.

        Args:
            num_drafts: The most drafts of a step, whose tokens are fed with the next draft.
        """
        numbers = []
        for row, request in zip(rows, self.requests.selected, strict=True):
            number = len(row.tokens) - request.num_prefilled
            numbers.append(number if number > num_drafts + 1 else 0)
        return np.array(numbers)

    def is_news(self, record: StepRecord, requests: Sequence[RequestEvidence]) -> bool:
        """Return whether a step's acceptance was surprisingly high or low."""
        num_accepted, num_judged = self._judged(record)
        rates = self.acceptance(requests)
        expected = sum(map(mul, num_judged, rates))
        variances = map(self._variance, rates)
        variance = sum(map(mul, num_judged, variances))
        return abs(sum(num_accepted) - expected) > _NEWS * variance**0.5 + 0.5

    def observe(
        self, record: StepRecord, requests: Sequence[RequestEvidence], asked: Sequence[int]
    ) -> None:
        """Add a step.

        Args:
            asked: Drafts that each request was to have.
        """
        num_accepted, num_judged = self._judged(record)
        num_drafted = self.counted(record).num_draft_tokens
        supplied = []
        for b, request in enumerate(requests):
            request.acceptance.add(num_accepted[b], num_judged[b], _REQUEST_MEMORY)
            request.num_asked += asked[b]
            num_drafts = num_drafted[b]
            if num_drafts:
                request.num_prefilled = record.context[b]
            if asked[b]:
                supplied.append(min(num_drafts / asked[b], 1.0))
                request.supply.add(supplied[-1], 1, _REQUEST_MEMORY)
        memory = _RUN_MEMORY if any(num_judged) else _IDLE_MEMORY
        self._acceptance.add(sum(num_accepted), sum(num_judged), memory)
        if supplied:
            self._supply.add(fmean(supplied), 1, _RUN_MEMORY)

    def _judged(self, record: StepRecord) -> tuple[list[float], list[int]]:
        """Return the accepted tokens and the judged drafts of every row."""
        if not self.whole_trees:
            return judged_drafts(record)
        num_trees = self.counted(record).num_draft_tokens
        return [*map(float, record.num_accepted_tokens)], [*num_trees]

    def counted(self, record: StepRecord) -> StepRecord:
        """Return the record with every row's tree counted as one draft, if trees are drafted."""
        if not self.whole_trees:
            return record
        numbers = tuple(min(number, 1) for number in record.num_draft_tokens)
        return replace(record, num_draft_tokens=numbers, num_nodes=1 + max(numbers))


def judged_drafts(record: StepRecord) -> tuple[list[float], list[int]]:
    """Return the accepted and the judged drafts of every row.

    Where the rule gives the expected number of accepted drafts, that is returned: it varies less.
    """
    num_accepted: list[float] = []
    num_judged: list[int] = []
    for b, (accepted, drafted) in enumerate(
        zip(record.num_accepted_tokens, record.num_draft_tokens, strict=True)
    ):
        # Drafts behind an end token are not judged: the row is cut behind an accepted draft.
        was_rejected = accepted < drafted and record.num_new_tokens[b] > accepted
        number = accepted + was_rejected
        expected = record.expected_acceptance
        num_accepted.append(float(accepted if expected is None else sum(expected[b][:number])))
        num_judged.append(number)
    return num_accepted, num_judged
