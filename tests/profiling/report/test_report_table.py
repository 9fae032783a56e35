"""One table, three renderings: the same cells, sorted by typed values, harmless whatever the names are."""

import math
import re
from dataclasses import dataclass

import pytest
from report_records import build as build_record
from report_records import summary

from profiling.errors import printable
from profiling.report.format import ABSENT, Estimate, Link, Marked, count_of, escaped, listed, show, significant, struck
from profiling.report.page import Section, render_page
from profiling.report.table import Column, Table, columns, console, markdown
from profiling.results.measured import TrainingStepRow
from profiling.results.record import Record


@dataclass(frozen=True)
class Row:
    name: str
    ms: float | Marked | None = None
    ratio: Estimate | float | None = None
    calls: float | None = None
    href: str | None = None
    correct: bool = True


COLUMNS = (
    Column[Row]("variant", lambda row: Link(row.name, row.href) if row.href else row.name),
    Column[Row]("wall p50", lambda row: row.ms, "ms"),
    Column[Row]("speedup", lambda row: row.ratio, "ratio"),
    Column[Row]("pays after", lambda row: row.calls, "count", unit="calls"),
)


def build(*rows, columns=COLUMNS, keys=1, **more):
    return Table("Points", columns, rows, strike=lambda row: not row.correct, keys=keys, **more)


def cells(line):
    return [cell.strip() for cell in line.strip("| ").split("|")]


SHOWN = {
    "ms": [(2.5, "2.500"), (28.714, "28.71"), (12345.6, "12346"), (9.9996, "10.00"), (0.0000123, "1.230e-05")],
    "s": [(36.62, "36.6"), (Marked("~", 2.57), "~2.57"), (None, ABSENT)],
    "ratio": [(Estimate(6.014, 5.92, 6.2), "6.01× ±3.1%"), (Estimate(7.0, 5.91, 9.83), "7.0× (5.9-9.8)")],
    "number": [
        *((2_287_000.0, "2,287,000"), (Estimate(2.184, 2.182, 2.1861), "2.184 ±0.1%")),
        (Estimate(-0.01, -0.1, 0.08), "-0.010 (-0.10 to 0.080)"),
    ],
    "percent": [(0.634, "63%"), (0.0421, "4.2%"), (0.0, "0%")],
    "count": [(2.4, "2.4"), (308.0, "308"), (math.inf, "never")],
    "error": [(0.01712, "1.7e-02")],
    "MiB": [(2291 * 2**20, "2291"), (10.4 * 2**20, "10"), (9.96 * 2**20, "10"), (2.5 * 2**20, "2.5"), (0, "0")],
    **{"flag": [(True, "yes")], "text": [("a\nb", "a b")]},
}


@pytest.mark.parametrize("kind", SHOWN)
def test_a_value_is_shown_by_its_kind(kind):
    assert [show(value, kind) for value, _ in SHOWN[kind]] == [text for _, text in SHOWN[kind]]


def test_words_around_numbers():
    assert [count_of(number, "call") for number in (1, 2.0, 10240)] == ["1 call", "2 calls", "10,240 calls"]
    assert listed(["24", "30", "60"]) == "24, 30 and 60"
    assert [struck(text) for text in ("12.3", ABSENT)] == ["~~12.3~~", ABSENT]
    assert {significant(value) for value in (None, math.nan, math.inf)} == {ABSENT}, "never nan or zero"
    assert escaped("<lambda> *x* `y` ~~z~~") == "\\<lambda\\> \\*x\\* \\`y\\` \\~\\~z\\~\\~"
    assert [escaped(name) for name in ("world_model", "__init__")] == ["world_model", "\\_\\_init\\_\\_"]


def test_what_is_not_correct_is_struck_out_where_it_was_measured():
    table = build(Row("fast", 1.23, 23.3, calls=3.0, correct=False), Row("eager", 28.7))
    for text in (markdown(table), console(table, depth="report")):
        assert "~~1.230~~" in text
        assert " 1.230 " not in text
        assert "~~3~~" not in text
    assert "fast" not in console(table)
    assert table.notes_at("console") == []
    assert [cell.struck for cell in table.shown()[1][0]] == [False, True, True, False]
    empty = build()
    assert not empty
    assert (console(empty), markdown(empty)) == ("", "")
    assert not Section("x", "X", tables=(empty,))


def page_of(table):
    return render_page("t", (), [Section("x", "X", tables=(table,))])


def test_the_page_sorts_by_numbers_and_the_texts_are_those_of_the_markdown():
    table = build(
        Row("a", 1.5, Estimate(3.0, 2.9, 3.1)),
        Row("b", Marked("~", 2.5), calls=math.inf, href="traces/b.txt"),
        notes=("p50: wall.",),
    )
    page = page_of(table)
    body = page.partition("<tbody>")[2].partition("</tbody>")[0]
    assert re.findall(r'data-sort="([^"]+)"', body) == ["1.5", "3.0", "2.5"]
    assert "3.00×\u00a0±3.3%" in body, "a line does not end before an interval"
    assert '<a href="traces/b.txt">b</a>' in body
    assert "traces/" not in markdown(table) + console(table)
    texts = re.sub("</?a[^>]*>", "", body.replace("\u00a0", " "))
    shown = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in texts.split("</tr>")[:-1]]
    assert shown == [["a", "1.500", "3.00× ±3.3%", "–"], ["b", "~2.500", "–", "never"]]
    assert '<p class="note">p50: wall.</p>' in page
    assert [cells(line.replace("\\", "")) for line in markdown(table).splitlines()[2:4]] == shown


