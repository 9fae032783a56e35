"""From a component's spec to the component: build, load or randomise, make inputs."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch import nn

from profiling.components.component import Component, check_arguments
from profiling.components.instantiate import instantiate, partial_of
from profiling.components.spec import ComponentSpec, Settings
from profiling.components.weights import give_weights
from profiling.errors import InputError, did_you_mean

DISTRIBUTIONS = ("normal", "uniform", "integers", "bernoulli")


@dataclass(frozen=True)
class InputSpec:
    """One argument: `normal` (mean 0, std 1), `uniform` and `integers` in [low, high), `bernoulli` (0 or 1, half each).

    `dtype` auto is the run's; an explicit one ("int64", "float32") stays whatever the run's dtype is.
    """

    shape: tuple[int, ...]
    dtype: str = "auto"
    distribution: str = "normal"
    low: float = 0.0
    high: float = 1.0

    def draw(self, generator: torch.Generator, dtype: torch.dtype) -> torch.Tensor:
        """Return a tensor of `shape` on the generator's device; never all zeros but for a freak of `bernoulli`."""
        device = generator.device
        wanted = dtype if self.dtype == "auto" else getattr(torch, self.dtype)
        if self.distribution == "integers":
            return torch.randint(int(self.low), int(self.high), self.shape, generator=generator, device=device).to(
                wanted
            )
        if self.distribution == "normal":
            return torch.randn(self.shape, generator=generator, device=device).to(wanted)
        values = torch.rand(self.shape, generator=generator, device=device)
        if self.distribution == "bernoulli":
            return (values < 0.5).to(wanted)
        return (values * (self.high - self.low) + self.low).to(wanted)


def parse_input_specs(specs: Mapping[str, Any], component: str) -> dict[str, InputSpec]:
    """Read the `inputs` of a component's YAML.

    Raises:
        InputError: a misspelt key, a shape that is none, a dtype or a distribution that does not exist.

    """
    return {name: _parse(spec, f"component.{component}.inputs.{name}") for name, spec in specs.items()}


def _parse(spec: Any, where: str) -> InputSpec:
    if not isinstance(spec, Mapping) or "shape" not in spec:
        raise InputError(f"{where} has no shape. Write it as {{shape: [1, 3, 224, 224], distribution: normal}}.")
    known = tuple(InputSpec.__dataclass_fields__)
    for key in spec:
        if key not in known:
            raise InputError(f"{where}.{key} is no key of an input spec.{did_you_mean(key, known)}")
    shape = spec["shape"]
    if not isinstance(shape, list | tuple) or not all(isinstance(n, int) and n > 0 for n in shape):
        raise InputError(f"{where}.shape={shape}: a list of positive integers, [1, 3, 224, 224] for example.")
    parsed = InputSpec(**{**spec, "shape": tuple(shape)})
    if parsed.distribution not in DISTRIBUTIONS:
        raise InputError(
            f"{where}.distribution={parsed.distribution} is none of {', '.join(DISTRIBUTIONS)}."
            f"{did_you_mean(parsed.distribution, DISTRIBUTIONS)}"
        )
    if parsed.dtype != "auto" and not isinstance(getattr(torch, parsed.dtype, None), torch.dtype):
        raise InputError(f"{where}.dtype={parsed.dtype} is no torch dtype. Use auto, float32, int64, bool, …")
    if parsed.distribution in ("uniform", "integers") and parsed.high <= parsed.low:
        raise InputError(f"{where}: high={parsed.high} must lie above low={parsed.low}.")
    return parsed


Draw = Callable[[torch.Generator], Mapping[str, torch.Tensor]]


@dataclass(frozen=True)
class Blueprint:
    """A module on the device with its weights, and how its inputs are made."""

    spec: ComponentSpec
    module: nn.Module
    draw: Draw  # floating inputs in the run's dtype
    device: torch.device
    run_dtype: torch.dtype
    weights: str
    hint: str | None  # the command that fetches the published weights, where they are random
    draw_extra: tuple[Draw, ...] = ()  # the inputs of other shapes that a step must be ready for

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

        def widened(draw: Draw) -> Draw:
            return lambda generator: {n: t.to(dtype) if t.dtype == narrow else t for n, t in draw(generator).items()}

        make_inputs = widened(self.draw)

        def generator() -> torch.Generator:
            return torch.Generator(self.device).manual_seed(seed)

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


def build(spec: ComponentSpec, settings: Settings, build_dtype: torch.dtype) -> Blueprint:
    """Build the module on the run's device, floating parameters in `build_dtype`, and load or randomise its weights.

    Raises:
        InputError: a target, argument, checkpoint or input spec that does not fit.

    """
    device = torch.device(settings.device)
    where = f"component.{spec.key}.module"
    random.seed(settings.seed)
    numpy.random.seed(settings.seed)  # whatever a user's factory draws from, two builds draw the same
    torch.manual_seed(settings.seed)
    with device:  # made where they will live, so that a large module never stands in host memory
        module = instantiate(spec.module, where)
    if not isinstance(module, nn.Module):
        raise InputError(f"{where}: {spec.module['_target_']} made a {type(module).__name__}, not a torch.nn.Module.")
    module = module.to(device, build_dtype).eval()
    weights, hint = give_weights(module, spec, settings)
    run_dtype = getattr(torch, settings.dtype)
    nodes = (spec.inputs, *(other["inputs"] for other in spec.extra_inputs))
    draw, *extra = (input_maker(node, spec.key, module, device, run_dtype) for node in nodes)
    check_arguments(module, draw(torch.Generator(device).manual_seed(settings.seed)), spec.key)
    return Blueprint(spec, module, draw, device, run_dtype, weights, hint, tuple(extra))


def input_maker(
    node: Mapping[str, Any], component: str, module: nn.Module, device: torch.device, dtype: torch.dtype
) -> Draw:
    """Return what draws the inputs that a component's `inputs` node describes, on `device`, floating ones in `dtype`.

    Raises:
        InputError: a target that does not exist, or a spec that is none.

    """
    if "_target_" in node:
        maker = partial_of(node, f"component.{component}.inputs")
        return lambda generator: maker(module, generator=generator, device=device, dtype=dtype)
    specs = parse_input_specs(node, component)
    return lambda generator: {name: item.draw(generator, dtype) for name, item in specs.items()}
