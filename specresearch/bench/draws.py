"""Many outputs of one drafter through the engine, counted; the counts are written down as they come, to be continued."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from specresearch.batch import Request
from specresearch.bench.enumeration import Law
from specresearch.bench.jsonl import append_rows, read_jsonl, to_line
from specresearch.engine import Engine, RequestOutput
from specresearch.files import replace_text
from specresearch.sampling import SamplingParams

CHUNK = 2048


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
        base = (seed << 40) + (self.number << 32)
        return [
            Request(self.prompt, replace(self.sampling, seed=base + i), f"{self.name}/{i}") for i in range(first, last)
        ]


def setting_of(output: RequestOutput) -> str:
    """The name of the setting whose request this output answers."""
    return output.id.rpartition("/")[0]


@dataclass
class Tally:
    """Outputs of one setting: how often each was seen, and what became of the drafts. num_impossible: not in the law."""

    counts: list[int] = field(default_factory=list)
    num_impossible: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_target_forwards: int = 0
    num_generated_tokens: int = 0

    def add(self, output: RequestOutput, law: Law) -> None:
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

    @staticmethod
    def total(parts: "Sequence[Tally]") -> "Tally":
        counts: Int[np.ndarray, " K"] = np.sum([part.counts for part in parts], axis=0)
        names = [name for name in asdict(parts[0]) if name != "counts"]
        return Tally(counts.tolist(), **{name: sum(getattr(part, name) for part in parts) for name in names})


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
                row["chunk"]: {name: Tally(**told) for name, told in row["tallies"].items()} for row in rows[1:]
            }
            if len(self.chunks) < len(rows) - 1:
                raise ValueError(
                    f"{path} holds a chunk twice: two processes wrote to it, or files were joined; choose another folder"
                )
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = [self.identity, *({"chunk": i, "tallies": self._flat(tallies)} for i, tallies in self.chunks.items())]
        replace_text(path, "".join(to_line(row) for row in kept))  # without a line that was torn off

    def _check(self, before: Mapping[str, Any]) -> None:
        keys = sorted(key for key in before.keys() | self.identity.keys() if before.get(key) != self.identity.get(key))
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


def tally_outputs(
    engine: Engine, settings: Sequence[Setting], seed: int, file: CountsFile, progress: Callable[[int], None]
) -> dict[str, Tally]:
    """Draw what the file lacks, all settings mixed in the same batches; the counts of every setting.

    progress: called with the number of new samples.
    """
    num_chunks = max(-(-setting.num_samples // CHUNK) for setting in settings)
    laws = {setting.name: setting.law for setting in settings}
    for chunk in range(num_chunks):
        requests = [request for setting in settings for request in setting.requests(chunk, seed)]
        if chunk not in file.chunks:
            order = np.random.default_rng((seed, chunk)).permutation(len(requests))
            tallies = {name: Tally([0] * len(law.outputs)) for name, law in laws.items()}
            for output in engine.generate([requests[i] for i in order]):
                name = setting_of(output)
                tallies[name].add(output, laws[name])
            file.add(chunk, tallies)
        progress(len(requests))
    return {name: Tally.total([tallies[name] for tallies in file.chunks.values()]) for name in laws}
