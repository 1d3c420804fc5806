"""What steps have shown about drafts: how deep they were accepted, and how many were made."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from math import exp

import numpy as np
from jaxtyping import Bool, Float, Int

from specresearch.controllers.per_request import PerRequest
from specresearch.controllers.scored_tree import ScoredTree
from specresearch.metrics import StepRecord
from specresearch.proposal import DraftForecast

_UNKNOWN = 0.5  # acceptance of the first level before anything is known
FORECAST_WEIGHT = 20.0  # drafts as which a forecast counts
_REQUEST_MEMORY = 60.0  # judged drafts of a request that count
_MANY = 10.0  # requests that show in a step what the run is like; fewer need more steps for it


@dataclass
class RequestEvidence:
    """What the drafts of one request have shown.

    Attributes:
        num_accepted: Accepted levels.
        num_judged: Levels that were accepted or refused.
        num_expected: Levels of these that would be accepted at the run's rates.
        num_prefilled: Tokens at its last draft, which a lazy drafter has prefilled.
        slack: Seconds that it may still lose before it is slower than `max_slowdown` allows.
    """

    num_accepted: float = 0.0
    num_judged: float = 0.0
    num_expected: float = 0.0
    num_prefilled: int = 0
    slack: float = 0.0


class Evidence:
    """The evidence of every request and of the whole run, by level of the draft.

    A draft that was asked for and not made, as where a lookup finds nothing, counts as refused in
    the run, and as no node.

    Args:
        num_levels: The longest path that is drafted.
        memory: Steps in which drafts were made for ten requests or more, after which an older draft
            counts 1/e. Fewer requests are remembered for more steps, since requests differ, unless
            `counts_unmade`.
        prior_weight: Drafts of its own after which a request's acceptance counts as much as the
            run's mean.
        counts_unmade: It counts as refused by the request, too. That tells who gets nothing from
            the others' drafts; but who finds something now and then is underestimated.
        finds_depth: Whoever drafts is asked for every level, see `DraftKind`.
        forecast: What was measured before the run.
    """

    def __init__(
        self,
        num_levels: int,
        memory: float,
        prior_weight: float,
        *,
        counts_unmade: bool = False,
        finds_depth: bool = False,
        forecast: DraftForecast | None = None,
    ) -> None:
        self.prior_weight, self.counts_unmade = prior_weight, counts_unmade
        self._finds_depth = finds_depth
        self.requests = PerRequest(RequestEvidence)
        self._memory, self._many = memory, 1.0 if counts_unmade else _MANY
        self._totals = np.zeros((5, num_levels))
        self._accepted, self._tried, self._made, self._nodes, self._asked = self._totals
        if forecast is not None:
            survival = np.array(forecast.survival[:num_levels])
            above = np.append(1.0, survival)[:-1]
            made = np.append(forecast.drafted, survival)[:-1]
            nodes = forecast.nodes[: len(survival)]
            counts = [survival, above, made, nodes, np.ones(len(survival))]
            self._totals[:, : len(survival)] = FORECAST_WEIGHT * np.array(counts)

    def rates(self) -> Float[np.ndarray, " K"]:
        """Return the acceptance of each level once the one before is accepted.

        What was never tried is assumed to be like what was made of the level before it: where a
        lookup finds anything, it mostly finds several tokens.
        """
        made, accepted = self._shares()
        return made * accepted

    def _shares(self) -> tuple[Float[np.ndarray, " K"], Float[np.ndarray, " K"]]:
        """Return how often a level is made once the one before is accepted, and then accepted."""
        chances, like = [], _UNKNOWN
        for accepted, tried, made in self._totals[:3].T.tolist():
            like = (accepted + like) / (made + 1)
            chances.append(((made + 1) / (tried + 1), like))
        made, accepted = np.array(chances).T
        return made, accepted

    def _request_shares(self) -> tuple[Float[np.ndarray, " K"], Float[np.ndarray, " K"]]:
        """Return the shares in which a request does not differ, and those in which it does."""
        made, accepted = self._shares()
        return (np.ones_like(made), made * accepted) if self.counts_unmade else (made, accepted)

    def nodes(self) -> Float[np.ndarray, " K"]:
        """Return the nodes that a row makes in each level."""
        nodes, number = [], 1.0
        for made, asked in zip(self._nodes.tolist(), self._asked.tolist(), strict=True):
            number = (made + number) / (asked + 1)
            nodes.append(number)
        return np.array(nodes)

    def survival(self) -> Float[np.ndarray, "R K"]:
        """Return the chance of each selected request's draft to be accepted down to each level.

        Levels differ, so what a request has shown changes the odds of the run, by the same factor
        in every level.
        """
        requests, (made, rates) = self.requests.selected, self._request_shares()
        own = [(each.num_accepted, each.num_judged, each.num_expected) for each in requests]
        accepted, judged, expected = np.array(own).T
        rate = np.divide(expected, judged, out=np.full(len(own), _UNKNOWN), where=judged > 0)
        accepts = (accepted + self.prior_weight * rate) / rate * rates[:, None]
        refuses = (judged - accepted + self.prior_weight * (1 - rate)) / (1 - rate)
        refuses = refuses * (1 - rates[:, None])
        return (made[:, None] * accepts / (accepts + refuses)).cumprod(axis=0).T

    def num_unprefilled(self, lengths: Sequence[int], num_drafts: int) -> Int[np.ndarray, " R"]:
        """Return the tokens of each selected request that a lazy drafter has yet to prefill.

        Args:
            lengths: The tokens of each request.
            num_drafts: The most drafts of a step, whose tokens are fed with the next draft.
        """
        known = [request.num_prefilled for request in self.requests.selected]
        missing = np.array(lengths) - np.array(known)
        return np.where(missing > num_drafts + 1, missing, 0)

    def observe(self, steps: Sequence["AskedStep"]) -> None:
        """Add steps, the newest last.

        Whole trees are left out: they are accepted more than those that follow will be.
        """
        steps = [step for step in steps if any(step.asked) and not step.is_whole]
        if not steps:
            return
        requests = [request for step in steps for request in step.requests]
        asked = np.array([depth for step in steps for depth in step.asked])
        num_accepted = _joined(step.record.num_accepted_tokens for step in steps)
        num_new = _joined(step.record.num_new_tokens for step in steps)
        levels = np.arange(len(self._tried))
        if self._finds_depth:
            asked[asked > 0] = len(levels)
        drawn = levels < asked[:, None]
        accepted = (levels < num_accepted[:, None]) * 1.0
        # What lies behind the end of an output is not judged.
        tried = (levels < (num_accepted + (num_new > num_accepted))[:, None]) & drawn
        said = [step.record.expected_acceptance or [()] * len(step.asked) for step in steps]
        for b, rates in enumerate(chain.from_iterable(said)):
            if rates:
                accepted[b, : len(rates)] = rates[: len(levels)]
        accepted *= tried
        made = tried & (levels < _joined(step.record.draft_depth for step in steps)[:, None])
        judged = tried if self.counts_unmade else made
        expected = judged @ self._request_shares()[1]
        sums = accepted.sum(1).tolist(), judged.sum(1).tolist(), expected.tolist()
        context = _joined(step.record.context for step in steps).tolist()
        for request, got, judged, foreseen, depth, length in zip(
            requests, *sums, asked.tolist(), context, strict=True
        ):
            request.num_accepted += got
            request.num_judged += judged
            request.num_expected += foreseen
            fades = min(1.0, _REQUEST_MEMORY / (request.num_judged + 1e-9))
            request.num_accepted *= fades
            request.num_judged *= fades
            request.num_expected *= fades
            if depth:
                request.num_prefilled = length
        nodes = _num_nodes(steps, len(levels))
        num_asked = [sum(map(bool, s.asked)) for s in steps if any(s.record.num_draft_tokens)]
        age = sum(min(1.0, num / self._many) for num in num_asked)
        self._totals *= exp(-age / self._memory)
        self._totals += accepted.sum(0), tried.sum(0), made.sum(0), nodes, drawn.sum(0)


@dataclass(frozen=True)
class AskedStep:
    """A step, and what was asked for in it.

    Attributes:
        asked: The levels that each request was to draft.
        chosen: The tree and its nodes that were verified; None if nodes were not chosen.
        is_whole: All of them were, though not all were worth it.
    """

    record: StepRecord
    requests: Sequence[RequestEvidence]
    asked: Sequence[int]
    chosen: tuple[ScoredTree, Bool[np.ndarray, " BN"]] | None = None
    is_whole: bool = False


def _num_nodes(steps: Sequence[AskedStep], num_levels: int) -> Float[np.ndarray, " K"]:
    """Return the nodes of all rows that were verified in each level."""
    whole = [step.record for step in steps if step.chosen is None]
    numbers = _joined(record.num_draft_tokens for record in whole)
    depths = _joined(record.draft_depth for record in whole)
    nodes = (numbers / np.maximum(depths, 1)) @ (np.arange(num_levels) < depths[:, None])
    for step in steps:
        if step.chosen is not None:
            tree, verified = step.chosen
            nodes += np.bincount(tree.depth[verified], minlength=num_levels + 1)[1 : num_levels + 1]
    return nodes


def _joined(parts: Iterable[Sequence[int]]) -> Int[np.ndarray, " R"]:
    return np.array([value for part in parts for value in part], dtype=int)
