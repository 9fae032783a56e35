"""Checkpoint files in every form and format that occurs, damaged files, and files that would run code."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from small_networks import World, assert_holds, decoder, encoder, prefixed, seeded, shapes
from torch import nn

from profiling.components.checkpoint_file import load_into, read
from profiling.errors import InputError

REPOSITORY = Path(__file__).resolve().parents[3]
STATE = seeded(World())
DECODER, ENCODER = seeded(decoder(), 1), seeded(encoder(), 2)
BOTH = prefixed("decoder.", DECODER) | prefixed("encoder.", ENCODER)
EXTRA = {"initted": torch.tensor(True), "step": torch.tensor(30000)}
OTHERS = {
    "small": lambda: shapes(World()),
    "large": lambda: shapes(World(16)),
    "decoder": lambda: shapes(decoder()),
}

FORMS = {
    "plain": STATE,
    "ema": {"ema": prefixed("ema_model.", STATE) | prefixed("online_model.", seeded(World(), 9)) | EXTRA},
    "ema module": {"ema": prefixed("ema_model.module.", STATE) | EXTRA, "step": 3},
    "ema core": {"ema": prefixed("ema_model.module.core.", STATE)},
    "ema bare": {"ema": STATE},
    "ema at the top": prefixed("ema_model.", STATE) | EXTRA,
    "model": {"model": STATE, "optimizer": {"lr": 1e-4, "betas": [0.9, 0.99]}, "step": 3},
    "model module": {"model": prefixed("module.", STATE)},
    "ema before model": {"model": seeded(World(), 9), "ema": prefixed("ema_model.", STATE)},
    "core": prefixed("core.", STATE),
    "compiled": prefixed("_orig_mod.", STATE),
    "compiled wrapped": {"model": prefixed("module._orig_mod.core.", STATE)},
    "compiled blocks": {name.replace("blocks.0.", "blocks.0._orig_mod."): value for name, value in STATE.items()},
}
FLAT = [name for name, content in FORMS.items() if all(isinstance(value, torch.Tensor) for value in content.values())]


def save(path: Path, content: object, format: str) -> Path:
    if format == "safetensors":
        assert isinstance(content, dict)
        save_file({name: value.contiguous() for name, value in content.items()}, path)
    else:
        torch.save(content, path, _use_new_zipfile_serialization=format == "pytorch zip")
    return path


@pytest.mark.parametrize(
    ("form", "format"),
    [(form, format) for form in FORMS for format in ("pytorch zip", "pytorch legacy")]
    + [(form, "safetensors") for form in FLAT],
)
def test_every_form_in_every_format(tmp_path, form, format):
    path = save(tmp_path / "weights", FORMS[form], format)
    module = World()
    load_into(module, path)
    assert_holds(module, STATE)
    assert set(read(path)) == set(STATE)


@pytest.mark.parametrize(
    ("content", "part", "module", "state"),
    [
        (BOTH, "decoder", decoder(), DECODER),
        (BOTH, "encoder", encoder(), ENCODER),
        ({"ema": prefixed("ema_model.module.", BOTH)}, "decoder", decoder(), DECODER),
        (prefixed("decoder.", DECODER), "decoder", decoder(), DECODER),
        (DECODER, "decoder", decoder(), DECODER),
        (BOTH, "decoder", nn.ModuleDict({"decoder": decoder()}), prefixed("decoder.", DECODER)),
        (BOTH, None, nn.ModuleDict({"decoder": decoder(), "encoder": encoder()}), BOTH),
    ],
)
def test_halves_of_an_autoencoder(tmp_path, content, part, module, state):
    load_into(module, save(tmp_path / "vae.pt", content, "pytorch zip"), part=part)
    assert_holds(module, state)


def test_a_network_whose_own_names_begin_with_core_keeps_them(tmp_path):
    module = nn.ModuleDict({"core": World()})
    load_into(module, save(tmp_path / "w.pt", prefixed("core.", STATE), "pytorch zip"))
    assert_holds(module["core"], STATE)


def test_load_hooks_see_the_loaded_weights(tmp_path):
    module = World()
    load_into(module, save(tmp_path / "w.pt", STATE, "pytorch zip"))
    assert torch.equal(module.table, STATE["rope.freqs"].cos())


def test_constants_may_be_absent_and_then_stay(tmp_path):
    module = World()
    state = {name: value for name, value in STATE.items() if name != "rope.freqs"}
    load_into(module, save(tmp_path / "w.pt", state, "pytorch zip"))
    assert_holds(module, state | {"rope.freqs": torch.linspace(1, 4, 4)})


def test_parameters_stay_where_they_are_and_as_they_are(tmp_path):
    module = World().to(torch.bfloat16)
    before = {name: value.data_ptr() for name, value in module.state_dict().items()}
    state = {name: value.half() for name, value in STATE.items()} | {"rope.freqs": STATE["rope.freqs"]}
    load_into(module, save(tmp_path / "w.pt", state, "pytorch zip"))
    assert {name: value.data_ptr() for name, value in module.state_dict().items()} == before
    assert_holds(module, {name: value.to(torch.bfloat16) for name, value in state.items()})
    assert all(parameter.requires_grad and parameter.is_leaf for parameter in module.parameters())


def without(state: dict, *names: str) -> dict:
    return {name: value for name, value in state.items() if name not in names}


@pytest.mark.parametrize(
    ("content", "part", "message"),
    [
        (without(STATE, "proj_in.weight"), None, "does not fit World: 1 missing (proj_in.weight)"),
        (
            without(STATE, "proj_in.weight", "rope.freqs", "blocks.0.bias") | {"head.bias": torch.ones(2)},
            None,
            "2 missing (proj_in.weight; blocks.0.bias), 1 unexpected (head.bias)",
        ),
        (STATE | {"blocks.0.bias": torch.ones(3)}, None, "1 mis-shaped (blocks.0.bias: file 3, network 8)"),
        (STATE | {"blocks.0.bias": torch.tensor(3.0)}, None, "blocks.0.bias: file scalar, network 8"),
        (STATE | {"rope.freqs": torch.ones(2)}, None, "1 mis-shaped (rope.freqs: file 2, network 4)"),
        (STATE | {"blocks.0.bias": torch.ones(8, dtype=torch.int8)}, None, "'blocks.0.bias' is torch.int8 in the file"),
        (STATE | {"blocks.1.bias": torch.full((8,), torch.nan)}, None, "'blocks.1.bias' holds NaN or infinite"),
        (STATE | {"blocks.1.bias": torch.tensor([1.0] * 7 + [-torch.inf])}, None, "'blocks.1.bias' holds NaN or inf"),
        (STATE | {"proj_in.weight": torch.ones(8, 4).to_sparse()}, None, "'proj_in.weight' as a sparse"),
        (seeded(World(16)), None, "5 mis-shaped (proj_in.weight: file 16x4, network 8x4; blocks.0.weight: file 16x16"),
        (seeded(World(16)), None, "…). The file fits component=large"),
        (without(seeded(World(16)), "rope.freqs"), None, "The file fits component=large"),
        (BOTH, None, "The file fits component=decoder"),
        (prefixed("encoder.", ENCODER), "decoder", "holds no decoder, only the encoder"),
        (prefixed("_orig_mod.", STATE) | STATE, None, "twice, with and without '_orig_mod'"),
        ([STATE], None, "holds a list, not a state dict"),
        (3, None, "holds a int, not a state dict"),
        (torch.ones(3), None, "holds a Tensor, not a state dict"),
        ({}, None, "holds an empty state dict"),
        ({"ema": {}}, None, "holds an empty state dict"),
        ({1: torch.ones(2)}, None, "its key 1 is not a name"),
        ({"weights": {"a": torch.ones(2)}}, None, "its entry 'weights' is a dict, not a tensor"),
        ({"epoch": 3, "state": STATE}, None, "its entry 'epoch' is a int, not a tensor"),
    ],
)
@pytest.mark.parametrize("format", ["pytorch zip", "pytorch legacy"])
def test_what_does_not_fit_is_one_line(tmp_path, content, part, message, format):
    path = save(tmp_path / "w.pt", content, format)
    with pytest.raises(InputError) as caught:
        load_into(World(), path, part=part, others=OTHERS)
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"checkpoint '{path}'")
    assert "\n" not in str(caught.value)


def test_weights_too_large_for_the_dtype_are_not_called_nan(tmp_path):
    path = save(tmp_path / "w.pt", STATE | {"blocks.1.bias": torch.full((8,), 1e5)}, "pytorch zip")
    with pytest.raises(InputError, match=r"'blocks\.1\.bias' holds numbers too large for torch\.float16"):
        load_into(World().half(), path)


def test_a_module_without_memory_is_a_mistake_of_the_caller(tmp_path):
    path = save(tmp_path / "w.pt", STATE, "pytorch zip")
    with pytest.raises(ValueError, match="meta device"), torch.device("meta"):
        load_into(World(), path)


MEASURE = """
import sys, threading, torch
from pathlib import Path
from torch import nn
from profiling.components.checkpoint_file import load_into

