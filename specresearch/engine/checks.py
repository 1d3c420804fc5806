"""Check rules and requests before decoding, and the first proposals of a foreign proposer."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from specresearch.acceptance import RULES, AcceptanceSampler, SelectiveSampler
from specresearch.batch import Batch
from specresearch.proposal import Proposal
from specresearch.proposers import Proposer, is_own
from specresearch.request import Request, RequestState

OWN_CHECKS, FOREIGN_CHECKS = 0, 32


class ProposalCheck:
    """Put the first proposals with drafts through `Proposal.check`; later ones cost nothing.

    Args:
        num_checked: How many to check; by default `OWN_CHECKS` or `FOREIGN_CHECKS`.

    Raises:
        ValueError: A foreign proposer did not say how much it drafts.
    """

    def __init__(self, proposer: Proposer, vocab_size: int, num_checked: int | None = None) -> None:
        if proposer.num_draft_tokens < 1 and not is_own(proposer):
            kind = type(proposer)
            raise ValueError(
                f"{kind.__module__}.{kind.__qualname__} has num_draft_tokens="
                f"{proposer.num_draft_tokens}, so it would never be asked for drafts; set "
                "self.num_draft_tokens in its __init__ to the most that it drafts in a step"
            )
        if num_checked is None:
            all_own = all(map(is_own, (proposer, *proposer.proposers)))
            num_checked = OWN_CHECKS if all_own else FOREIGN_CHECKS
        self._num_left = num_checked
        self._kind = proposer.kind
        self._vocab_size = vocab_size

    def __call__(self, proposal: Proposal, batch: Batch, budget: Sequence[int]) -> None:
        """Raise InvalidProposalError if the proposal is among the first and is invalid."""
        if self._num_left > 0:
            self._num_left -= proposal.token_ids.shape[1] > 1
            proposal.check(batch.roots, budget, self._kind, self._vocab_size, batch.max_depth)


def check_rule(rule: AcceptanceSampler, proposer: Proposer) -> None:
    """Raise ValueError if the rule cannot judge the proposer's drafts."""
    reason = rule.refuses(proposer.kind)
    if reason is None:
        return
    alternatives = []
    for name, other in RULES.items():
        if other.lossless and other().refuses(proposer.kind) is None:
            alternatives.append(name)
    raise ValueError(
        f"acceptance rule {type(rule).__name__} cannot judge the drafts of "
        f"{type(proposer).__name__}: {reason}; use acceptance={' or '.join(alternatives)}"
    )


def check_served(request: Request, rule: AcceptanceSampler, proposer: Proposer) -> None:
    """Raise ValueError for a request that the rule or the proposer cannot serve."""
    sampling = request.sampling
    reason = proposer.refuses_sampling(sampling)
    if reason is None and isinstance(rule, SelectiveSampler):
        reason = rule.refuses_sampling(sampling, proposer.kind)
    if reason is None and request.grammar is not None and not getattr(rule, "asks_target", True):
        reason = (
            f"acceptance rule {type(rule).__name__} accepts drafts without asking the target, and "
            "would accept some that the request's grammar forbids; use another rule"
        )
    if reason is not None:
        raise ValueError(reason)


@runtime_checkable
class Host(Protocol):
    """The part of a target that the scheduler needs: its limits, and slots for requests."""

    lengths: list[int]

    @property
    def name(self) -> str: ...
    @property
    def tokenizer(self) -> object | None: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def max_len(self) -> int: ...
    @property
    def eos_token_ids(self) -> frozenset[int]: ...
    def acquire(self, among: range | None = None) -> int | None: ...
    def release(self, slot: int) -> None: ...


def check_request(row: RequestState, target: Host, max_cache_tokens: int | None) -> None:
    """Raise ValueError if this target can never decode a request.

    Args:
        max_cache_tokens: The most tokens that the scheduler lets the cache hold; None for no limit.
    """
    request, sampling, vocab_size = row.request, row.request.sampling, target.vocab_size
    if row.num_prompt_tokens >= target.max_len:
        raise ValueError(
            f"request {request.id!r} has a prompt of {row.num_prompt_tokens} tokens and max_len is "
            f"{target.max_len}; shorten the prompt or raise target.max_len"
        )
    for token in (min(row.tokens), max(row.tokens)):
        if not 0 <= token < vocab_size:
            raise ValueError(
                f"request {request.id!r} holds token id {token}, outside this target's vocabulary "
                f"of {vocab_size}; tokenize the prompt with the target's own tokenizer"
            )
    if request.grammar is not None:
        compiled_for = request.grammar.vocab_size, sorted(request.grammar.eos_token_ids)
        own = vocab_size, sorted(target.eos_token_ids)
        if compiled_for != own:
            raise ValueError(
                f"request {request.id!r} has a grammar for another model, whose vocabulary and end "
                f"tokens are {compiled_for}, and this target's {own}; compile it for this target"
            )
    if sampling.stop and target.tokenizer is None:
        raise ValueError(
            f"request {request.id!r} has stop strings and this target no tokenizer; use "
            "stop_token_ids"
        )
    beyond = [token for token in sampling.stop_token_ids if not 0 <= token < vocab_size]
    if beyond:
        raise ValueError(
            f"sampling.stop_token_ids={list(sampling.stop_token_ids)} holds {beyond[0]}, outside "
            f"this target's vocabulary of {vocab_size}"
        )
    biased = [token for token, _ in sampling.token_biases if token >= vocab_size]
    if biased:
        raise ValueError(
            f"sampling.logit_bias holds token {biased[0]}, outside this target's vocabulary of "
            f"{vocab_size}"
        )
    if sampling.logprobs is not None and sampling.logprobs > vocab_size:
        raise ValueError(
            f"request {request.id!r} asks for the {sampling.logprobs} likeliest tokens of a "
            f"vocabulary of {vocab_size}"
        )
    # The last token of an output is never cached.
    num_cached = row.num_prompt_tokens + row.max_new_tokens - 1
    if max_cache_tokens is not None and num_cached > max_cache_tokens:
        raise ValueError(
            f"request {request.id!r} may need {num_cached} cached tokens ({row.num_prompt_tokens} "
            f"of the prompt, max_new_tokens={row.max_new_tokens}) and scheduler.max_cache_tokens "
            f"is {max_cache_tokens}; shorten the prompt, lower max_new_tokens or raise "
            "scheduler.max_cache_tokens"
        )
