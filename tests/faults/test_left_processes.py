"""Processes that a module starts and leaves behind."""

import os
import re
import signal

from as_user import ROOT
from table import promise

MODULE = """
import os, time
from torch import nn

class Net(nn.Linear):
    def __init__(self):
        super().__init__(4, 4)
        if os.fork() == 0:
            os.setsid()  # not of the group that is killed with its cell
            if os.fork() == 0:
                time.sleep(60)
            os._exit(0)
"""


@promise("children")
def test_processes_that_outlive_the_run_are_named(profile, tmp_path):
    (tmp_path / "leaving.py").write_text(MODULE)
    (tmp_path / "component").mkdir()
    (tmp_path / "component" / "mine.yaml").write_text(
        "mine:\n  module: {_target_: leaving.Net}\n  inputs: {input: {shape: [2, 4]}}\n"
    )
    given = (f"--config-dir={tmp_path}", "component=[mine]", "variant=[baseline]", "metric=[latency]")
    outcome = profile(*given, PYTHONPATH=f"{ROOT}:{tmp_path}")
    assert outcome.code == 0, outcome.err
    said = re.search(r"note: cells left processes behind, which still run: python\S* \(process (\d+)\)", outcome.err)
    assert said is not None, outcome.err
    os.kill(int(said[1]), signal.SIGKILL)
    (record,) = outcome.records.values()
    assert any(f"(process {said[1]})" in note for note in record.notes)
