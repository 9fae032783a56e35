"""Names, text from outside, and printed commands."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from profiling.errors import InputError, command, override, printable
from profiling.results.record import Record

HOSTILE_TEXT = {
    "colours and a cleared screen": "\x1b[31mred\x1b[0m\x1b[2J\x9b5A",
    "a title and a link of a terminal": "\x1b]0;title\x07\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\",
    "control characters": "a\x00b\x08\x08c\x7fd\re",
    "characters that turn text around": "a\u202ecba\u2066\ufeff\u200b",
    "lone surrogates": "a\udcff\ud800b",
    "line breaks of all kinds": "a\n\nb\r\nc\x0bd\u2028e\u2029f\x85g",
    "ten million characters": "x" * 10_000_000,
}


def fault(planted, happens, kept=""):
    return pytest.mark.fault(planted, happens=happens, kept=kept)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(text, id=name, marks=fault(f"text from outside holds {name}", "printed on one line without them"))
        for name, text in HOSTILE_TEXT.items()
    ],
)
def test_text_from_outside(text):
    record = Record(target="t", component="c", variant="v", status="failed", reason=text, notes=(text,))
    for clean in (printable(text), str(InputError(text)), record.reason, *record.notes):
        assert clean.isprintable()
        assert len(clean) <= 2000
        clean.encode()


def test_printable_keeps_what_can_be_printed():
    assert printable("a\nb\r\n\tc\x1b[31m d") == "a b c d"
    assert printable("'two  spaces' stay; é, × and 模型 too") == "'two  spaces' stay; é, × and 模型 too"
    assert printable("beginning " + "x" * 100 + " end", 20).startswith("beginning")
    assert printable("beginning " + "x" * 100 + " type this", 30).endswith("type this")


@fault("an exception whose text raises an exception", "named by its type")
def test_exception_without_text():
    class BrokenError(Exception):
        def __str__(self):
            raise RuntimeError

    assert "BrokenError" in str(InputError(BrokenError()))


FOLDERS = {
    "spaces": "my  runs/a b",
    "a dollar sign and parentheses": "$(touch executed)/`touch executed`",
    "a semicolon and an ampersand": "a;touch executed&b",
    "an equals sign": "lr=0.1,seed=2",
    "quotes": 'it\'s "quoted"',
    "an exclamation mark": "run!1 '!x",
    "braces and brackets": "{a:1}[2]*?#~",
    "an interpolation": "${oc.env:HOME}/\\${x}/\\\\${y}",
    "backslashes": "a\\b\\'c\\\\",
    "letters of other languages": "実験/é",
    "a line break": "a\nb",
    "bytes that are not UTF-8": os.fsdecode(b"a\xffb"),
    "nothing but a word with a meaning": "null",
    "only digits": "2026",
    "a leading dash": "-x",
    "a leading tilde": "~x",
}


@pytest.mark.parametrize("shell", ["bash", "sh"])
@pytest.mark.parametrize(
    "folder",
    [
        pytest.param(
            folder, id=name, marks=fault(f"a run folder's name holds {name}", "printed commands can be pasted")
        )
        for name, folder in FOLDERS.items()
    ],
)
def test_commands_can_be_pasted(folder, shell, tmp_path, monkeypatch):
    """A stub in place of the interpreter writes its arguments down; Hydra must read the folder from them."""
    stub = tmp_path / "bin" / "python"
    stub.parent.mkdir()
    stub.write_text(f"#!/bin/sh\nprintf '%s\\0' \"$@\" > '{tmp_path}/arguments'\n")
    stub.chmod(0o755)
    monkeypatch.setenv("PATH", f"{stub.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(sys, "executable", str(stub))
    line = command("-m", "profiling.x", Path(folder), override("resume", folder))
    assert line.isprintable()
    done = subprocess.run([shell, "-c", os.fsencode(line)], cwd=tmp_path, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == b""
    assert {path.name for path in tmp_path.iterdir()} == {"bin", "arguments"}, "nothing was executed"
    _, _, path, argument = map(os.fsdecode, (tmp_path / "arguments").read_bytes().split(b"\0")[:-1])
    assert Path(path) == Path(folder)
    assert not path.startswith("-")
    parsed = OverridesParser.create().parse_override(argument)
    assert OmegaConf.create({"resume": parsed.value()}).resume == folder
