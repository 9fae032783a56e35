"""docs/reliability.md lists the promises that the suite holds."""

from table import PAGE, PROMISES, collect, page_of


def test_the_page_is_what_the_tests_hold():
    files = collect()
    assert sorted(files) == sorted(PROMISES), "each promise has a test, and a name of its own"
    assert PAGE.read_text(encoding="utf-8") == page_of(files), "run: python tests/faults/table.py"
