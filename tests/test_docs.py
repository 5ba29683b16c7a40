"""The design pages name files and identifiers that exist: a page that outlives what it describes misleads."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from scripts.reference.pages import GENERATED

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "nsquark"
LINKING = sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"])
PAGES = [
    "architecture.md",
    "glossary.md",
    "log-format.md",
    "performance.md",
    *sorted(f"design/{path.name}" for path in (ROOT / "docs" / "design").glob("*.md")),
]
# What looks like a name of ours and is none: files in the data directory.
FOREIGN = {"nsqd.dat", "nsquark.dat", "nsquark.import", "app.json", "state.json"}

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
            places = (ROOT, SOURCE, ROOT / "docs", ROOT / "src", SOURCE / "kernel", SOURCE / "nsqd" / "core")
            if not any((place / span).exists() for place in places):
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


@pytest.mark.parametrize("page", LINKING, ids=lambda page: page.name)
def test_a_link_leads_to_a_file(page: Path) -> None:
    targets = [target for target in _LINK.findall(page.read_text()) if "://" not in target]
    assert [target for target in targets if not _exists(page.parent / target)] == []


def _exists(target: Path) -> bool:
    """Whether it is a file, or a page that is made when the site is built."""
    docs = ROOT / "docs"
    target = target.resolve()
    return target.exists() or (target.is_relative_to(docs) and str(target.relative_to(docs)) in GENERATED)


# ---- what can be pasted

_BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^\1```", re.M | re.S)
_FLAG = re.compile(r"(?<![\w-])--([a-z][a-z0-9-]+)")
# A command of ours in a block or in a code span, up to the end of the line, the span or the pipe.
_COMMAND = re.compile(r"(?:^|[`/\s])(?:nsqd|nsqlookupd|nsqadmin|to_nsq|nsq_\w+|nsquark) [^`|\n]*")
ANY_PROGRAMS_FLAGS = {"help"}


@cache
def flags_of_programs() -> frozenset[str]:
    """Every flag of every program: NSQ's kind, those of `nsquark`, of the demo and of the benchmarks."""
    from nsquark.demo.options import Options as DemoOptions
    from scripts.reference.flags import command_helps, flag_sets

    found = {field.replace("_", "-").rstrip("-") for field in DemoOptions.__dataclass_fields__}
    for _, _, flags in flag_sets():
        found |= {*flags.flags, *flags.renamed}
    for _, text in command_helps():
        found |= set(_FLAG.findall(text))
    for path in ROOT.joinpath("bench").rglob("*.py"):
        found |= set(re.findall(r"add_argument\(\s*\"--([\w-]+)\"", path.read_text()))
    return frozenset(found)


def unknown_flags(text: str) -> list[str]:
    """The flags in the commands of a page that no program of ours has."""
    known = flags_of_programs() | ANY_PROGRAMS_FLAGS
    commands = _COMMAND.findall(text.replace("\\\n", " "))
    return [flag for command in commands for flag in _FLAG.findall(command) if flag not in known]


@pytest.mark.parametrize("page", LINKING, ids=lambda page: page.name)
def test_a_page_names_flags_that_exist(page: Path) -> None:
    assert unknown_flags(page.read_text()) == []


def test_a_flag_that_does_not_exist_is_found() -> None:
    assert unknown_flags("`nsqd --data-path=x --max-attempts=5`") == []
    assert unknown_flags("`nsqd --data-pth=x`") == ["data-pth"]
    assert unknown_flags("nsquark tail t --form 1h | head --lines=1") == ["form"]


@pytest.mark.parametrize("page", LINKING, ids=lambda page: page.name)
def test_python_in_a_page_is_python(page: Path) -> None:
    for indent, language, code in _BLOCK.findall(page.read_text()):
        if language == "python":
            ast.parse("\n".join(line.removeprefix(indent) for line in code.splitlines()))
