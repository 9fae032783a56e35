"""The pages of `compare --html` and `history --html` are safe against any name."""

from html import escape

import pytest
from hostile import ALL, CLOSING, MARKUP, SCRIPT, check_only_text
from planted_runs import ENVIRONMENT, MIB, analysed, cell, noisy, write_run

from profiling import history
from profiling.compare import __main__ as compare_main
from profiling.results.measured import Memory


def attack(folder, letter, scale):
    """Write a run in which every name, reason and fact is an attack."""
    kernels = analysed(**{f"{letter}{text}": (1, 1000.0) for text in ALL})
    fields = {"weights": f"{letter}{MARKUP}", "memory": Memory(peak_allocated=scale * 100 * MIB), "turns": "x"}
    cells = [
        cell(text, noisy(scale * (2 + i), seed=i + scale), component=ALL[-i], trace_analysis=kernels, **fields)
        for i, text in enumerate(ALL)
    ]
    cells += [cell("failed", status="failed", reason=text, component=text) for text in ALL]
    environment = {
        **{text: f"{letter}{text}" for text in ALL},
        "captured_at": f"{letter}{SCRIPT}",
        "command": f"python {letter} {CLOSING} {SCRIPT}",
        "user_git": {"revision": f"<b>{letter}</b>" * 4},
        "device": {"name": MARKUP},
        "versions": {**ENVIRONMENT["versions"], SCRIPT: f"{letter}{CLOSING}"},
    }
    return write_run(folder / f"{letter}<img src=x onerror=window.evil=7>", *cells, environment=environment)


@pytest.fixture(params=["compare", "history"])
def attacked(request, tmp_path):
    """Give the page of a comparison and of a history of two such runs, in turn."""
    a, b, file = attack(tmp_path, "a", 1), attack(tmp_path, "b", 2), tmp_path / "page.html"
    if request.param == "compare":
        assert compare_main.main([str(a), str(b), "--html", str(file)]) == 1
    else:
        assert history.main([str(tmp_path), "--html", str(file)]) == 0
    return file


def test_hostile_names_are_only_text(attacked):
    page = attacked.read_text(encoding="utf-8")
    check_only_text(page)
    for text in ALL:
        assert escape(text).replace("&quot;", "&#34;").replace("&#x27;", "&#39;") in page.replace("<wbr>", ""), text


@pytest.mark.browser
def test_a_browser_runs_none_of_it(attacked, show):
    page = show(attacked)
    assert page.locator(".chart a, .chart img, .chart b").count() == 0
    assert page.evaluate("window.evil") is None
