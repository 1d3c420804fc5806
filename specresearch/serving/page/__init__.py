"""The page at the server's root, which shows who wrote each token.

It is plain HTML, CSS and JavaScript, and asks for nothing from elsewhere.
"""

from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import FileResponse
from starlette.staticfiles import StaticFiles

FOLDER = Path(__file__).parent
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def add_page(app: FastAPI) -> None:
    """Serve the page at `/` and what it loads below `/page`."""

    @app.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(FOLDER / "index.html", headers=HEADERS)

    app.mount("/page", StaticFiles(directory=FOLDER / "files"), name="page")
