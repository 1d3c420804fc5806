"""Matrix 2: greedy output equals `transformers.generate`, whatever proposer and batch size."""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import lru_cache
from typing import Any

import pytest
import torch
from shape_checks import unchecked
from stale_rows import StaleRows
from tiny_models import VOCAB, build, letters, letters_tokenizer
from transformers import PreTrainedModel

from specresearch import CausalLM, Engine, Request, RequestOutput, SamplingParams
from specresearch.acceptance import AcceptanceSampler, Greedy, Rejection
from specresearch.batch import Batch
from specresearch.controllers import Fixed
from specresearch.models.eagle_format import FORMATS
from specresearch.models.eagle_head import EagleHead
from specresearch.models.medusa import MedusaHeads
from specresearch.models.vocabulary import Vocabulary
from specresearch.proposers import (
    Cascade,
    DraftModel,
    DraftModelOtherTokenizer,
    Eagle,
    Eagle3,
    LayerSkip,
    Lookahead,
    Medusa,
    NGram,
    Proposer,
    Suffix,
    Synthetic,
    TokenRecycling,
)

pytestmark = pytest.mark.filterwarnings(
    "ignore:the target is:UserWarning", "ignore:the draft has:UserWarning"
)

PROMPT_LENGTHS = (1, 7, 2, 12, 1, 20, 3, 5, 9)
LONGEST_OUTPUT = 18
MAX_LEN = 48
TARGET: dict[str, Any] = {"seed": 1, "max_position_embeddings": MAX_LEN}
Factory = Callable[[], Proposer | None]


def prompts() -> list[tuple[int, ...]]:
    """Draw ragged prompts; every other one repeats a pattern that n-grams can match at once."""
    generator = torch.Generator().manual_seed(5)
    result = []
    for i, length in enumerate(PROMPT_LENGTHS):
        period = length if i % 2 else (length + 2) // 3
        pattern = torch.randint(0, VOCAB, (period,), generator=generator).tolist()
        result.append(tuple((pattern * length)[:length]))
    return result


PROMPTS = prompts()


@lru_cache
def reference() -> PreTrainedModel:
    return build("llama", **TARGET)


@lru_cache
def generated(
    prompt: tuple[int, ...], max_new_tokens: int = LONGEST_OUTPUT, **settings: Any
) -> tuple[int, ...]:
    """Return the tokens that transformers generates after the prompt."""
    if "stop_strings" in settings:
        settings |= {
            "tokenizer": letters_tokenizer(),
            "stop_strings": list(settings["stop_strings"]),
        }
    ids = torch.tensor([prompt])
    model: Any = reference()
    output = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=max_new_tokens,
        pad_token_id=0,
        **settings,
    )
    return tuple(output[0, len(prompt) :].tolist())


@lru_cache
def target() -> CausalLM:
    return CausalLM(
        copy.deepcopy(reference()), letters_tokenizer(), max_len=MAX_LEN, prefill_chunk=6
    )


def in_two_parts() -> CausalLM:
    return CausalLM(
        copy.deepcopy(reference()), max_len=MAX_LEN, attention="two_part", prefill_chunk=6
    )


@lru_cache
def other_draft() -> CausalLM:
    model = build(
        "llama", seed=9, hidden_size=8, num_hidden_layers=1, max_position_embeddings=MAX_LEN
    )
    return CausalLM(model, letters_tokenizer(), max_len=MAX_LEN)


@lru_cache
def target_as_draft() -> CausalLM:
    return CausalLM(copy.deepcopy(reference()), letters_tokenizer(), max_len=MAX_LEN)


def other_words(**settings: Any) -> Proposer:
    """Return a proposer whose draft is the target, except that it lacks some of its words."""
    words = Vocabulary.of(target())
    pieces = [None if id % 5 == 0 else piece for id, piece in enumerate(words.pieces)]
    vocabularies = words, Vocabulary(pieces)
    return DraftModelOtherTokenizer(target_as_draft(), vocabularies=vocabularies, **settings)


def eagle_head(version: int, fc_width: int, draft_vocab_size: int | None = None) -> EagleHead:
    config: Any = reference().config
    return EagleHead.of(FORMATS[version](config, fc_width, draft_vocab_size=draft_vocab_size))


