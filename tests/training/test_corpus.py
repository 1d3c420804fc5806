"""Every example of a mix depends on seed and position only; held-out rows are never drawn."""

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from test_examples import byte_level, zoo
from tiny_models import build

from specresearch import CausalLM
from specresearch.cli import conf_dir
from specresearch.data import PromptDataset
from specresearch.training.corpus import Corpus, Mix
from specresearch.training.corpus.examples import Example, Examples
from specresearch.training.corpus.fixed_text import FixedText
from specresearch.training.corpus.mix import PERIOD
from specresearch.training.corpus.plain_text import PlainText
from specresearch.training.corpus.sources import Draw, ListSource, RowSplit, Source


class Numbered(ListSource):
    """Example n of source s is the tokens [s, n]."""

    def __init__(self, source: int, num: int) -> None:
        self.examples = Examples(Example.reply([source], [n]) for n in range(num))


class Recorder(Source):
    """Record every draw."""

    def __init__(self) -> None:
        self.draws: list[Draw] = []

    @property
    def fingerprint(self) -> str:
        return "recorder"

    def draw(self, draw: Draw) -> Example:
        self.draws.append(draw)
        return Example.reply([9], [draw.number])


def mix(seed: int = 0) -> Mix:
    return Mix(
        {"a": (0.5, Numbered(1, 30)), "b": (0.3, Numbered(2, 7)), "c": (0.2, Numbered(3, 1000))},
        seed,
    )


def token_ids_of(examples: Iterator[Example], num: int) -> list[list[int]]:
    return [example.token_ids for example in islice(examples, num)]


@pytest.mark.parametrize("killed_at", [0, 1, 333, PERIOD, 2 * PERIOD - 1])
def test_a_mix_resumes_where_it_stopped(killed_at: int) -> None:
    token_ids = token_ids_of(iter(mix()), 2 * PERIOD + 50)
    first, second = mix(), mix()
    before = token_ids_of(iter(first), killed_at)
    second.state = first.state
    assert first.state == killed_at
    assert before + token_ids_of(iter(second), len(token_ids) - killed_at) == token_ids


def test_the_order_depends_only_on_the_seed() -> None:
    assert token_ids_of(iter(mix(1)), 200) == token_ids_of(iter(mix(1)), 200)
    assert token_ids_of(iter(mix(1)), 200) != token_ids_of(iter(mix(2)), 200)
    assert mix(1).fingerprint == mix(1).fingerprint != mix(2).fingerprint


def test_fractions_hold_in_every_stretch() -> None:
    sources = [ids[0] for ids in token_ids_of(iter(mix()), 3 * PERIOD)]
    for begin in range(0, len(sources), 10):
        assert Counter(sources[begin : begin + 10]) == {1: 5, 2: 3, 3: 2}


def test_fractions_that_are_not_thousandths_are_met_within_one_example() -> None:
    uneven = Mix({name: (1 / 3, Numbered(number, 5)) for number, name in enumerate("abc")})
    counts = Counter(ids[0] for ids in token_ids_of(iter(uneven), PERIOD))
    assert sorted(counts.values()) == [333, 333, 334]


def test_every_example_is_drawn_once_per_round_in_a_new_order() -> None:
    drawn = [ids[1] for ids in token_ids_of(iter(mix()), 600) if ids[0] == 1]
    passes = [drawn[begin : begin + 30] for begin in range(0, 300, 30)]
    assert all(sorted(numbers) == list(range(30)) for numbers in passes)
    assert len(set(map(tuple, passes))) == len(passes)


def test_the_list_of_first_examples_has_no_duplicates() -> None:
    """They come in the source's own order, however many rounds there are."""
    corpus = mix()
    for num in (7, 100, 1500):
        listed = [tuple(example.token_ids) for example in corpus.first(num)]
        assert len(set(listed)) == len(listed)
        assert set(listed) == {tuple(corpus[position].token_ids) for position in range(num)}
    assert [*map(str, corpus.first(5000))] == [*map(str, corpus.first(9000))]


def test_prompts_carry_a_loss_if_configured() -> None:
    examples = Numbered(1, 3)
    examples.examples = Examples([Example.reply([1, 2, 3], [4, 5])])
    for predicts_prompts, mask in (
        (False, [False, False, False, True, True]),
        (True, [False, True, True, True, True]),
    ):
        mixed = Mix({"a": (1.0, examples)}, predict_prompts=predicts_prompts)
        assert mixed[0].loss_mask == mask
        assert [example.loss_mask for example in mixed.first(1)] == [mask]
    assert (
        Mix({"a": (1.0, examples)}, predict_prompts=True).fingerprint
        != Mix({"a": (1.0, examples)}).fingerprint
    )


