"""Pages made of records, what a browser's parser finds in them, and a browser to open them in."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from shutil import which
from typing import Any

import pytest

from profiling.core.records import Record, read_records
from profiling.reporting.heading import read_environment
from profiling.reporting.html.material import Material
from profiling.reporting.html.page import HTML_FILE, render_html

RESULTS = Path(__file__).parents[4] / "docs" / "results"
COMMITTED = sorted(path.parent for path in RESULTS.glob("*/results.jsonl"))
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

Save = Callable[[Sequence[Record]], Path]


@dataclass
class Parsed(HTMLParser):
    """The elements of a page, and what stands in its scripts."""

    text: str
    elements: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    scripts: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self.open_script = False
        self.feed(self.text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "script":
            self.open_script = True
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self.open_script = self.open_script and tag != "script"

    def handle_data(self, data: str) -> None:
        if self.open_script:
            self.scripts[-1] += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def specs(self) -> dict[str, list[dict[str, Any]]]:
        """Return the figures of each chart."""
        places = [i for i, script in enumerate(self.all("script")) if script.get("id") == "specs"]
        return json.loads(self.scripts[places[0]])


def of_run(run: Path) -> Material:
    return Material(read_records(run), read_environment(run), run)


def page_of(run: Path) -> str:
    return render_html(read_records(run), read_environment(run), run)


@pytest.fixture
def parse() -> Callable[[str], Parsed]:
    return Parsed


@pytest.fixture
def material(save: Save) -> Callable[..., Material]:
    """Make the material of records that stand in a run's folder."""

    def make(*records: Record) -> Material:
        return of_run(save(records))

    return make


@pytest.fixture
def write_page(save: Save) -> Callable[..., Path]:
    """Write records, an environment and a config as a run, and the run's page."""

    def write(records: Sequence[Record], environment: Mapping[str, Any] | None = None, config: str = "") -> Path:
        run = save(records)
        (run / "environment.json").write_text(json.dumps(environment or {}))
        (run / "config.yaml").write_text(config)
        (run / HTML_FILE).write_text(page_of(run), encoding="utf-8")
        return run / HTML_FILE

    return write


@pytest.fixture(params=COMMITTED, ids=lambda run: run.name)
def committed(request: pytest.FixtureRequest) -> Path:
    """Give each run that is committed, in turn."""
    return request.param


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
