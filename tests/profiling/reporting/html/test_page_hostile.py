"""Names that look like code are shown as text and are nothing else."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hostile import ALL, BREAKOUT, CLOSING, ENVIRONMENT, MARKUP, SCRIPT, hostile_records

from profiling.results.records import Record

Make = Callable[..., Record]
WritePage = Callable[..., Path]
Parse = Callable[[str], Any]


@pytest.fixture
def attacked(make: Make, loop: Callable[..., dict[str, Any]], write_page: WritePage) -> Path:
    return write_page(hostile_records(make, loop()), ENVIRONMENT, BREAKOUT)


def test_no_element_and_no_attribute_comes_from_a_name(
    attacked: Path, make: Make, loop: Callable[..., dict[str, Any]], parse: Parse
) -> None:
    parsed = parse(attacked.read_text(encoding="utf-8"))
    tags = Counter(tag for tag, _ in parsed.elements)
    assert tags["script"] == 4  # the figures, plotly, and two of its own
    assert not tags.keys() & {"img", "b", "i", "iframe", "object", "base", "form"}
    known = {"id", "class", "href", "type", "hidden", "content", "http-equiv", "name", "charset", "lang", "rel"}
    known |= {"scope", "data-key", "data-views", "data-chart", "value", "tabindex", "role", "placeholder"}
    for tag, attributes in parsed.elements:
        assert {name for name in attributes if not name.startswith("aria-")} <= known, (tag, attributes)
        assert "javascript" not in (attributes.get("href") or "")
        assert "example.org" not in (attributes.get("href") or "")


def test_every_text_is_shown(attacked: Path) -> None:
    page = attacked.read_text(encoding="utf-8")
    for text in (SCRIPT, CLOSING, MARKUP):
        assert text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&#34;") in page
    assert "{{7*7}}" in page
    assert "evil=1</script>" not in page


def test_names_in_figures_are_entities_that_plotly_shows_as_they_are(attacked: Path, parse: Parse) -> None:
    specs = parse(attacked.read_text(encoding="utf-8")).specs()
    for text in texts(specs):
        assert "<" not in text, text
        assert "%{" not in text or not text.startswith("%{"), text
    names = {trace.get("name") for views in specs.values() for figure in views for trace in figure["data"]}
    assert "&lt;script&gt;window.evil=1&lt;/script&gt;" in names


def test_a_name_that_was_not_escaped_would_be_found(parse: Parse) -> None:
    parsed = parse(f"<p>{CLOSING}</p><script>1</script>{SCRIPT}")
    assert Counter(tag for tag, _ in parsed.elements) == {"p": 1, "img": 1, "script": 2}


def test_numbers_that_json_lacks_do_not_reach_the_page(make: Make, write_page: WritePage, parse: Parse) -> None:
    wall = {"p50": 1.0, "samples": [1.0, float("nan"), 2.0], "ci95": [0.9, float("inf")], "p99": float("nan")}
    record = make("baseline", 1.0, metrics={"wall_ms": wall})
    run = write_page([make("compile", 1.0)]).parent
    from profiling.reporting.html.page import render_html

    specs = parse(render_html([record], {}, run)).specs()
    values = np.array(specs["samples"][0]["data"][0]["y"])
    assert values.tolist() == [1.0, 2.0]
    assert json.dumps(specs, allow_nan=False)


def texts(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content]
    inner = content.values() if isinstance(content, dict) else content if isinstance(content, list) else ()
    return [text for item in inner for text in texts(item)]


def test_the_attacks_are_all_different() -> None:
    assert len(set(ALL)) == len(ALL)
