"""Files that are damaged, that are something else, or that want to run code: one line each, and nothing runs."""

from __future__ import annotations

import contextlib
import os
import pickle
import random
import zipfile
from pathlib import Path

import pytest
import torch
from checkpoint_repository import without_rights
from safetensors.torch import save_file
from stand_ins import World, seeded

from profiling.core.checkpoints.loader import load_into, load_state_dict
from profiling.errors import InputError, did_you_mean

STATE = seeded(World())


class Bomb:
    """Makes the file `marker` when it is unpickled."""

    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


def refused(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        load_state_dict(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    return str(caught.value)


def save_bomb(path: Path, bomb: Bomb, how: str) -> None:
    if how in ("zip", "legacy"):
        torch.save(STATE | {"bomb": bomb}, path, _use_new_zipfile_serialization=how == "zip")
    elif how == "zip protocol 4":
        torch.save(STATE | {"bomb": bomb}, path, pickle_protocol=4)
    else:
        path.write_bytes(pickle.dumps({"bomb": bomb}, protocol=int(how[-1])))


@pytest.mark.parametrize("how", ["zip", "zip protocol 4", "legacy", *(f"raw {n}" for n in range(6))])
@pytest.mark.parametrize("name", ["w.pt", "w.safetensors"])
def test_a_pickle_with_code_runs_nothing(tmp_path, how, name, recwarn):
    marker, path = tmp_path / "marker", tmp_path / name
    save_bomb(path, Bomb(marker), how)
    message = refused(path)
    assert not marker.exists()
    if path.suffix == ".safetensors":
        assert "not a safetensors file" in message
    elif how in ("zip", "legacy"):
        assert "is refused: its pickle asks for posix.mkdir" in message
    assert not recwarn.list
    pickle.loads(pickle.dumps(Bomb(marker)))
    assert marker.exists()  # the bomb works


def save_as(path: Path, format: str) -> bytes:
    if format == "safetensors":
        save_file(STATE, path)
    else:
        torch.save(STATE, path, _use_new_zipfile_serialization=format == "zip")
    return path.read_bytes()


@pytest.mark.parametrize("format", ["zip", "legacy", "safetensors"])
def test_a_file_cut_anywhere(tmp_path, format):
    whole = save_as(tmp_path / "whole", format)
    cut = tmp_path / "cut.pt"
    lengths = {1, 2, 7, 8, 9, 10, len(whole) - 1, *range(16, len(whole), max(1, len(whole) // 150))}
    for length in sorted(lengths):
        cut.write_bytes(whole[:length])
        refused(cut)


@pytest.mark.parametrize("format", ["zip", "legacy", "safetensors"])
def test_flipped_bytes_load_or_are_refused_and_nothing_else(tmp_path, format):
    whole = save_as(tmp_path / "whole", format)
    path, dice = tmp_path / "flipped.pt", random.Random(0)
    for _ in range(150):
        bytes_ = bytearray(whole)
        for _ in range(4):
            bytes_[dice.randrange(len(bytes_))] = dice.randrange(256)
        path.write_bytes(bytes_)
        with contextlib.suppress(InputError):
            load_into(World(), path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty (0 bytes)"),
        (b"hello world\n" * 50, "not a PyTorch checkpoint"),
        (b'{"a": 1, "b": [1, 2, 3]}', "not a PyTorch checkpoint"),
        (b"<!DOCTYPE html><html>404</html>", "not a PyTorch checkpoint"),
        (b"PK\x03\x04", "not a PyTorch checkpoint"),
        (b"\x00" * 1000, "not a PyTorch checkpoint"),
        (b"\xff" * 8 + b"{}", "not a safetensors file"),
        *((random.Random(seed).randbytes(3000), "checkpoint") for seed in range(20)),
    ],
)
def test_files_that_are_something_else(tmp_path, content, message):
    path = tmp_path / "w.pt"
    path.write_bytes(content)
    assert message in refused(path)


def test_a_zip_of_something_else(tmp_path):
    path = tmp_path / "w.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("notes.txt", "hello")
    assert "not a PyTorch checkpoint" in refused(path)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_torchscript_program(tmp_path):
    path = tmp_path / "w.pt"
    torch.jit.save(torch.jit.trace(torch.nn.Linear(2, 2), torch.ones(1, 2)), str(path))
    assert "is a TorchScript program" in refused(path)


def test_paths_that_are_no_file(tmp_path):
    (tmp_path / "world.pt").touch()
    assert refused(tmp_path / "wrld.pt").endswith("does not exist. Did you mean 'world.pt'?")
    assert "does not exist" in refused(tmp_path / "none" / "world.pt")
    assert "is a folder: name the file in it" in refused(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    assert "is not a regular file" in refused(tmp_path / "pipe")


def test_a_file_one_may_not_read(open_folder):
    path = open_folder / "w.pt"
    torch.save(STATE, path)
    path.chmod(0)
    with without_rights():
        assert "cannot be read: Permission denied" in refused(path)


def test_near_words_are_offered():
    assert did_you_mean("compil", ["baseline", "compile"]) == " Did you mean 'compile'?"
    assert did_you_mean("xyz", ["baseline", "compile"]) == ""
    assert did_you_mean("trace1", ["trace2", "trace3"]) == " Did you mean 'trace3' or 'trace2'?"
