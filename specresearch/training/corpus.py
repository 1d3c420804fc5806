"""What a student is trained on: several sources mixed in an order that is a function of the seed alone."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from specresearch.data import PromptDataset
from specresearch.models import CausalLM
from specresearch.training.examples import Example
from specresearch.training.generated import DraftGenerated, Generation, TargetGenerated
from specresearch.training.sources import (
    Draw,
    FixedText,
    Listed,
    Part,
    PlainText,
    Source,
    stable_hash,
)

PERIOD = 1000  # examples in which every source has its share exactly


class Mix:
    """Examples without end: `mix[position]` is a function of the seed and the position, with no memory of those before.

    sources: by name, each with the fraction of the examples that it gives, kept to a thousandth. round_size: examples after
    which text of the student is decoded anew. predict_prompts: all tokens of an example but the first are to be predicted.
    state: the position of the next example. It is all that has to be saved; a run that sets it goes on exactly. A torch loader
    with a sampler of positions does the same: `DataLoader(mix, sampler=range(begin, end), collate_fn=collate)`.
    Raises ValueError for fractions that are negative or do not add up to 1.
    """

    def __init__(
        self,
        sources: Mapping[str, tuple[float, Source]],
        seed: int = 0,
        round_size: int = PERIOD,
        *,
        predict_prompts: bool = False,
    ) -> None:
        fractions = {name: fraction for name, (fraction, _) in sources.items()}
        check_fractions(fractions)
        if round_size < 1:
            raise ValueError(
                f"round_size={round_size} must be at least 1; raise corpus.refresh_every"
            )
        self.fractions = fractions
        self.sources = {name: source for name, (_, source) in sources.items()}
        self.seed = seed
        self.round_size = round_size
        self.predict_prompts = predict_prompts
        self.state = 0
        self._order = _spread(
            {name: round(fraction * PERIOD) for name, fraction in fractions.items()}
        )
        self._before = {name: [0] for name in sources}
        for chosen in self._order:
            for name, counts in self._before.items():
                counts.append(counts[-1] + (name == chosen))

    def __iter__(self) -> Iterator[Example]:
        while True:
            example = self[self.state]
            self.state += 1
            yield example

    def __getitem__(self, position: int) -> Example:
        name = self._order[position % PERIOD]
        number, round = self._count(name, position), position // self.round_size
        first, last = (self._count(name, self.round_size * edge) for edge in (round, round + 1))
        draw = Draw(number, stable_hash(self.seed, name), round, number - first, last - first)
        return self._asked(self.sources[name].draw(draw))

    def _asked(self, example: Example) -> Example:
        return example.predicted_whole() if self.predict_prompts else example

    def first(self, num: int) -> Iterator[Example]:
        """Every example among the first `num`, once; there must be none that the student writes while it learns."""
        for name, source in self.sources.items():
            assert isinstance(source, Listed)
            yield from map(
                self._asked, source.first(self._count(name, num), stable_hash(self.seed, name))
            )

    def _count(self, name: str, position: int) -> int:
        """Examples of a source before a position."""
        periods, rest = divmod(position, PERIOD)
        return periods * self._before[name][-1] + self._before[name][rest]

    @property
    def fingerprint(self) -> str:
        parts = [
            (name, self.fractions[name], source.fingerprint)
            for name, source in self.sources.items()
        ]
        return f"{stable_hash(self.seed, self.round_size, self.predict_prompts, parts):016x}"


def check_fractions(fractions: Mapping[str, float]) -> None:
    told = ", ".join(f"{name}={fraction}" for name, fraction in fractions.items())
    if (
        any(fraction < 0 for fraction in fractions.values())
        or abs(sum(fractions.values()) - 1) > 1e-6
    ):
        raise ValueError(f"corpus: the fractions {told} must be 0 or above and add up to 1")
    if any(0 < fraction < 1 / PERIOD for fraction in fractions.values()):
        raise ValueError(
            f"corpus: of the fractions {told} one is below 1/{PERIOD}, which is as fine as they are kept; drop it"
        )


def _spread(counts: dict[str, int]) -> list[str]:
    """PERIOD names, each as often as `counts` says and as evenly as can be; what rounding left over goes to the commonest."""
    commonest = max(counts, key=lambda name: counts[name])
    counts = {**counts, commonest: counts[commonest] + PERIOD - sum(counts.values())}
    order: list[str] = []
    given = dict.fromkeys(counts, 0)
    for place in range(1, PERIOD + 1):
        name = max(counts, key=lambda name: counts[name] * place - given[name] * PERIOD)
        given[name] += 1
        order.append(name)
    return order


@dataclass(frozen=True)
class Corpus:
    """The settings of a mix; nothing is read or decoded before `mix` is called.

    fixed, text, target, draft: fractions of the examples that are published replies of the dataset, plain text, text of the
    target and text of the student itself. max_len: tokens of an example at most, or fewer where the target allows fewer.
    heldout_fraction: share of the rows that is never trained on. text_files: for `text`. refresh_every: optimiser steps after
    which the student's text is decoded anew. predict_prompts: learn from all tokens of an example, not from replies alone.
    folder: keeps the target's text; None keeps it with the run.
    Raises ValueError for settings that contradict each other.
    """

    fixed: float = 0.0
    text: float = 0.0
    target: float = 0.0
    draft: float = 0.0
    max_len: int = 2048
    heldout_fraction: float = 0.1
    seed: int = 0
    text_files: Sequence[str] = ()
    refresh_every: int = 100
    predict_prompts: bool = False
    folder: str | None = None
    generation: Generation = field(default_factory=Generation)

    def __post_init__(self) -> None:
        check_fractions(self._fractions)
        Part("train", self.heldout_fraction)
        if self.max_len < 2:
            raise ValueError(f"corpus.max_len={self.max_len} must be at least 2")
        if self.refresh_every < 1:
            raise ValueError(
                f"corpus.refresh_every={self.refresh_every} must be at least 1 optimiser step"
            )

    @property
    def _fractions(self) -> dict[str, float]:
        return {"fixed": self.fixed, "text": self.text, "target": self.target, "draft": self.draft}

    def mix(
        self,
        target: CausalLM,
        dataset: PromptDataset,
        folder: Path,
        *,
        draft: CausalLM | None = None,
        examples_per_step: int = 1,
    ) -> Mix:
        """The training part. Decoding of the target's text, which may take long, begins at once.

        folder: of the run. draft: the student, where it is a model that decodes by itself. examples_per_step: of an optimiser
        step, over all devices.
        """
        if target.tokenizer is None:
            raise ValueError(
                f"{target.name} has no tokenizer, and a corpus is text; load one with it"
            )
        if self.text and not self.text_files:
            raise ValueError(
                f"corpus.text={self.text} needs files; set corpus.text_files=[books/*.txt], or corpus.text=0"
            )
        if self.draft and draft is None:
            raise ValueError(
                f"corpus.draft={self.draft} needs a student that can write by itself, which only a draft model can; set "
                "corpus.draft=0 for a head"
            )
        part, max_len = Part("train", self.heldout_fraction), min(self.max_len, target.max_len)
        sources: dict[str, Source] = {}
        if self.fixed:
            sources["fixed"] = FixedText(dataset, target.tokenizer, max_len, part)
        if self.text:
            sources["text"] = PlainText(self.text_files, target.tokenizer, max_len, part)
        if self.draft and draft is not None:
            own = replace(
                self.generation, seed=stable_hash(self.seed, self.generation.seed)
            )  # nobody shares its text
            sources["draft"] = DraftGenerated(draft, dataset, folder / "draft", own, max_len, part)
        if self.target:
            place = self._folder(folder) / "target"
            sources["target"] = TargetGenerated(
                target, dataset, place, self.generation, max_len, part
            )
        shares = {name: (self._fractions[name], source) for name, source in sources.items()}
        round_size = self.refresh_every * examples_per_step
        return Mix(shares, self.seed, round_size, predict_prompts=self.predict_prompts)

    def heldout(
        self, target: CausalLM, dataset: PromptDataset, folder: Path, *, num_rows: int | None = None
    ) -> TargetGenerated:
        """What the target says to held-out prompts (to `num_rows` of them), on which a student's acceptance can be predicted."""
        place = self._folder(folder) / ("heldout" if num_rows is None else f"heldout-{num_rows}")
        part = Part("heldout", self.heldout_fraction)
        max_len = min(self.max_len, target.max_len)
        return TargetGenerated(
            target, dataset, place, self.generation, max_len, part, num_rows=num_rows
        )

    def _folder(self, of_run: Path) -> Path:
        return of_run if self.folder is None else Path(self.folder).expanduser()