def anonymous():
    return int(next(line for line in open("/proc/self/status") if line.startswith("RssAnon")).split()[1]) / 1024

module = nn.Sequential(*(nn.Linear(2048, 2048, bias=False) for _ in range(16))).to(getattr(torch, sys.argv[2]))
load_into(nn.Linear(1, 1), Path(sys.argv[3]))  # what a first call allocates for good
before, peak, done = anonymous(), 0.0, threading.Event()

def watch():
    global peak
    while not done.wait(0.001):
        peak = max(peak, anonymous())

watcher = threading.Thread(target=watch)
watcher.start()
load_into(module, Path(sys.argv[1]))
done.set()
watcher.join()
assert module[-1].weight[-1, -1] == 0.5
print(max(peak, anonymous()) - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
@pytest.mark.parametrize(("format", "dtype"), [("pytorch zip", "bfloat16"), ("safetensors", "float32")])
def test_loading_makes_no_second_copy_in_host_memory(tmp_path, format, dtype):
    state = {f"{i}.weight": torch.full((2048, 2048), 0.5) for i in range(16)}
    path = save(tmp_path / "large", state, format)
    small = save(tmp_path / "small", nn.Linear(1, 1).state_dict(), format)
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(path), dtype, str(small)], cwd=REPOSITORY, capture_output=True, text=True
    )
    path.unlink()
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 24  # MiB; a copy of the file would be 256, of one tensor 16


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_go_straight_to_the_device(tmp_path, dtype):
    state = {f"{i}.weight": torch.randn(2048, 2048) for i in range(4)}
    path = save(tmp_path / "w.pt", state, "pytorch zip")
    module = nn.Sequential(*(nn.Linear(2048, 2048, bias=False) for _ in range(4))).to("cuda", dtype)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    load_into(module, path)
    assert torch.cuda.memory_allocated() == before
    assert torch.cuda.max_memory_allocated() - before < 2 * 16 * 2**20
    assert_holds(module, {name: value.to("cuda", dtype) for name, value in state.items()})


class Bomb:
    """Makes the file `marker` when it is unpickled."""

    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


def refused(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        read(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    return str(caught.value)


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


def test_paths_that_are_no_file(tmp_path):
    (tmp_path / "world.pt").touch()
    assert refused(tmp_path / "wrld.pt").endswith("does not exist. Did you mean 'world.pt'?")
    assert "does not exist" in refused(tmp_path / "none" / "world.pt")
    assert "is a folder: name the file in it" in refused(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    assert "is not a regular file" in refused(tmp_path / "pipe")