PROPOSERS: dict[str, Factory] = {
    "none": lambda: None,
    "ngram_10": lambda: NGram(10),
    "ngram_1_unigram": lambda: NGram(1, n_max=1, n_min=1),
    "ngram_4_short": lambda: NGram(4, n_max=2, n_min=1),
    "other_draft_5": lambda: DraftModel(other_draft(), 5),
    "other_draft_1": lambda: DraftModel(other_draft(), 1, sample=False),
    "target_as_draft_4": lambda: DraftModel(target_as_draft(), 4),
    "static_tree_12": lambda: DraftModel(other_draft(), 12, tree="static", depth=4),
    "dynamic_tree_12": lambda: DraftModel(target_as_draft(), 12, tree="dynamic", depth=4, top_k=3),
    "exit_after_1": lambda: LayerSkip(1, num_draft_tokens=4),
    "skip_in_a_tree": lambda: LayerSkip(
        skip_attention=[1], skip_mlp=[0], num_draft_tokens=12, tree="dynamic", depth=4, top_k=3
    ),
    "tokens_in_common_tree_12": lambda: other_words(
        num_draft_tokens=12, tree="dynamic", depth=4, top_k=3
    ),
    "text_where_tokens_differ_5": lambda: other_words(mode="hybrid", num_draft_tokens=5),
    "token_recycling_cold": lambda: TokenRecycling(20, top_k=4, depth=4),
    "token_recycling_warm": lambda: TokenRecycling(
        paths=[[0], [1], [0, 0], [0, 1], [0, 0, 0]], warm=True
    ),
    "lookahead": lambda: Lookahead(window_size=4, ngram_size=3, num_ngrams=3),
    "lookahead_3_drafts": lambda: Lookahead(4, 3, 3, num_draft_tokens=3),
    "lookahead_smallest": lambda: Lookahead(window_size=1, ngram_size=2, num_ngrams=1),
    "suffix": lambda: Suffix(8, offset=1.0),
    "suffix_global": lambda: Suffix(
        8, offset=2.0, max_depth=8, use_global=True, max_global_nodes=100
    ),
    "suffix_chains": lambda: Suffix(4, offset=1.0, branch=False),
    "cascade_of_drafts": lambda: Cascade([NGram(3, n_max=2), DraftModel(other_draft(), 4)]),
    "cascade_of_its_first": lambda: Cascade(
        [NGram(3, n_max=2), DraftModel(other_draft(), 4)], 2, num_proposers=1
    ),
    "cascade_of_trees": lambda: Cascade(
        [Suffix(6), NGram(9, n_max=1, n_min=1), TokenRecycling(12, depth=3)]
    ),
    "medusa": lambda: Medusa(MedusaHeads(16, VOCAB, 3), 12),
    "eagle_chain": lambda: Eagle(eagle_head(1, 32), 3, tree="chain"),
    "eagle_dynamic": lambda: Eagle(eagle_head(1, 32), 10, depth=3, top_k=3),
    "eagle3_static": lambda: Eagle3(
        eagle_head(3, 48, VOCAB), 9, tree="static", depth=3, layer_ids=[0, 1, 2]
    ),
    "synthetic_chain": lambda: Synthetic(DraftModel(other_draft(), 5), [0.9, 0.5]),
    "synthetic_tree": lambda: Synthetic(Medusa(MedusaHeads(16, VOCAB, 3), 12), 0.7),
    "synthetic_eagle3": lambda: Synthetic(
        Eagle3(eagle_head(3, 48, VOCAB), 10, depth=3, top_k=3, layer_ids=[0, 1, 2]), 0.8
    ),
    "synthetic_lookahead": lambda: Synthetic(Lookahead(window_size=4, ngram_size=3, num_ngrams=3)),
    "cascade_to_medusa": lambda: Cascade(
        [NGram(3, n_max=2), Medusa(MedusaHeads(16, VOCAB, 3), 12)]
    ),
    "cascade_to_eagle": lambda: Cascade(
        [NGram(3, n_max=2), Eagle(eagle_head(1, 32), 10, depth=3, top_k=3)]
    ),
    "cascade_to_eagle3": lambda: Cascade(
        [NGram(3, n_max=2), Eagle3(eagle_head(3, 48, VOCAB), 3, tree="chain", layer_ids=[0, 1, 2])]
    ),
}
SAMPLING = [name for name in PROPOSERS if not name.startswith("synthetic")]  # not greedy only
BATCH_SIZES = (1, 3, 8)


