"""Many outputs of one drafter through the engine, counted; the counts are written down as they come, to be continued."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int

from specresearch.batch import Request
from specresearch.certification.decoding import Decoded, in_bursts, in_waves
from specresearch.certification.enumeration import Law
from specresearch.engine import Engine, RequestOutput
from specresearch.files import replace_text
from specresearch.files.jsonl import append_rows, read_jsonl, to_line
from specresearch.sampling import SamplingParams

CHUNK = 2048  # samples of a setting that are written down together
WAVES = 256  # the same for waves, which take longer
ANY_SEED = 1 << 62


@dataclass(frozen=True)
class Setting:
    """One way of sampling, on a prompt of its own, and the law its outputs must follow. number: among the settings."""

    name: str
    number: int
    sampling: SamplingParams
    prompt: tuple[int, ...]
    law: Law
    num_samples: int

    def requests(self, chunk: int, seed: int) -> list[Request]:
        """The chunk's share of the samples, none behind the last; every one has a seed of its own."""
        first, last = chunk * CHUNK, min((chunk + 1) * CHUNK, self.num_samples)
        seeds = (
            np.random.default_rng([seed, self.number, chunk])
            .integers(ANY_SEED, size=max(last - first, 0))
            .tolist()
        )
        return [self.request(number, seed) for number, seed in enumerate(seeds, start=first)]

    def request(self, number: int, seed: int) -> Request:
        return Request(self.prompt, replace(self.sampling, seed=seed), f"{self.name}/{number}")


def setting_of(output: RequestOutput) -> str:
    """The name of the setting whose request this output answers."""
    return output.id.rpartition("/")[0]


@dataclass
class Tally:
    """Outputs of one setting: how often each was seen, and what became of the drafts.

    num_impossible: outputs not in the law. num_preempted, num_chunked: requests that were preempted, and those whose tokens were
    read in several steps.
    """

    counts: list[int] = field(default_factory=list)
    num_impossible: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_target_forwards: int = 0
    num_generated_tokens: int = 0
    num_preempted: int = 0
    num_chunked: int = 0

    def add(self, output: RequestOutput, law: Law, *, was_chunked: bool = False) -> None:
        cell = law.cell_of.get(output.token_ids)
        if cell is None:
            self.num_impossible += 1
        else:
            self.counts[cell] += 1
        told = output.record.counts
        self.num_draft_tokens += told.num_draft_tokens
        self.num_accepted_tokens += told.num_accepted_tokens
        self.num_target_forwards += told.num_target_forwards
        self.num_generated_tokens += told.num_generated_tokens
        self.num_preempted += output.record.num_preemptions > 0
        self.num_chunked += was_chunked

    @staticmethod
    def total(parts: "Sequence[Tally]") -> "Tally":
        counts: Int[np.ndarray, " K"] = np.sum([part.counts for part in parts], axis=0)
        names = [name for name in asdict(parts[0]) if name != "counts"]
        return Tally(
            counts.tolist(), **{name: sum(getattr(part, name) for part in parts) for name in names}
        )


class CountsFile:
    """A line that says what is drawn, then a line per chunk. Counts drawn otherwise are refused with ValueError."""

    def __init__(self, path: Path, identity: Mapping[str, Any]) -> None:
        self.path = path
        self.identity = json.loads(json.dumps(identity))
        self.chunks: dict[int, dict[str, Tally]] = {}
        rows = read_jsonl(path)
        if rows:
            self._check(rows[0])
            self.chunks = {
                row["chunk"]: {name: Tally(**told) for name, told in row["tallies"].items()}
                for row in rows[1:]
            }
            if len(self.chunks) < len(rows) - 1:
                raise ValueError(
                    f"{path} holds a chunk twice: two processes wrote to it, or files were joined; choose another folder"
                )
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = [
            self.identity,
            *({"chunk": i, "tallies": self._flat(tallies)} for i, tallies in self.chunks.items()),
        ]
        replace_text(
            path, "".join(to_line(row) for row in kept)
        )  # without a line that was torn off

    def _check(self, before: Mapping[str, Any]) -> None:
        keys = sorted(
            key
            for key in before.keys() | self.identity.keys()
            if before.get(key) != self.identity.get(key)
        )
        if keys:
            raise ValueError(
                f"{self.path} was drawn with another {', '.join(keys)} ({before.get(keys[0])!r}, now "
                f"{self.identity.get(keys[0])!r}); choose another folder, since samples of the two cannot be mixed"
            )

    def add(self, chunk: int, tallies: Mapping[str, Tally]) -> None:
        self.chunks[chunk] = dict(tallies)
        append_rows(self.path, [{"chunk": chunk, "tallies": self._flat(tallies)}])

    @staticmethod
    def _flat(tallies: Mapping[str, Tally]) -> dict[str, Any]:
        return {name: asdict(tally) for name, tally in tallies.items()}


@runtime_checkable
class Draw(Protocol):
    """Decodes one chunk of the samples of all settings: a number of samples of each, and an iterator over them."""

    @property
    def chunk_size(self) -> int: ...
    def __call__(
        self, settings: Sequence[Setting], chunk: int
    ) -> tuple[int, Iterator[Decoded]]: ...


@dataclass(frozen=True)
class BurstDraw:
    """All settings mixed in the same batches; every request has a seed of its own."""

    engine: Engine
    seed: int

    @property
    def chunk_size(self) -> int:
        return CHUNK

    def __call__(self, settings: Sequence[Setting], chunk: int) -> tuple[int, Iterator[Decoded]]:
        requests = [
            request for setting in settings for request in setting.requests(chunk, self.seed)
        ]
        rng = np.random.default_rng((self.seed, chunk))
        order = rng.permutation(len(requests))
        return len(requests), in_bursts(self.engine, [requests[i] for i in order], rng)


@dataclass(frozen=True)
class WaveDraw:
    """A wave has one request of each setting that still lacks samples, and one seed."""

    engine: Engine
    seed: int

    @property
    def chunk_size(self) -> int:
        return WAVES

    def __call__(self, settings: Sequence[Setting], chunk: int) -> tuple[int, Iterator[Decoded]]:
        first = chunk * self.chunk_size
        seeds = (
            np.random.default_rng((self.seed, chunk))
            .integers(ANY_SEED, size=self.chunk_size)
            .tolist()
        )
        waves = [
            [setting.request(number, seed) for setting in settings if number < setting.num_samples]
            for number, seed in enumerate(seeds, start=first)
        ]
        return sum(map(len, waves)), in_waves(self.engine, [wave for wave in waves if wave])


def tally_outputs(
    draw: Draw, settings: Sequence[Setting], file: CountsFile, progress: Callable[[int], None]
) -> dict[str, Tally]:
    """Draw what the file lacks; the counts of every setting. progress: called with the number of new samples."""
    num_chunks = max(-(-setting.num_samples // draw.chunk_size) for setting in settings)
    laws = {setting.name: setting.law for setting in settings}
    for chunk in range(num_chunks):
        num_samples, outputs = draw(settings, chunk)
        if chunk not in file.chunks:
            tallies = {name: Tally([0] * len(law.outputs)) for name, law in laws.items()}
            for decoded in outputs:
                name = setting_of(decoded.output)
                tallies[name].add(decoded.output, laws[name], was_chunked=decoded.was_chunked)
            file.add(chunk, tallies)
        progress(num_samples)
    return {name: Tally.total([tallies[name] for tallies in file.chunks.values()]) for name in laws}
