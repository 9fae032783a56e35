"""The examples of docs/variants.md run as they are written there."""

import re
from pathlib import Path

import torch
from as_user import QUICK, ROOT, finished
from fixed_component import fixed_component
from torch import nn

from profiling.results.jsonl import read_records
from profiling.variants.recipe import Recipe

PAGE = (ROOT / "docs" / "variants.md").read_text(encoding="utf-8")


def block(language, text):
    """Return the code block of the page, of this language, that holds the text."""
    (found,) = (each for each in re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.S | re.M) if text in each)
    return found


SMALL = """
small:
  module: {_target_: torch.nn.Conv2d, in_channels: 4, out_channels: 4, kernel_size: 3}
  inputs: {input: {shape: [1, 4, 8, 8]}}
"""


def test_the_step_of_the_page_runs(tmp_path):
    (command,) = (line for line in PAGE.splitlines() if "my_layout+compile]" in line)
    command = command.replace("[image_decoder]", "[small]")  # which compiles sooner
    (tmp_path / "my_package.py").write_text(block("python", "# my_package.py"))
    for folder in ("step", "component"):
        (tmp_path / folder).mkdir()
    (tmp_path / "component" / "small.yaml").write_text(SMALL)
    (tmp_path / "step" / "my_steps.yaml").write_text(block("yaml", "# step/my_steps.yaml"))
    fast = ("isolation=none", f"hydra.run.dir={tmp_path / 'run'}", *QUICK, "metric=[parity,latency]")
    done = finished([*command.split(), *fast], tmp_path, PYTHONPATH=f"{ROOT}:{tmp_path}")
    assert done.returncode == 0, done.stderr
    records = {record.variant: record for record in read_records(tmp_path / "run").records}
    assert records["my_layout+compile"].status == "ok"
    assert [step.name for step in records["my_layout+compile"].recipe] == ["my_layout", "Inductor"]


def test_the_transform_of_the_page_runs():
    names = {"__name__": __name__}
    exec(block("python", "MyTransform"), names)
    net = fixed_component(nn.Linear(2, 2), input=torch.ones(1, 2))
    (row,) = Recipe(transforms=[names["MyTransform"](rank=2)])(net, Path()).recipe
    assert (row.name, row.changed, row.notes) == ("MyTransform", 1, ("what the report should say",))
