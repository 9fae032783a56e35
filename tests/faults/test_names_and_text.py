"""Names, text from outside, and printed commands."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from as_user import finished
from hydra.core.override_parser.overrides_parser import OverridesParser
from make_job import make_config
from omegaconf import OmegaConf
from table import promise

from profiling.components.spec import ComponentSpec
from profiling.errors import InputError, command, override, printable
from profiling.results.jsonl import read_records
from profiling.results.record import Record
from profiling.results.run_folder import resume_command
from profiling.run.job import LONGEST_CELL, LONGEST_NAME

HOSTILE_TEXT = {
    "colours and a cleared screen": "\x1b[31mred\x1b[0m\x1b[2J\x9b5A",
    "a title and a link of a terminal": "\x1b]0;title\x07\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\",
    "control characters": "a\x00b\x08\x08c\x7fd\re",
    "characters that turn text around": "a\u202ecba\u2066\ufeff\u200b",
    "lone surrogates": "a\udcff\ud800b",
    "line breaks of all kinds": "a\n\nb\r\nc\x0bd\u2028e\u2029f\x85g",
    "ten million characters": "x" * 10_000_000,
}


@promise("text")
@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in HOSTILE_TEXT.items()])
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


#: Shells, Hydra and argparse read these in ways of their own.
FOLDERS = (
    "my  runs/a b",
    "$(touch executed)/`touch executed`",
    "a;touch executed&b",
    "lr=0.1,seed=2",
    'it\'s "quoted"',
    "run!1 '!x",
    "{a:1}[2]*?#~",
    "${oc.env:HOME}/\\${x}/\\\\${y}",
    "a\\b\\'c\\\\",
    "実験/é",
    "a\nb",
    os.fsdecode(b"a\xffb"),
    "null",
    "2026",
    "-x",
    "~x",
)


@pytest.fixture
def pasted(tmp_path, monkeypatch):
    """Paste a command into a shell in which a stub stands for the interpreter; return the stub's arguments."""
    stub = tmp_path / "bin" / "python"
    stub.parent.mkdir()
    stub.write_text(f"#!/bin/sh\nprintf '%s\\0' \"$@\" > '{tmp_path}/bin/arguments'\n")
    stub.chmod(0o755)
    path = f"{stub.parent}{os.pathsep}{os.environ['PATH']}"

    def paste(make_line, shell="bash"):
        with monkeypatch.context() as patched:
            patched.setenv("PATH", path)
            patched.setattr(sys, "executable", str(stub))
            line = make_line()
        assert line.isprintable()
        before = set(tmp_path.iterdir())
        start = [shell, "-c", os.fsencode(line)]
        done = subprocess.run(start, cwd=tmp_path, env={**os.environ, "PATH": path}, capture_output=True)
        assert done.returncode == 0, done.stderr
        assert done.stderr == b""
        assert set(tmp_path.iterdir()) == before, "something was executed"
        return [os.fsdecode(word) for word in (tmp_path / "bin" / "arguments").read_bytes().split(b"\0")[:-1]]

    return paste


@promise("pasted commands")
@pytest.mark.parametrize("folder", FOLDERS, ids=ascii)
def test_commands_can_be_pasted(folder, pasted):
    """Hydra must read the folder from the override, and argparse from the path."""
    for shell in ("bash", "sh"):
        words = pasted(lambda: command("-m", "profiling.x", Path(folder), override("resume", folder)), shell)
        _, _, path, argument = words
        assert Path(path) == Path(folder)
        assert not path.startswith("-")
        parsed = OverridesParser.create().parse_override(argument)
        assert OmegaConf.create({"resume": parsed.value()}).resume == folder


def config(components=("net",), variants=("baseline",), metrics=("latency",)):
    node = {"_target_": "package.Class"}
    specs = tuple(ComponentSpec(name, node, node) for name in components)
    return make_config(dict.fromkeys(variants, node), specs, metrics=dict.fromkeys(metrics, node))


@promise("names")
@pytest.mark.parametrize(
    "name",
    ["../../x", ".hidden", "-rf", "a b", "a\nb", "a\0b", "\x1b[31m", "$HOME", "x" * 249, "", "modèle"],
    ids=ascii,
)
def test_names(name):
    for group in ("components", "variants", "metrics"):
        with pytest.raises(InputError, match="Rename it") as caught:
            config(**{group: ("net", name)})
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 400


@promise("names")
@pytest.mark.parametrize(
    ("components", "variants"), [(("Net", "net"), ("baseline",)), (("a.b", "a"), ("c", "b.c"))], ids=["case", "dot"]
)
def test_cells_with_the_same_files(components, variants):
    with pytest.raises(InputError, match="share their files"):
        config(components, variants)


def test_good_names_and_the_longest_file():
    name, rest = "x" * LONGEST_NAME, LONGEST_CELL - LONGEST_NAME - 1
    config(("net", "net@batch=4", "net@x.0=1-8", "A_1", "y" * rest), ("baseline", name, "compile+fx"))
    assert LONGEST_CELL + len(f".round1000.frames.npz.{2**22}.part") <= 255
    with pytest.raises(InputError, match=f"at most {LONGEST_CELL} characters"):
        config(("y" * (rest + 1),), (name,))


NASTY = 'it\'s $(touch executed); a=b, "c" ${x} [d] {e} \\'


@promise("interrupt")
def test_resumed_by_pasting(profile, pasted, tmp_path):
    """Without its records a run counts as one that was killed."""
    folder = tmp_path / NASTY
    options = ("component=[net]", "variant=[baseline]", "isolation=none", override("hydra.run.dir", folder))
    done = profile(*options, folder=folder)
    assert done.code == 0, done.err
    (folder / "results.jsonl").write_text("")
    arguments = pasted(lambda: resume_command(folder))
    again = finished([sys.executable, *arguments], tmp_path)
    assert again.returncode == 0, again.stderr
    assert [record.status for record in read_records(folder).records] == ["ok"]
    assert {path.name for path in tmp_path.iterdir()} == {"bin", NASTY}
