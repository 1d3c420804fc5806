"""Acceptance given the text, against the rules summed over all possible drafts."""

from itertools import product

import numpy as np
import pytest
import torch
from jaxtyping import Float

from specresearch.acceptance.block import accept_block
from specresearch.proposal import Proposal
from specresearch.simulation.acceptance import Blocks, Chains, Trees, run_lengths

NUM, VOCAB = 3, 3  # positions, tokens


@pytest.fixture(scope="module")
def pq() -> tuple[Float[np.ndarray, "n v"], Float[np.ndarray, "n v"]]:
    """Distributions of every position, which do not depend on the tokens before it."""
    rng = np.random.default_rng(0)
    return rng.dirichlet(np.ones(VOCAB), NUM + 1), rng.dirichlet(np.ones(VOCAB), NUM + 1)


def expected_kept(
    p: Float[np.ndarray, "n v"], q: Float[np.ndarray, "n v"], *, is_block: bool
) -> list[float]:
    """Return the probability that the rule accepts at least 1, 2, ... drafts."""
    found = []
    for length in range(1, NUM + 1):
        total = 0.0
        for drafts in product(range(VOCAB), repeat=length):
            drawn = kept = 1.0
            for i, x in enumerate(drafts):
                ratio = p[i, x] / q[i, x]
                drawn *= q[i, x]
                kept = min(1.0, kept * ratio) if is_block else kept * min(1.0, ratio)
            total += drawn * kept
        found.append(total)
    return found


def replayed_kept(
    p: Float[np.ndarray, "n v"], q: Float[np.ndarray, "n v"], *, is_block: bool
) -> list[float]:
    """The same, over all texts of the target, and over uniforms of a fine grid."""
    rng = np.random.default_rng(1)
    found = np.zeros(NUM)
    num_draws = 800
    for text in product(range(VOCAB), repeat=NUM):
        odds = np.array([q[i, y] / p[i, y] for i, y in enumerate(text)])
        grid = (np.arange(num_draws) + 0.5) / num_draws
        uniforms = np.stack([rng.permutation(grid) for _ in range(NUM)], axis=1)
        chance = float(np.prod([p[i, y] for i, y in enumerate(text)]))
        for u in uniforms:
            replay = Blocks(odds, u) if is_block else Chains(run_lengths(u < odds))
            found[: replay.step(0, NUM).accepted] += chance / num_draws
    return found.tolist()


@pytest.mark.parametrize("is_block", [False, True])
def test_given_the_text_as_many_drafts_are_kept_as_over_all_drafts(
    pq: tuple[Float[np.ndarray, "n v"], Float[np.ndarray, "n v"]], is_block: bool
) -> None:
    replayed = replayed_kept(*pq, is_block=is_block)
    assert replayed == pytest.approx(expected_kept(*pq, is_block=is_block), abs=0.01)
    assert replayed != pytest.approx(expected_kept(*pq, is_block=not is_block), abs=0.01)


def test_blocks_are_what_the_rule_itself_keeps(
    pq: tuple[Float[np.ndarray, "n v"], Float[np.ndarray, "n v"]],
) -> None:
    p, q = (torch.tensor(values) for values in pq)
    rows = 20_000
    generator = torch.Generator().manual_seed(0)
    drafts = torch.stack(
        [torch.multinomial(q[i], rows, True, generator=generator) for i in range(NUM)], dim=1
    )
    tokens = torch.cat([torch.zeros((rows, 1), dtype=torch.long), drafts], dim=1)
    proposal = Proposal.chain(tokens, torch.full((rows,), NUM + 1), q.expand(rows, -1, -1))
    uniforms = torch.rand((rows, NUM + 1), generator=generator, dtype=torch.float64)
    verdict = accept_block(proposal, p.expand(rows, -1, -1), uniforms)
    kept = [float((verdict.num_accepted >= i).double().mean()) for i in range(1, NUM + 1)]
    assert kept == pytest.approx(replayed_kept(*pq, is_block=True), abs=0.015)


def test_a_shorter_draft_and_a_later_start_see_the_same_positions() -> None:
    accepts = np.array([True, True, False, True, True])
    assert run_lengths(accepts) == [2, 1, 0, 2, 1]
    coins = Chains(run_lengths(accepts))
    assert [coins.step(0, k).accepted for k in (0, 1, 2, 3)] == [0, 1, 2, 2]
    assert [coins.step(i, 9).accepted for i in range(5)] == [2, 1, 0, 2, 1]
    assert coins.step(3, 1).num == 1
    chains = Chains([2, 0, 2], [3, 0, 2])
    assert chains.step(0, 1) == (1, 1, 1)
    assert chains.step(0, 9) == (3, 3, 2)
    assert chains.step(1, 9) == (0, 0, 0)


def test_trees_are_whole_or_nothing() -> None:
    trees = Trees([6, 6], [2, 1], np.array([True, False]))
    assert trees.step(0, 6) == (6, 2, 1)
    assert trees.step(0, 0) == (0, 0, 0)
    with pytest.raises(ValueError, match="asks for 4 nodes of a tree of which 6 were recorded"):
        trees.step(1, 4)


def test_blocks_of_point_masses_accept_what_meets_the_text() -> None:
    odds = np.array([np.inf, np.inf, 0.0, np.inf])
    assert [Blocks(odds, np.full(4, 0.99)).step(i, 9).accepted for i in range(4)] == [2, 1, 0, 1]
