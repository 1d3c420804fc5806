"""Find out what answers at an address: which server, which models, and what can be asked of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import httpx

from specresearch.openai_client import failure
from specresearch.openai_client.answer import StreamedAnswer
from specresearch.openai_client.body import PATHS, CompletionRequest
from specresearch.openai_client.counters import Counters
from specresearch.openai_client.stream import PREFIX, Address, Session

OURS = "specresearch"
KNOWN = ("vllm", "sglang", "tensorrt_llm", "llamacpp", OURS)  # others say who owns the model
COUNTING = ("vllm", "sglang")  # servers that count tokens in every chunk if asked to
MAX_LISTED = 5  # models
TOKENS_PER_SECOND = 10_000  # of one request: more only if a whole answer was held back
MIN_TOKENS = 16  # of an answer that shows whether chunks are held back


@dataclass(frozen=True)
class RemoteServer:
    """A server that has answered.

    Attributes:
        model: The model to ask, by the server's name for it.
        api: Which of `body.PATHS` requests go to.
        software: Whose server it is, such as "vllm"; "" if it does not say.
        version: The version of that.
        max_len: The longest prompt and output in tokens, if it says so.
        count: Counts the tokens of a text, where an answer comes without usage.
    """

    address: Address
    model: str
    api: str
    software: str = ""
    version: str = ""
    max_len: int | None = None
    count: Callable[[str], int] | None = None

    @staticmethod
    async def find(address: Address, model: str | None, api: str) -> "RemoteServer":
        """Return the server at an address.

        Args:
            model: Its name for the model; None takes the only one it has.

        Raises:
            ValueError: If nothing answers, or no server of this kind, or it lacks the model.
        """
        async with address.session() as session:
            card = _choose(await _models(session), model, address)
            owner = str(card.get("owned_by") or "").lower()
            software = owner if owner in KNOWN else ""
            server = RemoteServer(address, str(card["id"]), api, software)
            max_len = card.get("max_model_len")
            is_length = isinstance(max_len, int) and max_len > 1
            return replace(
                server, version=await _version(session), max_len=max_len if is_length else None
            )

    @property
    def is_switchable(self) -> bool:
        """Return whether a request can be decoded without drafts, beside others with them."""
        return self.software == OURS

    @property
    def label(self) -> str:
        """Return software and version, as far as they are known."""
        return " ".join(filter(None, (self.software, self.version))) or "unrecognised server"

    async def ask(
        self, session: Session, completion: CompletionRequest, answer: StreamedAnswer
    ) -> None:
        """Send a request and fill `answer`. Raises RequestRefusedError if it fails."""
        counts_tokens = self.software in COUNTING
        body = completion.body(self.model, self.api, counts_tokens=counts_tokens)
        await session.ask(PATHS[self.api], body, answer)
        if answer.num_tokens is None and self.count is not None:
            answer.num_tokens = self.count(answer.text)

    async def counters(self, session: Session) -> Counters:
        """Return the counters of drafting; empty ones from a server that shows none."""
        try:
            response = await session.get("metrics")
            return Counters.parse(response.text) if response.is_success else Counters()
        except (httpx.HTTPError, ValueError):
            return Counters()

    async def read_counters(self) -> Counters:
        """Return the counters of drafting now, by connections of their own."""
        async with self.address.session() as session:
            return await self.counters(session)

    async def check(self, completion: CompletionRequest) -> StreamedAnswer:
        """StreamedAnswer one request, to see that a measurement is possible.

        Raises:
            ValueError: If the request is refused, does not stream, or its tokens are not counted.
        """
        answer = StreamedAnswer()
        url = self.address.url
        try:
            async with self.address.session() as session:
                await self.ask(session, completion, answer)
        except failure.RequestRefusedError as error:
            raise ValueError(f"{url} does not answer a first request: {error}") from error
        if not answer.num_tokens:
            raise ValueError(
                f"{url} does not say how many tokens an answer has (usage, which "
                "stream_options.include_usage asks for); name its model's tokenizer by "
                "client.tokenizer=<folder or hub id>, which then counts them"
            )
        times = answer.token_times
        num_gaps = answer.num_tokens - 1
        if num_gaps >= MIN_TOKENS and (times[-1] - times[0]) * TOKENS_PER_SECOND < num_gaps:
            raise ValueError(
                f"{url} held back all {answer.num_tokens} tokens of a first answer until it was "
                "complete: it does not stream, or a proxy in between buffers (proxy_buffering off "
                "in nginx); measure the server's own address"
            )
        return answer


async def _models(session: Session) -> Sequence[Mapping[str, Any]]:
    """Return the models that a server has.

    Raises:
        ValueError: If it is no OpenAI-compatible server, or none at all.
    """
    address = session.address
    url = address.url
    try:
        response = await session.get(f"{PREFIX}/models")
    except httpx.RequestError as error:
        raise ValueError(_unreachable(url, error)) from error
    if response.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
        raise ValueError(
            f"{url} asks for another key (HTTP {response.status_code}); put it into the "
            f"environment variable {address.key_variable}"
        )
    try:
        content = response.json() if response.is_success else None
    except ValueError:
        content = None
    models = content.get("data") if isinstance(content, dict) else None
    if not isinstance(models, list) or not all(_is_card(card) for card in models):
        raise ValueError(
            f"{url} is no OpenAI-compatible server: it answers /{PREFIX}/models with HTTP "
            f"{response.status_code} and no list of models; give the address that comes before "
            f"/{PREFIX}"
        )
    return models


def _unreachable(url: str, error: httpx.RequestError) -> str:
    if failure.is_of_certificate(error):
        return (
            f"the certificate of {url} does not verify ({failure.one_line(str(error))}); name its "
            "authority's file by the environment variable SSL_CERT_FILE"
        )
    reason = failure.one_line(str(error)) or type(error).__name__
    return f"no server answers at {url} ({reason}); start it, or correct the address"


def _is_card(card: Any) -> bool:
    return isinstance(card, dict) and isinstance(card.get("id"), str)


def _choose(
    models: Sequence[Mapping[str, Any]], name: str | None, address: Address
) -> Mapping[str, Any]:
    """Return the model of a name, or the only one there is."""
    for card in models:
        if card["id"] == name or (name is None and len(models) == 1):
            return card
    names = [str(card["id"]) for card in models]
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    has = f"it has: {', '.join(names[:MAX_LISTED])}{more}" if names else "it has none"
    if name is None:
        raise ValueError(f"{address.url} has {len(names)} models; add client.model=..., {has}")
    raise ValueError(f"{address.url} has no model {name!r}; {has}; correct client.model")


async def _version(session: Session) -> str:
    """Return the version of a server that says it where vLLM does, or where SGLang does."""
    for path in ("version", "server_info"):
        try:
            response = await session.get(path)
            content = response.json() if response.is_success else None
        except (httpx.HTTPError, ValueError):
            continue
        if isinstance(content, dict) and isinstance(content.get("version"), str):
            return content["version"]
    return ""
