"""What is said of servers that are none, and of answers that are no answers: one sentence each."""

import asyncio
import shutil
import socketserver
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specresearch.openai_client import (
    Address,
    CompletionRequest,
    RemoteServer,
    RequestRefusedError,
    StreamedAnswer,
)
from specresearch.openai_client.body import CHAT
from specresearch.sampling_params import SamplingParams

ASKED = CompletionRequest("Hello?", SamplingParams(max_new_tokens=20))
MODELS = b'{"data": [{"id": "m"}]}'
NAMES = [
    *("choices", "delta", "content", "text", "finish_reason", "error", "message"),
    *("usage", "completion_tokens", "prompt_tokens"),
    *("metrics", "queue_time_ms", "speculative_decoding", "acceptance_histogram"),
]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=12,
)
EVENTS = VALUES | st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=4)


def http(body: bytes, *, status: str = "200 OK", kind: str = "application/json") -> bytes:
    lines = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
    return f"{lines}Connection: close\r\n\r\n".encode() + body


def packed(body: bytes) -> bytes:
    return http(body).replace(b"Content-Type", b"Content-Encoding: gzip\r\nContent-Type")


@contextmanager
def answering(
    models: bytes, answer: bytes = b"", certificate: tuple[Path, Path] | None = None
) -> Iterator[int]:
    """Answer with bytes whatever is asked, and yield the port."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with suppress(OSError):
                asked = self.request.recv(65536)
                self.request.sendall(answer if asked.startswith(b"POST") else models)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        server.handle_error = lambda *_: None  # type: ignore[method-assign]
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def said_of(port: int, scheme: str = "http") -> str:
    """Return the sentence that ends a measurement of a server before its load."""

    async def measure() -> None:
        server = await RemoteServer.find(Address(f"{scheme}://127.0.0.1:{port}"), None, CHAT)
        await server.check(ASKED)

    with pytest.raises(ValueError, match=str(port)) as error:
        asyncio.run(measure())
    (line,) = str(error.value).splitlines()
    return line


@pytest.mark.parametrize(
    ("models", "sentence"),
    [
        (b"", "no server answers at"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "no server answers at"),
        (packed(MODELS), "no server answers at"),
        (http(b"<html>hello</html>", kind="text/html"), "is no OpenAI-compatible server"),
        (http(b"", status="301 Moved\r\nLocation: /x"), "is no OpenAI-compatible server"),
        (http(b"[1, 2]"), "is no OpenAI-compatible server"),
        (http(b'{"data": [{"name": "m"}]}'), "is no OpenAI-compatible server"),
        (http(b'{"data": []}'), "has 0 models; add client.model=..., it has none"),
    ],
)
def test_what_is_no_server(models: bytes, sentence: str) -> None:
    with answering(models) as port:
        assert sentence in said_of(port)


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (b"", "first request: disconnected"),
        (packed(b"data: {}"), "first request: broken answer"),
        (http(b"<html>hello</html>", kind="text/html"), "first request: disconnected"),
        (http(b"data: <html>\n\n"), "broken answer: an event that is no JSON"),
        (http(b"data: [1]\n\n"), "broken answer: an event that is no object"),
        (http(b'data: {"choices": [3]}\n\n'), "broken answer: an event that is no chunk"),
        (
            http(b'data: {"usage": {"completion_tokens": -4}}\n\n'),
            "broken answer: an event that is no chunk",
        ),
        (http(b"nothing", status="502 Bad Gateway"), "first request: refused (HTTP 502): nothing"),
    ],
)
def test_what_is_no_answer(answer: bytes, sentence: str) -> None:
    with answering(http(MODELS), answer) as port:
        assert sentence in said_of(port)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make a certificate")
def test_a_certificate_that_does_not_verify(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    options = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(["openssl", *options, *files], check=True, capture_output=True)
    with answering(http(MODELS), certificate=(certificate, key)) as port:
        said = said_of(port, "https")
    assert said.startswith(f"the certificate of https://127.0.0.1:{port} does not verify (")
    assert said.endswith("by the environment variable SSL_CERT_FILE")


def test_https_of_a_server_without_it() -> None:
    with answering(http(MODELS)) as port:
        assert "no server answers at https://" in said_of(port, "https")


@given(st.lists(EVENTS, max_size=4))
@settings(max_examples=300, deadline=None)
def test_any_event_is_read_or_refused(events: list[object]) -> None:
    answer = StreamedAnswer()
    for number, event in enumerate(events):
        with suppress(RequestRefusedError):
            answer.add(event, float(number))
    assert answer.counts.num_generated_tokens == (answer.num_tokens or 0)
    if (answer.num_tokens or 0) < 10_000:
        assert len(answer.token_times) in (0, answer.num_tokens)
