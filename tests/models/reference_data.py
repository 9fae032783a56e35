"""The published numbers, and the networks that they belong to."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from models import audio_vae, image_vae, world_model
from models.audio_vae import AudioVAEParams
from models.image_vae import ImageVAEParams
from models.initialisation import randomise, reference_weights
from models.world_model import WorldModelParams

FOLDER = Path(__file__).parents[1] / "data" / "reference"
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

# tiny network -> (params, factory, input maker, frames a call)
TINY: dict[str, tuple[Any, Callable[..., nn.Module], Callable[..., dict[str, Tensor]], int]] = {
    "world_model": (WorldModelParams.tiny(), world_model.build_world_model, world_model.world_model_inputs, 3),
    "image_decoder": (
        ImageVAEParams.tiny(),
        image_vae.build_image_decoder,
        image_vae.image_decoder_inputs,
        1,
    ),
    "image_encoder": (
        ImageVAEParams.tiny(),
        image_vae.build_image_encoder,
        image_vae.image_encoder_inputs,
        1,
    ),
    "audio_decoder": (
        AudioVAEParams.tiny(),
        audio_vae.build_audio_decoder,
        audio_vae.audio_decoder_inputs,
        20,
    ),
    "audio_encoder": (
        AudioVAEParams.tiny(),
        audio_vae.build_audio_encoder,
        audio_vae.audio_encoder_inputs,
        20,
    ),
}


def factory_of(config_name: str) -> Callable[..., nn.Module]:
    """Return the factory of the whole network that a config in state_dicts.json describes."""
    factories = {
        "world_model": world_model.build_world_model,
        "image_vae": image_vae.build_image_vae,
        "audio_vae": audio_vae.build_audio_vae,
    }
    return next(factory for kind, factory in factories.items() if config_name.startswith(kind))


def tiny_network(
    name: str, dtype: torch.dtype = torch.float32, device: str = "cpu", seed: int = 0
) -> tuple[nn.Module, dict[str, Tensor]]:
    """Return a tiny network with seeded weights, and inputs for it."""
    params, factory, make_inputs, frames = TINY[name]
    module = factory(**vars(params)).to(device)
    randomise(module, seed)
    generator = torch.Generator().manual_seed(seed)
    inputs = make_inputs(module, batch=2, frames=frames, generator=generator, device=device, dtype=dtype)
    return module.to(dtype).eval(), inputs


def flat(output: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return a network's outputs as a tuple."""
    return output if isinstance(output, tuple) else (output,)


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """Return ‖actual - expected‖ / ‖expected‖."""
    actual, expected = actual.double(), expected.double()
    return float((actual - expected).norm() / expected.norm())


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
    inputs = {
        key.removeprefix(f"{name}.in."): value.to(device)
        for key, value in tensors.items()
        if key.startswith(f"{name}.in.")
    }
    outputs = {
        key.removeprefix(f"{name}.out."): value.to(device)
        for key, value in tensors.items()
        if key.startswith(f"{name}.out.")
    }
    return module, inputs, outputs
