"""A run in which every name, reason and text contains HTML, script or format strings; what a page must make of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from html import escape
from typing import Any

from parsed_page import Parsed

from profiling.results.record import Record

SCRIPT = "<script>window.evil=1</script>"
CLOSING = "</script><img src=x onerror=window.evil=2>"
MARKUP = '<a href="javascript:window.evil=3">link</a><b>bold</b>&lt;i&gt;'
FORMULA = "$x$ %{y} {{7*7}} {% raw %}"
ATTRIBUTE = '" onmouseover="window.evil=4" \' x=\''
ALL = (SCRIPT, CLOSING, MARKUP, FORMULA, ATTRIBUTE)
#: Text that appears inside a `pre`, a `title` and a style of the page.
BREAKOUT = f"</pre></title></style>{SCRIPT}{CLOSING}\n"


def hostile_records(make: Callable[..., Record], loop: Mapping[str, Any]) -> list[Record]:
    """Make records of calls, of a training and of a loop; each field that is text holds an attack."""
    content: dict[str, Any] = {
        "weights": MARKUP,
        "weights_hint": SCRIPT,
        "dtype": ATTRIBUTE,
        "notes": list(ALL),
        "compile": {
            "index": "javascript:window.evil=5",
            "graph_breaks": [{"reason": text, "file": text, "line": 1} for text in ALL],
            "recompiles": [{"compile_id": SCRIPT, "reason": CLOSING}],
            "cudagraph_skips": list(ALL),
        },
        "trace": {"trace": SCRIPT, "operators": "//example.org/x"},
        "trace_analysis": {
            **{"span_ms": 1.0, "busy_ms": 1.0, "kernel_ms": 1.0, "modules_from": SCRIPT},
            "classes": [{"class": text, "ms": 0.2} for text in ALL],
            "kernels": [{"name": text, "class": text, "ms": 0.2} for text in ALL],
            "modules": [{"path": text, "ms": 0.2, "self_ms": 0.2} for text in ALL],
            "waits": [{"what": text, "line": text, "code": text, "count": 1, "ms": 0.2} for text in ALL],
        },
        "training": {"log": [{"step": 0, "loss": 1.0, "step_ms": 2.0}]},
        "memory": {"phases": {SCRIPT: {"allocated": 2**20}, MARKUP: {"allocated": 2**21}}},
    }
    records = [make(text, 2.5 + i, component=ALL[-i], **content) for i, text in enumerate(ALL)]
    records += [make(text, 5.0, component=MARKUP, status="failed", reason=text) for text in (SCRIPT, CLOSING)]
    frames = [{"frame": 3, "ms": 40.0, "causes": [text]} for text in ALL]
    slow = {"threshold_ms": 10.0, "count": 5, "causes": dict.fromkeys(ALL, 1), "frames": frames}
    parts = {text: {"host_ms": 1.0, "share": 0.1} for text in ALL}
    budget = {"parts": parts}
    section = {**loop, "stages": list(ALL), "budget": budget, "slow": slow, "schedule": "sequential"}
    return [*records, make(SCRIPT, target="realtime", component="loop", realtime=section)]


ENVIRONMENT = {
    **{text: text for text in ALL},
    "command": f"python {SCRIPT} {CLOSING}",
    "versions": {SCRIPT: CLOSING, "torch": MARKUP},
    "device": {"type": "cuda", "name": SCRIPT},
    "list": list(ALL),
}

#: The attributes that the pages themselves use.
_KNOWN = {"id", "class", "href", "type", "hidden", "content", "http-equiv", "name", "charset", "lang", "rel"} | {
    *("scope", "data-key", "data-sort", "value", "tabindex", "role", "placeholder", "title", "style"),
    *("x", "x1", "x2", "y", "y1", "y2", "d", "width", "height", "fill", "stroke", "stroke-width"),
    *("opacity", "font-size", "viewbox", "preserveaspectratio"),
}


def check_only_text(page: str) -> None:
    """Check that a page shows every hostile string as text, and that none became an element, attribute or link."""
    parsed = Parsed(page)
    tags = Counter(tag for tag, _ in parsed.elements)
    assert tags["script"] == 1  # its own
    assert not tags.keys() & {"img", "b", "i", "iframe", "object", "base", "form"}
    for tag, attributes in parsed.elements:
        assert {name for name in attributes if not name.startswith("aria-")} <= _KNOWN, (tag, attributes)
        href = attributes.get("href") or ""
        assert href.startswith("#") or not ("javascript" in href or "example.org" in href), href
    shown = page.replace("<wbr>", "")
    for text in (SCRIPT, CLOSING, MARKUP):
        assert escape(text).replace("&quot;", "&#34;") in shown, text
    assert "evil=1</script>" not in page
