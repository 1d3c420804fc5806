"""Graphs replay what they captured, and whatever cannot be captured runs as it is.

Captures are those of a pretended device, which runs the captured operations again on the same
memory, and nothing else.
"""

import copy
import gc
import logging
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from shape_checks import unchecked
from tiny_models import build
from torch import Tensor

from specresearch import CausalLM, Engine, Proposer, SamplingParams
from specresearch.acceptance import Greedy, Rejection
from specresearch.clock import Clock
from specresearch.mock_cuda import DEVICE, MockCuda
from specresearch.models import graphs as graphs_module
from specresearch.models.graphs import GraphInput, Graphs, Tensors
from specresearch.models.pass_graphs import PassGraphs
from specresearch.proposal import Proposal, Topology, Verdict
from specresearch.proposers import DraftModel, NGram
from specresearch.sampling import SamplingBatch

pytestmark = pytest.mark.filterwarnings("ignore:the target is:UserWarning")

PROMPTS = [[5, 1, 2, 3, 4, 5, 1, 2], [3, 1, 4, 1, 5, 3, 1], [9, 2, 6, 9, 2], [1]]
MODEL = build("llama", seed=1)


@pytest.fixture
def mock() -> Iterator[MockCuda]:
    with MockCuda() as mock, unchecked():
        yield mock


def on_device(*values: float) -> Tensor:
    return torch.tensor(values).to(DEVICE)


def doubled(values: Tensor) -> Tensors:
    return (values * 2,)


def run(graphs: Graphs, values: Tensor, function: Any = doubled, key: str = "f") -> list[float]:
    (output,) = graphs.run((key,), function, [GraphInput(values)])
    return output.tolist()


class TestCapture:
    def test_a_replay_is_one_launch_with_new_inputs(self, mock: MockCuda) -> None:
        graphs = Graphs(DEVICE)
        assert run(graphs, on_device(1.0, 2.0)) == [2.0, 4.0]
        values = on_device(3.0, 5.0)
        mock.activity.clear()
        (output,) = graphs.run(("f",), doubled, [GraphInput(values)])
        assert mock.activity.launches["graph"] == 1
        assert mock.activity.num_launches == 3  # with a copy in and a copy out
        assert mock.activity.waits == []
        assert output.tolist() == [6.0, 10.0]

    def test_a_clock_stops_for_the_capture_alone(self, mock: MockCuda) -> None:
        clock, graphs = Clock(), Graphs(DEVICE)
        graphs.paused = clock.paused
        at: list[float] = []

        def slow(values: Tensor) -> Tensors:
            at.append(clock.now())
            time.sleep(0.001)
            return (values * 2,)

        assert run(graphs, on_device(1.0), slow) == [2.0]
        assert len(at) == 3  # two calls to warm up, and one to capture
        assert len(set(at)) == 1
        assert clock.now() > at[0]
        assert run(graphs, on_device(3.0), slow) == [6.0]
        assert len(at) == 3

    def test_no_garbage_is_collected_within_a_capture(self, mock: MockCuda) -> None:
        """It may hold a graph, and a capture fails if one is freed meanwhile."""
        collects: list[bool] = []

        def function(values: Tensor) -> Tensors:
            collects.append(gc.isenabled())
            return (values * 2,)

        assert run(Graphs(DEVICE), on_device(1.0), function) == [2.0]
        assert collects == [True, True, False]
        assert gc.isenabled()

    def test_outputs_survive_the_next_replay(self, mock: MockCuda) -> None:
        graphs = Graphs(DEVICE)
        run(graphs, on_device(1.0))
        (first,) = graphs.run(("f",), doubled, [GraphInput(on_device(2.0))])
        run(graphs, on_device(7.0))
        assert first.tolist() == [4.0]

    def test_inputs_fill_the_corner_of_a_buffer(self, mock: MockCuda) -> None:
        graphs = Graphs(DEVICE)

        def summed(values: Tensor) -> Tensors:
            return values * 1, values.sum()[None]

        def call(*values: float) -> list[list[float]]:
            inputs = [GraphInput.padded(on_device(*values), (4,), fill=9)]
            outputs = graphs.run(
                ("sum",), summed, inputs, lambda outputs: (outputs[0][: len(values)], outputs[1])
            )
            return [output.tolist() for output in outputs]

        assert call(1.0, 2.0) == [[1.0, 2.0], [21.0]]
        assert call(1.0, 2.0, 3.0) == [[1.0, 2.0, 3.0], [15.0]]
        assert call(5.0) == [[5.0], [19.0]]  # the others are of the call before
        assert len(graphs) == 1

    def test_a_pool_outlives_no_graph(self, mock: MockCuda) -> None:
        """Torch refuses a capture into a pool whose graphs are all gone."""
        first, second = Graphs(DEVICE), Graphs(DEVICE)
        run(first, on_device(1.0))
        run(second, on_device(1.0))
        (pool,) = {graph.pool for graphs in (first, second) for graph in graphs._graphs.values()}
        first.clear()
        run(first, on_device(1.0), key="g")
        assert {graph.pool for graph in first._graphs.values()} == {pool}
        del pool
        for graphs in (first, second):
            graphs.clear()
        for graphs in (first, second):
            assert run(graphs, on_device(2.0)) == [4.0]
            assert len(graphs) == 1

    def test_writes_to_other_memory_are_replayed(self, mock: MockCuda) -> None:
        memory = torch.zeros(3, device=DEVICE)

        def write(index: Tensor) -> Tensors:
            memory.index_fill_(0, index, 1.0)
            return (memory.sum()[None],)

        graphs = Graphs(DEVICE)
        for index in (0, 2):
            graphs.run(("write",), write, [GraphInput(torch.tensor([index]).to(DEVICE))])
        assert memory.tolist() == [1.0, 0.0, 1.0]


