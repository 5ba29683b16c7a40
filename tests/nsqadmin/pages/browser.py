"""Chromium, as a reader has it: the system's, without a window, with a profile of its own.

Whatever a page complains of fails the test: an error of a script, a blocked resource, an injected dialog.
Screenshots go to build/screenshots, or where NSQUARK_SCREENSHOTS says.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, ConsoleMessage, Dialog, Page, async_playwright

SCREENSHOTS = Path(os.environ.get("NSQUARK_SCREENSHOTS", "build/screenshots"))
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium: apt-get install chromium")


class Reader:
    """A tab. `page` is Playwright's; `goto` takes a path of nsqadmin."""

    def __init__(self, page: Page, address: str) -> None:
        self.page = page
        self.address = address
        self.complaints: list[str] = []
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.complaints.append(f"script: {error}"))
        page.on("dialog", self._on_dialog)

    def _on_console(self, message: ConsoleMessage) -> None:
        # An answer of 4xx or 5xx is what some tests ask for; what the page makes of it is looked at.
        if message.type == "error" and "responded with a status of" not in message.text:
            self.complaints.append(message.text)

    async def _on_dialog(self, dialog: Dialog) -> None:
        self.complaints.append(f"a page opened a dialog: {dialog.message}")
        await dialog.dismiss()

    async def goto(self, path: str) -> int:
        answer = await self.page.goto(f"http://{self.address}{path}")
        assert answer is not None
        return answer.status

    async def text(self, selector: str = "main") -> str:
        return await self.page.inner_text(selector)

    async def act(self, link: str, typed: str = "") -> str:
        """Follow a link or a menu's entry to its dialog, confirm, and read what came of it."""
        await self.page.get_by_role("link", name=link, exact=True).click()
        return await self.confirm(typed)

    async def confirm(self, typed: str = "") -> str:
        dialog = self.page.locator("dialog[open]")
        await dialog.wait_for()
        if typed:
            await dialog.locator("input[name=confirm], input[name=channel]").fill(typed)
        await dialog.locator("form button").click()
        await dialog.locator("[data-result]").wait_for()
        return await dialog.inner_text()

    async def shoot(self, name: str) -> None:
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        await self.page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=True)

    async def check_access(self) -> None:
        """No finding of axe that is serious, and no sideways scrolling of the whole page."""
        results = await Axe().run(self.page)
        serious = [
            (each["id"], [node["target"] for node in each["nodes"]])
            for each in results.response["violations"]
            if each["impact"] in ("serious", "critical")
        ]
        assert serious == []
        wide = await self.page.evaluate("document.documentElement.scrollWidth > innerWidth")
        assert not wide, "the page is wider than its window"


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        try:
            yield browser
        finally:
            await browser.close()


@asynccontextmanager
async def reading(browser: Browser, address: str, **settings: Any) -> AsyncIterator[Reader]:
    """A tab with these settings (Playwright's `new_context`). Fails if a page complained."""
    context = await browser.new_context(**settings)
    reader = Reader(await context.new_page(), address)
    try:
        yield reader
    finally:
        await context.close()
    assert reader.complaints == []
