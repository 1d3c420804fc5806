"""Checks before anything is decoded: of rules, of requests, and of proposals."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from specresearch.acceptance import RULES, AcceptanceSampler
from specresearch.batch import Batch
from specresearch.proposal import Proposal
from specresearch.proposers import Proposer, is_own
from specresearch.request import RequestState

OWN_CHECKS, FOREIGN_CHECKS = 0, 32


class ProposalCheck:
    """Puts the first `num_checked` proposals with drafts through `Proposal.check`; later ones cost nothing."""

    def __init__(self, proposer: Proposer, vocab_size: int, num_checked: int | None = None) -> None:
        all_own = all(map(is_own, (proposer, *proposer.proposers)))
        usual = OWN_CHECKS if all_own else FOREIGN_CHECKS
        self._left = usual if num_checked is None else num_checked
        self._kind, self._vocab_size = proposer.kind, vocab_size

    def __call__(self, proposal: Proposal, batch: Batch, budget: Sequence[int]) -> None:
        """Raises InvalidProposalError."""
        if self._left > 0:
            self._left -= proposal.token_ids.shape[1] > 1
            proposal.check(batch.roots, budget, self._kind, self._vocab_size)


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


@runtime_checkable
class Host(Protocol):
    """What is asked of a target before anything is decoded: what it can read, and slots for requests; see `Slots`."""

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
    """Raises ValueError for what this target cannot decode, and for more tokens than the cache may ever hold."""
    request, limit = row.request, target.max_len
    if row.num_prompt_tokens >= limit:
        raise ValueError(
            f"request {request.id!r} has a prompt of {row.num_prompt_tokens} tokens and max_len is {limit}; "
            "shorten the prompt or raise target.max_len"
        )
    vocab_size = target.vocab_size
    strange = next(
        (token for token in (min(row.tokens), max(row.tokens)) if not 0 <= token < vocab_size), None
    )
    if strange is not None:
        raise ValueError(
            f"request {request.id!r} holds token id {strange}, outside this target's vocabulary of {vocab_size}; "
            "tokenize the prompt with the target's own tokenizer"
        )
    sampling = request.sampling
    if sampling.stop and target.tokenizer is None:
        raise ValueError(
            f"request {request.id!r} has stop strings and this target no tokenizer; use stop_token_ids"
        )
    if sampling.logprobs is not None and sampling.logprobs > vocab_size:
        raise ValueError(
            f"request {request.id!r} asks for the {sampling.logprobs} likeliest tokens of a vocabulary of {vocab_size}"
        )
    longest = (
        row.num_prompt_tokens + row.max_new_tokens - 1
    )  # the last token of an output is never cached
    if max_cache_tokens is not None and longest > max_cache_tokens:
        raise ValueError(
            f"request {request.id!r} may need {longest} cached tokens ({row.num_prompt_tokens} of the prompt, "
            f"max_new_tokens={row.max_new_tokens}) and scheduler.max_cache_tokens is {max_cache_tokens}; shorten the prompt, "
            "lower max_new_tokens or raise scheduler.max_cache_tokens"
        )
