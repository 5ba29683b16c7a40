"""The design pages name files and identifiers that exist: a page that outlives what it describes misleads."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "nsquark"
LINKING = sorted([*(ROOT / "docs").glob("*.md"), ROOT / "README.md"])
PAGES = ["architecture.md", "log-format.md"]
# What looks like a name of ours and is none: files in the data directory.
FOREIGN = {"nsqd.dat", "nsquark.dat", "app.json"}

_SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
_FENCE = re.compile(r"^```.*?^```", re.M | re.S)
_FILE = re.compile(r"[\w./-]+\.(py|pyx|pxd|pyi|h|c|md|yaml|toml)")
_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*(\(\))?")
_CYTHON_WORD = re.compile(r"[A-Za-z_]\w*")


@cache
def identifiers() -> frozenset[str]:
    """Every module, class, function, argument, attribute and global of src/nsquark."""
    found: set[str] = set()
    for path in SOURCE.rglob("*.py"):
        found |= {path.stem, path.parent.name}
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    found.add(name)
                case ast.Attribute(attr=name) | ast.Name(id=name) | ast.arg(arg=name):
                    found.add(name)
    for path in SOURCE.rglob("*.pyx"):
        found |= {path.stem, *_CYTHON_WORD.findall(path.read_text())}
    return frozenset(found)


def missing(text: str) -> list[str]:
    """The code spans of a page that name a file or an identifier which does not exist."""
    found = []
    for span in _SPAN.findall(_FENCE.sub("", text)):
        if _FILE.fullmatch(span):
            places = (ROOT / span, SOURCE / span, ROOT / "docs" / span, ROOT / "src" / span)
            if not any(place.exists() for place in places):
                found.append(span)
        elif _NAME.fullmatch(span) and _is_code(span):
            parts = span.removesuffix("()").split(".")
            if span not in FOREIGN and not set(parts) <= identifiers():
                found.append(span)
    return found


def _is_code(span: str) -> bool:
    """Whether a span is a name of ours, and no word of the protocol, of JSON or of a shell."""
    camel = re.search(r"[a-z][A-Z]|^[A-Z][a-z]+$", span) is not None
    return camel or "." in span or span.endswith("()") or span.startswith("_")


@pytest.mark.parametrize("page", PAGES)
def test_a_page_names_what_exists(page: str) -> None:
    assert missing((ROOT / "docs" / page).read_text()) == []


def test_what_does_not_exist_is_found() -> None:
    assert missing("`Topic.commit`, `nsqd/broker.py`, `--flag`, `OK`, `nsqd.dat`") == []
    assert missing("`NoSuchClass`, `Topic.no_such_method`, `no/file.py`") == [
        "NoSuchClass",
        "Topic.no_such_method",
        "no/file.py",
    ]


@pytest.mark.parametrize(
    "page", sorted([*(ROOT / "docs").glob("*.md"), ROOT / "README.md"]), ids=lambda page: page.name
)
def test_a_link_leads_to_a_file(page: Path) -> None:
    targets = [target for target in _LINK.findall(page.read_text()) if "://" not in target]
    assert [target for target in targets if not (page.parent / target).exists()] == []
