"""Uploads, by the real client library to a small server that answers as the hub does."""

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from specresearch.training.publishing import Publication

REPO = "me/head"


class FakeHub(ThreadingHTTPServer):
    """Keeps what was created and committed.

    Attributes:
        role: Role of the user's token; None: the token is refused.
        accepts_commits: Whether commits are accepted.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.role: str | None = "write"
        self.accepts_commits = True
        self.created: list[dict[str, Any]] = []
        self.files: dict[str, bytes] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Answer(BaseHTTPRequestHandler):
    server: FakeHub

    def log_message(self, *args: object) -> None: ...

    def reply(self, content: Any, code: int = 200) -> None:
        body = json.dumps(content).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.end_headers()

    def do_GET(self) -> None:
        if self.path.startswith("/api/whoami-v2"):
            if self.server.role is None:
                self.reply({"error": "Invalid credentials"}, 401)
                return
            token = {"displayName": "test", "role": self.server.role}
            self.reply(
                {
                    "name": "me",
                    "type": "user",
                    "orgs": [{"name": "my-group"}],
                    "auth": {"type": "access_token", "accessToken": token},
                }
            )
            return
        self.reply({"id": REPO, "sha": "0" * 40, "siblings": []})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path.endswith("/validate-yaml"):
            is_refused = "license: secret" in json.loads(body)["content"]
            self.reply({"errors": []}, 400 if is_refused else 200)
        elif self.path.endswith("/repos/create"):
            self.server.created.append(json.loads(body))
            self.reply({"url": f"{self.server.url}/{REPO}", "name": REPO, "id": REPO})
        elif "/preupload/" in self.path:
            files = [
                {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False, "oid": None}
                for file in json.loads(body)["files"]
            ]
            self.reply({"files": files})
        elif "/commit/" in self.path and self.server.accepts_commits:
            for line in body.splitlines():
                entry = json.loads(line)
                if entry["key"] == "file":
                    content = base64.b64decode(entry["value"]["content"])
                    self.server.files[entry["value"]["path"]] = content
            commit = f"{self.server.url}/{REPO}/commit/{'1' * 40}"
            self.reply({"success": True, "commitOid": "1" * 40, "commitUrl": commit})
        else:
            self.reply({"error": "no room"}, 403)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A hub that knows the user `me`, who is logged in."""
    server = FakeHub()
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", server.url)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def drafter(tmp_path: Path) -> Path:
    folder = tmp_path / "student"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "model.safetensors.part").write_bytes(b"half")
    return folder


def test_a_drafter_is_uploaded_with_its_card(hub: FakeHub, drafter: Path) -> None:
    publication = Publication(REPO, private=True, license="mit")
    publication.check()
    assert publication.publish(drafter, "medusa", "a/b", {}) == f"{hub.url}/{REPO}"
    (created,) = hub.created
    assert created["name"] == "head"
    assert created["organization"] == "me"
    assert created.get("visibility") == "private" or created["private"] is True
    assert set(hub.files) == {"README.md", "config.json", "model.safetensors"}
    assert hub.files["model.safetensors"] == b"weights"
    assert b"license: mit" in hub.files["README.md"]
    assert b"# me/head" in hub.files["README.md"]


def test_without_a_repository_the_card_is_written_and_nothing_uploaded(
    hub: FakeHub, drafter: Path
) -> None:
    publication = Publication(license="secret")
    publication.check()
    assert publication.publish(drafter, "medusa", "a/b", {}) is None
    assert "license: secret" in (drafter / "README.md").read_text()
    assert not hub.created


def test_an_upload_that_fails_names_the_folder_and_how_to_try_again(
    hub: FakeHub, drafter: Path
) -> None:
    hub.accepts_commits = False
    with pytest.raises(
        ValueError, match=rf"the upload to me/head failed .*`hf upload me/head {drafter}` tries"
    ):
        Publication(REPO).publish(drafter, "medusa", "a/b", {})


@pytest.mark.parametrize(
    ("repo", "message"),
    [
        ("head", "push_to_hub=head is no repository of the hub .*use push_to_hub=<user>/<name>"),
        ("a/b/c", "is no repository of the hub"),
        ("me/two words", "is no repository of the hub"),
        ("you/head", "your login may write to me, my-group; use push_to_hub=me/head"),
    ],
)
def test_a_repository_that_cannot_be_written_is_refused(
    hub: FakeHub, repo: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Publication(repo).check()


@pytest.mark.parametrize(
    ("role", "message"),
    [(None, "the hub refuses your token"), ("read", "your token may only read")],
)
def test_a_token_that_cannot_write_is_refused(hub: FakeHub, role: str | None, message: str) -> None:
    hub.role = role
    with pytest.raises(ValueError, match=rf"{message}.*; run `hf auth login` with one"):
        Publication(REPO).check()


def test_jobs_of_a_sweep_do_not_overwrite_one_another(hub: FakeHub) -> None:
    with pytest.raises(ValueError, match="the jobs of a sweep would overwrite one another"):
        Publication(REPO).check(is_sweep=True)
    Publication().check(is_sweep=True)


def test_an_organisations_repository_is_allowed(hub: FakeHub) -> None:
    Publication("my-group/head").check()


def test_a_licence_that_the_hub_does_not_know_is_refused(hub: FakeHub) -> None:
    with pytest.raises(ValueError, match=r"the hub does not know license=secret .*apache-2.0"):
        Publication(REPO, license="secret").check()


def test_a_missing_login_is_refused(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    with pytest.raises(ValueError, match=r"needs a login; run `hf auth login`, or set HF_TOKEN"):
        Publication(REPO).check()


def test_a_hub_that_cannot_be_reached_is_reported(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ValueError, match=r"the hub http://127.0.0.1:9 is unreachable"):
        Publication(REPO).check()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ValueError, match="HF_HUB_OFFLINE is set; unset it"):
        Publication(REPO).check()
