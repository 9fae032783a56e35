"""Names that look like code are text on the pages of comparisons and histories, and nothing else."""

import json
from collections import Counter
from html import escape

import pytest
from hand_made import ENVIRONMENT, MIB, cell, noisy, write_run
from hostile import ALL, CLOSING, MARKUP, SCRIPT

from profiling import compare, history

KNOWN = {"id", "class", "href", "type", "hidden", "content", "http-equiv", "name", "charset", "lang", "rel"} | {
    *("scope", "data-key", "data-views", "data-chart", "value", "tabindex", "role", "placeholder")
}


def attack(folder, letter, scale):
    """Write a run in which every name, reason and fact is an attack."""
    inside = {"kernels": [{"name": f"{letter}{text}", "count": 1, "ms": 1.0} for text in ALL]}
    weights = {"weights": f"{letter}{MARKUP}", "memory": {"peak_allocated": scale * 100 * MIB}}
    cells = [
        cell(text, noisy(scale * (2 + i), seed=i + scale), component=ALL[-i], inside=inside, **weights)
        for i, text in enumerate(ALL)
    ]
    cells += [cell("failed", status="failed", reason=text, component=text) for text in ALL]
    environment = {
        **{text: f"{letter}{text}" for text in ALL},
        "captured_at": f"{letter}{SCRIPT}",
        "command": f"python {letter} {CLOSING} {SCRIPT}",
        "git": {"revision": f"<b>{letter}</b>" * 4},
        "device": {"name": MARKUP},
        "versions": {**ENVIRONMENT["versions"], SCRIPT: f"{letter}{CLOSING}"},
    }
    return write_run(folder / f"{letter}<img src=x onerror=window.evil=7>", *cells, environment=environment)


@pytest.fixture(params=["compare", "history"])
def attacked(request, tmp_path):
    """Give the page of a comparison and of a history of two such runs, in turn."""
    a, b, file = attack(tmp_path, "a", 1), attack(tmp_path, "b", 2), tmp_path / "page.html"
    if request.param == "compare":
        assert compare.main([str(a), str(b), "--html", str(file)]) == 1
    else:
        assert history.main([str(tmp_path), "--html", str(file)]) == 0
    return file


def texts(content):
    if isinstance(content, str):
        return [content]
    inner = content.values() if isinstance(content, dict) else content if isinstance(content, list) else ()
    return [text for item in inner for text in texts(item)]


def test_no_element_and_no_attribute_comes_from_a_name(attacked, parse):
    parsed = parse(attacked.read_text(encoding="utf-8"))
    tags = Counter(tag for tag, _ in parsed.elements)
    assert tags["script"] == 4  # the figures, plotly, and two of its own
    assert not tags.keys() & {"img", "b", "i", "iframe", "object", "base", "form"}
    for tag, attributes in parsed.elements:
        assert {name for name in attributes if not name.startswith("aria-")} <= KNOWN, (tag, attributes)
        assert "javascript" not in (attributes.get("href") or "")


def test_every_name_is_shown(attacked):
    page = attacked.read_text(encoding="utf-8").partition('<script type="application/json"')[0]
    for text in ALL:
        assert escape(text).replace("&quot;", "&#34;").replace("&#x27;", "&#39;") in page, text


def test_names_in_figures_are_entities_that_plotly_shows_as_they_are(attacked, parse):
    specs = parse(attacked.read_text(encoding="utf-8")).specs()
    found = texts(specs)
    assert not [text for text in found if "<" in text]
    assert [text for text in found if "&lt;script&gt;window.evil=1" in text]
    assert not [text for text in found if text.startswith("%{")]
    assert "hovertemplate" not in json.dumps(specs), "it would read %{} in a name"


@pytest.mark.browser
def test_a_browser_runs_none_of_it(attacked, show):
    page = show(attacked)
    assert page.locator(".chart a, .chart img, .chart b, .chart i").count() == 0
    chart = "document.querySelector('.chart')"
    for curve in range(page.evaluate(f"{chart}.data.length")):
        page.evaluate(f"Plotly.Fx.hover({chart}, [{{curveNumber: {curve}, pointNumber: 0}}])")
        assert page.locator(".hoverlayer a, .hoverlayer b").count() == 0
    page.locator(".hoverlayer .hovertext").first.wait_for()
    assert page.evaluate("window.evil") is None