def test_a_round_knows_the_number_of_its_draws() -> None:
    recorder = Recorder()
    token_ids_of(
        iter(Mix({"a": (0.7, Numbered(1, 5)), "r": (0.3, recorder)}, round_size=64)), 64 * 20
    )
    rounds = {
        number: [draw for draw in recorder.draws if draw.round == number] for number in range(20)
    }
    for draws in rounds.values():
        assert [draw.index for draw in draws] == list(range(len(draws)))
        assert {draw.round_size for draw in draws} == {len(draws)}
    assert [draw.number for draw in recorder.draws] == list(range(len(recorder.draws)))


@pytest.mark.parametrize(
    ("fractions", "message"),
    [
        ((0.5, 0.4), r"the fractions a=0\.5, b=0\.4 must be 0 or above and add up to 1"),
        ((1.5, -0.5), "must be 0 or above"),
        ((0.9999, 0.0001), "one is below 1/1000"),
    ],
)
def test_fractions_must_add_up(fractions: tuple[float, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Mix(
            {
                name: (fraction, Numbered(1, 3))
                for name, fraction in zip("ab", fractions, strict=True)
            }
        )


def sample(name: str = "sharegpt", **settings: object) -> PromptDataset:
    template = {"sharegpt": "chat", "gsm8k": "maths"}[name]
    return PromptDataset(name, name, template, source="sample", **settings)  # pyright: ignore[reportArgumentType]


def test_a_row_is_held_out_whatever_else_the_dataset_holds() -> None:
    train, heldout = RowSplit("train", 0.3), RowSplit("heldout", 0.3)
    few, many = sample(limit=10, shuffle=True, seed=1), sample()
    for dataset in (few, many):
        assert {row.id for row in train.rows(dataset)} | {
            row.id for row in heldout.rows(dataset)
        } == {r.id for r in dataset}
        assert not {row.id for row in train.rows(dataset)} & {
            row.id for row in heldout.rows(dataset)
        }
    assert {row.id for row in heldout.rows(few)} <= {row.id for row in heldout.rows(many)}


def test_the_share_of_held_out_rows_is_the_configured_one() -> None:
    ids = [f"row-{number}" for number in range(20_000)]
    for fraction in (0.0, 0.05, 0.5):
        num_heldout = sum(id in RowSplit("heldout", fraction) for id in ids)
        assert (
            abs(num_heldout - fraction * len(ids))
            <= 5 * (fraction * (1 - fraction) * len(ids)) ** 0.5
        )


def test_a_part_without_rows_is_an_error() -> None:
    with pytest.raises(
        ValueError,
        match=r"none of its 25 rows falls to split=heldout at corpus\.heldout_fraction=0\.0",
    ):
        RowSplit("heldout", 0.0).rows(sample())
    with pytest.raises(ValueError, match=r"corpus\.heldout_fraction=1\.0 must lie in \[0, 1\)"):
        RowSplit("train", 1.0)


@pytest.mark.parametrize("name", ["sharegpt", "gsm8k"])
def test_published_replies_are_trained_on_except_held_out_ones(name: str) -> None:
    dataset = sample(name)
    parts = [
        FixedText(dataset, zoo(), RowSplit(split, 0.2).rows(dataset), 300)
        for split in ("train", "heldout")
    ]
    token_ids = FixedText(dataset, zoo(), dataset.rows, 300)
    assert sum(map(len, parts)) == len(token_ids) >= len(dataset)
    assert parts[0].fingerprint != parts[1].fingerprint
    assert token_ids.fingerprint == FixedText(dataset, zoo(), dataset.rows, 300).fingerprint
    assert all(any(example.loss_mask) and len(example.token_ids) <= 300 for example in token_ids)


def test_prompts_without_replies_are_an_error_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("one\ntwo\n")
    dataset = PromptDataset("mine", "prompts", "chat", path=str(tmp_path / "prompts.txt"))
    with pytest.raises(
        ValueError,
        match=r"nothing to predict is left of 2 rows, 2 of which have no published reply; "
        r"take .*corpus=target",
    ):
        FixedText(dataset, zoo(), dataset.rows, 300)


def write_books(folder: Path) -> str:
    for book in "ab":
        paragraphs = [f"{book}{number} " + "word " * 60 for number in range(100)]
        (folder / f"{book}.txt").write_text("\n\n".join(paragraphs))
    (folder / "stories.txt").write_text("One day.\n\nIt rained.\n<|endoftext|>\nTwo cats sat.\n")
    return str(folder / "*.txt")


def test_plain_text_is_packed_without_loss(tmp_path: Path) -> None:
    packed = PlainText([write_books(tmp_path)], zoo(), 128)
    opening = zoo()("")["input_ids"]
    *full, last = packed
    assert {len(example.token_ids) for example in full} == {128}
    assert len(last.token_ids) <= 128
    assert all(
        example.loss_mask == [False] + [True] * (len(example.token_ids) - 1) for example in packed
    )
    assert all(example.token_ids[: len(opening)] == opening for example in packed)
    text = str(
        zoo().decode([token for example in packed for token in example.token_ids[len(opening) :]])
    )
    books = [(tmp_path / f"{book}.txt").read_text() for book in "ab"]
    documents = [*books, "One day. It rained.", "Two cats sat."]
    assert [document.split() for document in text.split("<|endoftext|>")] == [
        document.split() for document in documents
    ]


def test_held_out_passages_of_plain_text_are_never_drawn(tmp_path: Path) -> None:
    files = [write_books(tmp_path)]
    texts = {
        split: "".join(
            str(zoo().decode(example.token_ids))
            for example in PlainText(files, zoo(), 4096, RowSplit(split, 0.3))
        )
        for split in ("train", "heldout")
    }
    for book in "ab":
        for number in range(100):
            assert (f"{book}{number} word" in texts["train"]) != (
                f"{book}{number} word" in texts["heldout"]
            )


def test_a_tokenizer_without_opening_tokens_separates_documents_by_its_end_token(
    tmp_path: Path,
) -> None:
    tokenizer = byte_level(trim_offsets=False)
    tokenizer.add_special_tokens({"eos_token": "<e>"})
    write_books(tmp_path)
    (example,) = PlainText([str(tmp_path / "stories.txt")], tokenizer, 500)
    assert tokenizer.decode(example.token_ids) == "One day.\n\nIt rained.<e>Two cats sat."


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "there is no file .*nothing.txt"),
        (b" \n\n ", "no text to train on"),
        (b"\xff\xfe", "not UTF-8"),
    ],
)
def test_missing_or_unusable_text_is_an_error(
    tmp_path: Path, text: bytes | None, message: str
) -> None:
    if text is not None:
        (tmp_path / "nothing.txt").write_bytes(text)
    with pytest.raises(ValueError, match=message):
        PlainText([str(tmp_path / "nothing.txt")], zoo(), 100)


