import copy
from collections.abc import Callable

import pytest
import torch
from tiny_models import VOCAB, build, letters_tokenizer

from specresearch import CausalLM, Engine, Request, SamplingParams
from specresearch.batch import Batch
from specresearch.controllers import Controller
from specresearch.engine import Step
from specresearch.metrics import StepRecord
from specresearch.models.pairing import PairMismatchError
from specresearch.proposal import Proposal
from specresearch.proposers import DraftModel
from specresearch.request import RequestState

pytestmark = pytest.mark.filterwarnings(
    "ignore:the target is:UserWarning", "ignore:the draft has:UserWarning"
)

PROMPTS = [(5,), (1, 2, 3, 4, 5, 6, 7), (8, 8), (3, 1, 4, 1, 5), (9, 2, 6)]
TARGET = build("llama", seed=1)
DRAFT = build("llama", seed=9, num_hidden_layers=1)


@pytest.fixture
def target() -> CausalLM:
    return CausalLM(copy.deepcopy(TARGET), max_len=40)


@pytest.fixture
def draft() -> CausalLM:
    return CausalLM(copy.deepcopy(DRAFT), max_len=40, prefill_chunk=4)


class Alternating(Controller):
    """Speculate only in some steps, so that the draft has much to prefill."""

    def __init__(self, pattern: tuple[int, ...]) -> None:
        self.pattern, self.num_steps = pattern, 0

    def budget(self, batch: Batch) -> list[int | None]:
        return [self.pattern[self.num_steps % len(self.pattern)]] * len(batch)

    def observe(self, record: StepRecord) -> None:
        self.num_steps += 1


def requests(**sampling) -> list[Request]:
    return [
        Request(p, SamplingParams(**sampling, max_new_tokens=12 + 2 * i), str(i))
        for i, p in enumerate(PROMPTS)
    ]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("pattern", [(4,), (4, 0, 0, 2, 1)], ids=str)
def test_cached_keys_and_values_equal_a_fresh_computation(
    target: CausalLM, draft: CausalLM, temperature: float, pattern: tuple[int, ...]
) -> None:
    """After every step the draft's cache holds exactly the committed tokens."""
    fresh = CausalLM(copy.deepcopy(DRAFT), max_len=40)
    fresh.allocate(1)
    num_refused = 0

    def compare(step: Step) -> None:
        nonlocal num_refused
        record = step.record
        num_refused += sum(record.num_draft_tokens) - sum(record.num_accepted_tokens)
        for row in engine.scheduler.running:
            num_cached = draft.lengths[row.slot]
            assert num_cached < len(row.tokens)
            fresh.truncate([0], [0])
            fresh.extend([0], [row.tokens[:num_cached]], want_logits=False)
            for actual, expected in zip(draft.cache.buffers, fresh.cache.buffers, strict=True):
                for a, b in zip(actual, expected, strict=True):
                    torch.testing.assert_close(
                        a[row.slot, :num_cached], b[0, :num_cached], rtol=1e-9, atol=1e-9
                    )

    engine = Engine(
        target,
        DraftModel(draft, 4),
        controller=Alternating(pattern),
        max_batch_size=3,
        observers=[compare],
    )
    assert len(list(engine.generate(requests(temperature=temperature)))) == len(PROMPTS)
    assert num_refused > 10


def test_a_row_may_prefill_many_tokens_beside_one_near_its_limit(target: CausalLM) -> None:
    """One row missed many steps; another is new, and its prompt fills the cache."""
    draft = CausalLM(copy.deepcopy(DRAFT), max_len=40)
    long = tuple(i % VOCAB for i in range(37))
    plain = Engine(target, max_batch_size=2)
    alone = [
        next(plain.generate([Request(p, SamplingParams(max_new_tokens=n))]))
        for p, n in (((5,), 30), (long, 3))
    ]
    engine = Engine(
        target,
        DraftModel(draft, 4),
        controller=Alternating((0,) * 20 + (4,) * 20),
        max_batch_size=2,
    )
    late = [
        Request((5,), SamplingParams(max_new_tokens=30), "short"),
        Request((7,), SamplingParams(max_new_tokens=20), "gap"),
    ]
    outputs = {
        o.id: o
        for o in engine.generate([*late, Request(long, SamplingParams(max_new_tokens=3), "long")])
    }
    assert outputs["short"].token_ids == alone[0].token_ids
    assert outputs["long"].token_ids == alone[1].token_ids


