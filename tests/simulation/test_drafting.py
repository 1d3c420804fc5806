"""Recorded requests drafted again: equal to what the engine does, where that is claimed."""

from pathlib import Path

import pytest
from recorded import NGRAM, SIDE, decoded, draft_model, ngram, record, requests_of

from specresearch.acceptance import Block, Rejection, Typical
from specresearch.controllers import Fixed, Goodput
from specresearch.metrics import Counts
from specresearch.proposers import DraftModel, Suffix
from specresearch.recording.recording import Recording
from specresearch.simulation import Drafting

pytestmark = pytest.mark.filterwarnings("ignore:the target is:UserWarning")


def replayed(drafting: Drafting, num_draft_tokens: int, copy: int = 0) -> dict[str, Counts]:
    """Every request on its own, under a fixed draft length."""
    found = {}
    for number, request in enumerate(drafting.requests):
        replay, counts, position = drafting.replay(number, copy), Counts(), 0
        while position < request.num_tokens:
            room = request.sampling.max_new_tokens - position - 1
            made = replay.step(position, min(num_draft_tokens, room))
            new = min(made.accepted + 1, request.num_tokens - position)
            counts.add_step(made.num, made.depth, min(made.accepted, new), new)
            position += new
        found[request.id] = counts
    return found


def drafting_of(recording: Recording, num_draft_tokens: int, rule: str = "rejection") -> Drafting:
    return Drafting(recording, SIDE, rule, num_draft_tokens)


