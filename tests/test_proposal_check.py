"""Errors name the rule a proposal violates; the engine checks a proposer's first steps."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny_models import VOCAB, build

from specresearch import CausalLM, Engine, SamplingParams
from specresearch.batch import Batch
from specresearch.engine import checks
from specresearch.proposal import DraftKind, InvalidProposalError, Proposal, Topology
from specresearch.proposers import NGram, Proposer

ROOTS = torch.tensor([[4], [7]])
KIND = DraftKind(trees=True, sampled=True, scored=True)


def valid() -> Proposal:
    """Return a small sampled tree in two rows, of which the second is shorter."""
    topology = Topology.from_parents(torch.tensor([[-1, 0, 0, 1]]))
    tokens = torch.tensor([[4, 1, 2, 3], [7, 5, 6, 0]])
    probs = torch.full((2, 4, VOCAB), 1 / VOCAB)
    scores = torch.full((2, 4), 1 / VOCAB)
    return Proposal(
        tokens, topology, torch.tensor([4, 3]), probs, scores=scores, host_lengths=(4, 3)
    )


def check(proposal: Proposal, kind: DraftKind = KIND, budget: Sequence[int] = (3, 3)) -> None:
    proposal.check(ROOTS, budget, kind, VOCAB)


def test_a_path_that_is_longer_than_was_asked_for_is_refused() -> None:
    valid().check(ROOTS, (3, 3), KIND, VOCAB, max_depth=2)
    with pytest.raises(InvalidProposalError, match=r"a path of 2 drafts where .* 1 at most"):
        valid().check(ROOTS, (3, 3), KIND, VOCAB, max_depth=1)


def with_(values: torch.Tensor, at: tuple[int, ...], value: float) -> torch.Tensor:
    changed = values.clone()
    changed[at] = value
    return changed


def with_claims(topology: Topology, **claims: Any) -> Topology:
    """Return a tree whose bounds or caches do not follow from its parents."""
    changed = Topology(
        topology.parents, max_depth=topology.max_depth, max_children=topology.max_children
    )
    changed.__dict__.update(claims)
    return changed


NAN = float("nan")


def probs(**changes: Any) -> torch.Tensor:
    """Return the usual draft probabilities with one of them replaced."""
    return with_(torch.full((2, 4, VOCAB), 1 / VOCAB), **changes)


WRONG: dict[str, Callable[[Proposal], Proposal]] = {
    "not each row's last committed token": lambda p: replace(
        p, token_ids=with_(p.token_ids, (1, 0), 8)
    ),
    "outside the vocabulary of 31": lambda p: replace(
        p, token_ids=with_(p.token_ids, (0, 2), VOCAB)
    ),
    "lengths do not lie in 1 to 4": lambda p: replace(p, lengths=torch.tensor([5, 3])),
    "row 1: host_lengths says 4 nodes, and lengths 3": lambda p: replace(p, host_lengths=(4, 4)),
    "the root's parent is not -1": lambda p: replace(p, topology=tree([0, 0, 0, 1])),
    "a node comes before its parent": lambda p: replace(p, topology=tree([-1, 2, 1, 0])),
    "is_chain=True for a tree that branches": lambda p: replace(
        p, topology=with_claims(p.topology, is_chain=True)
    ),
    "max_depth=1, but it is 2 deep": lambda p: replace(
        p, topology=with_claims(p.topology, max_depth=1)
    ),
    "max_children=1, but a node has 2": lambda p: replace(
        p, topology=with_claims(p.topology, max_children=1)
    ),
    "ancestors do not follow from parents": lambda p: replace(
        p, topology=with_claims(p.topology, ancestors=~p.topology.ancestors)
    ),
    "draft_probs holds NaN, infinity": lambda p: replace(
        p, draft_probs=probs(at=(0, 1, 9), value=NAN)
    ),
    "or a negative number": lambda p: replace(p, draft_probs=probs(at=(1, 0, 9), value=-0.01)),
    "does not sum to 1": lambda p: replace(p, draft_probs=0.5 * probs(at=(0, 0, 0), value=0.0)),
    "has probability 0": lambda p: replace(p, draft_probs=moved_away()),
    "siblings drawn without replacement hold the same token": lambda p: replace(
        p, token_ids=with_(p.token_ids, (0, 2), 1)
    ),
    "a score is not a probability": lambda p: replace(
        p, scores=with_(torch.ones(2, 4), (0, 3), NAN)
    ),
    r"scores has shape \[2, 3\]": lambda p: replace(p, scores=torch.ones(2, 3)),
    r"draft_probs has shape \[1, 4\]": lambda p: replace(p, draft_probs=torch.ones(1, 4, VOCAB)),
}


def tree(parents: list[int]) -> Topology:
    return Topology(torch.tensor([parents]), max_depth=3, max_children=3)


def moved_away() -> torch.Tensor:
    """Put the root's whole probability on a token that was not drafted."""
    uniform = torch.full((2, 4, VOCAB), 1 / VOCAB)
    uniform[0, 0] = torch.nn.functional.one_hot(torch.tensor(9), VOCAB)
    return uniform