Propose = Callable[..., tuple[Proposal, list[RequestState]]]


@pytest.fixture
def propose(target: CausalLM) -> Propose:
    def run(
        draft: CausalLM,
        budget: list[int],
        params: SamplingParams,
        target: CausalLM = target,
        **settings,
    ):
        prompts = enumerate(PROMPTS[: len(budget)])
        rows = [
            RequestState(Request(p, params), slot, 7 + slot, frozenset(), 40) for slot, p in prompts
        ]
        proposer = DraftModel(draft, 4, **settings)
        target.allocate(len(budget), 5)
        proposer.bind(target, len(budget))
        proposer.start(rows, None)
        batch = Batch(rows, torch.device("cpu"), target.vocab_size)
        return proposer.propose(batch, budget), rows

    return run


def plain_logits(tokens: list[int], model=DRAFT) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0, -1]


@pytest.mark.parametrize("sample", [True, False])
def test_greedy_requests_get_the_likeliest_drafts(
    propose: Propose, draft: CausalLM, sample: bool
) -> None:
    proposal, rows = propose(draft, [4, 2, 3], SamplingParams(), sample=sample)
    assert proposal.draft_probs is None
    assert proposal.lengths.tolist() == [5, 3, 4]
    for b, row in enumerate(rows):
        tokens = list(row.tokens)
        for drafted in proposal.token_ids[b, 1 : int(proposal.lengths[b])].tolist():
            assert drafted == int(plain_logits(tokens).argmax())
            tokens.append(drafted)


def test_reported_probabilities_are_those_of_the_draft(propose: Propose, draft: CausalLM) -> None:
    proposal, rows = propose(draft, [4, 4, 4], SamplingParams(temperature=0.7, top_k=6))
    assert proposal.draft_probs is not None
    for b, row in enumerate(rows):
        for node in range(4):
            logits = plain_logits(row.tokens + proposal.token_ids[b, 1 : node + 1].tolist()) / 0.7
            logits[logits < logits.topk(6).values[-1]] = float("-inf")
            torch.testing.assert_close(
                proposal.draft_probs[b, node], logits.softmax(-1), rtol=1e-5, atol=1e-7
            )
            assert proposal.draft_probs[b, node, proposal.token_ids[b, node + 1]] > 0


def test_without_sampling_drafts_are_point_masses(propose: Propose, draft: CausalLM) -> None:
    assert (
        propose(draft, [3, 3], SamplingParams(temperature=1.0), sample=False)[0].draft_probs is None
    )


def test_a_budget_of_0_is_plain_decoding(propose: Propose, draft: CausalLM) -> None:
    proposal, _ = propose(draft, [0, 0], SamplingParams())
    assert proposal.token_ids.shape == (2, 1)


@pytest.mark.parametrize(("target_rows", "draft_rows"), [(VOCAB, 40), (40, VOCAB)])
def test_rows_that_pad_an_embedding_are_never_drafted(
    propose: Propose, target_rows: int, draft_rows: int
) -> None:
    wide_target = CausalLM(build("llama", vocab_size=target_rows), letters_tokenizer(), max_len=40)
    other_draft = CausalLM(
        build("llama", vocab_size=draft_rows, seed=3), letters_tokenizer(), max_len=40
    )
    proposal, _ = propose(
        other_draft, [4, 4, 4], SamplingParams(temperature=5.0), target=wide_target
    )
    assert proposal.draft_probs is not None
    assert proposal.draft_probs.shape[-1] == target_rows
    assert float(proposal.draft_probs[..., VOCAB:].sum()) == 0 or target_rows == VOCAB
    assert int(proposal.token_ids.max()) < VOCAB


def test_a_draft_with_another_vocabulary_is_rejected(target: CausalLM) -> None:
    with pytest.raises(PairMismatchError, match="vocabularies of 31 and 29"):
        Engine(target, DraftModel(CausalLM(build("llama", vocab_size=29))))


def test_a_bad_number_of_drafts_is_rejected(draft: CausalLM) -> None:
    with pytest.raises(ValueError, match="num_draft_tokens=0 must be at least 1"):
        DraftModel(draft, 0)
