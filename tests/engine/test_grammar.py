"""An output keeps to its grammar, and drafts change nothing about its distribution."""

import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from tiny_models import VOCAB, letters_tokenizer
from transformers import AutoModelForCausalLM

import specresearch
from specresearch import Batch, CausalLM, Engine, Proposal, Request, SamplingParams
from specresearch.acceptance import AcceptanceSampler, Block, Threshold, Typical
from specresearch.engine import SchedulerSettings
from specresearch.grammar import ALL_ALLOWED, Grammar, GrammarCompiler
from specresearch.proposal import DraftKind
from specresearch.proposers import (
    Cascade,
    DraftModel,
    Eagle,
    Lookahead,
    Medusa,
    NGram,
    Proposer,
    TokenRecycling,
)
from specresearch.sampling import DRAFT_STREAM

LANGUAGE = ["yes", "no", "maybe", "no, no", "yes, maybe"]
PATTERN = "|".join(LANGUAGE)
PROMPT = "Is it so?\nyes, maybe\nno, no\nmaybe\nyes, maybe\n"
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "colours": {"type": "array", "items": {"enum": ["red", "green"]}, "maxItems": 3},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}
ALPHA = 1e-4
NUM_SAMPLES = 600


@cache
def target() -> CausalLM:
    return CausalLM.from_pretrained("zoo:tiny", max_len=256)


@cache
def draft() -> CausalLM:
    return CausalLM.from_pretrained("zoo:tiny_draft", max_len=256)


@cache
def compiler() -> GrammarCompiler:
    model = target()
    assert model.tokenizer is not None
    return GrammarCompiler(model.tokenizer, model.vocab_size, model.eos_token_ids)


def prompt_ids() -> list[int]:
    tokenizer = target().tokenizer
    assert tokenizer is not None
    return tokenizer(PROMPT)["input_ids"]


def drafting(name: str) -> Proposer | None:
    heads = {"eagle": (Eagle, "zoo:tiny_eagle"), "medusa": (Medusa, "zoo:tiny_medusa")}
    if name in heads:
        kind, head = heads[name]
        return kind(head)
    return {
        "plain": lambda: None,
        "ngram": lambda: NGram(5, 3, 1),
        "recycling": TokenRecycling,
        "lookahead": Lookahead,
        "chain": lambda: DraftModel(draft(), 3, tree="chain"),
        "tree": lambda: DraftModel(draft(), 8, tree="dynamic"),
        "cascade": lambda: Cascade([NGram(5), DraftModel(draft(), 3, tree="chain")]),
    }[name]()


def decode(
    proposer: Proposer | None,
    grammar: Grammar | None,
    sampling: SamplingParams,
    num: int = 4,
    acceptance: AcceptanceSampler | None = None,
) -> list[tuple[str, str]]:
    """Return text and finish reason of each of `num` requests."""
    engine = Engine(target(), proposer, acceptance, max_batch_size=min(num, 48))
    requests = []
    for number in range(num):
        own = replace(sampling, seed=number)
        requests.append(Request(prompt_ids(), own, str(number), grammar=grammar))
    return [(output.text, output.finish_reason) for output in engine.generate_all(requests)]


METHODS = ("ngram", "recycling", "chain", "tree", "cascade", "lookahead")


@pytest.mark.parametrize("method", ["plain", *METHODS])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_outputs_follow_their_schema(method: str, temperature: float) -> None:
    sampling = SamplingParams(temperature, max_new_tokens=120)
    grammar = compiler().json_schema(SCHEMA)
    outputs = decode(drafting(method), grammar, sampling)
    ended = [text for text, reason in outputs if reason == "eos"]
    assert ended
    for text in ended:
        value = json.loads(text)
        assert set(value) <= set(SCHEMA["properties"])
        assert len(value["name"]) <= 12
        assert 0 <= value["age"] <= 120


@pytest.mark.parametrize("method", METHODS)
def test_greedy_outputs_are_those_without_drafts(method: str) -> None:
    grammar, sampling = compiler().json_schema(SCHEMA), SamplingParams(max_new_tokens=60)
    assert decode(drafting(method), grammar, sampling, 2) == decode(None, grammar, sampling, 2)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["eagle", "medusa"])
