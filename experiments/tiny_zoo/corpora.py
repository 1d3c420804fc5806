"""Read the training text: books, stories, chats, maths and code.

No set that is used for measurement is read here. Each is split by book or row into a training and a
held-out part, which share no document.
"""

import ast
import json
import re
import sysconfig
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

HELD_OUT_BOOKS = frozenset({"Herland", "The_Dead"})
VERSE_AND_PLAYS = frozenset(
    {"Aeneid", "Metamorphoses", "Paradise_Lost", "Othello", "As_You_Like_It", "R.U.R."}
)
HELD_OUT_EVERY = 12
MAX_FUNCTION_CHARS = 2400

_PLAIN = str.maketrans(
    {"\u201c": '"', "\u201d": '"', "\u2018": "'", "\u2019": "'", "\u00a0": " ", "\u2026": "..."}
)
_CALCULATION = re.compile(r"<<[^>]*>>")
_SPACES = re.compile(r"[ \t]+")


@dataclass(frozen=True)
class Turn:
    """One message of a chat: role is 'user' or 'assistant'."""

    role: str
    text: str


@dataclass(frozen=True)
class PythonFunction:
    """A function of the standard library: its head up to the docstring's end, and its body."""

    head: str
    body: str


@dataclass(frozen=True)
class Corpora:
    """The text of one split. Books are lists of paragraphs, chats lists of turns."""

    books: list[list[str]] = field(default_factory=list)
    stories: list[str] = field(default_factory=list)
    chats: list[list[Turn]] = field(default_factory=list)
    maths: list[tuple[str, str]] = field(default_factory=list)
    functions: list[PythonFunction] = field(default_factory=list)


def load(data: Path, *, held_out: bool) -> Corpora:
    """The training split of the text under `data`, or the held-out split.

    Raises ValueError when a file of the mix is missing.
    """
    needed = [
        "books",
        "tinystories_sample.txt",
        "sharegpt_chats.json",
        "alpaca_demo.json",
        "gsm8k_train.jsonl",
    ]
    missing = [name for name in needed if not (data / name).exists()]
    if missing:
        raise ValueError(
            f"--data {data} lacks {', '.join(missing)}; the mix needs {', '.join(needed)}"
        )
    return Corpora(
        books=[_paragraphs(path) for path in _books(data / "books", held_out)],
        stories=_split(_stories(data / "tinystories_sample.txt"), held_out),
        chats=_split(_chats(data / "sharegpt_chats.json"), held_out)
        + _split(_alpaca(data / "alpaca_demo.json"), held_out),
        maths=_split(_maths(data / "gsm8k_train.jsonl"), held_out),
        functions=_split(_functions(Path(sysconfig.get_path("stdlib"))), held_out),
    )


def plain(text: str) -> str:
    """Replace typographic quotes and spaces by plain ones."""
    return text.translate(_PLAIN).strip()


def _split(rows: list[T], held_out: bool) -> list[T]:
    return [row for index, row in enumerate(rows) if (index % HELD_OUT_EVERY == 0) == held_out]


def _books(folder: Path, held_out: bool) -> list[Path]:
    return [
        path
        for path in sorted(folder.glob("*.md"))
        if path.stem not in VERSE_AND_PLAYS and (path.stem in HELD_OUT_BOOKS) == held_out
    ]


def _paragraphs(path: Path) -> list[str]:
    blocks = re.split(r"\n\s*\n", path.read_text(encoding="utf-8"))
    prose = [
        _SPACES.sub(" ", plain(block).replace("\n", " ").replace("_", "").replace("*", ""))
        for block in blocks
    ]
    return [
        block
        for block in prose
        if len(block) > 20 and not block.startswith(("#", "---", "|", "!["))
    ]


def _stories(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8", errors="replace")
    return [plain(story) for story in text.split("<|endoftext|>")[:-1] if len(story.strip()) > 80]


def _chats(path: Path) -> list[list[Turn]]:
    roles = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant"}
    chats: list[list[Turn]] = []
    for row in json.loads(path.read_text(encoding="utf-8")):
        turns: list[Turn] = []
        for message in row["conversations"]:
            role = roles.get(message["from"])
            expected = "user" if len(turns) % 2 == 0 else "assistant"
            if role != expected or not message["value"].strip():
                break
            turns.append(Turn(role, plain(message["value"])))
        turns = turns[: len(turns) // 2 * 2]
        if turns and sum(not turn.text.isascii() for turn in turns) * 2 <= len(turns):
            chats.append(turns)
    return chats


def _alpaca(path: Path) -> list[list[Turn]]:
    rows = json.loads(path.read_text(encoding="utf-8"))
    prompts = [
        (f"{row['instruction']}\n\n{row['input']}".strip(), row["output"])
        for row in rows
        if row["output"].strip()
    ]
    return [
        [Turn("user", plain(question)), Turn("assistant", plain(answer))]
        for question, answer in prompts
    ]


def _maths(path: Path) -> list[tuple[str, str]]:
    rows = [
        json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line.strip()
    ]
    return [(plain(row["question"]), _CALCULATION.sub("", plain(row["answer"]))) for row in rows]


def _functions(stdlib: Path) -> list[PythonFunction]:
    found_functions: list[PythonFunction] = []
    for path in sorted(stdlib.rglob("*.py")):
        if {"site-packages", "test", "tests", "idle_test", "lib2to3"} & set(path.parts):
            continue
        source = path.read_text(encoding="utf-8", errors="replace")
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError):
            continue
        lines = source.split("\n")
        for node in ast.walk(tree):
            if (
                not isinstance(node, ast.FunctionDef)
                or ast.get_docstring(node) is None
                or len(node.body) < 2
            ):
                continue
            end_of_docstring, end = node.body[0].end_lineno, node.end_lineno
            if end_of_docstring is None or end is None:
                continue
            code = textwrap.dedent("\n".join(lines[node.lineno - 1 : end]))
            if code.isascii() and len(code) <= MAX_FUNCTION_CHARS:
                code_lines = code.split("\n")
                cut = end_of_docstring - node.lineno + 1
                found_functions.append(
                    PythonFunction(
                        "\n".join(code_lines[:cut]), "\n".join(code_lines[cut:]).strip("\n")
                    )
                )
    return found_functions
