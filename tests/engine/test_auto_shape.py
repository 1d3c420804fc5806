"""Engines with a proposer that leaves its shape to `auto`."""

import logging
from collections.abc import Callable

import pytest
from tiny_models import VOCAB, build, letters_tokenizer

import specresearch
from specresearch import CausalLM, Engine, SamplingParams
from specresearch.controllers import Fixed, Goodput
from specresearch.models.medusa import MedusaHeads
from specresearch.proposal import DraftForecast
from specresearch.proposers import (
    Autoregressive,
    Cascade,
    DraftModel,
    Eagle,
    Lookahead,
    Medusa,
    NGram,
    Proposer,
    Suffix,
    TokenRecycling,
)
from specresearch.proposers.draft_shape import AUTO, DraftShape
from specresearch.shape_store import Identity, ShapeChoice, ShapeStore

pytestmark = pytest.mark.filterwarnings("ignore:the target is:UserWarning")

MAX_LEN = 64
GREEDY = SamplingParams(temperature=0.0, max_new_tokens=12)
PROMPTS = [[1, 2, 3, 1, 2], [5, 6, 7], [8, 9, 8, 9]]


def model(seed: int = 1) -> CausalLM:
    return CausalLM(
        build("llama", seed=seed, max_position_embeddings=MAX_LEN),
        letters_tokenizer(VOCAB),
        max_len=MAX_LEN,
    )


def keep(
    target: CausalLM,
    proposer: Proposer,
    shape: DraftShape,
    batch_size: int = 1,
    forecast: DraftForecast | None = None,
) -> None:
    proposer.bind(target, 0)
    choice = ShapeChoice(shape, shape, 1.5, 1.5, 1.2, "measured in a test", forecast)
    ShapeStore(Identity.of(target, proposer, batch_size)).save({}, choice)


@pytest.mark.parametrize(
    ("proposer", "length"),
    [
        (NGram(AUTO), 3),
        (TokenRecycling(AUTO), 3),
        (DraftModel(model(2), AUTO, tree=AUTO), 3),
        (DraftModel(model(2), 7, tree=AUTO), 7),
    ],
)
def test_without_a_measurement_it_drafts_little_and_says_so_once(
    proposer: Proposer, length: int, caplog: pytest.LogCaptureFixture
) -> None:
    target = model()
    for _ in range(2):
        with caplog.at_level(logging.WARNING):
            engine = Engine(target, proposer)
    assert engine.proposer.num_draft_tokens == length
    assert [record.message for record in caplog.records] == [
        f"no measurement says how much {type(proposer).__name__} should draft here, so it drafts "
        f"{proposer.chosen}; specresearch.calibrate measures it"
    ]


def test_takes_the_choice_that_is_kept_for_the_same_models_and_batch_size() -> None:
    target = model()
    keep(target, NGram(AUTO), DraftShape(7))
    assert Engine(target, NGram(AUTO)).proposer.num_draft_tokens == 7
    assert Engine(target, NGram(AUTO), max_batch_size=2).proposer.num_draft_tokens == 3
    assert Engine(model(2), NGram(AUTO)).proposer.num_draft_tokens == 3


FORECAST = DraftForecast(
    (0.5, 0.2), (0.9, 0.8), 0.9, 1, ((0, 0.0), (2, 0.01)), ((0, 0.1), (3, 0.13))
)


class Told(Fixed):
    """Keeps what it is told of the drafts to come."""

    forecast: DraftForecast | None = None

    def foresee(self, forecast: DraftForecast) -> None:
        self.forecast = forecast


def test_the_controller_learns_what_was_measured() -> None:
    target, forecast, told = model(), FORECAST, Told()
    keep(target, NGram(AUTO), DraftShape(2), forecast=forecast)
    Engine(target, NGram(AUTO), controller=told)
    assert told.forecast == forecast
    unmeasured = Told()
    Engine(target, NGram(4), controller=unmeasured)
    assert unmeasured.forecast is None


def medusa(target: CausalLM) -> Medusa:
    return Medusa(MedusaHeads(target.model.config.hidden_size, VOCAB, 3), AUTO)


@pytest.mark.parametrize(
    "make",
    [
        lambda target: NGram(AUTO),
        lambda target: Suffix(AUTO),
        lambda target: Lookahead(num_draft_tokens=AUTO),
        lambda target: TokenRecycling(AUTO),
        lambda target: Cascade([NGram(), DraftModel(model(2))], AUTO),
        lambda target: DraftModel(model(2), AUTO, tree=AUTO),
        lambda target: Eagle.toy(target, 0, tree=AUTO),
        medusa,
    ],
    ids=[
        "ngram",
        "suffix",
        "lookahead",
        "token_recycling",
        "cascade",
        "draft_model",
        "eagle",
        "medusa",
    ],
)
def test_where_nothing_pays_the_drafter_is_left_out(make: Callable[[CausalLM], Proposer]) -> None:
    target = model()
    proposer = make(target)
    keep(target, proposer, DraftShape(0))
    proposer.draft_as(proposer.shapes[0])  # as a calibration does
    proposer.draft_as(DraftShape(0))
    engine = Engine(target, proposer, controller=Goodput())
    assert isinstance(engine.proposer, Autoregressive)
    assert type(engine.controller) is Fixed
    plain = Engine(target).generate_all(PROMPTS, GREEDY)
    outputs = engine.generate_all(PROMPTS, GREEDY)
    assert [output.token_ids for output in outputs] == [output.token_ids for output in plain]


@pytest.mark.parametrize(
    "name", ["ngram", "draft_model", pytest.param("token_recycling", marks=pytest.mark.slow)]
)
def test_calibrated_proposers_decode_what_plain_decoding_does(name: str) -> None:
    target = model()
    make = {
        "ngram": lambda: NGram(AUTO),
        "token_recycling": lambda: TokenRecycling(AUTO, top_k=3, depth=3),
        "draft_model": lambda: DraftModel(model(2), AUTO, tree=AUTO, depth=3, top_k=3),
    }[name]
    proposer = make()
    choice = specresearch.calibrate(target, proposer, PROMPTS, GREEDY)
    assert proposer.chosen == choice.shape
    plain = Engine(target).generate_all(PROMPTS, GREEDY)
    for shape in (choice.shape, choice.best):
        proposer.draft_as(shape)
        outputs = Engine(target, proposer).generate_all(PROMPTS, GREEDY)
        assert [output.token_ids for output in outputs] == [output.token_ids for output in plain]
    assert Engine(target, make()).proposer.num_draft_tokens == choice.shape.num_draft_tokens


def test_there_is_nothing_to_calibrate_without_auto() -> None:
    with pytest.raises(ValueError, match="leave num_draft_tokens to 'auto'"):
        specresearch.calibrate(model(), NGram(4), PROMPTS)
