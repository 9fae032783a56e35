"""Checkpoints in every form and format that occurs, and what does not fit: one line. tests/faults/ has damaged ones."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from library_folders import built, output, save
from safetensors.torch import save_file
from test_conf import composed
from torch import nn

from profiling.cli.config import read_config
from profiling.components.checkpoint import load_into
from profiling.errors import InputError

REPOSITORY = Path(__file__).resolve().parents[3]


class World(nn.Module):
    """Nested blocks, and a table made from its `freqs`, which is in no state dict and must follow a load."""

    def __init__(self, width: int = 8):
        super().__init__()
        self.proj_in = nn.Linear(4, width, bias=False)
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.rope = nn.Module()
        self.rope.register_buffer("freqs", torch.linspace(1, 4, 4))
        self.register_load_state_dict_post_hook(lambda module, keys: module.rebuild())
        self.rebuild()

    def rebuild(self) -> None:
        self.table = self.rope.freqs.cos()


def half(inside: int, outside: int) -> nn.Module:
    return nn.ModuleDict({"conv_in": nn.Conv1d(inside, 6, 1), "conv_out": nn.Conv1d(6, outside, 3)})


def seeded(module: nn.Module, seed: int = 0) -> dict[str, torch.Tensor]:
    """Draw other weights for the module's names than the module has."""
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(value.shape, generator=generator) for name, value in module.state_dict().items()}


def prefixed(prefix: str, state: dict) -> dict:
    return {prefix + name: value for name, value in state.items()}


def without(state: dict, *names: str) -> dict:
    return {name: value for name, value in state.items() if name not in names}


def assert_holds(module: nn.Module, state: dict[str, torch.Tensor]) -> None:
    torch.testing.assert_close(dict(module.state_dict()), state, rtol=0, atol=0)


STATE, OTHER = seeded(World()), seeded(World(), 9)
DECODER, ENCODER = seeded(half(4, 2), 1), seeded(half(2, 4), 2)
BOTH = prefixed("decoder.", DECODER) | prefixed("encoder.", ENCODER)
EXTRA = {"initted": torch.tensor(True), "step": torch.tensor(30000)}

FORMS = {
    "plain": STATE,
    "ema": {"ema": prefixed("ema_model.", STATE) | prefixed("online_model.", OTHER) | EXTRA},
    "ema module": {"ema": prefixed("ema_model.module.", STATE) | EXTRA, "step": 3},
    "ema core": {"ema": prefixed("ema_model.module.core.", STATE)},
    "ema bare": {"ema": STATE},
    "ema at the top": prefixed("ema_model.", STATE) | EXTRA,
    "model": {"model": STATE, "optimizer": {"lr": 1e-4, "betas": [0.9, 0.99]}, "step": 3},
    "model module": {"model": prefixed("module.", STATE)},
    "ema before model": {"model": OTHER, "ema": prefixed("ema_model.", STATE)},
    "core": prefixed("core.", STATE),
    "compiled": prefixed("_orig_mod.", STATE),
    "compiled wrapped": {"model": prefixed("module._orig_mod.core.", STATE)},
    "compiled blocks": {name.replace("blocks.0.", "blocks.0._orig_mod."): value for name, value in STATE.items()},
}


def write(path: Path, content: object, format: str = "pytorch zip") -> Path:
    if format == "safetensors":
        assert isinstance(content, dict)
        save_file({name: value.contiguous() for name, value in content.items()}, path)
    else:
        torch.save(content, path, _use_new_zipfile_serialization=format == "pytorch zip")
    return path


@pytest.mark.parametrize(
    ("form", "format"),
    [
        *((form, "pytorch zip") for form in FORMS),
        *(("ema", "pytorch legacy"), ("compiled", "safetensors"), ("ema at the top", "safetensors")),
    ],
)
def test_every_form_and_format(tmp_path, form, format):
    module = World()
    load_into(module, write(tmp_path / "weights", FORMS[form], format))
    assert_holds(module, STATE)
    assert torch.equal(module.table, STATE["rope.freqs"].cos())  # made by a load hook, which sees the loaded weights