def test_heads_keep_to_it_too(method: str) -> None:
    grammar, sampling = compiler().json_schema(SCHEMA), SamplingParams(max_new_tokens=60)
    assert decode(drafting(method), grammar, sampling, 2) == decode(None, grammar, sampling, 2)


@cache
def token_texts() -> list[str]:
    tokenizer = target().tokenizer
    assert tokenizer is not None
    ids = range(target().vocab_size)
    return [str(tokenizer.decode([token], skip_special_tokens=True)) for token in ids]


@cache
def law(bias: float = 0.0) -> dict[str, float]:
    """Return the probability of every output, by transformers' passes over whole prefixes.

    Which tokens may follow is told by the list of texts, not by the grammar's library.

    Args:
        bias: Added to the logit of the token "no".
    """
    folder = Path(specresearch.__file__).parent / "zoo" / "tiny"
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    texts, ends = token_texts(), sorted(target().eos_token_ids)
    outputs: dict[str, float] = {}
    waiting = [(prompt_ids(), "", 1.0)]
    while waiting:
        tokens, text, chance = waiting.pop()
        with torch.inference_mode():
            logits = model(torch.tensor([tokens])).logits[0, -1].double()
            logits[texts.index("no")] += bias
        allowed = [
            token
            for token, more in enumerate(texts)
            if more and any(member.startswith(text + more) for member in LANGUAGE)
        ]
        if text in LANGUAGE:
            allowed += ends
        probs = logits[allowed].softmax(0).tolist()
        for token, prob in zip(allowed, probs, strict=True):
            if token in ends:
                outputs[text] = outputs.get(text, 0.0) + chance * prob
            elif chance * prob > 1e-7:
                waiting.append(([*tokens, token], text + texts[token], chance * prob))
    return outputs


def p_value(found: Sequence[tuple[str, str]], bias: float = 0.0) -> float:
    """Return the p-value of the outputs under the law, by a chi-square test."""
    expected, counts = law(bias), Counter(text for text, _ in found)
    assert all(reason == "eos" for _, reason in found)
    assert set(counts) <= set(expected)
    likely = [text for text, chance in expected.items() if chance * len(found) >= 5]
    chances = [expected[text] for text in likely]
    observed = [counts[text] for text in likely]
    if 1 - sum(chances) > 1e-3:
        chances.append(1 - sum(chances))
        observed.append(len(found) - sum(observed))
    scaled = np.array(chances) / sum(chances) * sum(observed)
    return float(stats.chisquare(observed, scaled).pvalue)


HOT = SamplingParams(1.0, max_new_tokens=12)


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize(
    "method",
    ["ngram", "chain", *(pytest.param(name, marks=pytest.mark.slow) for name in ("plain", "tree"))],
)
def test_outputs_have_the_law_of_the_target_within_the_grammar(method: str) -> None:
    found = decode(drafting(method), compiler().regex(PATTERN), HOT, NUM_SAMPLES)
    assert p_value(found) > ALPHA


@pytest.mark.slow
@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize("method", ["ngram", "chain"])
def test_block_verification_has_that_law_too(method: str) -> None:
    grammar = compiler().regex(PATTERN)
    assert p_value(decode(drafting(method), grammar, HOT, NUM_SAMPLES, Block())) > ALPHA


@pytest.mark.slow
@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize("method", ["plain", "ngram", "chain"])
def test_biased_logits_are_masked_like_others(method: str) -> None:
    bias = -1.0
    sampling = replace(HOT, logit_bias={token_texts().index("no"): bias})
    found = decode(drafting(method), compiler().regex(PATTERN), sampling, NUM_SAMPLES)
    assert p_value(found, bias) > ALPHA
    assert p_value(found) < ALPHA


@pytest.mark.parametrize("method", ["ngram", "chain"])
def test_typical_acceptance_keeps_to_the_grammar(method: str) -> None:
    found = decode(drafting(method), compiler().regex(PATTERN), HOT, 8, Typical())
    assert all(text in LANGUAGE for text, _ in found)


