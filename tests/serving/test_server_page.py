"""The page at the server's root."""

import re
from pathlib import Path

import httpx
import pytest
from live_server import Live

from specresearch.serving.page import FOLDER

PAGE = (FOLDER / "index.html").read_text(encoding="utf-8")
FILES = sorted((FOLDER / "files").iterdir())
SCRIPTS = "".join(path.read_text(encoding="utf-8") for path in FILES if path.suffix == ".js")


def test_the_root_shows_the_page(live: Live) -> None:
    answer = httpx.get(live.address)
    assert answer.status_code == 200
    assert answer.text == PAGE
    assert "default-src 'self'" in answer.headers["content-security-policy"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_page_loads_its_files_from_the_server(live: Live, path: Path) -> None:
    answer = httpx.get(f"{live.address}/page/{path.name}")
    assert answer.status_code == 200
    kinds = {".css": "text/css", ".js": "javascript", ".svg": "image/svg+xml"}
    assert kinds[path.suffix] in answer.headers["content-type"]


def test_the_page_asks_nobody_else() -> None:
    """Its only addresses are its own files and the names of SVG."""
    linked = re.findall(r'(?:href|src)="([^"]+)"', PAGE)
    assert {f"page/{path.name}" for path in FILES} >= set(linked)
    imported = re.findall(r'from "\./([^"]+)"', SCRIPTS)
    assert {path.name for path in FILES} >= set(imported)
    assert set(re.findall(r"https?://[^\"\s]+", PAGE + SCRIPTS)) == {"http://www.w3.org/2000/svg"}


def test_scripts_find_their_elements() -> None:
    asked_for = set(re.findall(r'\$\("([^"]+)"\)', SCRIPTS))
    assert asked_for <= set(re.findall(r'id="([^"]+)"', PAGE))
