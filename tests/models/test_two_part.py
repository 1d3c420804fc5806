"""Attention in two parts equals masked attention, written out node by node."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from tiny_models import build
from torch import Tensor

from specresearch import CausalLM
from specresearch.models import two_part
from specresearch.models.flash_kernels import KERNELS, FlashKernel
from specresearch.models.two_part import TwoPartPlan, merge
from specresearch.proposal import Topology

(KERNEL,) = KERNELS["cpu"]
SLOTS, STARTS = (4, 0, 3), (9, 0, 4)
NUM_SLOTS, NUM_COLUMNS, KV_HEADS, WIDTH = 5, 24, 2, 6
VISIBLE = 1e-3
TREES = {
    "chain": Topology.chain(7),
    "root": Topology.chain(1),
    "bushy": Topology.from_paths([(0,), (1,), (2,), (0, 0), (0, 1), (1, 0)]),
    "rows_differ": Topology.from_parents(
        torch.tensor([[-1, 0, 0, 1, 3, 4, 5], [-1, 0, 1, 2, 3, 4, 5], [-1, 0, 0, 0, 0, 0, 0]])
    ),
}


@dataclass
class Pass:
    """One pass with random queries over a cache that is full of stale data."""

    topology: Topology
    first: int = 0
    group: int = 2
    window: int | None = None
    sinks: Tensor | None = None
    scaling: float | None = None

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(5)

        def draw(*size: int) -> Tensor:
            return torch.randn(size, generator=generator, dtype=torch.float64)

        self.num_new = self.topology.num_nodes - self.first
        self.query = draw(len(SLOTS), KV_HEADS * self.group, self.num_new, WIDTH)
        self.keys, self.values = draw(2, NUM_SLOTS, NUM_COLUMNS, KV_HEADS, WIDTH) * 2

    def attend(self, kernel: FlashKernel = KERNEL, topology: Topology | None = None) -> Tensor:
        topology = topology or self.topology
        plan = TwoPartPlan(
            kernel,
            torch.tensor(SLOTS) * NUM_COLUMNS,
            torch.tensor(STARTS),
            topology,
            width=max(STARTS) + topology.num_nodes,
            first=self.first,
        )
        key, value = (
            cached.flatten(0, 1).transpose(0, 1)[None] for cached in (self.keys, self.values)
        )
        return plan.attend(
            self.query, key, value, scaling=self.scaling, window=self.window, sinks=self.sinks
        )

    def written_out(self) -> Tensor:
        """Attend for one node and head after another, over the list of columns that it sees."""
        out = torch.empty_like(self.query.transpose(1, 2))
        scaling = WIDTH**-0.5 if self.scaling is None else self.scaling
        rows = len(SLOTS)
        ancestors = self.topology.ancestors.expand(rows, -1, -1)
        depth = self.topology.depth.expand(rows, -1)
        for b, (slot, start) in enumerate(zip(SLOTS, STARTS, strict=True)):
            for node in range(self.first, self.topology.num_nodes):
                position = start + int(depth[b, node])
                seen = [(column, column) for column in range(start)]
                for other in ancestors[b, node].nonzero()[:, 0].tolist():
                    seen.append((start + other, start + int(depth[b, other])))
                columns = [
                    column
                    for column, at in seen
                    if self.window is None or position - at < self.window
                ]
                for head in range(self.query.shape[1]):
                    key = self.keys[slot, columns, head // self.group]
                    scores = key @ self.query[b, head, node - self.first] * scaling
                    if self.sinks is not None:
                        scores = torch.cat([scores, self.sinks[head : head + 1]])
                    weights = scores.softmax(-1)[: len(columns)]
                    attended = weights @ self.values[slot, columns, head // self.group]
                    out[b, node - self.first, head] = attended
        return out

    def error(self, kernel: FlashKernel = KERNEL, topology: Topology | None = None) -> float:
        return float((self.attend(kernel, topology) - self.written_out()).abs().max())


def sinks_of(num_heads: int) -> Tensor:
    return torch.linspace(-1, 2, num_heads, dtype=torch.float64)


@pytest.fixture
def splitting(monkeypatch: pytest.MonkeyPatch) -> FlashKernel:
    """Return the kernel, with every row's keys split in four."""
    monkeypatch.setattr(two_part, "num_splits_of", lambda *_: 4)
    return replace(KERNEL, splits_keys=False)


@pytest.mark.parametrize("window", [None, 1, 2, 3, 4, 5, 6, 7, 8, 12, 100])
@pytest.mark.parametrize("tree", TREES)
def test_every_node_sees_its_path_within_the_window(tree: str, window: int | None) -> None:
    assert Pass(TREES[tree], window=window).error() < 1e-12