@pytest.mark.parametrize(
    "choice", sorted(file.stem for file in (conf_dir() / "corpus").glob("*.yaml"))
)
def test_every_config_builds_a_corpus(choice: str) -> None:
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        corpus = instantiate(compose(overrides=[f"+corpus={choice}"]).corpus, _convert_="all")
    assert isinstance(corpus, Corpus)
    assert getattr(corpus, choice if choice != "mix" else "target") > 0


def target() -> CausalLM:
    return CausalLM(build("llama", vocab_size=4096, max_position_embeddings=512), zoo())


def test_a_corpus_opens_its_sources(tmp_path: Path) -> None:
    corpus = Corpus(fixed=0.75, text=0.25, max_len=100, text_files=[write_books(tmp_path)])
    opened = corpus.mix(target(), sample(), tmp_path, examples_per_step=4)
    assert opened.fractions == {"fixed": 0.75, "text": 0.25}
    assert opened.round_size == 400
    assert all(len(example.token_ids) <= 100 for example in islice(opened, 40))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"fixed": 0.5},
            "fixed=0.5, text=0.0, target=0.0, draft=0.0 must be 0 or above and add up to 1",
        ),
        ({"fixed": 1.0, "refresh_every": 0}, "corpus.refresh_every=0"),
        ({"fixed": 1.0, "max_len": 1}, "corpus.max_len=1 must be at least 2"),
        ({"text": 1.0}, "corpus.text=1.0 needs files"),
        ({"draft": 1.0}, "corpus.draft=1.0 needs a student that can write by itself"),
    ],
)
def test_errors_for_bad_settings_name_a_remedy(
    tmp_path: Path, settings: dict, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Corpus(**settings).mix(target(), sample(), tmp_path)
