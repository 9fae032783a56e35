"""benchmarks/first_answer.py: which runs it times, with which caches, and what it says of them."""

import sys
from pathlib import Path

import pytest


@pytest.fixture
def first_answer(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "benchmarks"))
    import first_answer

    return first_answer


@pytest.mark.parametrize(("seconds", "met"), [((59.0, 20.0), True), ((59.0, 26.0), False), ((61.0, 20.0), False)])
def test_each_target_is_run_from_empty_caches_and_then_from_those_it_left(
    first_answer, monkeypatch, capsys, seconds, met
):
    runs = []

    def answer(target, keys, caches, run):
        runs.append((target, keys, caches))
        return first_answer.Answer(seconds[len(runs) - 1], 11, 12)

    monkeypatch.setattr(first_answer, "answer", answer)
    monkeypatch.setattr(first_answer.torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["first_answer.py", "device=cpu"])
    with pytest.raises(SystemExit) as ended:
        first_answer.main()
    (one, other) = runs
    assert one == other == ("generic_forward", ["device=cpu"], one[2])
    assert ended.value.code == (0 if met else 1)
    printed = capsys.readouterr().out
    assert [line.split() for line in printed.splitlines()[-2:]] == [
        ["generic_forward", cache, "11", f"{each:.0f}", bar]
        for cache, each, bar in zip(("cold", "warm"), seconds, ("60", "25"), strict=True)
    ]


def test_a_run_that_fails_is_no_answer(first_answer, tmp_path):
    with pytest.raises(SystemExit, match="ended with 2"):
        first_answer.answer("generic_forward", ["nonsense=1"], tmp_path, tmp_path / "run")
