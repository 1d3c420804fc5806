"""Published dataset formats: one small parser each, from the fields of a record to a `Row`.

A parser raises ValueError with the name of the missing field; its caller adds file and location.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any


@dataclass(frozen=True)
class Row:
    """One conversation to decode.

    Attributes:
        id: The published id, or the row's number in the source.
        turns: The user's messages, in order; a single prompt is one turn.
        category: The benchmark's own label, or "".
        reference: A published answer to the first turn.
        replies: The published assistant's reply to each turn, "" if there is none. Training uses
            them; decoding never does.
    """

    id: str
    turns: tuple[str, ...]
    category: str = ""
    reference: str | None = None
    replies: tuple[str, ...] = ()


Fields = Mapping[str, Any]
Parser = Callable[[Fields], Row]

USERS = {"human", "user"}
ASSISTANTS = {"gpt", "chatgpt", "assistant", "model", "bard", "bing"}
PROMPT_FIELDS = ("prompt", "text", "turns", "messages", "conversations", "question", "instruction")


def cnndm(fields: Fields) -> Row:
    """Parse CNN/DailyMail: `article`, `highlights`, `id`."""
    return Row(
        id=_label(fields, "id"),
        turns=(_text(fields, "article"),),
        reference=_text(fields, "highlights"),
    )


def sharegpt(fields: Fields) -> Row:
    """Parse ShareGPT: `conversations` of `{from, value}`, or `messages` of `{role, content}`.

    The user's messages become the turns; system messages and whatever precedes the first user
    message are left out.
    """
    name, messages = _field(fields, "conversations", "messages")
    return replace(_conversation(name, messages), id=_label(fields, "id"))


def questions(fields: Fields) -> Row:
    """Parse MT-bench and Spec-Bench: `question_id`, `category`, `turns`.

    The hub's MT-bench uses `prompt_id` and `prompt`.
    """
    name, turns = _field(fields, "turns", "prompt")
    answers = fields.get("reference")
    return Row(
        id=_label(fields, "question_id", "prompt_id", "id"),
        turns=_texts(name, turns),
        category=_label(fields, "category"),
        reference=str(answers[0]) if isinstance(answers, list) and answers else None,
    )


def humaneval(fields: Fields) -> Row:
    """Parse HumanEval: `task_id`, `prompt`, `canonical_solution`; the tests are not used."""
    return Row(
        id=_label(fields, "task_id"),
        turns=(_text(fields, "prompt"),),
        reference=_text(fields, "canonical_solution"),
    )


def gsm8k(fields: Fields) -> Row:
    """Parse GSM8K: `question`, `answer`."""
    return Row(
        id=_label(fields, "id"),
        turns=(_text(fields, "question"),),
        reference=_text(fields, "answer"),
    )


def prompts(fields: Fields) -> Row:
    """Parse any prompts: the first of `PROMPT_FIELDS` that the record has."""
    name, _ = _field(fields, *PROMPT_FIELDS)
    return _from_field(name, fields)


def from_field(name: str) -> Parser:
    """Return a parser for one field: a text, a list of texts (turns) or a list of messages."""
    return partial(_from_field, name)


FORMATS: Mapping[str, Parser] = {
    "cnndm": cnndm,
    "sharegpt": sharegpt,
    "specbench": questions,
    "mtbench": questions,
    "humaneval": humaneval,
    "gsm8k": gsm8k,
    "prompts": prompts,
}


def find_format(name: str) -> Parser:
    """Return a parser of `FORMATS`; raises ValueError for an unknown name."""
    if name not in FORMATS:
        raise ValueError(
            f"dataset.format={name} is unknown; there are {', '.join(sorted(FORMATS))}"
        )
    return FORMATS[name]


def _from_field(name: str, fields: Fields) -> Row:
    _, value = _field(fields, name)
    if isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        row = _conversation(name, value)
    else:
        reference = fields.get("reference")
        turns = _texts(name, [value] if isinstance(value, str) else value)
        row = Row(id="", turns=turns, reference=reference if isinstance(reference, str) else None)
    return replace(row, id=_label(fields, "id"), category=_label(fields, "category"))


def _field(fields: Fields, *names: str) -> tuple[str, Any]:
    """Return the name and value of the first field that is present."""
    for name in names:
        if fields.get(name) is not None:
            return name, fields[name]
    wanted = " or ".join(map(repr, names))
    empty = [name for name in names if name in fields]
    if empty:
        raise ValueError(f"field {empty[0]!r} is null")
    present = ", ".join(map(repr, fields)) or "none"
    raise ValueError(f"field {wanted} is missing; fields found: {present}")


def _text(fields: Fields, *names: str) -> str:
    name, value = _field(fields, *names)
    if not isinstance(value, str):
        raise ValueError(f"field {name!r} is {_kind(value)}, not text")
    return value


def _text_if_any(message: Fields) -> str:
    for name in ("value", "content"):
        if message.get(name) is not None:
            return message[name] if isinstance(message[name], str) else ""
    return ""


def _label(fields: Fields, *names: str) -> str:
    for name in names:
        if fields.get(name) is not None:
            return str(fields[name])
    return ""


def _texts(name: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise ValueError(f"field {name!r} is {_kind(value)}, neither text nor a list of texts")
    for position, item in enumerate(value, start=1):
        if not isinstance(item, str):
            raise ValueError(f"field {name!r}, item {position} is {_kind(item)}, not text")
    return tuple(value)


def _conversation(name: str, messages: Any) -> Row:
    """Return the user's messages and the replies to each.

    A reply in several messages is joined by blank lines. The first reply must be text. Later ones
    that are not, such as tool calls, count as none.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        raise ValueError(f"field {name!r} is {_kind(messages)}, not a list of messages")
    turns: list[str] = []
    replies: list[list[str]] = []
    reference: str | None = None
    for position, message in enumerate(messages, start=1):
        try:
            if not isinstance(message, Mapping):
                raise ValueError(
                    f"{_kind(message)} in place of {{from, value}} or {{role, content}}"
                )
            speaker = _text(message, "from", "role")
            if speaker in USERS:
                turns.append(_text(message, "value", "content"))
                replies.append([])
            elif speaker in ASSISTANTS and turns:
                if reference is None:
                    reference = _text(message, "value", "content")
                replies[-1].append(_text_if_any(message))
        except ValueError as error:
            raise ValueError(f"field {name!r}, message {position}: {error}") from None
    joined = tuple("\n\n".join(filter(None, parts)) for parts in replies)
    return Row(
        id="", turns=tuple(turns), reference=reference, replies=joined if any(joined) else ()
    )


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "text", type(None): "null"}
    return names.get(type(value), type(value).__name__)