@pytest.mark.parametrize("window", [None, 1, 3, 6])
@pytest.mark.parametrize("tree", TREES)
def test_split_keys(tree: str, window: int | None, splitting: FlashKernel) -> None:
    assert Pass(TREES[tree], window=window).error(splitting) < 1e-12


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("group", [1, 3])
def test_groups_sinks_and_scales(
    tree: str, group: int, window: int | None, splitting: FlashKernel
) -> None:
    sinks = sinks_of(KV_HEADS * group)
    attention = Pass(TREES[tree], group=group, window=window, sinks=sinks, scaling=0.3)
    assert attention.error() < 1e-12
    assert attention.error(splitting) < 1e-12


@pytest.mark.parametrize("first", [1, 4, 6])
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("tree", ["chain", "bushy", "rows_differ"])
def test_nodes_of_earlier_passes_are_seen(tree: str, window: int | None, first: int) -> None:
    assert Pass(TREES[tree], first=first, window=window).error() < 1e-12


def test_a_bound_of_the_depth_that_is_too_high_costs_nothing_but_columns() -> None:
    tree = TREES["bushy"]
    loose = Topology(tree.parents, max_depth=6, max_children=3)
    assert Pass(tree, window=3).error(topology=loose) < 1e-12


def test_the_kernel_reads_the_cache_in_place() -> None:
    attention = Pass(TREES["bushy"])
    seen: list[tuple[int, tuple[int, ...]]] = []

    def attend(query: Tensor, keys: Tensor, values: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
        seen.append((keys.data_ptr(), keys.stride()))
        return KERNEL.attend(query, keys, values, *rest)

    attention.attend(replace(KERNEL, attend=attend))
    row = KV_HEADS * WIDTH
    assert seen == [(attention.keys.data_ptr(), (row, WIDTH, 1))]


@pytest.mark.parametrize(("tree", "calls"), [("chain", True), ("root", True), ("bushy", False)])
@pytest.mark.parametrize("splits_keys", [True, False])
def test_a_chain_is_one_causal_call(
    tree: str, calls: bool, splits_keys: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One token is none where query heads are folded, so that splits have work."""
    monkeypatch.setattr(two_part, "num_splits_of", lambda *_: 1)
    causal: list[bool] = []

    def attend(*args: Any) -> tuple[Tensor, Tensor]:
        causal.append(args[3].causal)
        return KERNEL.attend(*args)

    Pass(TREES[tree]).attend(replace(KERNEL, attend=attend, splits_keys=splits_keys))
    assert causal == [calls and (splits_keys or tree != "root")]


@pytest.mark.parametrize(
    ("longest", "num_heads", "num_queries", "expected"),
    [
        (100, 1, 4, 1),
        (4096, 1, 4, 16),
        (100_000, 8, 4, 33),
        (100_000, 8, 65, 16),
        (100_000, 8, 129, 8),
        (100_000, 264, 4, 1),
        (100_000, 300, 4, 1),
    ],
)
def test_long_keys_are_split_for_idle_multiprocessors(
    monkeypatch: pytest.MonkeyPatch, longest: int, num_heads: int, num_queries: int, expected: int
) -> None:
    monkeypatch.setattr(two_part, "_multiprocessors", lambda _: 132)
    cuda = torch.device("cuda")
    assert two_part.num_splits_of(longest, num_heads, num_queries, cuda) == expected


@pytest.mark.parametrize(("num_nodes", "least"), [(1, 512), (5, 2048)])
def test_a_chain_is_split_from_so_many_keys_on(
    num_nodes: int, least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(two_part, "_multiprocessors", lambda _: 132)
    cpu = torch.device("cpu")
    kernel, chain = replace(KERNEL, splits_keys=False), Topology.chain(num_nodes, cpu)
    for width, is_split in ((least - 1, False), (least, True)):
        begins = torch.tensor([0])
        plan = TwoPartPlan(kernel, begins, begins + width - num_nodes, chain, width)
        assert (
            plan._make_parts(two_part._LayerKind(None, 4, 2, torch.float64, cpu)).num_splits > 1
        ) == is_split


class TestMerge:
    """Parts of one softmax, joined."""

    @staticmethod
    def split(scores: Tensor, values: Tensor, bounds: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return output and log-sum-exp of the stretches between the bounds."""
        outputs, lse = [], []
        for begin, end in itertools.pairwise(bounds):
            part = scores[..., begin:end]
            outputs.append(part.softmax(-1) @ values[..., begin:end, :])
            lse.append(part.logsumexp(-1))
        return torch.stack(outputs), torch.stack(lse)

    @pytest.mark.parametrize("size", [1.0, 1e3])
    def test_equals_one_softmax(self, size: float) -> None:
        """Also where the exponential of a score overflows, as it does without the maximum."""
        scores, values = torch.randn(2, 3, 4, 10) * size, torch.randn(2, 3, 10, 5)
        expected = scores.softmax(-1) @ values
        outputs, lse = self.split(scores, values, (0, 3, 3, 6, 10))
        masked = outputs[3], lse[3]
        for nothing in (-torch.inf, torch.inf):
            found = lse[:3].masked_fill(lse[:3].isneginf(), nothing)
            joined = merge(outputs[:3], found, masked)
            torch.testing.assert_close(joined, expected, rtol=1e-4, atol=1e-4)
        naive = lse.exp() / lse.exp().sum(0)
        assert bool(naive.isfinite().all()) == (size == 1.0)

    def test_sinks_count_once(self) -> None:
        scores, values = torch.randn(2, 3, 4, 10), torch.randn(2, 3, 10, 5)
        sinks = torch.randn(1, 3, 4)
        with_sinks = torch.cat([scores, sinks.expand(2, -1, -1)[..., None]], dim=-1)
        expected = with_sinks.softmax(-1)[..., :10] @ values
        for bounds in ((0, 10), (0, 4, 10)):
            joined = merge(*self.split(scores, values, bounds), sinks=sinks)
            torch.testing.assert_close(joined, expected)


class TestNegativeControls:
    """Each of these breaks one thing, and the comparison must notice."""

    def test_window_of_the_root_for_every_node(self) -> None:
        tree = TREES["bushy"]
        shallow = Topology(tree.parents, max_depth=0, max_children=3)
        assert Pass(tree, window=3).error(topology=shallow) > VISIBLE

    def test_window_wider_by_one(self) -> None:
        for tree in TREES.values():
            attention = Pass(tree, window=3)
            expected = attention.written_out()
            attention.window = 4
            assert float((attention.attend() - expected).abs().max()) > VISIBLE

    def test_one_bit_of_the_tree(self) -> None:
        tree = TREES["bushy"]
        other = Topology.from_parents(tree.parents.clone().index_fill_(1, torch.tensor([4]), 2))
        assert Pass(tree).error(topology=other) > VISIBLE

    def test_log_sum_exp_of_nothing_is_taken_for_infinite(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def attend(*args: Any) -> tuple[Tensor, Tensor]:
            out, lse = KERNEL.attend(*args)
            return out, lse.masked_fill(lse.isneginf(), torch.inf)

        kernel = replace(KERNEL, attend=attend)
        assert Pass(TREES["bushy"]).error(kernel) < 1e-12
        monkeypatch.setattr(two_part, "nothing_is_negative", lambda lse: lse)
        assert not Pass(TREES["bushy"]).error(kernel) < VISIBLE

    def test_sinks_twice(self, splitting: FlashKernel) -> None:
        attention = Pass(TREES["bushy"], sinks=sinks_of(4))
        expected = attention.written_out()
        attention.sinks = sinks_of(4) + torch.log(torch.tensor(2.0))
        assert float((attention.attend(splitting) - expected).abs().max()) > VISIBLE


class TestChoice:
    """When a model gets attention in two parts."""

    def test_a_cpu_keeps_masks_unless_told_otherwise(self) -> None:
        assert CausalLM(build()).kernel is None
        assert CausalLM(build(), attention="two_part").kernel is KERNEL
        assert CausalLM(build(), attention="slot").kernel is None

    @pytest.mark.parametrize(
        ("architecture", "attention", "used"),
        [
            ("llama", "auto", "slot"),
            ("llama", "two_part", "two_part (PyTorch's flash kernel)"),
            ("llama", "eager", "eager"),
            ("falcon", "slot", "sdpa"),
        ],
    )
    def test_results_say_what_was_used(self, architecture: str, attention: str, used: str) -> None:
        lm = CausalLM(build(architecture), attention=attention, self_test=False)
        assert lm.attention == used

    @pytest.mark.parametrize("architecture", ["llama", "gemma2"])
    def test_a_gpu_has_it_where_a_kernel_serves_the_model(
        self, architecture: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lm = CausalLM(build(architecture))
        lm.allocate(1)
        lm.extend((0,), [[1]])
        lm.device = torch.device("cuda")
        expected = None if architecture == "gemma2" else KERNEL
        assert lm._find_kernel(lm.cache) is expected

    def test_no_kernel_is_an_error_only_if_asked_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(KERNELS, "cpu", ())
        with pytest.raises(
            ValueError,
            match=r"^attention=two_part does not work for toy: .* on cpu; use attention=auto$",
        ):
            CausalLM(build(), attention="two_part", name="toy")
        assert CausalLM(build(), name="toy").kernel is None
