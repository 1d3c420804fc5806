"""Text of the models themselves: it is what the engine decodes, and a run that was stopped ends with the same text."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import build, letters_tokenizer

from specresearch import CausalLM, Engine, SamplingParams
from specresearch.data import PromptDataset, Row
from specresearch.proposers import NGram
from specresearch.training.corpus import Corpus, Mix
from specresearch.training.corpus.examples import Example
from specresearch.training.corpus.generated import (
    DraftGenerated,
    TargetGenerated,
    weights_digest,
)
from specresearch.training.corpus.reply_generator import GenerationSettings, ReplyGenerator
from specresearch.training.corpus.sources import RowSplit

GENERATION = GenerationSettings(temperature=1.0, max_new_tokens=3, batch_size=6, shard_size=2)
GREEDY = replace(GENERATION, temperature=0.0)
WORDS = ["abc", "fed", "cab", "dead", "beef", "fade"]


@pytest.fixture
def dataset(tmp_path: Path) -> PromptDataset:
    (tmp_path / "prompts.txt").write_text("\n".join(WORDS))
    return PromptDataset("words", "prompts", "raw", path=str(tmp_path / "prompts.txt"))


def model(seed: int = 0) -> CausalLM:
    return CausalLM(build("llama", seed=seed), letters_tokenizer(), name="tiny", self_test=False)


def written(
    dataset: PromptDataset,
    folder: Path,
    generation: GenerationSettings = GENERATION,
    **settings: Any,
) -> list[Example]:
    target = settings.pop("target", None) or model()
    split = settings.pop("split", None) or RowSplit()
    rows = split.rows(dataset)[: settings.pop("num_rows", None)]
    generator = ReplyGenerator(target, dataset, generation, 40, **settings)
    return list(TargetGenerated(generator, rows, folder))


def stop_after(monkeypatch: pytest.MonkeyPatch, num_shards: int) -> None:
    """Ctrl-C when so many shards have been decoded."""
    decode = ReplyGenerator._decode
    calls: list[int] = []

    def interrupted(*args: Any) -> Any:
        if len(calls) == num_shards:
            raise KeyboardInterrupt
        calls.append(1)
        return decode(*args)

    monkeypatch.setattr(ReplyGenerator, "_decode", interrupted)


def test_the_text_is_what_the_engine_decodes(dataset: PromptDataset, tmp_path: Path) -> None:
    examples = written(dataset, tmp_path / "t", GREEDY)
    prompts = [letters_tokenizer()(word)["input_ids"] for word in WORDS]
    decoded = {
        o.id: o
        for o in Engine(model(), max_batch_size=6).generate(
            prompts, SamplingParams(max_new_tokens=3)
        )
    }
    assert examples == [
        Example.reply(ids, decoded[str(i)].token_ids) for i, ids in enumerate(prompts)
    ]


def test_a_proposer_changes_the_speed_and_not_the_text(
    dataset: PromptDataset, tmp_path: Path
) -> None:
    plain = written(dataset, tmp_path / "plain", GREEDY)
    assert written(dataset, tmp_path / "drafted", GREEDY, proposer=NGram(4, n_min=1)) == plain


def test_later_turns_follow_the_models_own_replies(tmp_path: Path) -> None:
    (tmp_path / "chats.jsonl").write_text('{"prompt": ["abc", "fed"]}\n{"prompt": ["cab"]}\n')
    chats = PromptDataset("chats", "prompts", "chat", path=str(tmp_path / "chats.jsonl"))
    first, other, second = written(chats, tmp_path / "t", GREEDY)
    assert other.token_ids != first.token_ids
    reply = str(letters_tokenizer().decode(first.token_ids[first.num_prompt_tokens :]))
    prompt = chats.prompt(letters_tokenizer(), Row("0", ("abc", "fed")), [reply])
    assert second.token_ids[: second.num_prompt_tokens] == prompt.token_ids


@pytest.mark.parametrize("num_shards", [0, 2])
def test_a_run_that_was_stopped_ends_with_the_same_text(
    dataset: PromptDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_shards: int
) -> None:
    whole = written(dataset, tmp_path / "whole")
    with monkeypatch.context() as patch:
        stop_after(patch, num_shards)
        with pytest.raises(KeyboardInterrupt):
            written(dataset, tmp_path / "stopped")
    kept = {file: file.stat().st_mtime_ns for file in (tmp_path / "stopped").glob("*.parquet")}
    assert len(kept) == num_shards
    assert written(dataset, tmp_path / "stopped") == whole
    assert {file: file.stat().st_mtime_ns for file in kept} == kept


def test_text_that_is_there_is_only_read(
    dataset: PromptDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = written(dataset, tmp_path / "t")
    stop_after(monkeypatch, 0)
    assert written(dataset, tmp_path / "t") == first


def test_a_damaged_shard_is_decoded_again(dataset: PromptDataset, tmp_path: Path) -> None:
    first = written(dataset, tmp_path / "t")
    file = tmp_path / "t" / "shard-00001.parquet"
    damaged = bytearray(file.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    file.write_bytes(damaged)
    assert written(dataset, tmp_path / "t") == first


def test_text_does_not_depend_on_the_batch(dataset: PromptDataset, tmp_path: Path) -> None:
    assert written(dataset, tmp_path / "alone", replace(GENERATION, batch_size=1)) == written(
        dataset, tmp_path / "together"
    )


def test_another_seed_is_another_text(dataset: PromptDataset, tmp_path: Path) -> None:
    assert written(dataset, tmp_path / "a") != written(
        dataset, tmp_path / "b", replace(GENERATION, seed=1)
    )


@pytest.mark.parametrize(
    ("change", "key"),
    [
        (lambda dataset, folder: written(dataset, folder, GREEDY), "temperature"),
        (lambda dataset, folder: written(dataset, folder, target=model(seed=1)), "weights"),
        (lambda dataset, folder: written(dataset, folder, num_rows=1), "num_rows"),
        (
            lambda dataset, folder: written(dataset, folder, split=RowSplit("train", 0.3)),
            "num_rows",
        ),
    ],
)
def test_a_folder_of_other_text_is_refused(
    dataset: PromptDataset,
    tmp_path: Path,
    change: Callable[[PromptDataset, Path], object],
    key: str,
) -> None:
    written(dataset, tmp_path / "t")
    with pytest.raises(ValueError, match=f"holds data of {key}=.*choose another folder"):
        change(dataset, tmp_path / "t")


def test_no_room_for_a_prompt_is_an_error(dataset: PromptDataset, tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"max_new_tokens=3 leaves no room for a prompt in 3 tokens"
    ):
        ReplyGenerator(model(), dataset, GENERATION, 3)
    with pytest.raises(ValueError, match=r"corpus\.generation\.batch_size=0 must be at least 1"):
        GenerationSettings(batch_size=0)


def test_the_digest_sees_weights_and_not_their_dtype() -> None:
    half = CausalLM(build("llama", dtype=torch.bfloat16), self_test=False)
    wide = CausalLM(build("llama", dtype=torch.bfloat16).float(), self_test=False)
    assert weights_digest(half) == weights_digest(wide) != weights_digest(model(seed=1))


def student_text(draft: CausalLM, dataset: PromptDataset, folder: Path) -> DraftGenerated:
    generator = ReplyGenerator(draft, dataset, GENERATION, 40)
    return DraftGenerated(generator, dataset.rows, folder)


def rounds(draft: CausalLM, dataset: PromptDataset, folder: Path, **change: Any) -> Mix:
    source = student_text(draft, dataset, folder)
    return Mix({"draft": (1.0, source)}, round_size=6, **change)


def train_a_little(draft: CausalLM) -> None:
    with torch.no_grad():
        for weight in draft.model.parameters():
            weight.add_(
                0.5
                * torch.randn(
                    weight.shape, generator=torch.Generator().manual_seed(0), dtype=weight.dtype
                )
            )


def test_the_students_text_follows_its_weights_round_by_round(
    dataset: PromptDataset, tmp_path: Path
) -> None:
    draft, other = model(), model()
    first = [rounds(draft, dataset, tmp_path / "a")[position] for position in range(12)]
    mix = rounds(other, dataset, tmp_path / "b")
    assert [mix[position] for position in range(6)] == first[:6]
    train_a_little(other)
    assert [mix[position] for position in range(6, 12)] != first[6:]


def test_a_run_that_resumes_sees_the_text_it_had_seen(
    dataset: PromptDataset, tmp_path: Path
) -> None:
    draft = model()
    mix = rounds(draft, dataset, tmp_path / "r")
    before = [mix[position] for position in range(6)]
    train_a_little(draft)
    after = [mix[position] for position in range(6, 10)]
    again = rounds(model(seed=3), dataset, tmp_path / "r")
    assert [again[position] for position in range(10)] == before + after


def test_a_round_longer_than_the_dataset_asks_its_rows_again(
    dataset: PromptDataset, tmp_path: Path
) -> None:
    source = student_text(model(), dataset, tmp_path)
    mix = Mix({"draft": (1.0, source)}, round_size=14)
    texts = [tuple(mix[position].token_ids) for position in range(14)]
    prompts = [
        tuple(mix[position].token_ids[: mix[position].num_prompt_tokens]) for position in range(6)
    ]
    assert len(set(prompts)) == len(WORDS)
    assert len(set(texts)) > len(WORDS)


def test_a_student_in_training_is_asked_as_it_decodes(
    dataset: PromptDataset, tmp_path: Path
) -> None:
    draft = model()
    draft.model.train()
    modes: list[bool] = []
    draft.model.register_forward_pre_hook(lambda module, args: modes.append(module.training))
    rounds(draft, dataset, tmp_path / "r")[0]
    assert modes
    assert not any(modes)
    assert draft.model.training


def test_the_seed_of_a_corpus_is_that_of_the_students_text(
    dataset: PromptDataset, tmp_path: Path
) -> None:
    def text(seed: int, folder: str) -> list[Example]:
        corpus = Corpus(draft=1.0, max_len=40, seed=seed, generation=GENERATION)
        mix = corpus.mix(
            model(), dataset, tmp_path / folder, draft=model(seed=1), examples_per_step=1
        )
        return [mix[i] for i in range(12)]

    first = text(0, "a")
    assert text(0, "b") == first
    again = text(1, "c")
    assert [example.token_ids[:3] for example in again] != [
        example.token_ids[:3] for example in first
    ]


def test_a_corpus_of_models_and_what_is_held_out(dataset: PromptDataset, tmp_path: Path) -> None:
    corpus = Corpus(
        target=0.5, draft=0.5, heldout_fraction=0.3, refresh_every=1, max_len=40, generation=GREEDY
    )
    target = model()
    mix = corpus.mix(target, dataset, tmp_path, draft=model(seed=1), examples_per_step=4)
    trained = {tuple(mix[p].token_ids[: mix[p].num_prompt_tokens]) for p in range(12)}
    heldout = corpus.heldout(target, dataset, tmp_path)
    asked = {tuple(example.token_ids[: example.num_prompt_tokens]) for example in heldout}
    assert len(trained) + len(asked) == len(WORDS)
    assert not trained & asked
    assert sorted(path.name for path in (tmp_path / "draft").iterdir()) == [
        f"round-{n:05d}" for n in range(3)
    ]
    assert len(corpus.heldout(target, dataset, tmp_path / "few", num_rows=1)) == 1
