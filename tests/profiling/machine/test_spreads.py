"""What runs learn about the difference of processes is kept for later ones, by device and kind of cell."""

import json

import pytest

from profiling.machine.spreads import KEPT, Spreads
from profiling.results.judge import DEFAULT_SPREADS

PAIR = (0.1, 0.0)  # equal code that differed by 10%, without noise


def test_a_later_run_begins_with_what_was_learned_on_the_device(tmp_path):
    Spreads.of("Card 9000 / 80 GB", tmp_path).keep("captured", [PAIR])
    later = Spreads.of("Card 9000 / 80 GB", tmp_path)
    assert later.pairs == {"captured": [PAIR]}
    assert later.known("captured").std > DEFAULT_SPREADS["captured"].std
    assert later.known("captured").learned == 1
    for other in (Spreads.of("another card", tmp_path).known("captured"), Spreads().known("captured")):
        assert other == DEFAULT_SPREADS["captured"]
    assert later.known("CPU") == DEFAULT_SPREADS["CPU"], "of that kind nothing was learned"
    for number in range(KEPT + 3):
        later.keep("CPU", [(float(number), 0.0)])
    kept = Spreads.of("Card 9000 / 80 GB", tmp_path).pairs["CPU"]
    assert [difference for difference, _ in kept] == list(range(3, KEPT + 3)), "the newest"


@pytest.mark.parametrize("content", ["", "[1]", '{"CPU": 3}', '{"CPU": [[1]]}', '{"no such kind": [[1, 1]]}', "\xff"])
def test_of_a_damaged_file_nothing_is_known(content, tmp_path):
    (tmp_path / "card.json").write_text(content, encoding="latin-1")
    spreads = Spreads.of("card", tmp_path)
    assert spreads.pairs == {}
    spreads.keep("CPU", [PAIR])
    assert json.loads((tmp_path / "card.json").read_text()) == {"CPU": [list(PAIR)]}
    beside = Spreads.of("card", tmp_path / "card.json")  # where nothing can be written
    beside.keep("CPU", [PAIR])
    assert beside.pairs == {"CPU": [PAIR]}, "the run goes on with what it learned"
