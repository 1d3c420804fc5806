"""Which server answers each side's requests, and how it is told whether to draft."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from transformers import PreTrainedTokenizerBase

from specresearch.openai_client import Address, RemoteServer
from specresearch.rows import BASELINE, FIXED, METHOD

SPECULATION = "speculation"  # the method, if the user gives it no name


@dataclass(frozen=True)
class ClientSettings:
    """Which servers are measured, and how they are asked.

    Attributes:
        server: The address of the server that drafts; None measures plain decoding only.
        baseline_server: The address of the same model without drafts. None sends the baseline's
            requests to `server` if single requests can be decoded plainly there, and otherwise
            measures no baseline now.
        model: The servers' name for the model; None takes the only one they have.
        tokenizer: Folder, hub id or zoo: name of the model's tokenizer, which cuts prompts, and
            counts tokens where a server does not; None sends prompts whole.
        key_variable, timeout: As in `Address`.
        method: What the server drafts with, for reports.
        num_draft_tokens: Drafts of a step, for reports.
    """

    server: str | None
    baseline_server: str | None
    model: str | None = None
    api: Literal["chat", "completions"] = "chat"
    tokenizer: str | None = None
    key_variable: str = "OPENAI_API_KEY"
    timeout: float = 600.0
    method: str | None = None
    num_draft_tokens: int | None = None

    @staticmethod
    def from_config(cfg: Mapping[str, Any]) -> "ClientSettings":
        """Return the settings that a configuration holds, among other keys."""
        return ClientSettings(cfg["server"], cfg["baseline_server"], **cfg["client"])


@dataclass(frozen=True)
class ServerSide:
    """How the requests of one side are sent.

    Attributes:
        num_draft_tokens: Drafts in every step of its requests; None leaves them to the server.
    """

    server: RemoteServer
    num_draft_tokens: int | None = None

    def counted_by(self, tokenizer: PreTrainedTokenizerBase) -> "ServerSide":
        """Return the side with a tokenizer that counts what its server does not."""

        def count(text: str) -> int:
            return len(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

        return replace(self, server=replace(self.server, count=count))

    def describe(self) -> dict[str, Any]:
        """Return what results say of it."""
        server = self.server
        return {
            "url": server.address.url,
            "model": server.model,
            "software": server.software,
            "version": server.version,
            "max_len": server.max_len,
            "num_draft_tokens": self.num_draft_tokens,
        }


def find_sides(settings: ClientSettings, compare: Sequence[int] = ()) -> dict[str, ServerSide]:
    """Return the sides that can be measured now, by name.

    Args:
        compare: Draft lengths that are sides of their own.

    Raises:
        ValueError: If a server does not answer, is none of this kind, or cannot be told what to do.
    """
    return asyncio.run(_find_sides(settings, compare))


async def _find_sides(settings: ClientSettings, compare: Sequence[int]) -> dict[str, ServerSide]:
    sides: dict[str, ServerSide] = {}
    drafting = plain = None
    if settings.server is not None:
        drafting = await _find(settings.server, settings)
    if settings.baseline_server is not None:
        plain = await _find(settings.baseline_server, settings)
        sides[BASELINE] = ServerSide(plain)
    if drafting is None:
        if compare:
            raise ValueError(f"compare={list(compare)} needs a server that drafts; add server=...")
        return sides
    if plain is None and drafting.is_switchable:
        sides[BASELINE] = ServerSide(drafting, num_draft_tokens=0)
    sides[METHOD] = ServerSide(drafting)
    if compare and not drafting.is_switchable:
        raise ValueError(
            f"compare={list(compare)}: {drafting.label} at {settings.server} drafts as it was "
            "started and cannot be told otherwise by a request; leave compare out"
        )
    for length in compare:
        sides[f"{FIXED}{length}"] = ServerSide(drafting, num_draft_tokens=length)
    return sides


async def _find(url: str, settings: ClientSettings) -> RemoteServer:
    address = Address(url, settings.key_variable, settings.timeout)
    return await RemoteServer.find(address, settings.model, settings.api)
