"""Hooks of MkDocs: pages made from the code, and links that leave the documentation.

`make docs` builds the site; mkdocs.yml names this file. Pages that mkdocs.yml does not name are put into the
navigation, so that no page is forgotten.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from reference.pages import GENERATED

ROOT = Path(__file__).parents[1]
# Files of the repository that are pages, too.
TAKEN = {
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "security-policy.md": "SECURITY.md",
}
OTHERS = "More"

_FENCE = re.compile(r"(^```.*?^```)", re.M | re.S)
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s#:]+)(#[^)\s]*)?\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the pages that the navigation does not name at its end."""
    assert config.nav is not None
    named = set(_paths(config.nav))
    docs = Path(config.docs_dir)
    there = sorted(str(path.relative_to(docs)) for path in docs.rglob("*.md"))
    if others := [path for path in there if path not in named]:
        config.nav.append({OTHERS: others})
    return config


def _paths(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    elif isinstance(nav, dict):
        for below in nav.values():
            yield from _paths(below)
    else:
        for below in nav:
            yield from _paths(below)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path, make in GENERATED.items():
        files.append(File.generated(config, path, content=make()))
    for path, source in TAKEN.items():
        files.append(File.generated(config, path, content=(ROOT / source).read_text()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    return with_links_of_the_site(markdown, page.file.src_uri)


def with_links_of_the_site(markdown: str, page: str) -> str:
    """Links to files outside of docs/ become the path of the file, or the page that it is."""
    source = TAKEN.get(page)
    folder = posixpath.dirname(source if source is not None else f"docs/{page}")

    def changed(link: re.Match[str]) -> str:
        text, path, anchor = link[1], link[2], link[3] or ""
        target = posixpath.normpath(posixpath.join(folder, path))
        for uri, taken in TAKEN.items():
            if target == taken:
                target = f"docs/{uri}"
        if target.startswith("docs/"):
            here = posixpath.dirname(f"docs/{page}")
            return f"[{text}]({posixpath.relpath(target, here)}{anchor})"
        named = text.strip("`") == target
        return f"`{target}`" if named else f"{text} (`{target}`)"

    # Every second piece is a fenced block, in which brackets are code.
    pieces = _FENCE.split(markdown)
    pieces[::2] = [_LINK.sub(changed, piece) for piece in pieces[::2]]
    return "".join(pieces)
