"""Published reference numbers with their networks, tiny networks that stand for all kinds, and ways to run kernels."""

import hashlib
import json
import math
import os
import subprocess
import sys
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import Tensor, nn

from models import audio_vae, clip, image_vae, world_model
from models.hub import randomise_library
from models.initialisation import randomise

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests" / "data" / "reference"
STATE_DICTS = json.loads((FOLDER / "state_dicts.json").read_text())
TOLERANCE = {"rtol": 1e-3, "atol": 2e-4}
WORLD_MODEL_INPUTS = ("x", "audio", "t", "mouse", "btn")

# full-size name -> (config, factory, prefix of its parameters' names)
FULL_SIZE: dict[str, tuple[str, Callable[..., nn.Module], str]] = {
    "world_model_1b": ("world_model_1b", world_model.build_world_model, ""),
    "world_model_200m": ("world_model_200m", world_model.build_world_model, ""),
    "image_decoder": ("image_vae_cod_128x", image_vae.build_image_decoder, "decoder."),
    "audio_decoder": ("audio_vae_cod_audio", audio_vae.build_audio_decoder, "decoder."),
}

IMAGE, AUDIO = vars(image_vae.ImageVAEParams.tiny()), vars(audio_vae.AudioVAEParams.tiny())
CLIP = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
CLIP["projection_dim"] = 24
CLIP_TEXT, CLIP_VISION = {**CLIP, "vocab_size": 128}, {**CLIP, "image_size": 42}

# tiny network -> (config, factory, input maker, the input maker's sizes)
TINY: dict[str, tuple[dict[str, Any], Callable[..., nn.Module], Callable[..., dict[str, Tensor]], dict[str, int]]] = {
    "world_model": (
        vars(world_model.WorldModelParams.tiny()),
        world_model.build_world_model,
        world_model.world_model_inputs,
        {"frames": 3},
    ),
    "image_decoder": (IMAGE, image_vae.build_image_decoder, image_vae.image_decoder_inputs, {"frames": 1}),
    "image_encoder": (IMAGE, image_vae.build_image_encoder, image_vae.image_encoder_inputs, {"frames": 1}),
    "audio_decoder": (AUDIO, audio_vae.build_audio_decoder, audio_vae.audio_decoder_inputs, {"frames": 20}),
    "audio_encoder": (AUDIO, audio_vae.build_audio_encoder, audio_vae.audio_encoder_inputs, {"frames": 20}),
    "clip_text": (CLIP_TEXT, clip.build_clip_text, clip.clip_text_inputs, {"tokens": 77}),
    "clip_vision": (CLIP_VISION, clip.build_clip_vision, clip.clip_vision_inputs, {}),
}


@torch.no_grad()
def reference_weights(module: nn.Module, seed: int, prefix: str = "") -> None:
    """Fill a module with the weights of the published reference numbers; its buffers are kept.

    `prefix` is put before each name, for example `decoder.` for a decoder without its VAE.
    """
    for name, parameter in module.named_parameters():
        generator = np.random.RandomState((zlib.crc32((prefix + name).encode()) ^ seed) & 0xFFFFFFFF)
        scale = math.prod(parameter.shape[1:]) ** -0.5 if parameter.ndim >= 2 else 0.1
        values = generator.standard_normal(tuple(parameter.shape)) * scale
        parameter.copy_(torch.from_numpy(values.astype(np.float32)))


def name_differences(state_dict: Mapping[str, Tensor], digests: Mapping[str, str]) -> list[str]:
    """Return how the names and shapes of a state dict differ from the published ones, of each top-level module.

    Only digests of the published ones are stored, so that a missing name is not known.
    """
    found = defaultdict(dict)
    for name, tensor in state_dict.items():
        entry = f"{name} {list(tensor.shape)}"
        found[name.partition(".")[0]][hashlib.sha256(entry.encode()).hexdigest()[:6]] = entry
    differences = []
    for module in sorted({*found, *digests}):
        published = set(digests.get(module, "").split())
        differences += [f"not published: {entry}" for digest, entry in found[module].items() if digest not in published]
        differences += [f"missing: a name of {module}" for _ in published - found[module].keys()]
    return differences


def autoencoder(build_encoder: Callable[..., nn.Module], build_decoder: Callable[..., nn.Module], **config: Any) -> Any:
    """Return both halves of an autoencoder under their published names."""
    return nn.ModuleDict({"encoder": build_encoder(**config), "decoder": build_decoder(**config)})


