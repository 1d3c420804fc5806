"""What is known of a server, and the command that carries a decision out on it."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

END_OF_FILE = "EOF"


@dataclass(frozen=True)
class Server:
    """A server of one version.

    Attributes:
        released: When; None if its package does not say.
        checked: When its source was read.
        source: Where in it.
        flags: Options of its command line that concern speculation.
        keys: Names inside its speculative configuration.
        methods: What it can draft with.
        gone: Flags of older versions.
    """

    title: str
    version: str
    released: Any
    checked: Any
    source: str
    flags: Sequence[str]
    keys: Sequence[str]
    methods: Sequence[str]
    gone: Mapping[str, "FlagTranslation"]

    @property
    def name(self) -> str:
        """Return the name with its version."""
        return f"{self.title} {self.version}"


@dataclass(frozen=True)
class FlagTranslation:
    """What a flag of an older version is called now.

    Attributes:
        now: A flag or a key; None if nothing replaces it.
    """

    now: str | None
    remark: str = ""


@dataclass(frozen=True)
class ServerFlags:
    """How to start a server so that it drafts as decided.

    Attributes:
        command: Its words; empty if it cannot draft like this.
        files: Text by file name, which the command needs beside it.
        notes: Sentences on what differs, or why there is no command.
    """

    server: Server
    command: Sequence[str] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()

    @property
    def block(self) -> str:
        """Return lines for a shell, or "" if there is no command."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        for name, text in self.files.items():
            yield f"cat > {shlex.quote(name)} <<'{END_OF_FILE}'"
            yield text.rstrip("\n")
            yield END_OF_FILE
        if self.command:
            yield _wrapped(self.command)


@cache
def servers() -> Mapping[str, Server]:
    """Return all servers by name."""
    text = Path(__file__).with_name("servers.yaml").read_text("utf-8")
    known = {}
    for name, entry in yaml.safe_load(text).items():
        gone = {flag: FlagTranslation(**words) for flag, words in entry.pop("gone").items()}
        known[name] = Server(gone=gone, **entry)
    return known


def renamed(options: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return the options that are known, by a server's names for them."""
    return {theirs: options[ours] for ours, theirs in names.items() if ours in options}


def _wrapped(command: Sequence[str]) -> str:
    """Return a command with a line for each option."""
    lines = [""]
    for word in command:
        if word.startswith("--"):
            lines.append("")
        lines[-1] = f"{lines[-1]} {shlex.quote(word)}".lstrip()
    return " \\\n    ".join(lines)