class HalfRefused(Proposer):
    """Draws the first token of a reply from two: one that begins "no", and one that is refused."""

    num_draft_tokens = 1
    kind = DraftKind(sampled=True)

    def __init__(self, *, drops: bool) -> None:
        texts = token_texts()
        self.tokens = texts.index("no"), texts.index("x")
        self.drops = drops

    def propose(self, batch: Batch, budget: Sequence[int]) -> Proposal:
        uniforms = batch.sampling.host_uniforms(DRAFT_STREAM, 1)[:, 0]
        q = torch.zeros(len(batch), 2, batch.vocab_size)
        q[:, :, list(self.tokens)] = 0.5
        drafts, lengths = [], []
        for row, uniform in zip(batch.rows, uniforms, strict=True):
            is_refused = bool(uniform >= 0.5)
            drafts.append([row.tokens[-1], self.tokens[is_refused]])
            has_draft = row.num_generated == 0 and not (self.drops and is_refused)
            lengths.append(1 + has_draft)
        return Proposal.chain(torch.tensor(drafts), torch.tensor(lengths), q)


@pytest.mark.usefixtures("untyped")
def test_refused_drafts_are_judged_and_not_dropped() -> None:
    """Leaving out a sampled draft because the grammar refuses it would change the law."""
    grammar = compiler().regex(PATTERN)
    found = [decode(HalfRefused(drops=drops), grammar, HOT, NUM_SAMPLES) for drops in (False, True)]
    judged, dropped = map(p_value, found)
    assert judged > ALPHA
    assert dropped < ALPHA


def test_masks_of_a_tree_are_those_of_fresh_states() -> None:
    """Paths are read one by one from the beginning, without going back."""
    grammar, chance = compiler().json_schema(SCHEMA), np.random.default_rng(0)
    tokenizer = target().tokenizer
    assert tokenizer is not None
    pieces = tokenizer('{"name":"a b","age":12,"colours":["red"]}')["input_ids"][1:]
    for _ in range(20):
        num_nodes, num_read = 24, int(chance.integers(0, len(pieces)))
        parents = np.array([-1] + [int(chance.integers(0, i)) for i in range(1, num_nodes)])
        depth = np.zeros(num_nodes, int)
        tokens = np.zeros(num_nodes, int)
        for node in range(1, num_nodes):
            depth[node] = depth[parents[node]] + 1
            place = min(num_read + depth[node] - 1, len(pieces) - 1)
            tokens[node] = chance.choice(
                [pieces[place], int(chance.integers(0, 4096))], p=[0.8, 0.2]
            )
        state = grammar.start()
        state.advance(pieces[:num_read])
        is_drafted = chance.random(num_nodes) < 0.95
        masks = state.masks(tokens, parents, is_drafted)
        for node in range(num_nodes):
            path, above = [], node
            while above > 0:
                path.insert(0, above)
                above = parents[above]
            fresh = grammar.start()
            fresh.advance([*pieces[:num_read], *tokens[path].tolist()])
            is_reached = all(is_drafted[path]) and not fresh.has_failed
            expected = masks[node] * 0 + 255
            if is_reached:
                nothing = np.array([0]), np.array([-1]), np.array([True])
                (expected,) = fresh.masks(*nothing)
            assert (masks[node] == expected).all()
        assert not state.has_failed


def test_a_batch_may_mix_requests_with_and_without_one() -> None:
    sampling = SamplingParams(max_new_tokens=16)
    engine = Engine(target(), NGram(5), max_batch_size=3)
    grammars = [compiler().regex(PATTERN), None, compiler().json_object()]
    requests = [Request(prompt_ids(), sampling, grammar=grammar) for grammar in grammars]
    answer, free, record = (output.text for output in engine.generate_all(requests))
    assert answer in LANGUAGE
    assert free == decode(None, None, sampling, 1)[0][0]
    assert record.startswith("{")


def test_an_output_ends_with_its_grammar() -> None:
    sampling = SamplingParams(max_new_tokens=40, ignore_eos=True)
    ((text, reason),) = decode(NGram(5), compiler().regex(PATTERN), sampling, 1)
    assert text in LANGUAGE
    assert reason == "eos"


