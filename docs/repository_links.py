"""Publish the repository files that pages link to, so that a strict build checks those links too.

Pages link to `../specresearch/engine/engine.py` or `../experiments/trees` as a code host shows
them. This MkDocs hook adds each linked file to the site under `repository/` and points the link
there. Markdown files become pages, and their own links are followed; code becomes a page that shows
it; other files are copied.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import get_plugin_logger
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PUBLISHED = "repository/"
CODE = {".py": "python", ".sh": "bash", ".yaml": "yaml", ".yml": "yaml", ".toml": "toml"}
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#|/)([^)#\s]+)")
FENCED_CODE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
log = get_plugin_logger("repository_links")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add every repository file that is reachable by links from the documentation."""
    pages = [file for file in files if file.is_documentation_page()]
    while pages:
        page = pages.pop()
        for link in links(page.content_string):
            source = resolve(page.src_uri, link)
            if source is None:
                continue
            if not source.exists():
                log.warning(f"{page.src_uri} links to '{link}', and {source} does not exist")
            elif files.get_file_from_path(site_path(source)) is None:
                added = publish(source, config)
                files.append(added)
                if added.is_documentation_page():
                    pages.append(added)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links at the published copies."""
    folder = posixpath.dirname(page.file.src_uri)

    def redirect(match: re.Match[str]) -> str:
        source = resolve(page.file.src_uri, match[1])
        if source is None or not source.exists():
            return match[1]
        return posixpath.relpath(site_path(source), folder)

    parts = FENCED_CODE.split(markdown)
    for index in range(0, len(parts), 2):  # the odd parts are code
        parts[index] = LINK.sub(redirect, parts[index])
    return "".join(parts)


def links(markdown: str) -> list[str]:
    """Return the relative targets of all links outside code blocks."""
    return LINK.findall(FENCED_CODE.sub("", markdown))


def resolve(src_uri: str, link: str) -> Path | None:
    """Return the repository file that a page links to; None if MkDocs can resolve the link."""
    if src_uri.startswith(PUBLISHED):
        base = posixpath.dirname(src_uri.removeprefix(PUBLISHED))
    else:
        base = posixpath.join("docs", posixpath.dirname(src_uri))
    target = posixpath.normpath(posixpath.join(base, link))
    source = ROOT / target
    is_site_source = target.startswith("docs/") and source.suffix not in CODE
    if is_site_source and not src_uri.startswith(PUBLISHED):
        return None
    readme = source / "README.md"
    return readme if readme.exists() else source


def site_path(source: Path) -> str:
    """Return where a repository file lies in the site's sources."""
    parts = source.relative_to(ROOT).parts
    path = "/".join(part.lstrip(".") for part in parts)  # MkDocs leaves out hidden folders
    if source.is_dir() or source.suffix in CODE:
        return f"{PUBLISHED}{path}.md"
    return path.removeprefix("docs/") if path.startswith("docs/") else PUBLISHED + path


def publish(source: Path, config: MkDocsConfig) -> File:
    """Return the site's copy of a repository file."""
    path = source.relative_to(ROOT).as_posix()
    if source.is_dir():
        entries = [f"- `{entry.name}`" for entry in sorted(source.iterdir())]
        content = f"# {path}/\n\n" + "\n".join(entries) + "\n"
    elif source.suffix in CODE:
        content = f"# {path}\n\n````{CODE[source.suffix]}\n{source.read_text()}````\n"
    elif source.suffix == ".md":
        content = source.read_text()
    else:
        return File.generated(config, site_path(source), abs_src_path=str(source))
    return File.generated(config, site_path(source), content=content)