@pytest.mark.parametrize(
    ("content", "part", "module", "state"),
    [
        (BOTH, "decoder", half(4, 2), DECODER),
        (BOTH, "encoder", half(2, 4), ENCODER),
        ({"ema": prefixed("ema_model.module.", BOTH)}, "decoder", half(4, 2), DECODER),
        (DECODER, "decoder", half(4, 2), DECODER),
        (BOTH, "decoder", nn.ModuleDict({"decoder": half(4, 2)}), prefixed("decoder.", DECODER)),
        (BOTH, None, nn.ModuleDict({"decoder": half(4, 2), "encoder": half(2, 4)}), BOTH),
        (STATE, None, nn.ModuleDict({"model": World()}), prefixed("model.", STATE)),
        # Constants may be absent, and then stay.
        (without(STATE, "rope.freqs"), None, World(), STATE | {"rope.freqs": torch.linspace(1, 4, 4)}),
    ],
)
def test_halves_wrappers_and_absent_constants(tmp_path, content, part, module, state):
    load_into(module, write(tmp_path / "w.pt", content), part=part)
    assert_holds(module, state)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(8, 4), nn.Linear(4, 8, bias=False)
        self.head.weight = self.embed.weight


@pytest.mark.parametrize("saved", ["embed.weight", "head.weight"])
def test_a_tied_weight_may_be_saved_once(tmp_path, saved):
    module, state = Tied(), seeded(Tied())
    load_into(module, write(tmp_path / "w.pt", {saved: state[saved]}))
    assert torch.equal(module.embed.weight, state[saved])
    with pytest.raises(InputError, match=r"2 missing \(embed\.weight; head\.weight\)"):
        load_into(module, write(tmp_path / "w.pt", {"other": torch.ones(1)}))


def test_parameters_stay_where_they_are_and_as_they_are(tmp_path):
    module = World().to(torch.bfloat16)
    before = {name: value.data_ptr() for name, value in module.state_dict().items()}
    state = {name: value.half() for name, value in STATE.items()} | {"rope.freqs": STATE["rope.freqs"]}
    load_into(module, write(tmp_path / "w.pt", state))
    assert {name: value.data_ptr() for name, value in module.state_dict().items()} == before
    assert_holds(module, {name: value.to(torch.bfloat16) for name, value in state.items()})
    assert all(parameter.requires_grad and parameter.is_leaf for parameter in module.parameters())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            without(STATE, "proj_in.weight", "rope.freqs", "blocks.0.bias") | {"head.bias": torch.ones(2)},
            "does not fit World: 2 missing (proj_in.weight; blocks.0.bias), 1 unexpected (head.bias)",
        ),
        (STATE | {"blocks.0.bias": torch.tensor(3.0)}, "1 mis-shaped (blocks.0.bias: file scalar, network 8)"),
        (STATE | {"blocks.0.bias": torch.ones(8, dtype=torch.int8)}, "'blocks.0.bias', which is torch.strided of"),
        (STATE | {"blocks.1.bias": torch.tensor([1.0] * 7 + [-torch.inf])}, "'blocks.1.bias', which has NaN"),
        (STATE | {"blocks.1.bias": torch.full((8,), 1e5)}, "which has numbers too large for torch.float16"),
        (STATE | {"proj_in.weight": torch.ones(8, 4).to_sparse()}, "is torch.sparse_coo of torch.float32"),
        (seeded(World(16)), "5 mis-shaped (proj_in.weight: file 16x4, network 8x4; blocks.0.weight: file 16x16"),
        (without(seeded(World(16)), "rope.freqs"), "…). The file was published for component=large or component=huge"),
        (prefixed("encoder.", ENCODER), "holds no decoder, only the encoder"),
        (prefixed("_orig_mod.", STATE) | STATE, "twice, with and without '_orig_mod'"),
        ([STATE], "holds no state dict (names and their tensors), but a list"),
        ({"ema": {}}, "holds no state dict"),
        ({1: torch.ones(2)}, "1 unexpected (1)"),
        ({"epoch": 3, "state": STATE}, "its entry 'epoch' is a int, not a tensor"),
    ],
)
def test_what_does_not_fit_is_one_line(tmp_path, content, message):
    path, part = write(tmp_path / "w.pt", content), "decoder" if "encoder.conv_in.weight" in content else None
    with pytest.raises(InputError) as caught:
        load_into(World().half(), path, part=part, published_for=("large", "huge"))
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"checkpoint '{path}'")
    assert "\n" not in str(caught.value)


