"""docs/reliability.md lists the faults that the suite plants."""

from table import PAGE, collect, page_with, render


def test_the_page_is_what_the_tests_say():
    faults = collect()
    assert len(faults) >= 120
    assert PAGE.read_text(encoding="utf-8") == page_with(render(faults)), "run: python tests/faults/table.py"
