"""Several sources interleaved in an order that depends on the seed alone."""

from collections.abc import Iterator, Mapping

from specresearch.training.corpus.examples import Example
from specresearch.training.corpus.sources import Draw, ListSource, Source, stable_hash

PERIOD = 1000  # positions within which fractions hold exactly


class Mix:
    """An endless sequence of examples; `mix[position]` depends on seed and position alone.

    `state` is the position of the next example of an iteration, and all that needs to be saved. A
    loader with a sampler of positions draws the same examples:
    `DataLoader(mix, sampler=range(begin, end), collate_fn=collate)`.

    Args:
        sources: Fraction of the examples, kept to a thousandth, and source, by name.
        round_size: Examples after which the student's text is generated again.
        predict_prompts: Predict all tokens of an example but the first.
    """

    def __init__(
        self,
        sources: Mapping[str, tuple[float, Source]],
        seed: int = 0,
        round_size: int = PERIOD,
        *,
        predict_prompts: bool = False,
    ) -> None:
        self.fractions = {name: fraction for name, (fraction, _) in sources.items()}
        check_fractions(self.fractions)
        if round_size < 1:
            raise ValueError(
                f"round_size={round_size} must be at least 1; raise corpus.refresh_every"
            )
        self.sources = {name: source for name, (_, source) in sources.items()}
        self.seed = seed
        self.round_size = round_size
        self.predict_prompts = predict_prompts
        self.state = 0
        self._order = _interleave(self.fractions)

    def __iter__(self) -> Iterator[Example]:
        while True:
            example = self[self.state]
            self.state += 1
            yield example

    def __getitem__(self, position: int) -> Example:
        name = self._order[position % PERIOD]
        number = self._count_before(name, position)
        round = position // self.round_size
        round_begin = self._count_before(name, self.round_size * round)
        round_end = self._count_before(name, self.round_size * (round + 1))
        draw = Draw(
            number=number,
            seed=stable_hash(self.seed, name),
            round=round,
            index=number - round_begin,
            round_size=round_end - round_begin,
        )
        return self._mask(self.sources[name].draw(draw))

    def first(self, num: int) -> Iterator[Example]:
        """Yield each distinct example of the first `num`; text of the student is not supported."""
        for name, source in self.sources.items():
            assert isinstance(source, ListSource)
            seed = stable_hash(self.seed, name)
            yield from map(self._mask, source.first(self._count_before(name, num), seed))

    @property
    def fingerprint(self) -> str:
        parts = [
            (name, self.fractions[name], source.fingerprint)
            for name, source in self.sources.items()
        ]
        return f"{stable_hash(self.seed, self.round_size, self.predict_prompts, parts):016x}"

    def _mask(self, example: Example) -> Example:
        return example.with_full_mask() if self.predict_prompts else example

    def _count_before(self, name: str, position: int) -> int:
        """Return the number of a source's examples before a position."""
        periods, rest = divmod(position, PERIOD)
        return periods * self._order.count(name) + self._order[:rest].count(name)


def check_fractions(fractions: Mapping[str, float]) -> None:
    """Raise ValueError unless fractions add up to 1 and each is 0 or at least 1/PERIOD."""
    listed = ", ".join(f"{name}={fraction}" for name, fraction in fractions.items())
    if min(fractions.values()) < 0 or abs(sum(fractions.values()) - 1) > 1e-6:
        raise ValueError(f"corpus: the fractions {listed} must be 0 or above and add up to 1")
    if any(0 < fraction < 1 / PERIOD for fraction in fractions.values()):
        raise ValueError(
            f"corpus: of the fractions {listed} one is below 1/{PERIOD}, the finest step; drop it"
        )


def _interleave(fractions: Mapping[str, float]) -> list[str]:
    """Return PERIOD names, spread evenly; the most frequent source absorbs rounding errors."""
    counts = {name: round(fraction * PERIOD) for name, fraction in fractions.items()}
    most_frequent = max(counts, key=counts.__getitem__)
    counts[most_frequent] += PERIOD - sum(counts.values())
    order: list[str] = []
    num_placed = dict.fromkeys(counts, 0)
    for length in range(1, PERIOD + 1):
        deficits = {
            name: count * length - num_placed[name] * PERIOD for name, count in counts.items()
        }
        name = max(deficits, key=deficits.__getitem__)
        num_placed[name] += 1
        order.append(name)
    return order
