"""The seed of every request's draws."""

from dataclasses import dataclass

from specresearch.controllers import Controller
from specresearch.engine.settings import SchedulerSettings
from specresearch.proposers import Proposer, is_own
from specresearch.request import Request
from specresearch.sampling import derive_seed


@dataclass(frozen=True)
class Seeds:
    """Derives the seed of each request.

    If requests are not isolated, the output of one may become another's draft. With shared draws, a
    draft would then be judged by the very draws that made it, and the output would no longer have
    the target's distribution. So the number of the submission is mixed into the seed.

    Attributes:
        engine_seed: Seed of requests without one.
        isolated: Whether the drafts of a request depend on that request alone.
    """

    engine_seed: int = 0
    isolated: bool = True

    def of(self, request: Request, number: int) -> int:
        """Return the seed of a request.

        Args:
            number: How many requests were submitted before it.
        """
        seed = request.sampling.seed
        if seed is None:
            return derive_seed(self.engine_seed, number)
        return seed if self.isolated else derive_seed(seed, number)


def isolates_requests(
    proposer: Proposer, controller: Controller, scheduling: SchedulerSettings
) -> bool:
    """Return whether the drafts of a request, if there are any, depend on that request alone.

    They do not if the proposer remembers other requests, if the controller looks at several of
    them, or if they compete for a step or for the cache. A foreign proposer must declare isolation
    with `memory="cold"`, a foreign controller with `per_request`.
    """
    if not proposer.num_draft_tokens:
        return True
    limits = (scheduling.max_step_tokens, scheduling.max_cache_tokens)
    remembers = any(map(_remembers_others, (proposer, *proposer.proposers)))
    return not remembers and controller.per_request and limits == (None, None)


def _remembers_others(proposer: Proposer) -> bool:
    return proposer.memory == "warm" or (proposer.memory is None and not is_own(proposer))
