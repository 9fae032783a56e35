"""The words of errors: what is near, which command to type, and one line of whatever was raised."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from profiling.components.instantiate import instantiate
from profiling.errors import MissingExtraError, did_you_mean, python_command, reason_of


def test_near_words_are_offered():
    assert did_you_mean("compil", ["baseline", "compile"]) == " Did you mean 'compile'?"
    assert did_you_mean("xyz", ["baseline", "compile"]) == ""
    assert did_you_mean("trace1", ["trace2", "trace3"]) == " Did you mean 'trace3' or 'trace2'?"


@pytest.mark.parametrize(("activated", "below"), [(True, True), (False, True), (False, False)])
def test_a_printed_command_starts_this_interpreter(monkeypatch, tmp_path, activated, below):
    interpreter = tmp_path / "my venv" / "bin" / "python"
    interpreter.parent.mkdir(parents=True)
    interpreter.symlink_to(sys.executable)
    monkeypatch.setattr(sys, "executable", str(interpreter))
    monkeypatch.setenv("PATH", f"{interpreter.parent if activated else '/nowhere'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path if below else Path("/usr"))
    command = f"{python_command()} -c 'import sys; print(sys.executable)'"
    printed = subprocess.run(command, shell=True, capture_output=True, text=True).stdout
    assert Path(printed.strip()).absolute() == interpreter
    assert python_command().startswith("python") == activated


def test_a_missing_optional_package_is_named_with_the_command_that_installs_it(without_library):
    without_library("transformers")
    with pytest.raises(MissingExtraError, match=r"transformers is not installed.* -m pip install transformers$"):
        instantiate({"_target_": "models.clip.build_clip_text", "folder": None}, "component.clip_text.module")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("'inductor' raised:\nLoweringException: no kernel\n  x", "'inductor' raised: LoweringException: no kernel"),
        ("one line\nmore", "one line"),
        ("\n\n  late", "late"),
        ("announced:", "announced:"),
        ("", "no message"),
    ],
)
def test_a_reason_goes_on_where_its_line_announces_the_next(text, reason):
    assert reason_of(RuntimeError(text)) == f"RuntimeError: {reason}"
