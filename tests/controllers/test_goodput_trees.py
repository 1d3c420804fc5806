"""Goodput steers trees by depth before drafting, and by scores after it."""

from collections.abc import Callable
from dataclasses import replace
from math import ceil

import pytest
from shape_checks import unchecked
from simulation import Machine, batch_of, rows_of
from tree_stream import TreeStream

from specresearch import Engine, SamplingParams
from specresearch.batch import Batch
from specresearch.certification.cases import CHUNK_SIZE, SampledSetting
from specresearch.certification.counts import Tally
from specresearch.certification.targets import Toy
from specresearch.controllers import Controller, Goodput
from specresearch.controllers.tree_size import _LEAST, _SPARE
from specresearch.metrics import StepRecord
from specresearch.metrics.times import StepTimes
from specresearch.proposal import Proposal
from specresearch.proposers import (
    DraftModel,
    Eagle,
    Eagle3,
    Medusa,
    Proposer,
    Suffix,
    TokenRecycling,
)

pytestmark = pytest.mark.filterwarnings(
    "ignore:the target is:UserWarning", "ignore:the draft has:UserWarning"
)
ALPHA, POWER, VISIBLE_TV, SLOTS = 1e-4, 0.95, 0.15, 32
LEVEL, NODE = 0.02, 0.003  # seconds; plain steps take one


def test_a_tree_that_finds_its_depth_is_not_cut_to_what_is_expected_to_pay() -> None:
    batch = batch_of(rows_of(2))
    limits = []
    for proposer in (TokenRecycling(8), Suffix(8), Suffix(8, branch=False)):
        controller = Goodput()
        controller.bind(proposer.kind, proposer.num_draft_tokens)
        for _ in range(4):  # first steps draft from the fourth on
            asked = controller.budget(batch)
            controller._schedule.step += 1
        assert any(asked)
        limits.append(controller.max_depth(batch))
    assert limits[0] in range(1, 4)
    assert limits[1:] == [None, None]


class OnAMachine(Goodput):
    """Reads the times of a machine on which nodes cost, instead of a clock."""

    def __init__(self, node: float = NODE) -> None:
        super().__init__(explore=0.05)
        self.node = node
        self.num_left_out = 0
        self.depths: set[int] = set()

    def trim(self, proposal: Proposal) -> Proposal:
        part = super().trim(proposal)
        self.num_left_out += int(proposal.lengths.sum() - part.lengths.sum())
        return part

    def observe(self, record: StepRecord) -> None:
        self.depths.add(max(self._asked))
        propose = LEVEL * max(self._asked)
        verify = 1.0 + self.node * sum(record.num_draft_tokens)
        times = StepTimes(propose, verify, 0.0, 0.0, propose + verify)
        super().observe(replace(record, times=times))


TREES: dict[str, Callable[[Toy], Proposer]] = {
    "eagle": lambda toy: Eagle.toy(toy.target(), 1),
    "eagle3": lambda toy: Eagle3.toy(toy.target(), 1),
    "eagle_static": lambda toy: Eagle.toy(toy.target(), 1, tree="static"),
    "medusa": lambda toy: Medusa.toy(toy.target(), 1),
    "draft_model": lambda toy: DraftModel(toy.draft(), 12, tree="dynamic", depth=3, top_k=3),
    "draft_model_sampled": lambda toy: DraftModel(
        toy.draft(), tree="static", paths=[[0], [1], [0, 0], [0, 1], [0, 0, 0]]
    ),
    "token_recycling": lambda toy: TokenRecycling.toy(toy.target(), 1),
    "suffix": lambda toy: Suffix(8, offset=2.0),
}