@pytest.fixture(params=PROPOSERS)
def proposer(request: pytest.FixtureRequest) -> Proposer | None:
    return PROPOSERS[request.param]()


@pytest.fixture(params=BATCH_SIZES)
def batch_size(request: pytest.FixtureRequest) -> Iterator[int]:
    """Shapes and types are checked in batches of 3 only; the checks would take most of the time."""
    with nullcontext() if request.param == 3 else unchecked():
        yield request.param


def run(engine: Engine, sampling: Sequence[SamplingParams]) -> list[RequestOutput]:
    requests = [
        Request(p, s, str(i)) for i, (p, s) in enumerate(zip(PROMPTS, sampling, strict=True))
    ]
    outputs = {output.id: output for output in engine.generate(requests)}
    return [outputs[request.id] for request in requests]


def ids(outputs: Sequence[RequestOutput]) -> list[tuple[int, ...]]:
    return [output.token_ids for output in outputs]


def same(**settings: Any) -> list[SamplingParams]:
    return [SamplingParams(max_new_tokens=LONGEST_OUTPUT, **settings)] * len(PROMPTS)


def test_output_equals_generate(proposer: Proposer | None, batch_size: int) -> None:
    outputs = run(Engine(target(), proposer, max_batch_size=batch_size), same())
    assert ids(outputs) == [generated(p) for p in PROMPTS]
    assert {output.finish_reason for output in outputs} == {"length"}


@pytest.mark.parametrize(
    "proposer",
    [
        lambda: None,
        lambda: DraftModel(in_two_parts(), 12, tree="dynamic", depth=4, top_k=3),
        PROPOSERS["token_recycling_cold"],
        PROPOSERS["eagle_chain"],
        PROPOSERS["eagle_dynamic"],
    ],
    ids=["none", "dynamic_tree_12", "token_recycling_cold", "eagle_chain", "eagle_dynamic"],
)
def test_attention_in_two_parts_equals_generate(proposer: Factory) -> None:
    outputs = run(Engine(in_two_parts(), proposer(), max_batch_size=3), same())
    assert ids(outputs) == [generated(p) for p in PROMPTS]


def with_graphs(attention: str = "slot") -> CausalLM:
    return CausalLM(
        copy.deepcopy(reference()),
        letters_tokenizer(),
        max_len=MAX_LEN,
        attention=attention,
        prefill_chunk=6,
        graphs=True,
    )