def test_fields_of_a_record_have_their_columns_from_its_structs():
    """Title, unit and meaning are declared once; what a row lacks is absent, and a median has its interval."""
    content = {
        "trace_analysis": {"busy_ms": 0.5, "count": 2.5, "idle": {"host_ms": 0.25, "between_ms": 0.25}},
        **{"graphs": {"pool_bytes": 3 * 2**20}},
        **{"prepare": {"seconds": 1.0, "phases": {"load package": 0.5}, "cache_hits": 2}},
        "metrics": {"latency": {"cold": True, "warmup_seconds": 1.0, "settled": True}},
        "realtime": {"frames": 1, "target_fps": 60.0, "pace": "free", "frame_ms": summary(9.0), "sustained_fps": 110.2},
    }
    paths = {
        **{"trace_analysis.busy_ms": ("busy ms", "0.5000"), "trace_analysis.count": ("kernels, copies, fills", "2.5")},
        **{"graphs.pool_bytes": ("pool MiB", "3.0"), "energy.watts": ("power W", ABSENT)},
        **{"prepare.phases.load package": ("load package s", "0.500"), "prepare.cache_hits": ("cache hits", "2")},
        **{"metrics.latency.cold": ("cold", "yes"), "target": ("target", "generic_forward")},
        **{"realtime.frame_ms": ("frame ms", "9.000 ±0.1%"), "realtime.frame_ms.max": ("frame max ms", "9.200")},
        "realtime.sustained_fps": ("sustained FPS", "110"),
    }
    record = build_record("compile", **content)
    shown = columns(Record, *paths)
    assert {path: (c.header, show(c.read(record), c.kind)) for path, c in zip(paths, shown, strict=True)} == paths
    (count,) = columns(Record, "count", at="trace_analysis", of=lambda row: row[0])
    assert count.read((record,)) == 2.5
    assert 'title="kernels, copies and fills a call"' in page_of(Table("T", (count,), [(record,)]))
    (loss,) = columns(TrainingStepRow, "loss")
    assert loss.read((record, TrainingStepRow(step=3, loss=0.25))) == 0.25, "of a tuple it is the second element"


@pytest.mark.parametrize("path", ["trace_analysis.nothing", "trace_analysis.kernels", "prepare.phases"])
def test_what_is_no_single_value_has_no_column(path):
    with pytest.raises(TypeError, match=path.rpartition(".")[2]):
        columns(Record, path)


@pytest.mark.parametrize("name", ["a|b", "back\\slash", "*x* `y` [z](w) <b>", "trailing \\", "a\nb"])
def test_names_cannot_break_a_row(name):
    table = build(Row(name, 1.5), Row("eager", 28.7))
    lines = markdown(table).splitlines()
    assert len(lines) == 4
    unescaped = re.split(r"(?<!\\)\|", lines[2].replace("\\\\", ""))
    assert len(unescaped) == 4
    assert printable(name) in console(table)


def test_a_wide_table_is_broken_into_parts_that_repeat_the_names():
    columns = (COLUMNS[0], *(Column[Row](f"quantity {i}", lambda row: row.ms, "ms") for i in range(20)))
    text = console(build(Row("compile+cuda_graph", 12345.6), columns=columns))
    assert max(map(len, text.splitlines())) <= 100
    assert text.count("compile+cuda_graph") == 3
    assert text.count("12346") == 20
    assert max(map(len, console(build(Row("n" * 120, 1.5))).splitlines())) > 100  # a name is never cut


def test_a_long_text_or_word_goes_on_below_itself():
    words, path = " ".join(f"word{i}" for i in range(12)), "/folder" * 40
    for text, width, most in ((words, 60, 40), (path, 100, 100)):
        columns = (COLUMNS[0], Column[Row]("why", lambda row, text=text: text, wrap=30))
        shown = console(build(Row("x"), columns=columns), width=width)
        assert max(map(len, shown.splitlines())) <= most
        assert "".join(text.split()) in "".join(shown.split())
        assert text in markdown(build(Row("x"), columns=columns))


def test_the_name_of_a_long_recipe_stands_whole_above_its_row():
    long = "channels_last+fused_norm+grouped_conv+compile+cuda_graph"
    columns = (Column[Row]("component", lambda row: "decoder"), Column[Row]("variant", lambda row: row.name, wrap=30))
    numbers = (Column[Row](f"quantity {i}", lambda row: row.ms, "ms") for i in range(4))
    table = build(Row("baseline", 1.5), Row(long, 2.5), columns=(*columns, *numbers), keys=2)
    *_, ruler, first, name, second = console(table, width=70).splitlines()
    assert name == f"decoder    {long}"
    assert (first.split()[:2], second.split()) == (["decoder", "baseline"], ["2.500"] * 4)
    assert len(first) == len(second) == len(ruler)
    narrow = console(build(Row(long), columns=columns, keys=2), width=40).splitlines()[2:]
    broken = ("decoder    channels_last+fused_norm+", "grouped_conv+compile+", "cuda_graph")
    assert [line.strip() for line in narrow] == list(broken)