def test_a_valid_proposal_passes() -> None:
    check(valid())
    check(replace(valid(), with_replacement=True, token_ids=with_(valid().token_ids, (0, 2), 1)))
    Proposal.empty(ROOTS).check(ROOTS, [0, 0], DraftKind(), VOCAB)


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize("reason", WRONG)
def test_the_violated_rule_is_named(reason: str) -> None:
    with pytest.raises(InvalidProposalError, match=f"invalid proposal: .*{reason}"):
        check(WRONG[reason](valid()))


def test_exceeding_the_budget_or_the_declared_shape_is_named() -> None:
    with pytest.raises(InvalidProposalError, match="row 1: 2 drafts where 1 are allowed"):
        check(valid(), budget=[3, 1])
    with pytest.raises(
        InvalidProposalError, match="it branches, but the proposer's kind says trees=False"
    ):
        check(valid(), DraftKind(sampled=True, scored=True))


def test_padding_may_hold_nan() -> None:
    padding = probs(at=(1, 3, 0), value=NAN)
    check(replace(valid(), draft_probs=padding, scores=with_(torch.ones(2, 4), (1, 3), NAN)))


class Foreign(NGram):
    """Replace the root from some step on."""

    num_steps, wrong_from = 0, 0

    def propose(self, batch: Batch, budget: Sequence[int]) -> Proposal:
        proposal = super().propose(batch, budget)
        self.num_steps += proposal.token_ids.shape[1] > 1
        if self.num_steps <= self.wrong_from:
            return proposal
        return replace(proposal, token_ids=with_(proposal.token_ids, (0, 0), 0))


class Late(Foreign):
    wrong_from = 10_000


@pytest.fixture(scope="module")
def target() -> CausalLM:
    return CausalLM(build("llama", seed=1), max_len=64)


def decode(target: CausalLM, proposer: Proposer, **settings: Any) -> None:
    list(
        Engine(target, proposer, **settings).generate(
            [(1, 2) * 8], SamplingParams(max_new_tokens=30)
        )
    )


@pytest.mark.usefixtures("_checked")
def test_the_first_steps_of_a_users_proposer_are_checked(
    target: CausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "FOREIGN_CHECKS", 3)
    monkeypatch.setattr(checks, "OWN_CHECKS", 0)
    with pytest.raises(InvalidProposalError, match="last committed token"):
        decode(target, Foreign(3, 2, 1))
    calls: list[Proposal] = []
    monkeypatch.setattr(Proposal, "check", lambda self, *_: calls.append(self))
    decode(target, Late(3, 2, 1))
    assert sum(proposal.token_ids.shape[1] > 1 for proposal in calls) == 3
    calls.clear()
    decode(target, NGram(3, 2, 1))
    assert calls == []
    decode(target, NGram(3, 2, 1), num_checked=2)
    assert sum(proposal.token_ids.shape[1] > 1 for proposal in calls) == 2