@pytest.fixture(scope="module")
def greedy_ngram(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    config = {"proposer": NGRAM}
    return record(tmp_path_factory.mktemp("ngram"), ngram(), requests_of(6), config=config)


@pytest.mark.parametrize("num_draft_tokens", [1, 3, 8])
def test_ngram_drafts_are_made_again_exactly(
    greedy_ngram: Recording, num_draft_tokens: int
) -> None:
    drafting = drafting_of(greedy_ngram, 8)
    assert drafting.can_redraft
    counts = replayed(drafting, num_draft_tokens)
    assert counts == decoded(ngram(), requests_of(6), controller=Fixed(num_draft_tokens))
    assert sum(count.num_accepted_tokens for count in counts.values()) > 10


def test_ngram_drafts_can_be_longer_than_recorded(greedy_ngram: Recording) -> None:
    assert replayed(drafting_of(greedy_ngram, 12), 12) == decoded(ngram(12), requests_of(6))


def test_every_proposer_that_reads_tokens_only_is_asked_again(tmp_path: Path) -> None:
    settings = {"num_draft_tokens": 6, "min_probability": 0.3, "branch": False}
    config = {"proposer": {"_target_": "specresearch.proposers.Suffix", **settings}}
    recording = record(tmp_path, Suffix(**settings), requests_of(4), config=config)
    assert drafting_of(recording, 6).can_redraft
    assert replayed(drafting_of(recording, 6), 2) == decoded(
        Suffix(**settings), requests_of(4), controller=Fixed(2)
    )
    config["proposer"]["use_global"] = True  # what earlier requests taught is not in a recording
    other = record(
        tmp_path / "global", Suffix(**settings, use_global=True), requests_of(2), config=config
    )
    assert not drafting_of(other, 6).can_redraft


@pytest.fixture(scope="module")
def greedy_draft_model(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    return record(tmp_path_factory.mktemp("draft"), draft_model(24), requests_of(6))


@pytest.mark.parametrize("num_draft_tokens", [1, 3, 24])
def test_a_greedy_draft_lm_is_replayed_exactly_at_every_length(
    greedy_draft_model: Recording, num_draft_tokens: int
) -> None:
    drafting = drafting_of(greedy_draft_model, 24)
    assert not drafting.can_redraft
    assert drafting.always_drafts_all
    assert all(
        positions.is_judged[:-1].all() for positions in drafting._known
    )  # drafts were as long as the output
    counts = replayed(drafting, num_draft_tokens)
    actual = decoded(draft_model(24), requests_of(6), controller=Fixed(num_draft_tokens))
    assert counts == actual
    assert sum(count.num_accepted_tokens for count in counts.values()) > 10


NUM_SAMPLED = 40


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    return record(
        tmp_path_factory.mktemp("warm"),
        draft_model(6),
        requests_of(NUM_SAMPLED, 1.0),
        batch_size=NUM_SAMPLED,
    )


def test_the_recorded_setting_is_repeated_draw_by_draw(warm: Recording) -> None:
    drafting = drafting_of(warm, 6)
    own = {r.id: [(s.position, s.num_accepted) for s in r.steps] for r in drafting.requests}
    for number, request in enumerate(drafting.requests):
        replay, position = drafting.replay(number), 0
        for at, accepted in own[request.id]:
            assert at == position
            made = replay.step(position, min(6, request.sampling.max_new_tokens - position - 1))
            new = min(made.accepted + 1, request.num_tokens - position)
            assert min(made.accepted, new) == accepted
            position += new
    assert replayed(drafting, 6, copy=1) != replayed(drafting, 6, copy=2)


@pytest.mark.parametrize(
    ("rule", "num_draft_tokens"), [("rejection", 2), ("rejection", 4), ("block", 4)]
)
def test_other_lengths_and_rules_agree_with_the_engine_within_sampling_error(
    warm: Recording, rule: str, num_draft_tokens: int
) -> None:
    drafting = drafting_of(warm, 6, rule)
    again = Counts.total(
        [c for copy in range(4) for c in replayed(drafting, num_draft_tokens, copy).values()]
    )
    sampler = {"rejection": Rejection, "block": Block}[rule]()
    counts = decoded(
        draft_model(6),
        requests_of(NUM_SAMPLED, 1.0),
        acceptance=sampler,
        controller=Fixed(num_draft_tokens),
        batch_size=NUM_SAMPLED,
    )
    actual = Counts.total(list(counts.values()))
    assert again.tokens_per_target_forward == pytest.approx(
        actual.tokens_per_target_forward, rel=0.06
    )
    assert again.draft_acceptance_rate == pytest.approx(actual.draft_acceptance_rate, rel=0.1)


def test_blocks_keep_more_than_tokens_judged_one_by_one(warm: Recording) -> None:
    one_by_one, blocks = (
        Counts.total(
            [
                c
                for copy in range(1, 5)
                for c in replayed(drafting_of(warm, 6, rule), 6, copy).values()
            ]
        )
        for rule in ("rejection", "block")
    )
    assert blocks.draft_acceptance_rate > one_by_one.draft_acceptance_rate


def test_drafts_that_stop_early_are_the_rest_of_the_recorded_ones(tmp_path: Path) -> None:
    recording = record(
        tmp_path, ngram(), requests_of(4)
    )  # without its configuration nobody can be asked again
    drafting = drafting_of(recording, 8)
    assert not drafting.can_redraft
    assert not drafting.always_drafts_all
    assert replayed(drafting, 8) == decoded(ngram(), requests_of(4))
    assert "rest of that one" in drafting.assumption


def test_a_lossy_rule_is_replayed_as_it_went(tmp_path: Path) -> None:
    rule = Typical(0.01, 0.9)
    recording = record(tmp_path, draft_model(4), requests_of(4, 1.0), acceptance=rule)
    drafting = drafting_of(recording, 4, "typical")
    assert replayed(drafting, 4) == decoded(draft_model(4), requests_of(4, 1.0), acceptance=rule)
    with pytest.raises(ValueError, match="nothing follows for acceptance=rejection"):
        drafting_of(recording, 4)


def test_recorded_trees_are_replayed(tmp_path: Path) -> None:
    paths = [[0], [1], [0, 0], [0, 1], [1, 0]]
    proposer = draft_model_tree(paths)
    recording = record(tmp_path, proposer, requests_of(4))
    drafting = drafting_of(recording, 5)
    counts, actual = replayed_trees(drafting), decoded(draft_model_tree(paths), requests_of(4))
    assert {id: c.num_target_forwards for id, c in counts.items()} == {
        id: c.num_target_forwards for id, c in actual.items()
    }
    with pytest.raises(ValueError, match=r"num_draft_tokens=3: the recording has trees of 5 nodes"):
        drafting_of(recording, 3)
    with pytest.raises(ValueError, match="cannot judge the recorded drafts: they may branch"):
        drafting_of(recording, 5, "block")


def draft_model_tree(paths: list[list[int]]) -> DraftModel:
    return draft_model(None, tree="static", paths=paths)


def replayed_trees(drafting: Drafting) -> dict[str, Counts]:
    found = {}
    for number, request in enumerate(drafting.requests):
        replay, counts, position = drafting.replay(number), Counts(), 0
        while position < request.num_tokens:
            has_room = request.sampling.max_new_tokens - position > 1
            made = replay.step(position, 5 if has_room else 0)
            new = min(made.accepted + 1, request.num_tokens - position)
            counts.add_step(made.num, made.depth, min(made.accepted, new), new)
            position += new
        found[request.id] = counts
    return found


def test_typical_acceptance_is_exact_at_temperature_0(greedy_draft_model: Recording) -> None:
    engine = decoded(draft_model(24), requests_of(6), acceptance=Typical(), controller=Fixed(3))
    counts = replayed(drafting_of(greedy_draft_model, 24, "typical"), 3)
    assert {name: count.num_accepted_tokens for name, count in counts.items()} == {
        name: count.num_accepted_tokens for name, count in engine.items()
    }
    with pytest.raises(ValueError, match="acceptance=threshold moves the output to another text"):
        drafting_of(greedy_draft_model, 24, "threshold")


def test_what_only_the_model_knows_is_refused(
    warm: Recording, greedy_ngram: Recording, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="acceptance=typical moves the output to another text"):
        drafting_of(warm, 6, "typical")
    with pytest.raises(
        ValueError, match=r"exact for temperature 0 only, and the recording has temperature=1.0"
    ):
        drafting_of(warm, 6, "greedy")
    with pytest.raises(ValueError, match="acceptance=best is not known"):
        drafting_of(warm, 6, "best")
    assert replayed(drafting_of(greedy_ngram, 8, "greedy"), 3) == replayed(
        drafting_of(greedy_ngram, 8, "block"), 3
    )
    chosen = record(
        tmp_path, draft_model(4), requests_of(2), controller=Goodput(max_draft_tokens=4)
    )
    with pytest.raises(
        ValueError, match="recorded under a controller that chose how much to draft"
    ):
        drafting_of(chosen, 4)
    assert drafting_of(chosen, 0).assumption == "nothing is drafted"
