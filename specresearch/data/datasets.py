"""A dataset: rows from one source, in an order and a number that were asked for, and the prompts they become.

A dataset is its YAML file in `conf/dataset/`: a format, a template and a place on the hub. Nothing here knows one by
name.
"""

import hashlib
import json
import logging
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import Literal

from transformers import PreTrainedTokenizerBase

from specresearch.data import sources
from specresearch.data.cutting import cut_to_fit
from specresearch.data.formats import Parser, Row, find_format, from_field
from specresearch.data.hub import HubCopy
from specresearch.data.sources import Choice, Origin, Source
from specresearch.data.templates import Template, find_template, render

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Prompt:
    """token_ids: the whole prompt. num_cut_tokens: how many fewer than the row asked for."""

    token_ids: list[int]
    num_cut_tokens: int = 0


class PromptDataset:
    """Rows of one dataset, read when it is constructed.

    name: names the shipped sample and the dataset in messages.
    format: a published format (`formats.FORMATS`). template: a wording by name (`templates.TEMPLATES`), or one's own.
    path: a local file in that format. source: "auto" (hub, then sample), "hub" or "sample".
    hub_id, config, split, revision, hub_file: as in `hub.HubCopy`.
    field: the records' field that holds the prompt, in place of the format's own fields.
    limit: rows to use, None for all; with `shuffle` a random choice of them, by `seed`.
    max_turns: turns to keep of each row.
    max_prompt_tokens: longer prompts are cut (`overlong="cut"`) or an error (`overlong="refuse"`).

    Rows without any user text are skipped and counted in `source.note`. What cannot be read is a ValueError.
    """

    def __init__(
        self,
        name: str,
        format: str,
        template: str | Template,
        *,
        path: str | None = None,
        source: Choice = "auto",
        hub_id: str | None = None,
        config: str | None = None,
        split: str | None = None,
        revision: str | None = None,
        hub_file: str | None = None,
        field: str | None = None,
        limit: int | None = None,
        shuffle: bool = False,
        seed: int = 0,
        max_turns: int | None = None,
        max_prompt_tokens: int | None = None,
        overlong: Literal["cut", "refuse"] = "cut",
    ) -> None:
        for key, value in {
            "limit": limit,
            "max_turns": max_turns,
            "max_prompt_tokens": max_prompt_tokens,
        }.items():
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ValueError(
                    f"dataset.{key}={value} is not a whole number from 1; use null for no limit"
                )
        if overlong not in ("cut", "refuse"):
            raise ValueError(f"dataset.overlong={overlong} is not known; use cut or refuse")
        self.name = name
        self.template = find_template(template) if isinstance(template, str) else template
        self.max_prompt_tokens = max_prompt_tokens
        self.overlong = overlong
        self._cut_prompts: set[tuple[str, int]] = set()
        parser = from_field(field) if field is not None else find_format(format)
        copy = None if hub_id is None else HubCopy(hub_id, config, split, revision, hub_file)
        origin = sources.find(name, path, source, copy)
        usable = _UsableRows(origin, parser, f"the {format} format", max_turns)
        self.rows = _choose(usable, limit, random.Random(seed) if shuffle else None)
        if not self.rows:
            skipped = (
                f"all {usable.num_skipped} rows have empty prompts"
                if usable.num_skipped
                else "it is empty"
            )
            raise ValueError(
                f"{origin.location}: no prompts, {skipped}; give another file with dataset.path="
            )
        notes = [origin.note]
        if usable.num_skipped:
            notes.append(f"skipped {usable.num_skipped} rows without a prompt")
        if limit is not None and len(self.rows) < limit:
            notes.append(f"limit {limit}, but there are only {len(self.rows)} rows")
            logger.warning("dataset %s: %s in %s", name, notes[-1], origin.location)
        self.source = Source(
            origin.kind, origin.location, _fingerprint(self.rows), len(self.rows), "; ".join(notes)
        )

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    @property
    def num_cut(self) -> int:
        """Prompts that `prompt` has cut so far; the same turn of the same row counts once."""
        return len(self._cut_prompts)

    def prompt(
        self,
        tokenizer: PreTrainedTokenizerBase,
        row: Row,
        replies: Sequence[str] = (),
        *,
        max_tokens: int | None = None,
    ) -> Prompt:
        """The prompt for turn `len(replies)` of `row`, after the model's own `replies` to the turns before it.

        max_tokens: the room that the target has, if that is less than `max_prompt_tokens`.
        Raises ValueError for a prompt too long under `overlong="refuse"`, or of which no text at all would fit.
        """
        if len(replies) >= len(row.turns):
            raise ValueError(
                f"row {row.id} has {len(row.turns)} turns and {len(replies)} replies; none is left to ask"
            )
        token_ids = render(tokenizer, self.template, row.turns, replies)
        allowed = min(
            (n for n in (self.max_prompt_tokens, max_tokens) if n is not None),
            default=len(token_ids),
        )
        if len(token_ids) <= allowed:
            return Prompt(token_ids)
        if self.overlong == "refuse":
            raise ValueError(
                f"dataset {self.name}, row {row.id}: the prompt has {len(token_ids)} tokens, the limit is {allowed}; "
                "raise dataset.max_prompt_tokens and the target's max_len, or set dataset.overlong=cut"
            )
        kept = cut_to_fit(tokenizer, self.template, row.turns, replies, allowed)
        self._cut_prompts.add((row.id, len(replies)))
        return Prompt(kept, num_cut_tokens=len(token_ids) - len(kept))


class _UsableRows:
    """The rows of an origin that have something to ask, with unique ids; counts those that have not."""

    def __init__(
        self, origin: Origin, parser: Parser, described: str, max_turns: int | None
    ) -> None:
        self.origin = origin
        self.parser = parser
        self.described = described
        self.max_turns = max_turns
        self.num_skipped = 0

    def __iter__(self) -> Iterator[Row]:
        seen: dict[str, int] = {}
        for number, record in enumerate(self.origin.records):
            try:
                row = self.parser(record.fields)
            except ValueError as error:
                raise ValueError(
                    f"{self.origin.location}, {record.place}: {error}; this is not {self.described}: correct the file, "
                    "choose another dataset=, or name the prompt's field with dataset.field="
                ) from None
            asked = [number for number, turn in enumerate(row.turns) if turn.strip()][
                : self.max_turns
            ]
            if not asked:
                self.num_skipped += 1
                continue
            turns = tuple(row.turns[number] for number in asked)
            replies = tuple(row.replies[number] for number in asked) if row.replies else ()
            id = row.id or str(number)
            seen[id] = seen.get(id, 0) + 1
            yield replace(
                row, id=id if seen[id] == 1 else f"{id}#{seen[id]}", turns=turns, replies=replies
            )


def _choose(rows: _UsableRows, limit: int | None, rng: random.Random | None) -> tuple[Row, ...]:
    if rng is None:
        return tuple(islice(rows, limit))
    everything = list(rows)
    rng.shuffle(everything)
    return tuple(everything[:limit])


def _fingerprint(rows: Sequence[Row]) -> str:
    """Of what decoding may see; `replies` are not among it."""
    digest = hashlib.sha256()
    for row in rows:
        fields = {name: value for name, value in asdict(row).items() if name != "replies"}
        digest.update(json.dumps(fields, ensure_ascii=True, sort_keys=True).encode() + b"\n")
    return digest.hexdigest()[:16]