def test_requests_that_are_preempted_go_on_in_their_grammar() -> None:
    grammar, sampling = compiler().json_schema(SCHEMA), SamplingParams(max_new_tokens=60)
    tight = SchedulerSettings(max_cache_tokens=180)
    engine = Engine(target(), NGram(5), max_batch_size=4, scheduling=tight)
    requests = [Request(prompt_ids(), sampling, str(n), grammar=grammar) for n in range(4)]
    outputs = engine.generate_all(requests)
    assert sum(output.record.num_preemptions for output in outputs)
    roomy = decode(NGram(5), grammar, sampling)
    assert [(output.text, output.finish_reason) for output in outputs] == roomy


def test_a_grammar_that_reaches_a_limit_fails_its_request_alone() -> None:
    grammar, free = compiler().json_schema(SCHEMA), SamplingParams(max_new_tokens=30)
    engine = Engine(target(), NGram(5), max_batch_size=2)
    requests = [
        Request(prompt_ids(), free, "in"),
        Request(prompt_ids(), free, "out", grammar=grammar),
    ]
    for request in requests:
        engine.submit(request)
    engine.step()
    (row,) = [row for row in engine.scheduler.running if row.id == "out"]
    assert row.grammar is not None
    row.grammar.advance([*row.output_ids, 4095])  # a token that it refuses
    outputs = {}
    while engine.has_work:
        engine.step()
        outputs |= {output.id: output for output in engine.pop_finished()}
    assert "the output left its grammar" in str(outputs["out"].error)
    assert outputs["in"].error is None


def test_a_rule_that_does_not_ask_the_target_is_refused() -> None:
    proposer = DraftModel(draft(), 3, tree="chain")
    engine = Engine(target(), proposer, Threshold())
    request = Request(prompt_ids(), HOT, grammar=compiler().regex(PATTERN))
    with pytest.raises(ValueError, match="Threshold accepts drafts without asking"):
        engine.submit(request)


def test_a_grammar_for_another_model_is_refused() -> None:
    model = target()
    assert model.tokenizer is not None
    other = GrammarCompiler(model.tokenizer, model.vocab_size, [5]).regex(PATTERN)
    with pytest.raises(ValueError, match="a grammar for another model"):
        Engine(target()).submit(Request(prompt_ids(), HOT, grammar=other))


def test_a_limit_that_drafts_reach_does_not_fail_the_output() -> None:
    state = compiler().json_schema({"type": "string", "pattern": "(.*a.{300}){2}"}).start()
    tokenizer = target().tokenizer
    assert tokenizer is not None
    text = tokenizer('"' + "a" * 200)["input_ids"][1:]
    state.advance(text[:5])
    drafts = np.array(text[4:199])
    masks = state.masks(drafts, np.arange(len(drafts)) - 1, np.full(len(drafts), True))
    is_free = (masks == ALL_ALLOWED).all(axis=1)
    assert not is_free[0]
    assert is_free[-1]
    assert not state.has_failed


@pytest.mark.parametrize(
    ("kind", "source", "reason"),
    [
        ("json_schema", {"type": "foo"}, "JSON schema cannot be followed: .*Invalid type: foo"),
        ("json_schema", {"not": {}}, "Unimplemented keys"),
        ("json_schema", {"$ref": "#"}, "JSON schema cannot be followed"),
        ("regex", "(", "regular expression cannot be followed"),
        ("regex", "a\\", "ends within an escape"),
        ("lark", "start: nothing", "grammar cannot be followed"),
    ],
)
def test_a_wrong_grammar_is_refused(kind: str, source: object, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        getattr(compiler(), kind)(source)


def test_lark_grammars() -> None:
    grammar = compiler().lark('start: "a" start "b" | "ab"')
    outputs = decode(NGram(5), grammar, SamplingParams(1.0, max_new_tokens=60))
    for text, reason in outputs:
        if reason == "eos":
            half = len(text) // 2
            assert text == "a" * half + "b" * half


def test_without_the_library_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance.hf", None)
    model = target()
    assert model.tokenizer is not None
    with pytest.raises(ImportError, match=r"pip install 'specresearch\[grammar\]'"):
        GrammarCompiler(model.tokenizer, model.vocab_size, model.eos_token_ids)
    monkeypatch.undo()
    with pytest.raises(ValueError, match="no end token"):
        GrammarCompiler(model.tokenizer, model.vocab_size, ())


def test_a_tokenizer_that_the_library_cannot_read_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot read the model's tokenizer"):
        GrammarCompiler(letters_tokenizer(), VOCAB, [0])