def decoded(
    toy: Toy, proposer: Proposer, controller: Controller, prompt: tuple[int, ...] = (1, 2)
) -> tuple[Tally, SampledSetting]:
    sampling = SamplingParams(temperature=1.0, max_new_tokens=4)
    setting = SampledSetting.build(
        "plain", 0, sampling, prompt, toy=toy, tv=VISIBLE_TV, alpha=ALPHA, power=POWER
    )
    tally = Tally([0] * len(setting.distribution.outputs))
    engine = Engine(toy.target(), proposer, controller=controller, max_batch_size=SLOTS)
    with unchecked():
        for chunk in range(-(-setting.num_samples // CHUNK_SIZE)):
            for output in engine.generate(setting.requests(chunk, seed=0)):
                tally.add(output, setting.distribution)
    return tally, setting


@pytest.mark.parametrize("name", TREES)
def test_sampled_output_has_the_enumerated_distribution(name: str) -> None:
    # Random heads score every token alike, and more than a cheap node costs. By the prompt a suffix
    # tree knows that one token is likelier than another.
    node = 4 * NODE if name in ("eagle", "medusa", "suffix") else NODE
    prompt = (1, 2, 3, 1, 2, 3, 1, 2, 0, 1, 2) if name == "suffix" else (1, 2)
    toy, controller = Toy(4, seed=4), OnAMachine(node)
    tally, setting = decoded(toy, TREES[name](toy), controller, prompt)
    assert tally.fit(setting.distribution).p_value > ALPHA
    assert 0 < tally.num_accepted_tokens < tally.num_draft_tokens
    assert (controller.num_left_out > 0) == (name != "draft_model_sampled")
    assert len(controller.depths) > 1


@pytest.mark.parametrize(("node", "least", "most"), [(1e-6, 8, 16), (3e-3, 1, 2)])
def test_trees_are_drafted_as_wide_as_they_are_verified(node: float, least: int, most: int) -> None:
    """Levels hold 3, 6, 6 and 6 nodes, all of which are verified if that costs nothing."""
    controller = Goodput()
    stream = TreeStream(Machine(draft=0.1e-3, verify=8e-3, verify_token=node), 4, 200, 0.9)
    stream.throughput(controller, seed=0)
    width = controller.max_width(batch_of(rows_of(4)))
    assert width is not None
    assert least <= width <= most
    controller.budget(batch_of([*rows_of(1, num_draft_tokens=9), *rows_of(3)]))
    assert controller.max_width(batch_of(rows_of(4))) is None  # a request's own number holds


class Cautious(Goodput):
    """Keeps the most nodes of a row that it asked for and that were verified, step by step."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[tuple[int, int, int]] = []

    def budget(self, batch: Batch) -> list[int | None]:
        budget = super().budget(batch)
        self.asked = max(number or 0 for number in budget)
        return budget

    def observe(self, record: StepRecord) -> None:
        self.log.append((self.asked, max(self._asked), max(record.num_draft_tokens)))
        super().observe(record)


def test_nodes_that_seem_to_cost_nothing_become_more_step_by_step() -> None:
    """What a tree would take that is far larger than any before, a fit to small ones cannot say."""
    controller = Cautious()
    free = Machine(draft=0.1e-3, verify=8e-3, verify_token=0.0)
    TreeStream(free, 1, 200, 0.9).throughput(controller, 0)
    most = 0
    for asked, depth, verified in controller.log:
        assert asked <= 2 * max(_LEAST * depth, ceil(_SPARE * most))
        most = max(most, verified)
    assert most == len(TreeStream(free, 1, 1).parents) - 1


@pytest.mark.parametrize("confidence", [0.9, 0.97])
def test_deep_drafts_are_made_though_the_first_trees_were_wide(confidence: float) -> None:
    """Only one node a level is worth its time, and the first steps verify three."""
    machine = Machine(draft=2.4e-3, verify=7e-3, verify_token=0.2e-3)
    stream = TreeStream(machine, 16, 200, confidence)
    best = max(machine.rate([depth] * 16, [confidence] * 16) for depth in range(5))
    assert stream.throughput(Goodput(), seed=0) > 0.93 * best


class TrimsSampledDrafts(OnAMachine):
    """Takes sampled drafts for point masses: keeps those of a high score alone."""

    def trim(self, proposal: Proposal) -> Proposal:
        trimmed = super().trim(replace(proposal, draft_probs=None))
        probs = proposal.draft_probs
        if probs is None or trimmed is proposal:
            return trimmed
        return replace(trimmed, draft_probs=probs[:, : trimmed.topology.num_nodes])


def test_sampled_drafts_must_not_be_chosen_by_their_own_score() -> None:
    """The control: the same choice among the drafts of a sampled chain is refuted."""
    toy = Toy(4, seed=4)
    tally, setting = decoded(toy, DraftModel(toy.draft(), 3), TrimsSampledDrafts(0.01))
    assert tally.fit(setting.distribution).p_value < 1e-9
    tally, setting = decoded(toy, DraftModel(toy.draft(), 3), OnAMachine(0.01))
    assert tally.fit(setting.distribution).p_value > ALPHA
