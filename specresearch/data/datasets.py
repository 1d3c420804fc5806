"""A dataset: rows of one source in the requested order and number, and the prompts they become.

A dataset is its YAML file in `conf/dataset/`: a format, a template and a location on the hub. The
code knows no dataset by name.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from transformers import PreTrainedTokenizerBase

from specresearch.data import sources
from specresearch.data.cutting import cut_to_fit
from specresearch.data.formats import Row, find_format, from_field
from specresearch.data.hub import HubDataset
from specresearch.data.sources import DatasetSource, SourceChoice
from specresearch.data.templates import Template, find_template, render
from specresearch.data.usable_rows import (
    SHUFFLE_BUFFER,
    UsableRows,
    choose_rows,
    fingerprint,
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Prompt:
    """A prompt in token ids.

    Attributes:
        text: The turn that it asks, without template and earlier turns.
        num_cut_tokens: Tokens by which it is shorter than the row's own prompt.
    """

    token_ids: list[int]
    text: str
    num_cut_tokens: int = 0


class PromptDataset:
    """The rows of one dataset, read on construction.

    Rows without any user text are skipped and counted in `source.note`.

    Args:
        name: Names the shipped sample, and the dataset in messages.
        format: A published format, one of `formats.FORMATS`.
        template: One of `templates.TEMPLATES` by name, or a template.
        path: A local file in that format.
        source: "auto" (hub, then sample), "hub" or "sample".
        hub_id: As in `HubDataset`, like `config`, `split`, `revision` and `hub_file`.
        field: The field of a record that holds the prompt, in place of the format's own fields.
        limit: Rows to use; None uses all.
        shuffle: Choose the rows at random, by `seed`.
        streaming: Read and download only as many rows as `limit` needs. With `shuffle`, the choice
            is among the rows at the beginning, see `choose_rows`.
        max_turns: Turns to keep of each row; None keeps all.
        max_prompt_tokens: Longer prompts are cut (`overlong="cut"`) or an error
            (`overlong="refuse"`).

    Attributes:
        source: Where the rows came from, for results.

    Raises:
        ValueError: For invalid settings, and for rows that cannot be read.
    """

    def __init__(
        self,
        name: str,
        format: str,
        template: str | Template,
        *,
        path: str | None = None,
        source: SourceChoice = "auto",
        hub_id: str | None = None,
        config: str | None = None,
        split: str | None = None,
        revision: str | None = None,
        hub_file: str | None = None,
        field: str | None = None,
        limit: int | None = None,
        shuffle: bool = False,
        streaming: bool = False,
        seed: int = 0,
        max_turns: int | None = None,
        max_prompt_tokens: int | None = None,
        overlong: Literal["cut", "refuse"] = "cut",
    ) -> None:
        _check_limit("limit", limit)
        _check_limit("max_turns", max_turns)
        _check_limit("max_prompt_tokens", max_prompt_tokens)
        if streaming and limit is None:
            raise ValueError(
                "dataset.streaming=true needs to know how many rows to read; set dataset.limit"
            )
        if overlong not in ("cut", "refuse"):
            raise ValueError(f"dataset.overlong={overlong} is unknown; use cut or refuse")
        self.name = name
        self.template = find_template(template) if isinstance(template, str) else template
        self.max_prompt_tokens = max_prompt_tokens
        self.overlong = overlong
        self._cut_prompts: set[tuple[str, int]] = set()
        parser = from_field(field) if field is not None else find_format(format)
        on_hub = None
        if hub_id is not None:
            on_hub = HubDataset(
                id=hub_id,
                config=config,
                split=split,
                revision=revision,
                file=hub_file,
                streaming=streaming,
            )
        origin = sources.find(name, path, source, on_hub)
        usable = UsableRows(origin, parser, format, max_turns)
        buffer_size = SHUFFLE_BUFFER if streaming else None
        self.rows = choose_rows(usable, limit, seed if shuffle else None, buffer_size)
        if not self.rows:
            reason = "it is empty"
            if usable.num_skipped:
                reason = f"all {usable.num_skipped} rows have empty prompts"
            raise ValueError(
                f"{origin.location}: no prompts, {reason}; give another file with dataset.path="
            )
        notes = [origin.note]
        if usable.num_skipped:
            notes.append(f"skipped {usable.num_skipped} rows without a prompt")
        if limit is not None and len(self.rows) < limit:
            shortage = f"{len(self.rows)} rows, fewer than the {limit} asked for"
            notes.append(shortage)
            logger.warning("dataset %s: %s holds %s", name, origin.location, shortage)
        self.source = DatasetSource(
            kind=origin.kind,
            location=origin.location,
            fingerprint=fingerprint(self.rows),
            num_rows=len(self.rows),
            note="; ".join(notes),
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
        """Return the prompt for turn `len(replies)` of a row.

        Args:
            replies: The model's own replies to the earlier turns.
            max_tokens: The room that the target has, if it is less than `max_prompt_tokens`.

        Raises:
            ValueError: If the prompt is too long under `overlong="refuse"`, or the limit leaves
                no room for any text, or the row has no such turn.
        """
        if len(replies) >= len(row.turns):
            raise ValueError(
                f"row {row.id} has {len(row.turns)} turns and {len(replies)} replies; "
                "there is no turn left to ask"
            )
        token_ids = render(tokenizer, self.template, row.turns, replies)
        limits = [limit for limit in (self.max_prompt_tokens, max_tokens) if limit is not None]
        allowed = min(limits, default=len(token_ids))
        if len(token_ids) <= allowed:
            return Prompt(token_ids, row.turns[len(replies)])
        if self.overlong == "refuse":
            raise ValueError(
                f"dataset {self.name}, row {row.id}: the prompt has {len(token_ids)} tokens, the "
                f"limit is {allowed}; raise dataset.max_prompt_tokens and the target's max_len, or "
                "set dataset.overlong=cut"
            )
        kept, text = cut_to_fit(tokenizer, self.template, row.turns, replies, allowed)
        self._cut_prompts.add((row.id, len(replies)))
        return Prompt(kept, text, num_cut_tokens=len(token_ids) - len(kept))


def _check_limit(key: str, value: int | None) -> None:
    if value is not None and (not isinstance(value, int) or value < 1):
        raise ValueError(
            f"dataset.{key}={value} is not a whole number from 1; use null for no limit"
        )
