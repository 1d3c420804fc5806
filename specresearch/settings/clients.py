"""Settings of a load test that measures servers by HTTP."""

from collections.abc import Iterator
from typing import Any, Literal

from specresearch.settings.base import Settings, key

OF_ENGINES = {
    "proposer": None,
    "variants": {},
    "record": False,
}  # settings that a server has of its own, and their values when they are not set


class ClientSchema(Settings):
    model: str | None = key(
        "the servers' name for the model; null takes the only one", "Qwen/Qwen3-8B", min_length=1
    )
    api: Literal["chat", "completions"] = key(
        "send chats, or completions, whose prompts are tokens if there is a tokenizer", "chat"
    )
    tokenizer: str | None = key(
        "folder, hub id or zoo: name of the model's tokenizer, which cuts prompts, and counts "
        "tokens where a server does not; null sends prompts whole",
        "Qwen/Qwen3-8B",
        min_length=1,
    )
    key_variable: str = key(
        "environment variable that holds the key", "OPENAI_API_KEY", min_length=1
    )
    timeout: float = key("seconds without a byte after which a request has failed", 600.0, gt=0)
    method: str | None = key("what the server drafts with, for reports", "eagle3", min_length=1)
    num_draft_tokens: int | None = key(
        "drafts of its steps, for reports; null: as its answers say", 3, ge=1
    )


def conflicts_with_server(load: Any) -> Iterator[str]:
    """Yield a sentence for each setting of an engine beside the address of a server.

    Args:
        load: The settings of a load test, which name a server.
    """
    url = f"server={load.server}" if load.server else f"baseline_server={load.baseline_server}"
    for name, unset in OF_ENGINES.items():
        if getattr(load, name) != unset:
            yield (
                f"{name} is for an engine of this process, and {url} drafts as it was started; "
                f"leave {name} out"
            )
    if load.server is not None and load.server == load.baseline_server:
        yield (
            f"server and baseline_server are both {load.server}; give two addresses, or leave "
            "baseline_server out, measure one now, and the other into the same folder later"
        )
    for name, requests in (load.classes or {}).items():
        if requests.acceptance is not None:
            yield (
                f"classes.{name}.acceptance is for an engine of this process, not for {url}; "
                "leave it out"
            )
