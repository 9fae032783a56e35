"""Builds a component from its spec: the module on the run's device, its weights and its inputs."""

from __future__ import annotations

import importlib
import random
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch import nn

from profiling.components.component import Component, MakeInputs, check_arguments
from profiling.components.instantiate import instantiate, partial_of
from profiling.components.spec import ComponentSpec, Settings
from profiling.components.weights import give_weights
from profiling.errors import InputError, did_you_mean

DISTRIBUTIONS = ("normal", "uniform", "integers", "bernoulli")


def build(spec: ComponentSpec, settings: Settings, build_dtype: torch.dtype) -> Blueprint:
    """Build the module on the run's device, floating parameters in `build_dtype`, and load or randomise its weights.

    Two builds are equal, also where importing or constructing the module changes the state of the process.

    Raises:
        InputError: a target, argument, checkpoint or input spec is wrong.

    """
    device = torch.device(settings.device)
    where = f"component.{spec.key}.module"
    with suppress(Exception):  # raised again below; imported here because only the first build would import it
        importlib.import_module(str(spec.module["_target_"]).rpartition(".")[0])
    set_process_state(settings)
    random.seed(settings.seed)
    numpy.random.seed(settings.seed)  # a factory may use any of the three generators
    torch.manual_seed(settings.seed)
    with device:  # parameters are created on the device, so that a large module needs no host memory
        module = instantiate(spec.module, where)
    set_process_state(settings)
    if not isinstance(module, nn.Module):
        kind = type(module).__name__
        raise InputError(f"{where}: {spec.module['_target_']} returned a {kind}, not a torch.nn.Module.")
    module = module.to(device, build_dtype).eval()
    weights, hint = give_weights(module, spec, settings)
    run_dtype = getattr(torch, settings.dtype)
    nodes = (spec.inputs, *(extra["inputs"] for extra in spec.extra_inputs))
    draw, *draw_extra = (input_maker(node, spec.key, module, device, run_dtype) for node in nodes)
    check_arguments(module, draw(torch.Generator(device).manual_seed(settings.seed)), spec.key)
    return Blueprint(spec, module, draw, device, run_dtype, weights, hint, tuple(draw_extra))


def set_process_state(settings: Settings) -> None:
    """Set what holds for the whole process and what a module may have changed: threads, TF32, torch's defaults."""
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)
    if not torch.is_inference_mode_enabled():
        torch.set_grad_enabled(True)
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = settings.tf32
    device = torch.device(settings.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)


@dataclass(frozen=True)
class Blueprint:
    """A module on its device with its weights, and the functions that draw its inputs."""

    spec: ComponentSpec
    module: nn.Module
    draw: MakeInputs  # floating inputs in the run's dtype
    device: torch.device
    run_dtype: torch.dtype
    weights: str  # their source, or "random"
    hint: str | None  # how to get the published weights, if these are random
    draw_extra: tuple[MakeInputs, ...] = ()  # inputs of the further shapes that a step is prepared for

    def cast(self, dtype: torch.dtype) -> None:
        """Cast the module in place, and return the memory that this frees to the device."""
        self.module.to(dtype)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def component(self, dtype: torch.dtype, seed: int) -> Component:
        """Return the component; the module must have been cast to `dtype`.

        Inputs are drawn in the run's dtype and widened to `dtype`, so that the float32 reference reads exactly the
        numbers that the run reads.
        """

        def widened(draw: MakeInputs) -> MakeInputs:
            narrow = self.run_dtype
            return lambda generator: {n: t.to(dtype) if t.dtype == narrow else t for n, t in draw(generator).items()}

        def generator() -> torch.Generator:
            return torch.Generator(self.device).manual_seed(seed)

        make_inputs = widened(self.draw)
        return Component(
            name=self.spec.name,
            module=self.module,
            inputs=make_inputs(generator()),
            make_inputs=make_inputs,
            device=self.device,
            dtype=dtype,
            frames_per_call=self.spec.frames_per_call,
            weights=self.weights,
            kind=self.spec.kind,
            extra_inputs=tuple(widened(draw)(generator()) for draw in self.draw_extra),
        )


