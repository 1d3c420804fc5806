"""Counts of sampled outputs, and the file that keeps them so that sampling can be resumed."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from specresearch.certification.enumeration import OutputDistribution
from specresearch.certification.goodness_of_fit import Fit
from specresearch.engine import RequestOutput
from specresearch.files import replace_text
from specresearch.files.jsonl import append_rows, read_jsonl, to_line

# share of wrong outputs, among those that hold a draft or another event, that a test must detect
DETECTED_SHARE = 0.5


@runtime_checkable
class Events(Protocol):
    """What happened while outputs were sampled."""

    @property
    def num_draft_tokens(self) -> int: ...
    @property
    def num_preempted(self) -> int: ...
    @property
    def num_chunked(self) -> int: ...


def events_needed(visible_tv: float, num_samples: int) -> float:
    """Return how often an event must happen for a test to show its errors.

    With fewer, even if each were in an output of its own, and `DETECTED_SHARE` of these outputs
    were wrong, the deviation would be too small to detect.
    """
    return visible_tv * num_samples / DETECTED_SHARE


def rare_events(events: Events, num_needed: float, *, is_crowded: bool) -> dict[str, int]:
    """Return the events that happened less often than needed, and how often they did.

    Args:
        is_crowded: the trial should preempt requests and chunk prompts, too.
    """
    counts = {"drafts": events.num_draft_tokens}
    if is_crowded:
        counts["preempted requests"] = events.num_preempted
        counts["prompts prefilled in chunks"] = events.num_chunked
    return {event: num for event, num in counts.items() if num < num_needed}


@dataclass
class Tally:
    """What was observed under one setting.

    Attributes:
        counts: how often each possible output was sampled.
        num_impossible: outputs whose probability is 0.
        num_preempted, num_chunked: requests that were preempted, and those prefilled in chunks.
    """

    counts: list[int] = field(default_factory=list)
    num_impossible: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_target_forwards: int = 0
    num_generated_tokens: int = 0
    num_preempted: int = 0
    num_chunked: int = 0

    def add(
        self, output: RequestOutput, distribution: OutputDistribution, *, was_chunked: bool = False
    ) -> None:
        """Count one output."""
        cell = distribution.cell_of.get(output.token_ids)
        if cell is None:
            self.num_impossible += 1
        else:
            self.counts[cell] += 1
        record = output.record
        self.num_draft_tokens += record.counts.num_draft_tokens
        self.num_accepted_tokens += record.counts.num_accepted_tokens
        self.num_target_forwards += record.counts.num_target_forwards
        self.num_generated_tokens += record.counts.num_generated_tokens
        self.num_preempted += record.num_preemptions > 0
        self.num_chunked += was_chunked

    def fit(self, distribution: OutputDistribution) -> Fit:
        """Return how well the counts fit the distribution."""
        counts = np.array(self.counts)
        return Fit.of(counts, distribution.probs, self.num_impossible, distribution.rounding)

    def scalars(self) -> dict[str, int]:
        """Return all numbers but `counts`, by name."""
        numbers = asdict(self)
        del numbers["counts"]
        return numbers

    @staticmethod
    def total(parts: "Sequence[Tally]") -> "Tally":
        """Return the sum of several tallies of one setting."""
        counts = np.sum([part.counts for part in parts], axis=0).tolist()
        numbers = [part.scalars() for part in parts]
        return Tally(counts, **{name: sum(row[name] for row in numbers) for name in numbers[0]})


class CountsFile:
    """A JSON Lines file: first the identity of what is sampled, then one line per chunk.

    Args:
        identity: everything that the counts depend on.

    Raises:
        ValueError: the file holds counts of another identity, or a chunk twice.
    """

    def __init__(self, path: Path, identity: Mapping[str, Any]) -> None:
        self.path = path
        self.identity = json.loads(json.dumps(identity))
        self.chunks: dict[int, dict[str, Tally]] = {}
        rows = read_jsonl(path)
        if rows:
            self._check_identity(rows[0])
        for row in rows[1:]:
            if row["chunk"] in self.chunks:
                raise ValueError(
                    f"{path} holds chunk {row['chunk']} twice: two processes wrote to it, or files "
                    "were joined; choose another folder"
                )
            tallies = {name: Tally(**numbers) for name, numbers in row["tallies"].items()}
            self.chunks[row["chunk"]] = tallies
        path.parent.mkdir(parents=True, exist_ok=True)
        # rewriting drops a last line that a kill cut short
        lines = map(to_line, [self.identity, *rows[1:]])
        replace_text(path, "".join(lines))

    def _check_identity(self, before: Mapping[str, Any]) -> None:
        now = self.identity
        keys = sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
        if keys:
            raise ValueError(
                f"{self.path} was sampled with other settings: {', '.join(keys)} "
                f"({before.get(keys[0])!r}, now {now.get(keys[0])!r}); choose another folder, "
                "since their samples cannot be mixed"
            )

    def add(self, chunk: int, tallies: Mapping[str, Tally]) -> None:
        """Append the counts of a chunk, by setting."""
        self.chunks[chunk] = dict(tallies)
        counts = {name: asdict(tally) for name, tally in tallies.items()}
        append_rows(self.path, [{"chunk": chunk, "tallies": counts}])
