"""From a component's spec to the component: build, load or randomise, make inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from profiling.core.checkpoints.loader import load_into
from profiling.core.checkpoints.manifest import load_manifest
from profiling.core.checkpoints.verify import fetch_command, verify
from profiling.core.components import Component, check_arguments
from profiling.core.config import instantiate, partial_of
from profiling.core.inputs import parse_input_specs
from profiling.core.job import ComponentSpec, Settings
from profiling.core.weights import fill_degenerate
from profiling.errors import InputError


@dataclass(frozen=True)
class Blueprint:
    """A module on the device with its weights, and how its inputs are made."""

    spec: ComponentSpec
    module: nn.Module
    draw: Callable[[torch.Generator], Mapping[str, torch.Tensor]]  # floating inputs in the run's dtype
    device: torch.device
    run_dtype: torch.dtype
    weights: str
    hint: str | None  # the command that fetches the published weights, where they are random

    def cast(self, dtype: torch.dtype) -> None:
        """Cast the module in place and give what that frees back to the device."""
        self.module.to(dtype)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def component(self, dtype: torch.dtype, seed: int) -> Component:
        """Return the component; the module must have been cast to `dtype`.

        The inputs are drawn in the run's dtype and widened where `dtype` is another: the float32 reference sees
        exactly the numbers that the run sees.
        """
        narrow = self.run_dtype

        def make_inputs(generator: torch.Generator) -> Mapping[str, torch.Tensor]:
            return {n: t.to(dtype) if t.dtype == narrow else t for n, t in self.draw(generator).items()}

        return Component(
            name=self.spec.name,
            module=self.module,
            inputs=make_inputs(torch.Generator(self.device).manual_seed(seed)),
            make_inputs=make_inputs,
            device=self.device,
            dtype=dtype,
            frames_per_call=self.spec.frames_per_call,
            weights=self.weights,
            kind=self.spec.kind,
        )


def build(spec: ComponentSpec, settings: Settings, build_dtype: torch.dtype) -> Blueprint:
    """Build the module on the run's device, floating parameters in `build_dtype`, and load or randomise its weights.

    Raises:
        InputError: a target, argument, checkpoint or input spec that does not fit.

    """
    device = torch.device(settings.device)
    where = f"component.{spec.name}.module"
    torch.manual_seed(settings.seed)
    with device:  # made where they will live, so that a large module never stands in host memory
        module = instantiate(spec.module, where)
    if not isinstance(module, nn.Module):
        raise InputError(f"{where}: {spec.module['_target_']} made a {type(module).__name__}, not a torch.nn.Module.")
    module = module.to(device, build_dtype).eval()
    path, hint = find_weights(spec, settings)
    if path is None:
        randomise(module, spec, settings.seed)
    else:
        load_into(module, path, part=spec.part)
    run_dtype = getattr(torch, settings.dtype)
    draw = _input_maker(spec, module, device, run_dtype)
    check_arguments(module, draw(torch.Generator(device).manual_seed(settings.seed)), spec.name)
    return Blueprint(spec, module, draw, device, run_dtype, "random" if path is None else str(path), hint)


def randomise(module: nn.Module, spec: ComponentSpec, seed: int) -> None:
    """Give the module random weights: by its YAML's `initialise`, else its own, and none of them degenerate."""
    if spec.initialise is not None:
        partial_of(spec.initialise, f"component.{spec.name}.initialise")(module, seed=seed)
    fill_degenerate(module, seed)


def find_weights(spec: ComponentSpec, settings: Settings) -> tuple[Path | None, str | None]:
    """Return (checkpoint to load, None), or (None, hint how to get one).

    Raises:
        InputError: a named checkpoint is not there, a published one has the wrong hash, or one is required and none is
            there.

    """
    name = f"component.{spec.name}.checkpoint"
    if settings.checkpoint == "random":
        return None, None
    if spec.checkpoint is not None:
        return Path(spec.checkpoint), None
    hint = f"none is published for it at scale {settings.scale}; {name}=PATH loads yours"
    # Published weights fit the full size alone.
    entry = load_manifest().for_component(spec.name) if settings.scale == "full" else None
    if entry is not None:
        if entry.file.is_file():
            verify(entry)
            return entry.file, None
        hint = fetch_command(entry)
    if settings.checkpoint == "required":
        raise InputError(f"checkpoint=required, but {spec.name} has none: {hint}")
    return None, hint


def _input_maker(
    spec: ComponentSpec, module: nn.Module, device: torch.device, dtype: torch.dtype
) -> Callable[[torch.Generator], Mapping[str, torch.Tensor]]:
    if "_target_" in spec.inputs:
        maker = partial_of(spec.inputs, f"component.{spec.name}.inputs")
        return lambda generator: maker(module, generator=generator, device=device, dtype=dtype)
    specs = parse_input_specs(spec.inputs, spec.name)
    return lambda generator: {name: item.draw(generator, dtype) for name, item in specs.items()}
