import copy
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from other_tokenizers import vocabularies
from shape_checks import unchecked
from tiny_models import VOCAB, build

from specresearch import CausalLM, Engine, Request, SamplingParams
from specresearch.bench.foretelling import foretell
from specresearch.engine import Step
from specresearch.models.pairing import PairMismatchError
from specresearch.models.vocabulary import Vocabulary
from specresearch.proposers import DraftModelOtherTokenizer

pytestmark = pytest.mark.filterwarnings(
    "ignore:the target is:UserWarning", "ignore:the draft has:UserWarning"
)

MODES = ("tli", "slem", "hybrid")
SIZE = 12
PROMPTS = [(3,), (0, 11, 5, 7), (2, 2, 9, 1, 4, 4, 10)]
SHORT = SamplingParams(max_new_tokens=9)


@cache
def large() -> CausalLM:
    return CausalLM(build("llama", seed=1), max_len=64)


@cache
def noisy() -> CausalLM:
    """Return the large model with a little noise, which often drafts the right token."""
    model = copy.deepcopy(large().model)
    torch.manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    return CausalLM(model, max_len=64)


def lacking_five(**settings: Any) -> DraftModelOtherTokenizer:
    """Return a proposer whose draft lacks five of the large model's tokens."""
    pieces: list[bytes | None] = [f"{id} ".encode() for id in range(VOCAB)]
    pair = Vocabulary(pieces), Vocabulary([*pieces[:-5], *[None] * 5])
    return DraftModelOtherTokenizer(
        noisy(), **{"num_draft_tokens": 3, "vocabularies": pair} | settings
    )


def long_prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(5)
    lengths = (1, 26, 3, 33, 9)
    return [torch.randint(0, VOCAB, (n,), generator=generator).tolist() for n in lengths]


@cache
def small(seed: int, size: int) -> CausalLM:
    model = build("llama", seed=seed, vocab_size=size, num_hidden_layers=1, hidden_size=8)
    return CausalLM(model, max_len=40)


def decoded(engine: Engine, prompts: Sequence[Sequence[int]] = PROMPTS) -> list[tuple[int, ...]]:
    outputs = engine.generate([Request(p, SHORT, str(i)) for i, p in enumerate(prompts)])
    return [o.token_ids for o in sorted(outputs, key=lambda output: output.id)]


@cache
def plain() -> list[tuple[int, ...]]:
    return decoded(Engine(small(1, SIZE), max_batch_size=2))


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=8, deadline=None, derandomize=True, database=None)
@given(target=vocabularies(SIZE), draft=vocabularies(SIZE + 3))
def test_greedy_output_is_unchanged_whatever_the_tokenizers_do(
    mode: Any, target: dict[str, Any], draft: dict[str, Any]
) -> None:
    """Their words merge over boundaries, split characters, and name ids that do not exist."""
    pair = Vocabulary(**target), Vocabulary(**draft)
    with unchecked():
        proposer = DraftModelOtherTokenizer(small(2, SIZE + 3), mode, 3, vocabularies=pair)
        try:
            engine = Engine(small(1, SIZE), proposer, max_batch_size=2)
        except PairMismatchError:
            assume(False)
        assert decoded(engine) == plain()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("mode", MODES)
def test_the_cache_holds_what_the_transcript_says(mode: Any, temperature: float) -> None:
    """Accepted text is not read again: most of what is cached was written while drafting."""
    fresh = CausalLM(copy.deepcopy(noisy().model), max_len=64)
    fresh.allocate(1)
    proposer = lacking_five(mode=mode)
    draft = proposer.draft

    def compare(step: Step) -> None:
        for row in engine.scheduler.running:
            ids = proposer._transcripts._of[row.slot].ids
            num_cached = draft.lengths[row.slot]
            assert num_cached < len(ids)
            fresh.truncate([0], [0])
            fresh.extend([0], [ids[:num_cached]], want_logits=False)
            for actual, expected in zip(draft.cache.buffers, fresh.cache.buffers, strict=True):
                for a, b in zip(actual, expected, strict=True):
                    torch.testing.assert_close(
                        a[row.slot, :num_cached], b[0, :num_cached], rtol=1e-9, atol=1e-9
                    )

    engine = Engine(large(), proposer, max_batch_size=3, observers=[compare])
    sampling = SamplingParams(max_new_tokens=12, temperature=temperature, seed=1)
    outputs = list(engine.generate(long_prompts(), sampling))
    counts = [output.record.counts for output in outputs]
    assert sum(c.num_accepted_tokens for c in counts) > 10
    assert sum(c.num_accepted_tokens for c in counts) < sum(c.num_draft_tokens for c in counts)