MEASURE = """
import sys, threading, torch
from pathlib import Path
from torch import nn
from profiling.components.checkpoint import load_into

def anonymous():
    return int(next(line for line in open("/proc/self/status") if line.startswith("RssAnon")).split()[1]) / 1024

for name, dtype in (("pytorch zip", torch.bfloat16), ("safetensors", torch.float32)):
    module = nn.Sequential(*(nn.Linear(2048, 2048, bias=False) for _ in range(8))).to(dtype)
    load_into(nn.Linear(1, 1), Path(f"small {name}"))  # what a first call allocates for good
    loading = threading.Thread(target=load_into, args=(module, Path(f"large {name}")))
    before = peak = anonymous()
    loading.start()
    while loading.is_alive():
        peak = max(peak, anonymous())
    assert module[-1].weight[-1, -1] == 0.5
    print(peak - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
def test_loading_makes_no_second_copy_in_host_memory(tmp_path):
    for name in ("pytorch zip", "safetensors"):
        write(tmp_path / f"large {name}", {f"{i}.weight": torch.full((2048, 2048), 0.5) for i in range(8)}, name)
        write(tmp_path / f"small {name}", nn.Linear(1, 1).state_dict(), name)
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    start = [sys.executable, "-c", MEASURE]
    done = subprocess.run(start, cwd=tmp_path, env=environment, capture_output=True, text=True)
    for path in tmp_path.glob("large *"):
        path.unlink()
    assert done.returncode == 0, done.stderr
    zipped, safetensors = map(float, done.stdout.split())  # MiB; a copy of the file would be 128, of one tensor 16
    assert max(zipped, safetensors) < 24


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_go_straight_to_the_device(tmp_path, dtype):
    state = {f"{i}.weight": torch.randn(2048, 2048) for i in range(4)}
    path = write(tmp_path / "w.pt", state)
    module = nn.Sequential(*(nn.Linear(2048, 2048, bias=False) for _ in range(4))).to("cuda", dtype)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    load_into(module, path)
    assert torch.cuda.memory_allocated() == before
    assert torch.cuda.max_memory_allocated() - before < 2 * 16 * 2**20
    assert_holds(module, {name: value.to("cuda", dtype) for name, value in state.items()})


@pytest.mark.parametrize("name", ["llama_1b_step", "sd_turbo_unet"])
def test_a_sharded_folder_gives_the_numbers_of_what_was_saved(tmp_path, name):
    pytest.importorskip("diffusers")
    pytest.importorskip("transformers")
    folder, expected = save(name, tmp_path)
    assert len(list(folder.glob("*.safetensors"))) > 1
    loaded = built(name, f"component.{name}.checkpoint={folder}")
    assert loaded.weights == str(folder)
    torch.testing.assert_close(output(loaded), expected)
    torch.testing.assert_close(output(built(name, f"component.{name}.module.folder={folder}")), expected)


def test_a_folder_may_hold_another_half_and_other_variants(tmp_path):
    diffusers = pytest.importorskip("diffusers")
    (spec,) = read_config(composed("component=[sd_vae_decoder]")).components
    config = {key: value for key, value in spec.at("tiny").module.items() if key not in ("_target_", "folder")}
    whole = diffusers.AutoencoderKL(**config).eval()
    whole.save_pretrained(tmp_path)
    (tmp_path / "diffusion_pytorch_model.fp16.safetensors").write_bytes(b"another dtype")
    loaded = built("sd_vae_decoder", f"component.sd_vae_decoder.checkpoint={tmp_path}")
    inputs = loaded.component(0).inputs
    with torch.inference_mode():
        torch.testing.assert_close(output(loaded)[0], whole.decode(inputs["z"]).sample)
