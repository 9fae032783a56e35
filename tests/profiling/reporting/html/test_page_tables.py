"""Tables of the page are those of `report.md`, cell by cell, and sort by their numbers."""

import pytest

from profiling.reporting.grid import grid
from profiling.reporting.html.columns import number_in, sort_keys
from profiling.reporting.html.markdown_tables import tables_of
from profiling.reporting.html.section import Cell, Table

NAMES = ("a|b", "back\\slash", "_under_score_", "~~tilde~~", "*x* `y` [z](w) <b>", "trailing \\", "|", "é – ×", "a\\|b")


@pytest.mark.parametrize("name", NAMES)
def test_a_name_comes_back_as_it_went_in(name):
    text = grid(("component", "variant", "ms"), [(name, "eager", "1.5"), ("x", name, "~~2.5~~")], markdown=True)
    (table,) = tables_of(((r"a \[title\]", text),))
    assert table.title == "a [title]"
    assert table.headers == ("component", "variant", "ms")
    assert table.rows == ((Cell(name), Cell("eager"), Cell("1.5")), (Cell("x"), Cell(name), Cell("2.5", struck=True)))


def test_lines_between_tables_belong_to_the_one_before():
    text = "| a |\n|---|\n| 1 |\n\n- a \\[note\\]\n\n| b |\n|---|\n| 2 |\n| 3 |"
    first, second = tables_of((("t", text),))
    assert first.notes == ("a [note]",)
    assert [cell.text for row in second.rows for cell in row] == ["2", "3"]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("8.755 ± 0.203", 8.755),
        ("3.97× [3.96, 3.98]", 3.97),
        ("10934 (10456–11091)", 10934),
        ("2,290,000 [2,190,000, 2,380,000]", 2_290_000),
        ("ok 1.7e-02", 0.017),
        ("12 of 600", 12),
        ("[−0.102, −0.0489]", -0.102),
        ("110.0%", 110),
        ("~2.57", 2.57),
        ("~ 2.57", 2.57),
        ("–", None),
        ("4_conv", None),
        ("2026-11-21", None),
        ("9.0.1", None),
        ("yes", None),
        ("1e-05", 1e-5),
    ],
)
def test_the_number_that_a_cell_begins_with(text, number):
    assert number_in(text) == number


def test_a_column_with_words_is_no_column_of_numbers():
    rows = (("1", "1", "–", "5"), ("–", "x", "–", "never"))
    table = Table("t", ("a", "b", "c", "d"), tuple(tuple(map(Cell, row)) for row in rows))
    assert sort_keys(table) == ((1.0, None), None, None, (5.0, None))
    assert sort_keys(Table("empty", ("a",), ())) == (None,)
