"""The site builds without a warning, no link in it is dead, and its reference says what the programs say."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest

from nsquark.nsqd.http.routes import router
from scripts.reference import flags, metrics
from tests.nsqd.api import running

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("site")]


class Html(HTMLParser):
    """The links, anchors and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self._text: list[str] = []
        self.feed(text)
        self.text = "".join(self._text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value is not None:
                self.links.append(value)
            elif name in ("id", "name") and value is not None:
                self.anchors.add(value)

    def handle_data(self, data: str) -> None:
        self._text.append(data)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", f"--site-dir={built}"],
        cwd=ROOT, capture_output=True, text=True, timeout=550,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert not re.search(r"^(WARNING|ERROR)", done.stderr, re.M), done.stderr
    return built


@cache
def parsed(path: Path) -> Html:
    return Html(path.read_text())


def test_no_link_is_dead(site: Path) -> None:
    dead = []
    pages = [path for path in sorted(site.rglob("*.html")) if path.name != "404.html"]
    assert len(pages) > 30
    for page in pages:
        for link in parsed(page).links:
            if re.match(r"\w+:|//", link):
                continue
            path, anchor = urldefrag(link)
            target = (page.parent / unquote(path)).resolve() if path else page
            if target.is_dir():
                target /= "index.html"
            alive = target.exists() and (
                not anchor or target.suffix != ".html" or unquote(anchor) in parsed(target).anchors
            )
            if not alive:
                dead.append(f"{page.relative_to(site)}: {link}")
    assert dead == []


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        for source in re.findall(
            r"<(?:script|img|link)\b[^>]*?(?:src|href)=\"?(https?://[^\s\">]+)", page.read_text()
        ):
            raise AssertionError(f"{page}: {source}")


def test_every_page_of_the_folder_is_in_the_site(site: Path) -> None:
    pages = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    assert {page for page in pages if not (site / page).exists()} == set()
    front = parsed(site / "index.html").links
    assert [str(page) for page in pages if str(page) not in front and page.name != "index.html"] == []


def test_the_flags_are_those_of_the_programs(site: Path) -> None:
    html = (site / "reference" / "flags.html").read_text()
    sections = dict(zip(*[iter(re.split(r"<h2 id=\"([\w-]+)\"", html)[1:])] * 2, strict=True))
    for program, (module, _) in flags.PROGRAMS.items():
        usage = subprocess.run(
            [sys.executable, "-m", module.removesuffix(".options"), "--help"], capture_output=True, text=True
        )
        told = set(re.findall(r"^  -([\w-]+)", usage.stderr + usage.stdout, re.M))
        assert len(told) > 5
        assert set(re.findall(r"<td><code>--([\w-]+)</code>", sections[program])) == told, program


async def test_the_routes_are_those_of_nsqd_and_nsqlookupd(site: Path, tmp_path: Path) -> None:
    text = parsed(site / "reference" / "http-routes.html").text
    listed = set(re.findall(r"\b(GET|POST|PUT|DELETE) (/[\w/.{}<>]*)", text))
    async with running(tmp_path) as api:
        served = {*router(api.broker).listed(), *_routes_of_nsqlookupd()}
    assert {(method, path.replace("{opt}", "")) for method, path in listed} == served


def _routes_of_nsqlookupd() -> set[tuple[str, str]]:
    from scripts.reference.routes import nsqlookupd_routes

    return {(method, path) for method, _, path in (each.partition(" ") for each in nsqlookupd_routes())}


def test_the_metrics_are_those_of_the_daemons(site: Path) -> None:
    html = (site / "reference" / "metrics.html").read_text()
    listed = re.findall(r"<td><code>(\w+)</code></td>\s*<td>(?:counter|gauge|histogram|info|summary)", html)
    served = {each.name for each in (*metrics.nsqd_metrics(), *metrics.nsqlookupd_metrics())}
    assert set(listed) == served
    assert len(listed) > 30


def test_the_client_api_is_there_with_its_docstrings(site: Path) -> None:
    text = parsed(site / "reference" / "client-api.html").text
    for said in ("publish_many", "max_in_flight", "disable_auto_response", "OutcomeUnknown", "on_give_up"):
        assert said in text