@pytest.mark.parametrize("attention", ["slot", "two_part"])
@pytest.mark.parametrize("name", PROPOSERS)
def test_passes_on_the_padded_buffers_of_graphs_equal_generate(
    name: str, attention: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drafters have graphs, too."""
    for draft in ("other_draft", "target_as_draft"):
        model = globals()[draft]().model
        lm = CausalLM(copy.deepcopy(model), letters_tokenizer(), max_len=MAX_LEN, graphs=True)
        monkeypatch.setitem(globals(), draft, lambda lm=lm: lm)
    with unchecked():
        outputs = run(Engine(with_graphs(attention), PROPOSERS[name](), max_batch_size=3), same())
    assert ids(outputs) == [generated(p) for p in PROMPTS]


@pytest.mark.parametrize("acceptance", [Greedy(), Rejection()], ids=["greedy", "rejection"])
@pytest.mark.parametrize("num_drafts", [2, 9])
def test_trees_equal_generate(
    acceptance: AcceptanceSampler,
    num_drafts: int,
    batch_size: int,
    oracle_tree: Callable[..., Proposer],
) -> None:
    """With trees, the keys and values of the accepted path must move, which chains never need."""
    proposer = oracle_tree(lambda prompt: [*prompt, *generated(tuple(prompt))], num_drafts)
    outputs = run(Engine(target(), proposer, acceptance, max_batch_size=batch_size), same())
    assert ids(outputs) == [generated(p) for p in PROMPTS]
    assert sum(output.record.counts.num_accepted_tokens for output in outputs) > 30


@pytest.mark.parametrize("name", ["ngram_10", "other_draft_5", "target_as_draft_4"])
def test_speculation_really_happens(name: str) -> None:
    outputs = run(Engine(target(), PROPOSERS[name](), max_batch_size=3), same())
    accepted = sum(output.record.counts.num_accepted_tokens for output in outputs)
    drafted = sum(output.record.counts.num_draft_tokens for output in outputs)
    assert drafted > accepted > 0 or accepted == drafted > 0
    assert (accepted == drafted) == (name == "target_as_draft_4")


def cut_at(tokens: tuple[int, ...], end_ids: Sequence[int], limit: int) -> tuple[int, ...]:
    for i, token in enumerate(tokens[:limit]):
        if token in end_ids:
            return tokens[: i + 1]
    return tokens[:limit]


@lru_cache
def penalized_by_hand(
    prompt: tuple[int, ...], presence: float, frequency: float
) -> tuple[int, ...]:
    tokens = list(prompt)
    for _ in range(LONGEST_OUTPUT):
        with torch.no_grad():
            logits = reference()(torch.tensor([tokens])).logits[0, -1]
        for token in set(tokens[len(prompt) :]):
            logits[token] -= presence + frequency * tokens[len(prompt) :].count(token)
        tokens.append(int(logits.argmax()))
    return tuple(tokens[len(prompt) :])


@pytest.fixture
def eos_ids(monkeypatch: pytest.MonkeyPatch) -> tuple[int, ...]:
    """Two end tokens that fall in the middle of some outputs."""
    chosen = sorted({generated(PROMPTS[0])[4], generated(PROMPTS[7])[7]})
    monkeypatch.setattr(target().model.generation_config, "eos_token_id", chosen)
    return tuple(chosen)


@pytest.mark.parametrize("batch_size", [3], indirect=True)
def test_requests_that_end_for_different_reasons_share_a_batch(
    proposer: Proposer | None, batch_size: int, eos_ids: tuple[int, ...]
) -> None:
    """Limits, end ids, stop ids, stop strings and penalties cut where the library does."""
    plain = [generated(p) for p in PROMPTS]
    stop_id = next(t for t in plain[1][3:] if t not in eos_ids)
    stop_text = letters(plain[2][3:6])[1:]
    long: dict[str, Any] = {"max_new_tokens": LONGEST_OUTPUT}
    cases = [
        (SamplingParams(**long), generated(PROMPTS[0], eos_token_id=eos_ids), "eos"),
        (
            SamplingParams(**long, ignore_eos=True, stop_token_ids=(stop_id,)),
            generated(PROMPTS[1], eos_token_id=stop_id),
            "stop",
        ),
        (
            SamplingParams(**long, ignore_eos=True, stop=(stop_text,)),
            generated(PROMPTS[2], stop_strings=(stop_text,)),
            "stop",
        ),
        (SamplingParams(max_new_tokens=1), generated(PROMPTS[3], 1), "length"),
        (SamplingParams(max_new_tokens=2, ignore_eos=True), generated(PROMPTS[4], 2), "length"),
        (
            SamplingParams(**long, ignore_eos=True, repetition_penalty=1.4),
            generated(PROMPTS[5], repetition_penalty=1.4),
            "length",
        ),
        (
            SamplingParams(**long, ignore_eos=True, presence_penalty=0.7, frequency_penalty=0.4),
            penalized_by_hand(PROMPTS[6], 0.7, 0.4),
            "length",
        ),
        (SamplingParams(**long), generated(PROMPTS[7], eos_token_id=eos_ids), "eos"),
        (
            SamplingParams(
                max_new_tokens=11, ignore_eos=True, repetition_penalty=1.2, frequency_penalty=0.0
            ),
            generated(PROMPTS[8], 11, repetition_penalty=1.2),
            "length",
        ),
    ]
    outputs = run(
        Engine(target(), proposer, max_batch_size=batch_size),
        [sampling for sampling, _, _ in cases],
    )
    assert ids(outputs) == [expected for _, expected, _ in cases]
    assert [output.finish_reason for output in outputs] == [reason for _, _, reason in cases]
    assert outputs[2].text == letters(outputs[2].token_ids).partition(stop_text)[0]


@pytest.mark.parametrize("name", ["ngram_4_short", "target_as_draft_4"])
def test_a_token_limit_cuts_inside_an_accepted_draft(name: str) -> None:
    engine = Engine(target(), PROPOSERS[name](), max_batch_size=3)
    for limit in (2, 3, 4, 6):
        outputs = run(engine, [SamplingParams(max_new_tokens=limit)] * len(PROMPTS))
        assert ids(outputs) == [generated(p)[:limit] for p in PROMPTS]


@pytest.mark.parametrize("name", ["ngram_4_short", "target_as_draft_4"])
def test_an_end_id_cuts_inside_an_accepted_draft(name: str) -> None:
    engine = Engine(target(), PROPOSERS[name](), max_batch_size=3)
    for stop in sorted({token for p in PROMPTS for token in generated(p)[1:3]})[:5]:
        expected = [cut_at(generated(p), (stop,), LONGEST_OUTPUT) for p in PROMPTS]
        assert ids(run(engine, same(stop_token_ids=(stop,)))) == expected


def test_penalties_hold_along_tree_paths(oracle_tree: Callable[..., Proposer]) -> None:
    proposer = oracle_tree(lambda prompt: [*prompt, *penalized_by_hand(tuple(prompt), 0.7, 0.4)], 8)
    outputs = run(
        Engine(target(), proposer, max_batch_size=3),
        same(presence_penalty=0.7, frequency_penalty=0.4),
    )
    assert ids(outputs) == [penalized_by_hand(p, 0.7, 0.4) for p in PROMPTS]
    assert sum(output.record.counts.num_accepted_tokens for output in outputs) > 30


class OneLevel(Fixed):
    def max_depth(self, batch: Batch) -> int:
        return 1


def test_paths_are_no_longer_than_the_controller_asks(proposer: Proposer | None) -> None:
    engine = Engine(
        target(), proposer, controller=OneLevel(), max_batch_size=3, num_checked=1_000_000
    )
    outputs = run(engine, same())
    assert ids(outputs) == [generated(p) for p in PROMPTS]


@pytest.mark.parametrize("name", SAMPLING)
def test_greedy_rows_among_sampled_ones_equal_generate(name: str) -> None:
    proposer = PROPOSERS[name]()
    sampling = [
        SamplingParams(temperature=float(i % 2), max_new_tokens=LONGEST_OUTPUT)
        for i in range(len(PROMPTS))
    ]
    outputs = run(Engine(target(), proposer, max_batch_size=8), sampling)
    assert ids(outputs)[::2] == [generated(p) for p in PROMPTS][::2]


def test_context_limit_ends_the_output(proposer: Proposer | None) -> None:
    """max_len counts prompt and output; drafts may reach past it, but no output does."""
    prompt = tuple(
        torch.randint(0, VOCAB, (MAX_LEN - 5,), generator=torch.Generator().manual_seed(2)).tolist()
    )
    engine = Engine(target(), proposer, max_batch_size=2)
    (output,) = engine.generate([prompt], SamplingParams(max_new_tokens=100))
    assert output.token_ids == generated(prompt, 5)
    assert output.finish_reason == "length"


def test_negative_control_accepting_every_draft_changes_the_output() -> None:
    class AcceptEverything(Greedy):
        def __call__(self, proposal, target_logits, sampling):
            verdict = super().__call__(proposal, target_logits, sampling)
            index = torch.arange(proposal.topology.num_nodes)
            num_accepted = proposal.lengths - 1
            path = torch.where(index <= num_accepted[:, None], index, -1)
            return type(verdict)(path, num_accepted, verdict.next_token)

    outputs = run(Engine(target(), NGram(3, 1, 1), AcceptEverything(), max_batch_size=3), same())
    assert ids(outputs) != [generated(p) for p in PROMPTS]


@pytest.mark.parametrize("proposer", [LayerSkip, StaleRows])
def test_negative_control_rows_of_skipped_layers_from_a_stale_cache(
    proposer: type[LayerSkip],
) -> None:
    outputs = run(Engine(target(), proposer(1, num_draft_tokens=4), max_batch_size=3), same())
    assert (ids(outputs) == [generated(p) for p in PROMPTS]) == (proposer is LayerSkip)