image_vae_of = partial(autoencoder, image_vae.build_image_encoder, image_vae.build_image_decoder)
audio_vae_of = partial(autoencoder, audio_vae.build_audio_encoder, audio_vae.build_audio_decoder)


def factory_of(config_name: str) -> Callable[..., nn.Module]:
    """Return the factory of the whole network that a config in state_dicts.json describes."""
    factories = {
        "world_model": world_model.build_world_model,
        "image_vae": image_vae_of,
        "audio_vae": audio_vae_of,
    }
    return next(factory for kind, factory in factories.items() if config_name.startswith(kind))


def tiny_network(
    name: str, dtype: torch.dtype = torch.float32, device: str = "cpu", seed: int = 0, **config: Any
) -> tuple[nn.Module, dict[str, Tensor]]:
    """Return a tiny network with random weights, and inputs of batch 2 for it; `config` overrides its config."""
    if name.startswith("clip"):
        pytest.importorskip("transformers")
    default, factory, make_inputs, sizes = TINY[name]
    module = factory(**{**default, **config}).to(device)
    (randomise_library if name.startswith("clip") else randomise)(module, seed)
    generator = torch.Generator().manual_seed(seed)
    inputs = make_inputs(module, batch=2, generator=generator, device=device, dtype=dtype, **sizes)
    return module.to(dtype).eval(), inputs


def as_float32(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the inputs with floating-point tensors in fp32."""
    return {key: value.float() if value.is_floating_point() else value for key, value in inputs.items()}


def flat(output: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return a network's outputs as a tuple."""
    return output if isinstance(output, tuple) else (output,)


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """Return ‖actual - expected‖ / ‖expected‖."""
    actual, expected = actual.double(), expected.double()
    return float((actual - expected).norm() / expected.norm())


def worst_error(actual: Iterable[Tensor], expected: Iterable[Tensor]) -> float:
    """Return the largest relative error of an output."""
    return max(relative_error(*pair) for pair in zip(actual, expected, strict=True))


def without_gradient(module: nn.Module) -> list[str]:
    """Return the names of the parameters that no gradient has reached."""
    return [name for name, each in module.named_parameters() if each.grad is None or not each.grad.any()]


def captured(call: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
    """Return a CUDA graph of `call()`, and its static outputs."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):  # loads kernels and compiles them
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = call()
    return graph, outputs


def check_compiled_and_captured(function: Callable[..., Tensor], *given: Tensor, bound: float) -> None:
    """Check that a function gives its own eager numbers where it is compiled into one graph that is captured."""
    with torch.no_grad():
        faster = torch.compile(function, fullgraph=True)
        faster(*given)
        graph, out = captured(lambda: faster(*given))
        graph.replay()
        assert relative_error(out, function(*given)) < bound


def interpret(module, function):
    """Call `module.function()` in a process whose Triton interprets kernels; a failure there fails the test."""
    pytest.importorskip("triton")
    paths = [str(ROOT), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(paths)}
    # Older versions of torch wrap compiled kernels only.
    code = f"import torch; torch.library.wrap_triton = lambda kernel: kernel; import {module} as m; m.{function}()"
    done = subprocess.run([sys.executable, "-c", code], env=environment, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def small_sample(name: str) -> tuple[nn.Module, dict[str, Tensor]]:
    """Return a small network with its reference weights, and the tensors of its file."""
    with safe_open(FOLDER / f"{name}.safetensors", framework="pt") as file:
        metadata = file.metadata()
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - no mapping
    module = factory_of(name)(**json.loads(metadata["config"]))
    reference_weights(module, int(metadata["seed"]))
    return module, tensors


def full_size_sample(name: str, device: str) -> tuple[nn.Module, dict[str, Tensor], dict[str, Tensor]]:
    """Return a full-size network with its reference weights, its inputs, and its outputs by name."""
    with safe_open(FOLDER / "full_size_outputs.safetensors", framework="pt") as file:
        seed = json.loads(file.metadata()["seeds"])[name]
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - no mapping
    config, factory, prefix = FULL_SIZE[name]
    with torch.device("meta"):
        module = factory(**STATE_DICTS[config]["config"])
    module.to_empty(device=device)
    reference_weights(module, seed, prefix)

    def part(prefix):
        return {key.removeprefix(prefix): value.to(device) for key, value in tensors.items() if key.startswith(prefix)}

    return module, part(f"{name}.in."), part(f"{name}.out.")
