"""Example inputs from a spec: shape, dtype and distribution of each argument of `forward`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

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
