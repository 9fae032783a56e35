"""A page that is open in a browser: what it draws, and what it said or asked for."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import which
from typing import Any

import pytest

Open = Callable[..., Any]
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


class Heard(list[str]):
    """Whatever a page said or asked for, beside itself."""

    def listen(self, page: Any, address: str) -> None:
        page.on("console", lambda message: self.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (self.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: self._asked(request.url, address))

    def _asked(self, url: str, address: str) -> None:
        if url.partition("#")[0] != address and not url.startswith(("blob:", "data:")):
            self.append(f"request: {url}")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Start a headless Chromium."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: pip install -e '.[dev]'"
    )
    path = next(filter(None, map(which, BROWSERS)), None)
    if path is None:
        pytest.skip(f"no browser here, none of: {', '.join(BROWSERS)} (on Debian: apt-get install chromium)")
    root = hasattr(os, "geteuid") and os.geteuid() == 0
    with playwright.sync_playwright() as driver:
        # Chromium's sandbox refuses to be root's.
        started = driver.chromium.launch(executable_path=path, args=["--no-sandbox"] if root else [])
        yield started
        started.close()


@pytest.fixture
def heard() -> Iterator[Heard]:
    """What must be empty at the end of every test."""
    said = Heard()
    yield said
    assert said == []


@pytest.fixture
def show(browser: Any, heard: Heard) -> Iterator[Open]:
    """Open a page's file, offline."""
    contexts = []

    def show_file(file: Path, *, width: int = 1400, scheme: str = "light") -> Any:
        size = {"width": width, "height": 900}
        context = browser.new_context(viewport=size, color_scheme=scheme, offline=True)
        contexts.append(context)
        opened = context.new_page()
        heard.listen(opened, file.as_uri())
        opened.goto(file.as_uri())
        return opened

    yield show_file
    for context in contexts:
        context.close()