class TestRefusals:
    @pytest.mark.parametrize(
        "function",
        [
            lambda values: (values * values.sum().item(),),
            lambda values: (values[values > 0] * 2,),
            lambda values: (values * torch.tensor([2.0]).to(DEVICE, non_blocking=True),),
        ],
        ids=["reads a value", "an index by a mask", "an upload"],
    )
    def test_what_cannot_be_captured_runs_as_it_is_after_one_warning(
        self, function: Any, mock: MockCuda, caplog: pytest.LogCaptureFixture
    ) -> None:
        graphs = Graphs(DEVICE)
        with caplog.at_level(logging.WARNING):
            for values in ([1.0, 2.0], [3.0, 1.0]):
                given = on_device(*values)
                (expected,) = function(given)
                for key in ("f", "g"):
                    assert run(graphs, given, function, key) == expected.tolist()
        assert len(graphs) == 0
        (record,) = caplog.records
        assert "without CUDA graphs: operation not permitted when stream" in record.message

    @pytest.mark.parametrize(
        "function",
        [
            lambda values, number: values * number,
            lambda values, number: values.double() + 100_000 + number,
        ],
        ids=["factors", "token ids"],
    )
    def test_a_replay_that_gives_other_numbers_is_not_used(
        self, function: Any, mock: MockCuda, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A function that the host changes from call to call, against the rules."""
        numbers = iter(range(1, 100))
        graphs = Graphs(DEVICE)
        run(graphs, on_device(1.0), lambda values: (function(values, next(numbers)),))
        assert len(graphs) == 0
        assert "its replay gives other numbers" in caplog.text

    def test_without_memory_passes_run_as_they_are(self, caplog: pytest.LogCaptureFixture) -> None:
        with MockCuda(free=graphs_module.RESERVE - 1), unchecked():
            graphs = Graphs(DEVICE)
            assert run(graphs, on_device(1.0)) == [2.0]
            assert run(graphs, on_device(2.0)) == [4.0]
        assert len(graphs) == 0
        assert "without CUDA graphs: less than 1.1 GB of memory are free" in caplog.text


def lm_on_device(graphs: bool | None, dtype: torch.dtype = torch.float64) -> CausalLM:
    model: Any = copy.deepcopy(MODEL)
    return CausalLM(model.to(dtype).to(DEVICE), max_len=64, graphs=graphs)


def decoded(
    target: CausalLM, proposer: Proposer | None, rule: Any = None
) -> Sequence[tuple[int, ...]]:
    engine = Engine(target, proposer, rule, max_batch_size=3)
    outputs = engine.generate_all(PROMPTS, SamplingParams(max_new_tokens=20))
    return [output.token_ids for output in outputs]


class TestDecoding:
    @pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
    @pytest.mark.parametrize("tree", ["chain", "dynamic"])
    def test_replays_decode_the_same(self, mock: MockCuda, dtype: torch.dtype, tree: str) -> None:
        """In bfloat16 with attention in two parts, whose flash kernel is captured as well."""
        outputs = []
        for graphs in (False, True):
            target, draft = lm_on_device(graphs, dtype), lm_on_device(graphs, dtype)
            proposer = DraftModel(draft, 6, tree=tree, depth=3, top_k=3)
            outputs += [decoded(target, proposer) for _ in range(2)]
        assert ("two_part" in target.attention) == (dtype == torch.bfloat16)
        for model in (target, draft):
            assert model.passes is not None
            assert len(model.passes.graphs) > 2
        assert outputs.count(outputs[0]) == 4

    def test_graphs_are_the_default_on_a_gpu(self, mock: MockCuda) -> None:
        assert lm_on_device(None).passes is not None
        assert lm_on_device(False).passes is None
        assert CausalLM(copy.deepcopy(MODEL)).passes is None

    def test_a_rule_that_is_not_declared_capturable_has_none(self, mock: MockCuda) -> None:
        class Own(Greedy):
            capturable = False
            num_calls = 0

            def __call__(
                self, proposal: Proposal, target_logits: Tensor, sampling: SamplingBatch
            ) -> Verdict:
                Own.num_calls += 1
                return super().__call__(proposal, target_logits, sampling)

        target = lm_on_device(True)
        assert decoded(target, NGram(3, 2, 1), Own()) == decoded(lm_on_device(False), None)
        assert target.passes is not None
        assert not {Own, Greedy} & {key[0] for key in target.passes.graphs.keys}
        assert Own.num_calls > 5

    def test_a_larger_cache_drops_the_graphs_of_the_old_one(self, mock: MockCuda) -> None:
        target = lm_on_device(True)
        before = decoded(target, None)
        assert target.passes is not None
        assert len(target.passes.graphs) > 0
        target.allocate(5, 20)
        assert len(target.passes.graphs) == 0
        assert decoded(target, None) == before

    def test_a_model_that_is_to_be_trained_gives_its_graphs_up(self, mock: MockCuda) -> None:
        target = lm_on_device(True)
        target.unpack_weights()
        assert target.passes is None


def passes_of(num_slots: int = 3) -> PassGraphs:
    lm = CausalLM(copy.deepcopy(MODEL), max_len=64, graphs=True)
    lm.allocate(num_slots, 11)
    assert lm.passes is not None
    return lm.passes


class TestSizes:
    def test_lengths_that_change_meet_few_sizes(self) -> None:
        passes = passes_of(num_slots=40)
        sizes = set()
        for num_rows in range(1, 41):
            for num_nodes in range(1, 13):
                padded = passes.fit(tuple(range(num_rows)), Topology.chain(num_nodes))
                assert padded is not None
                assert padded.rows >= num_rows
                assert padded.num_nodes >= num_nodes
                sizes.add((padded.rows, padded.num_nodes))
        assert len(sizes) == 8 * 6  # rows up to 40, and 1, 2, 4, 8, 11 and 16 nodes

    def test_more_nodes_than_expected_and_large_batches_have_no_graph(self) -> None:
        assert passes_of().fit((0,), Topology.chain(17)) is None
        assert passes_of(num_slots=200).fit(tuple(range(200)), Topology.chain(1)) is None

    def test_prompts_have_a_graph_up_to_a_number_of_tokens(self) -> None:
        passes = passes_of(num_slots=40)
        model: Any = passes.model
        model.allocate(40, 300)
        chain = Topology.chain(20)
        padded = passes.fit_append((0, 1), chain)
        assert padded is not None
        assert (padded.rows, padded.num_nodes) == (2, 32)
        assert passes.fit_append(tuple(range(32)), chain) is not None
        assert passes.fit_append(tuple(range(32)), Topology.chain(33)) is None  # 2,048 tokens
        assert passes.fit_append((0, 1, 2), chain) is None  # would need a row of padding
        assert passes.fit_append((0,), Topology.chain(129)) is None
        tree = Topology.from_parents(torch.tensor([[-1] + [0] * 19]))
        assert passes.fit_append((0,), tree) is None

    def test_a_prompt_is_padded_within_its_own_slot(self) -> None:
        outputs = []
        for graphs in (False, True):
            lm = CausalLM(copy.deepcopy(MODEL), max_len=64, graphs=graphs)
            lm.allocate(3, 11)
            lm.extend((0, 1, 2), [[1, 2], [3], [4, 5, 6]], want_logits=False)
            before = lm.cache.buffers[0][0].clone()
            prompts = [list(range(1, 21)), list(range(3, 23))]
            outputs.append(lm.extend((0, 1), prompts, hidden_layers=(1,)))
            last = lm.lengths[0]
            assert last == 22
            changed = (lm.cache.buffers[0][0] != before).any(-1).any(-1)
            assert changed[0, :2].sum() == changed[1, :1].sum() == changed[2].sum() == 0
        assert lm.passes is not None
        assert lm.passes.graphs.keys[-1][0].num_nodes == 32
        eager, graphed = outputs
        torch.testing.assert_close(graphed.logits, eager.logits)
        torch.testing.assert_close(graphed.hidden[0], eager.hidden[0])
        lm.lengths[0] = lm.cache.num_columns - 31  # a padded prompt would leave its slot
        assert lm.passes.fit_append((0, 1), Topology.chain(20)) is None

    def test_no_row_reaches_the_columns_of_padding(self) -> None:
        passes = passes_of()
        model = passes.model
        limit = model.cache.num_columns - passes.sizes[-1]
        model.lengths[:] = [0, limit - 4, 0]
        assert passes.fit((0, 1), Topology.chain(4)) is not None
        assert passes.fit((0, 1), Topology.chain(5)) is None
        model.lengths[:] = [0, 0, limit + 1]  # its tokens lie where padding would write
        assert passes.fit((0, 1), Topology.chain(1)) is None

    def test_padding_changes_no_column_of_a_request(self) -> None:
        """Three rows run as four; the fourth writes behind every request."""
        passes = passes_of(num_slots=4)
        lm: Any = passes.model
        lm.extend((0, 1, 2, 3), [[1, 2], [3], [4, 5, 6], [7, 8]], want_logits=False)
        before = [buffer.clone() for pair in lm.cache.buffers for buffer in pair]
        tokens = torch.tensor([[1], [2], [3]])
        lm.forward((0, 1, 2), Proposal.empty(tokens))
        after = [buffer for pair in lm.cache.buffers for buffer in pair]
        spare = lm.cache.num_columns - passes.sizes[-1]
        for old, new in zip(before, after, strict=True):
            changed = (old != new).any(-1).any(-1)
            assert changed[:3].nonzero().tolist() == [[0, 2], [1, 1], [2, 3]]
            assert changed[3, :spare].sum() == 0
            assert changed[3, spare] == 1
        assert isinstance(passes.graphs.keys[-1][0].rows, int)
        assert passes.graphs.keys[-1][0].rows == 4

    def test_rules_have_a_graph_for_each_way_of_sampling(self) -> None:
        lm = CausalLM(copy.deepcopy(MODEL), max_len=64, graphs=True)
        engine = Engine(lm, NGram(3, 2, 1), max_batch_size=3)
        for temperature, top_k in ((0.0, 0), (1.0, 0), (1.0, 3)):
            sampling = SamplingParams(
                temperature=temperature, top_k=top_k, max_new_tokens=6, seed=1
            )
            engine.generate_all(PROMPTS, sampling)
        assert lm.passes is not None
        rules = [key for key in lm.passes.graphs.keys if key[0] is Rejection]
        assert len({key[-1] for key in rules}) == 3
        again = Engine(lm, NGram(3, 2, 1), Rejection(), max_batch_size=3)
        again.generate_all(PROMPTS, SamplingParams(max_new_tokens=6, seed=1))
        assert [key for key in lm.passes.graphs.keys if key[0] is Rejection] == rules