def input_maker(
    node: Mapping[str, Any], component: str, module: nn.Module, device: torch.device, dtype: torch.dtype
) -> MakeInputs:
    """Return the function that draws the inputs of an `inputs` node: on `device`, floating ones in `dtype`.

    Raises:
        InputError: the target does not exist, or an input spec is wrong.

    """
    if "_target_" in node:
        make_inputs = partial_of(node, f"component.{component}.inputs")
        return lambda generator: make_inputs(module, generator=generator, device=device, dtype=dtype)
    specs = parse_input_specs(node, component)
    return lambda generator: {name: spec.draw(generator, dtype) for name, spec in specs.items()}


@dataclass(frozen=True)
class InputSpec:
    """One input: `normal` (mean 0, std 1), `uniform` or `integers` in [low, high), `bernoulli` (0 or 1, half each).

    `dtype` auto is the run's dtype; an explicit one ("int64", "float32") does not depend on it.
    """

    shape: tuple[int, ...]
    dtype: str = "auto"
    distribution: str = "normal"
    low: float = 0.0
    high: float = 1.0

    def draw(self, generator: torch.Generator, dtype: torch.dtype) -> torch.Tensor:
        """Return a tensor of `shape` on the generator's device, in `dtype` where the spec's own is auto."""
        device = generator.device
        dtype = dtype if self.dtype == "auto" else getattr(torch, self.dtype)
        if self.distribution == "integers":
            low, high = int(self.low), int(self.high)
            return torch.randint(low, high, self.shape, generator=generator, device=device).to(dtype)
        if self.distribution == "normal":
            return torch.randn(self.shape, generator=generator, device=device, dtype=torch.float32).to(dtype)
        values = torch.rand(self.shape, generator=generator, device=device, dtype=torch.float32)
        if self.distribution == "bernoulli":
            return (values < 0.5).to(dtype)
        return (values * (self.high - self.low) + self.low).to(dtype)


def parse_input_specs(specs: Mapping[str, Any], component: str) -> dict[str, InputSpec]:
    """Read the `inputs` of a component's YAML.

    Raises:
        InputError: an unknown key, dtype or distribution, or an invalid shape or range.

    """
    return {name: _parse(spec, f"component.{component}.inputs.{name}") for name, spec in specs.items()}


def _parse(spec: Any, where: str) -> InputSpec:
    if not isinstance(spec, Mapping) or "shape" not in spec:
        raise InputError(f"{where} has no shape. Write it as {{shape: [1, 3, 224, 224], distribution: normal}}.")
    known = tuple(InputSpec.__dataclass_fields__)
    for key in spec:
        if key not in known:
            raise InputError(
                f"{where}.{key} is unknown: an input spec has {', '.join(known)}.{did_you_mean(key, known)}"
            )
    shape = spec["shape"]
    if not isinstance(shape, list | tuple) or not all(isinstance(n, int) and n > 0 for n in shape):
        raise InputError(f"{where}.shape={shape} must be a list of positive integers, for example [1, 3, 224, 224].")
    parsed = InputSpec(**{**spec, "shape": tuple(shape)})
    if parsed.distribution not in DISTRIBUTIONS:
        raise InputError(
            f"{where}.distribution={parsed.distribution} is none of {', '.join(DISTRIBUTIONS)}."
            f"{did_you_mean(parsed.distribution, DISTRIBUTIONS)}"
        )
    if parsed.dtype != "auto" and not isinstance(getattr(torch, parsed.dtype, None), torch.dtype):
        raise InputError(f"{where}.dtype={parsed.dtype} is not a torch dtype. Use auto, float32, int64, bool, …")
    if parsed.distribution in ("uniform", "integers") and parsed.high <= parsed.low:
        raise InputError(f"{where}: high={parsed.high} must be above low={parsed.low}.")
    return parsed
