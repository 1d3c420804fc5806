"""Trees grow as defined node by node, with a drafter that depends on the path."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from jaxtyping import Float, Int
from scipy import stats
from static_trees import IN_ORDER_OF_USE
from torch import Tensor

from specresearch.acceptance.rejection import accept_by_rejection
from specresearch.batch import Batch
from specresearch.proposal import Proposal, Topology
from specresearch.proposers.static_tree import StaticTree
from specresearch.proposers.tree import grow_dynamic, grow_static
from specresearch.request import Request, RequestState
from specresearch.sampling import SamplingParams

V = 7
PATHS = [(0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (2, 1), (0, 0, 0), (1, 0, 0), (1, 0, 2)]


def logits_after(path: Sequence[int]) -> Float[Tensor, " V"]:
    """Return logits that depend on every token of the path and on their order."""
    seed = 17
    for token in path:
        seed = (seed * 31 + int(token) + 1) % 100_003
    return torch.randn(V, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 1.5


@dataclass
class PathDrafter:
    """Keep the tokens it was given, as a cache would, and predict from the path alone."""

    roots: list[int]
    fed: Int[Tensor, "B n"] | None = None
    num_calls: int = 0
    topologies: list[Topology] = field(default_factory=list)

    def root_logits(self) -> Float[Tensor, "B 1 V"]:
        return torch.stack([logits_after([root]) for root in self.roots])[:, None]

    def expand(
        self, topology: Topology, token_ids: Int[Tensor, "B M"], first: int
    ) -> Float[Tensor, "B M V"]:
        before = torch.tensor(self.roots)[:, None] if self.fed is None else self.fed
        assert first >= before.shape[1]
        skipped = before.new_full((len(before), first - before.shape[1]), -1)  # leaves nobody needs
        self.fed = torch.cat([before, skipped, token_ids], dim=1)
        self.num_calls += 1
        self.topologies.append(topology)
        ancestors = topology.ancestors.expand(len(before), -1, -1)
        return torch.stack(
            [
                torch.stack(
                    [
                        logits_after(self.fed[b][ancestors[b, i]].tolist())
                        for i in range(first, topology.num_nodes)
                    ]
                )
                for b in range(len(before))
            ]
        )


def batch_of(
    roots: Sequence[int], room: Sequence[int] = (), vocab_size: int = V, **sampling: Any
) -> Batch:
    """Return a batch of rows with the given room for drafts, by default more than any tree has."""
    rows = [
        RequestState(
            Request([3, root], SamplingParams(max_new_tokens=left + 1, **sampling)),
            slot,
            11 + slot,
            frozenset(),
            100,
        )
        for slot, (root, left) in enumerate(zip(roots, room or [50] * len(roots), strict=True))
    ]
    return Batch(rows, torch.device("cpu"), vocab_size)


def path_of(proposal: Proposal, row: int, node: int) -> list[int]:
    ancestors = proposal.topology.ancestors
    return proposal.token_ids[row][ancestors[row % len(ancestors), node]].tolist()


def check_tree(proposal: Proposal) -> None:
    """Check that the precomputed bounds and ancestors follow from the parents."""
    topology = proposal.topology
    for row in range(len(topology.parents)):
        num_nodes = int(
            proposal.lengths.max() if len(topology.parents) == 1 else proposal.lengths[row]
        )
        part = Topology.from_parents(topology.parents[row : row + 1, :num_nodes])
        assert torch.equal(part.ancestors[0], topology.ancestors[row, :num_nodes, :num_nodes])
        assert part.max_depth <= topology.max_depth
        assert part.max_children <= topology.max_children


class TestStatic:
    def test_every_node_is_the_child_of_its_rank(self) -> None:
        roots = [2, 5]
        drafter, tree = PathDrafter(roots), StaticTree.from_paths(PATHS)
        proposal = grow_static(
            drafter, batch_of(roots), drafter.root_logits(), tree, [len(PATHS), 4]
        )
        ordered = sorted(PATHS, key=lambda path: (len(path), path))
        for row, root in enumerate(roots):
            for node, ranks in enumerate(ordered, start=1):
                expected = [root]
                for rank in ranks:
                    expected.append(int(logits_after(expected).argsort(descending=True)[rank]))
                assert path_of(proposal, row, node) == expected
                probability = logits_after(expected[:-1]).softmax(0)[expected[-1]]
                assert proposal.scores is not None
                assert float(proposal.scores[row, node]) == pytest.approx(float(probability))
        assert proposal.lengths.tolist() == [len(PATHS) + 1, 5]
        assert proposal.draft_probs is None
        assert drafter.num_calls == 2  # leaves are never fed
        check_tree(proposal)

    def test_sampled_children_follow_the_reported_distribution(self) -> None:
        """The root's three children, and the first one's two, are drawn without replacement."""
        paths, num = [(0,), (1,), (2,), (0, 0), (0, 1)], 4000
        drafter, tree = PathDrafter([4] * num), StaticTree.from_paths(paths)
        batch = batch_of([4] * num, temperature=1.0, top_k=4)
        logits = drafter.root_logits()
        proposal = grow_static(drafter, batch, logits, tree, [5] * num, sample=True)
        q = proposal.draft_probs
        assert q is not None
        assert torch.allclose(q[:, 0].sum(1), torch.ones(num, dtype=q.dtype))
        assert not q[:, 2:].any()
        children = proposal.token_ids[:, 1:4]
        support = q[0, 0].nonzero()[:, 0].tolist()
        assert len(support) == 4
        p = q[0, 0].numpy()
        orders = list(itertools.permutations(support, 3))
        expected = np.array(
            [p[a] * p[b] / (1 - p[a]) * p[c] / (1 - p[a] - p[b]) for a, b, c in orders]
        )
        observed = np.array(
            [int((children == torch.tensor(order)).all(1).sum()) for order in orders]
        )
        assert observed.sum() == num
        assert stats.chisquare(observed, expected * num).pvalue > 1e-4
        assert not bool((proposal.token_ids[:, 4] == proposal.token_ids[:, 5]).any())

    def test_children_beyond_what_can_be_drawn_are_never_accepted(self) -> None:
        drafter, tree = PathDrafter([4]), StaticTree.from_paths([(0,), (1,), (2,), (0, 0)])
        batch = batch_of([4], temperature=1.0, top_k=2)
        proposal = grow_static(drafter, batch, drafter.root_logits(), tree, [4], sample=True)
        assert proposal.acceptable.tolist() == [[True, True, True, False, True]]

    def test_draws_do_not_depend_on_the_other_rows(self) -> None:
        tree = StaticTree.from_paths(PATHS)

        def grown(roots: list[int]) -> Tensor:
            drafter = PathDrafter(roots)
            batch = batch_of(roots, temperature=0.8)
            return grow_static(
                drafter, batch, drafter.root_logits(), tree, [len(PATHS)] * len(roots), sample=True
            ).token_ids

        assert torch.equal(grown([6, 1, 2])[0], grown([6])[0])


BUDGETS, ROOMS = [10, 3, 4, 0, 10, 1, 7, 9], [9, 9, 1, 0, 2, 1, 2, 3]


def first_nodes_equal(some: Proposal, row: int, others: Proposal, other: int) -> bool:
    """Return True if two rows hold the same tree, drawn from the same distributions."""
    num = int(some.lengths[row])
    parents, other_parents = (
        p.topology.parents.expand(len(p.token_ids), -1) for p in (some, others)
    )
    above = parents[row, 1:num].unique()
    pairs = [(parents, other_parents), (some.token_ids, others.token_ids)]
    if some.draft_probs is not None and others.draft_probs is not None:
        pairs.append((some.draft_probs[:, above], others.draft_probs[:, above]))
    return num == int(others.lengths[other]) and all(
        torch.equal(a[row][:num], b[other][:num]) for a, b in pairs
    )


class TestSmallBudgets:
    @pytest.mark.parametrize("rows", [[0], [1], [4], [2, 5], [0, 1, 6], range(8)], ids=str)
    def test_a_row_keeps_the_first_nodes_that_it_has_room_for(self, rows: Sequence[int]) -> None:
        budget, room = [BUDGETS[i] for i in rows], [ROOMS[i] for i in rows]
        roots = [i % V for i in rows]
        drafter, tree = PathDrafter(roots), StaticTree.from_paths(IN_ORDER_OF_USE)
        proposal = grow_static(drafter, batch_of(roots, room), drafter.root_logits(), tree, budget)
        deepest = 0
        for row, root in enumerate(roots):
            kept_paths = [path for path in IN_ORDER_OF_USE if len(path) <= room[row]][: budget[row]]
            assert int(proposal.lengths[row]) == len(kept_paths) + 1
            for node, ranks in enumerate(kept_paths, start=1):
                tokens = [root]
                for rank in ranks:
                    tokens.append(int(logits_after(tokens).argsort(descending=True)[rank]))
                assert path_of(proposal, row, node) == tokens
                deepest = max(deepest, len(ranks))
        assert proposal.host_lengths == tuple(proposal.lengths.tolist())
        assert proposal.topology.num_nodes == int(proposal.lengths.max())
        assert drafter.num_calls == deepest - 1
        check_tree(proposal)

    def test_only_parents_of_kept_nodes_are_fed(self) -> None:
        drafter, tree = PathDrafter([2, 5]), StaticTree.from_paths(IN_ORDER_OF_USE)
        proposal = grow_static(drafter, batch_of([2, 5]), drafter.root_logits(), tree, [4, 2])
        assert drafter.fed is not None
        assert (drafter.fed >= 0).sum(1).tolist() == [3, 3]  # the root, (0,) and (0, 0)
        assert proposal.topology.parents.tolist() == [[-1, 0, 1, 0, 2]]

    @pytest.mark.parametrize("shape", ["static", "sampled", "dynamic"])
    def test_a_rows_drafts_do_not_depend_on_the_other_rows(self, shape: str) -> None:
        tree = StaticTree.from_paths(IN_ORDER_OF_USE)

        def grown(rows: Sequence[int]) -> Proposal:
            roots, budget = [i % V for i in rows], [BUDGETS[i] for i in rows]
            drafter, batch = (
                PathDrafter(roots),
                batch_of(roots, [ROOMS[i] for i in rows], temperature=0.8),
            )
            for state, i in zip(batch.rows, rows, strict=True):
                state.seed = i
            if shape == "dynamic":
                return grow_dynamic(drafter, batch, drafter.root_logits(), budget, depth=3, top_k=4)
            return grow_static(
                drafter, batch, drafter.root_logits(), tree, budget, sample=shape == "sampled"
            )

        together = grown(range(8))
        for row in range(8):
            if BUDGETS[row]:
                assert first_nodes_equal(grown([row]), 0, together, row)
                assert first_nodes_equal(grown([6, row]), 1, together, row)


@dataclass
class MarkovDrafter:
    """Predict from the last token only, so that thousands of rows are fast."""

    table: Float[Tensor, "W W"]

    def expand(
        self, topology: Topology, token_ids: Int[Tensor, "B M"], first: int
    ) -> Float[Tensor, "B M W"]:
        return self.table[token_ids]


class TestSmallBudgetsAreExact:
    """Two output tokens follow the target's distribution, whatever the budget."""

    NUM, W = 6_000, 4

    def tables(self) -> tuple[Float[Tensor, "W W"], Float[Tensor, "W W"]]:
        generator = torch.Generator().manual_seed(3)
        draft, target = (
            torch.randn((2, self.W, self.W), generator=generator, dtype=torch.float64) * 1.3
        )
        return draft, target.softmax(-1)

    def drafts(self, tree: StaticTree, budget: Sequence[int], room: Sequence[int]) -> Proposal:
        draft, _ = self.tables()
        batch = batch_of([1] * self.NUM, room, self.W, temperature=1.0)
        return grow_static(
            MarkovDrafter(draft), batch, draft[batch.roots], tree, budget, sample=True
        )

    def p_value(self, proposal: Proposal) -> float:
        _, p = self.tables()
        generator = torch.Generator().manual_seed(5)
        uniforms = torch.rand(proposal.token_ids.shape, generator=generator, dtype=torch.float64)
        verdict = accept_by_rejection(proposal, p[proposal.token_ids], uniforms)
        assert float(verdict.num_accepted.double().mean()) > 0.1
        nodes = torch.nn.functional.pad(verdict.path, (0, 2), value=-1).clamp(min=0)
        accepted = proposal.token_ids.gather(1, nodes[:, 1:3])
        first = torch.where(verdict.num_accepted > 0, accepted[:, 0], verdict.next_token)
        later = torch.multinomial(p[first], 1, generator=generator)[:, 0]
        second = torch.where(verdict.num_accepted == 1, verdict.next_token, later)
        second = torch.where(verdict.num_accepted > 1, accepted[:, 1], second)
        observed = torch.bincount(first * self.W + second, minlength=self.W**2).numpy()
        expected = (p[1][:, None] * p).flatten().numpy()
        return float(stats.chisquare(observed, expected * self.NUM).pvalue)

    def test_every_budget_and_room_in_one_batch_is_exact(self) -> None:
        tree = StaticTree.from_paths(IN_ORDER_OF_USE)
        budget, room = (
            [1 + i % 10 for i in range(self.NUM)],
            [1 + i // 10 % 3 for i in range(self.NUM)],
        )
        assert self.p_value(self.drafts(tree, budget, room)) > 1e-4

    def test_negative_control_a_later_sibling_kept_without_the_earlier_one(self) -> None:
        both_siblings = self.drafts(
            StaticTree.from_paths([(0,), (1,)]), [2] * self.NUM, [1] * self.NUM
        )
        assert both_siblings.draft_probs is not None
        later_sibling = Proposal.chain(
            both_siblings.token_ids[:, [0, 2]],
            torch.full((self.NUM,), 2),
            both_siblings.draft_probs[:, :2],
        )
        assert self.p_value(both_siblings) > 1e-4 > self.p_value(later_sibling)


class TestDynamic:
    def brute_force(self, root: int, depth: int, top_k: int, budget: int) -> set[tuple[int, ...]]:
        """Expand the best k of every level, then keep the best nodes of all."""
        value: dict[tuple[int, ...], float] = {(): 0.0}
        pool: dict[tuple[int, ...], float] = {}
        frontier: list[tuple[int, ...]] = [()]
        for _ in range(depth):
            candidates: dict[tuple[int, ...], float] = {}
            for path in frontier:
                log_q = logits_after([root, *path]).log_softmax(0)
                for token in log_q.argsort(descending=True)[:top_k].tolist():
                    candidates[(*path, token)] = value[path] + float(log_q[token])
            pool |= candidates
            frontier = sorted(candidates, key=lambda path: -candidates[path])[:top_k]
            value |= candidates
        return set(sorted(pool, key=lambda path: -pool[path])[:budget])

    @pytest.mark.parametrize(("depth", "top_k"), [(1, 3), (2, 3), (4, 3), (5, 2), (3, 10)])
    def test_it_keeps_the_nodes_of_the_definition(self, depth: int, top_k: int) -> None:
        roots, budget = [2, 5, 0], [9, 3, 5]
        budget = [min(b, min(top_k, V)) if depth == 1 else b for b in budget]
        drafter = PathDrafter(roots)
        proposal = grow_dynamic(
            drafter, batch_of(roots), drafter.root_logits(), budget, depth=depth, top_k=top_k
        )
        assert proposal.lengths.tolist() == [b + 1 for b in budget]
        assert drafter.num_calls == depth - 1
        for row, (root, allowed) in enumerate(zip(roots, budget, strict=True)):
            kept_paths = {tuple(path_of(proposal, row, node)[1:]) for node in range(1, allowed + 1)}
            assert kept_paths == self.brute_force(root, depth, top_k, allowed)
        check_tree(proposal)

    def test_a_batch_may_make_it_narrower(self) -> None:
        """As if `top_k` were less, with fewer tokens in every pass."""
        roots, budget = [2, 5, 0], [9, 3, 5]
        drafter, batch = PathDrafter(roots), batch_of(roots)
        batch.limit(None, 2)
        assert batch.select([0, 2]).max_width == 2
        grown = grow_dynamic(drafter, batch, drafter.root_logits(), budget, depth=4, top_k=3)
        narrow = grow_dynamic(
            PathDrafter(roots), batch_of(roots), drafter.root_logits(), budget, depth=4, top_k=2
        )
        assert grown.token_ids.equal(narrow.token_ids)
        assert grown.topology.parents.equal(narrow.topology.parents)

    def test_certain_children_come_after_their_parents(self) -> None:
        class Certain(PathDrafter):
            def expand(
                self, topology: Topology, token_ids: Int[Tensor, "B M"], first: int
            ) -> Float[Tensor, "B M V"]:
                shape = (*token_ids.shape, V)
                return torch.full(shape, -1e4, dtype=torch.float64).index_fill(
                    2, torch.tensor([3]), 0.0
                )

        drafter = Certain([1])
        logits = drafter.expand(Topology.chain(1), torch.tensor([[1]]), 0)
        proposal = grow_dynamic(drafter, batch_of([1]), logits, [4], depth=4, top_k=3)
        assert proposal.topology.parents.tolist() == [[-1, 0, 1, 2, 3]]
        assert proposal.token_ids.tolist() == [[1, 3, 3, 3, 3]]

    def test_rows_with_little_room_keep_the_best_nodes(self) -> None:
        roots, budget, room = [2, 5, 0, 1], [9, 9, 2, 9], [9, 2, 9, 1]
        drafter, top_k = PathDrafter(roots), 3
        proposal = grow_dynamic(
            drafter, batch_of(roots, room), drafter.root_logits(), budget, depth=4, top_k=top_k
        )
        assert proposal.lengths.tolist() == [
            10,
            10,
            3,
            4,
        ]  # the last row has three nodes to choose from
        for row, root in enumerate(roots):
            num = int(proposal.lengths[row])
            kept_paths = {tuple(path_of(proposal, row, node)[1:]) for node in range(1, num)}
            assert kept_paths == self.brute_force(root, min(4, room[row]), top_k, budget[row])
        check_tree(proposal)

    @pytest.mark.parametrize(
        ("budget", "room", "passes"), [([9], [2], 1), ([2, 1], [9, 9], 1), ([9, 3], [1, 4], 2)]
    )
    def test_levels_that_no_row_can_use_are_not_drafted(
        self, budget: list[int], room: list[int], passes: int
    ) -> None:
        roots = [2, 5][: len(budget)]
        drafter = PathDrafter(roots)
        grow_dynamic(
            drafter, batch_of(roots, room), drafter.root_logits(), budget, depth=6, top_k=3
        )
        assert drafter.num_calls == passes

    def test_a_row_without_a_budget_gets_no_drafts(self) -> None:
        drafter = PathDrafter([2, 5])
        proposal = grow_dynamic(
            drafter, batch_of([2, 5]), drafter.root_logits(), [0, 6], depth=3, top_k=3
        )
        assert proposal.lengths.tolist() == [1, 7]
        check_tree(proposal)
