"""docs/reliability.md lists the promises that the suite holds."""

from table import PAGE, PROMISES, collect, page_with, render


def test_the_page_is_what_the_tests_hold():
    files = collect()
    assert set(files) == set(PROMISES), "each promise has a test"
    assert PAGE.read_text(encoding="utf-8") == page_with(render(files)), "run: python tests/faults/table.py"
