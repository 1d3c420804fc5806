"""The seed of every request's draws, and when requests may be given seeds of their own."""

from dataclasses import dataclass

from specresearch.controllers import Controller
from specresearch.engine.settings import SchedulerSettings
from specresearch.proposers import Proposer, is_own
from specresearch.request import Request
from specresearch.sampling import derive_seed


@dataclass(frozen=True)
class Seeds:
    """Where requests are not isolated, the output of one may become another's draft. Draws that both
    share would then decide on a draft that they themselves have made, and the output would no longer
    have the target's distribution: there the number of the submission is mixed into its seed.
    """

    engine_seed: int = 0
    isolated: bool = True

    def of(self, request: Request, number: int) -> int:
        """The seed of the request that was submitted as the `number`th."""
        given = request.sampling.seed
        if given is None:
            return derive_seed(self.engine_seed, number)
        return given if self.isolated else derive_seed(given, number)


def isolates_requests(
    proposer: Proposer, controller: Controller, scheduling: SchedulerSettings
) -> bool:
    """Return whether the drafts of a request, if there are any, depend on that request alone.

    They do not if the proposer remembers other requests, if the controller looks at more than one of
    them, or if they compete for a step or for the cache. A proposer or controller that is not the
    package's own has to say so: by `memory` being "cold", and by `per_request`.
    """
    if not proposer.num_draft_tokens:
        return True
    limits = (scheduling.max_step_tokens, scheduling.max_cache_tokens)
    carries = any(_carries(part) for part in (proposer, *proposer.proposers))
    return not carries and controller.per_request and limits == (None, None)


def _carries(proposer: Proposer) -> bool:
    return proposer.memory == "warm" or (proposer.memory is None and not is_own(proposer))
