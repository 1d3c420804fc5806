"""The library's side decodes what it would decode anyway, however its candidates are replaced."""

import pytest

from specresearch.device_bench.bench import Bench, UnreadPrompts, sharing_weights, weights_read
from specresearch.device_bench.device import CpuDevice
from specresearch.device_bench.library import (
    AssistedGenerate,
    PrefilledGenerate,
    SyntheticCandidates,
    constant_assistant,
    generate,
    library_model,
)
from specresearch.device_bench.scale import REHEARSAL

PROMPT = [5, 6, 7] * 4
NUM_NEW = 12


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench(CpuDevice(), REHEARSAL)


@pytest.mark.parametrize("acceptance", [0.0, 0.5, 1.0])
@pytest.mark.filterwarnings("ignore")
def test_assisted_generation_at_a_set_acceptance(
    bench: Bench, acceptance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    matches: list[int] = []
    update = SyntheticCandidates.update_candidate_strategy

    def count(self: SyntheticCandidates, ids: object, scores: object, num_matches: int) -> None:
        matches.append(int(num_matches))
        update(self, ids, scores, num_matches)

    monkeypatch.setattr(SyntheticCandidates, "update_candidate_strategy", count)
    model = library_model(bench.weights)
    (longer,) = generate(model, [PROMPT], NUM_NEW + 8).outputs
    assistant = constant_assistant(library_model(bench.draft_weights), 3)
    assisted = AssistedGenerate(model, PROMPT, longer, acceptance, assistant_model=assistant)
    assert assisted(NUM_NEW).outputs == (longer[:NUM_NEW],)
    assert "_get_candidate_generator" not in vars(model)
    if acceptance in (0.0, 1.0):
        assert set(matches[:-1]) == {3 * int(acceptance)}


def test_a_filled_cache_is_as_long_at_every_turn(bench: Bench) -> None:
    side = PrefilledGenerate(library_model(bench.weights), batch=2, context=9)
    for _ in range(2):
        run = side([[1] * 10] * 2, 4)
        assert run.num_tokens == 2 * 3
        assert side.cache.get_seq_length() == 9


def test_copies_share_their_weights(bench: Bench) -> None:
    copied = sharing_weights(bench.weights)
    for ours, theirs in zip(copied.parameters(), bench.weights.parameters(), strict=True):
        assert ours is theirs


def test_an_embedding_that_is_looked_up_is_not_read(bench: Bench) -> None:
    for model, is_read in ((bench.weights, False), (bench.draft_weights, True)):
        embedding = model.get_input_embeddings().weight
        total = sum(weight.nbytes for weight in model.parameters())
        assert total - weights_read(model) == (0 if is_read else embedding.nbytes)


def test_prompts_that_are_not_read_take_their_columns(bench: Bench) -> None:
    target = UnreadPrompts(sharing_weights(bench.weights), max_len=64, attention="two_part")
    target.allocate(2, 1)
    target.extend([0, 1], [[1] * 9, [2] * 4], want_logits=False)
    assert target.lengths == [9, 4]
    assert all(not keys.any() for keys, _ in target.cache.buffers)
    assert target.extend([0, 1], [[1], [2]]).logits.isfinite().all()
