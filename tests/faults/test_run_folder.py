"""Run folders."""

import pytest


@pytest.mark.fault(
    "the folder holds a run already", happens="refused, exit 2: names resume= and another folder", kept="the run"
)
def test_folder_of_another_run(profile, tmp_path):
    first = profile("component=[net]", "variant=[baseline]", "isolation=none")
    before = (first.folder / "results.jsonl").read_bytes()
    again = profile("component=[net]", "variant=[baseline]", "isolation=none", "seed=1")
    assert again.code == 2
    assert f"resume={first.folder}" in again.err
    assert (first.folder / "results.jsonl").read_bytes() == before
