"""Published dataset formats: one small parser per format, from the fields of a record to a `Row`.

A parser raises `ValueError` naming the field it misses; whoever calls it knows the file and the place and adds them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any


@dataclass(frozen=True)
class Row:
    """One conversation to decode.

    id: the row's published id, or its number in the source where it has none.
    turns: the user's messages, in order; a single prompt is one turn.
    category: the benchmark's own label, or "".
    reference: a published answer to the first turn.
    replies: of a chat that was published with them, the assistant's reply to each turn, "" where there is none. Decoding never
        shows them; they are something to train on.
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
    """CNN/DailyMail: `article`, `highlights`, `id`."""
    return Row(
        id=_label(fields, "id"),
        turns=(_text(fields, "article"),),
        reference=_text(fields, "highlights"),
    )


def sharegpt(fields: Fields) -> Row:
    """ShareGPT: `conversations`, a list of `{from, value}`; also `messages` of `{role, content}`.

    The user's messages become the turns; system messages and whatever precedes the first user message are left out.
    """
    name, messages = _field(fields, "conversations", "messages")
    return replace(_conversation(name, messages), id=_label(fields, "id"))


def questions(fields: Fields) -> Row:
    """MT-bench and Spec-Bench: `question_id`, `category`, `turns`; the hub's MT-bench says `prompt_id` and `prompt`."""
    name, turns = _field(fields, "turns", "prompt")
    answers = fields.get("reference")
    return Row(
        id=_label(fields, "question_id", "prompt_id", "id"),
        turns=_texts(name, turns),
        category=_label(fields, "category"),
        reference=str(answers[0]) if isinstance(answers, list) and answers else None,
    )


def humaneval(fields: Fields) -> Row:
    """HumanEval: `task_id`, `prompt`, `canonical_solution`; decoding has no use for `entry_point` and `test`."""
    solution = _text(fields, "canonical_solution")
    return Row(id=_label(fields, "task_id"), turns=(_text(fields, "prompt"),), reference=solution)


def gsm8k(fields: Fields) -> Row:
    """GSM8K: `question`, `answer`."""
    return Row(
        id=_label(fields, "id"),
        turns=(_text(fields, "question"),),
        reference=_text(fields, "answer"),
    )


def prompts(fields: Fields) -> Row:
    """Any prompts: the first of PROMPT_FIELDS that the record has."""
    name, _ = _field(fields, *PROMPT_FIELDS)
    return _from_field(name, fields)


def from_field(name: str) -> Parser:
    """A parser that takes the prompt from the field `name`: a text, a list of texts (turns) or a list of messages."""
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
    if name not in FORMATS:
        raise ValueError(f"unknown dataset format {name!r}; there are {', '.join(sorted(FORMATS))}")
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
    for name in names:
        if fields.get(name) is not None:
            return name, fields[name]
    wanted = " or ".join(repr(name) for name in names)
    found = ", ".join(repr(name) for name in fields) or "none"
    raise ValueError(f"field {wanted} is missing; fields found: {found}")


def _text(fields: Fields, *names: str) -> str:
    name, value = _field(fields, *names)
    if not isinstance(value, str):
        raise ValueError(f"field {name!r} is {_kind(value)}, not text")
    return value


def _text_if_any(message: Fields) -> str:
    value = next(
        (message[name] for name in ("value", "content") if message.get(name) is not None), ""
    )
    return value if isinstance(value, str) else ""


def _label(fields: Fields, *names: str) -> str:
    return next((str(fields[name]) for name in names if fields.get(name) is not None), "")


def _texts(name: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise ValueError(f"field {name!r} is {_kind(value)}, neither text nor a list of texts")
    for position, item in enumerate(value, start=1):
        if not isinstance(item, str):
            raise ValueError(f"field {name!r}, item {position} is {_kind(item)}, not text")
    return tuple(value)


def _conversation(name: str, messages: Any) -> Row:
    """The user's messages and the replies to each; a reply in several messages is joined by blank lines.

    The first reply has to be text. Later ones that are not, such as calls of tools, count as none.
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
            elif speaker in ASSISTANTS and turns and reference is None:
                reference = _text(message, "value", "content")
                replies[-1].append(reference)
            elif speaker in ASSISTANTS and turns:
                replies[-1].append(_text_if_any(message))
        except ValueError as error:
            raise ValueError(f"field {name!r}, message {position}: {error}") from None
    joined = tuple("\n\n".join(filter(None, parts)) for parts in replies)
    return Row(
        id="", turns=tuple(turns), reference=reference, replies=joined if any(joined) else ()
    )


def _kind(value: Any) -> str:
    return {dict: "an object", list: "a list", str: "text", type(None): "null"}.get(
        type(value), type(value).__name__
    )