def test_only_text_reaches_tokens_that_the_draft_lacks() -> None:
    """The draft knows single letters alone."""
    target = Vocabulary([b"a", b"b", b"aa", b"ab", b"ba", b"bb"])
    pair = target, Vocabulary([b"a", b"b"])
    offered: dict[str, set[int]] = {"tli": set(), "slem": set()}
    for mode, seen in offered.items():
        settings: Any = {"mode": mode, "num_draft_tokens": 4, "vocabularies": pair}
        engine = Engine(
            small(4, 6),
            DraftModelOtherTokenizer(small(3, 2), **settings),
            max_batch_size=2,
            observers=[lambda step, seen=seen: seen.update(drafts_of(step))],
        )
        list(engine.generate([(0, 1), (3, 2, 5)], SamplingParams(max_new_tokens=12)))
    assert offered["tli"] <= {0, 1}
    assert offered["slem"] - {0, 1}


def drafts_of(step: Step) -> list[int]:
    return step.proposal.token_ids[:, 1:].flatten().tolist()


def test_a_request_too_long_for_the_draft_goes_on_without_drafts() -> None:
    """Each token of the target is three ids of the draft, which reaches 40."""
    pair = (
        Vocabulary([b"abc"[: 1 + i % 3] * 3 for i in range(SIZE)]),
        Vocabulary([b"a", b"b", b"c"]),
    )
    proposer = DraftModelOtherTokenizer(small(5, 3), "slem", 2, vocabularies=pair)
    prompts = [(0,) * 12, (2,) * 25]
    plainly = decoded(Engine(small(1, SIZE), max_batch_size=2), prompts)
    engine = Engine(small(1, SIZE), proposer, max_batch_size=2)
    outputs = list(engine.generate([Request(p, SHORT, str(i)) for i, p in enumerate(prompts)]))
    drafted = {o.id: o.record.counts.num_draft_tokens for o in outputs}
    assert {o.id: o.token_ids for o in outputs} == dict(zip("01", plainly, strict=True))
    assert drafted["1"] == 0


def test_what_is_foretold_is_what_is_measured() -> None:
    """Acceptance of a draft at each position, and tokens of a step."""
    proposer = lacking_five(num_draft_tokens=1)
    engine = Engine(large(), max_batch_size=4)
    proposer.bind(large(), 0)
    prompts = long_prompts()
    foretold = foretell(engine, proposer, prompts[:4], SamplingParams(max_new_tokens=24))
    assert foretold is not None
    with_drafts = Engine(large(), proposer, max_batch_size=4)
    outputs = list(with_drafts.generate(prompts[:4], SamplingParams(max_new_tokens=24)))
    counts = [output.record.counts for output in outputs]
    drafted = sum(c.num_draft_tokens for c in counts)
    rate = sum(c.num_accepted_tokens for c in counts) / drafted
    assert foretold.num_common == VOCAB - 5
    assert foretold.num_tokens == 96
    assert foretold.acceptance == pytest.approx(rate, abs=0.15)
    assert foretold.tokens_per_step == pytest.approx(1 + foretold.acceptance, abs=0.01)
    assert f"{VOCAB - 5} of the target's {VOCAB} tokens" in str(foretold)
    assert foretell(engine, None, prompts, SamplingParams()) is None


def test_pairs_and_settings_that_cannot_work_are_refused() -> None:
    disjoint = Vocabulary([b"x"] * SIZE), Vocabulary([b"y"] * SIZE)
    for mode in MODES:
        proposer = DraftModelOtherTokenizer(small(2, SIZE), mode, vocabularies=disjoint)
        with pytest.raises(PairMismatchError, match="none in common"):
            proposer.bind(small(1, SIZE), 1)
    with pytest.raises(ValueError, match=r"proposer\.mode='tly' is unknown"):
        DraftModelOtherTokenizer(small(2, SIZE), "tly")
    with pytest.raises(ValueError, match="mode=slem drafts chains"):
        DraftModelOtherTokenizer(small(2, SIZE), "slem", tree="dynamic")
    same = Vocabulary([b"x"] * VOCAB)
    target = large()
    with pytest.raises(PairMismatchError, match="are one CausalLM"):
        DraftModelOtherTokenizer(target, vocabularies=(same, same)).bind(target, 1)


def test_auto_chooses_trees_for_tokens_and_chains_for_text() -> None:
    kinds = {}
    for mode in MODES:
        proposer = lacking_five(mode=mode, num_draft_tokens="auto", tree="auto")
        kinds[mode] = [shape.tree for shape in proposer.shapes]
    assert kinds == {"tli": ["chain", "dynamic"], "slem": ["chain"], "hybrid": ["chain"]}
