"""`environment.json`: everything that the numbers of a run depend on, captured once a run. Absent means not known."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec

from profiling.results.explanations import Kernel, KernelFinding
from profiling.results.field import Section, about
from profiling.results.jsonl import decoded

ENVIRONMENT_FILE = "environment.json"
#: Share of a measured ceiling from which a kernel is as fast as kernels get: 60% of the peak, where the measured
#: ceilings are about 85% of the peak of the data sheet (H200: read 0.91, copy 0.88, product 0.80, convolution 0.75).
NEAR_CEILING = 0.7
#: Copies between host and device, as CUPTI names them: the bus bounds them, and no ceiling of the memory.
_OVER_THE_BUS = ("Memcpy HtoD", "Memcpy DtoH")


class Device(Section, frozen=True, kw_only=True):
    """The device that the run measured."""

    type: Annotated[str | None, about("cpu or cuda")] = None
    name: Annotated[str | None, about("model")] = None
    memory_bytes: Annotated[int | None, about("memory of the GPU", "bytes")] = None
    l2_bytes: Annotated[int | None, about("L2 cache of the GPU", "bytes")] = None
    multiprocessors: Annotated[int | None, about("streaming multiprocessors")] = None
    capability: Annotated[str | None, about("compute capability, 9.0 for example")] = None
    power_limit_w: Annotated[float | None, about("enforced power limit", "W")] = None


class Cpu(Section, frozen=True, kw_only=True):
    """The processor of the host."""

    model: Annotated[str | None, about("model")] = None
    cores: Annotated[int | None, about("cores that the process may use")] = None


class Git(Section, frozen=True, kw_only=True):
    """A checkout of code that the run used."""

    revision: Annotated[str | None, about("full hash of the commit")] = None
    dirty: Annotated[bool | None, about("whether tracked files had uncommitted changes")] = None
    diff: Annotated[str | None, about("hash of these changes, or of the files where there is no revision")] = None


class Ceilings(Section, frozen=True, kw_only=True):
    """Measured peak rates of the device in one dtype; they are kept for later runs with the same device and driver."""

    dtype: Annotated[str, about("dtype of the products")]
    copy_bytes_per_s: Annotated[float, about("bandwidth of a large copy, read plus written", "bytes/s")]
    read_bytes_per_s: Annotated[float, about("bandwidth of a large sum, which only reads", "bytes/s")]
    bandwidth: Annotated[
        tuple[tuple[int, float], ...], about("[bytes touched, bytes/s] by size, ascending: small ones stay in a cache")
    ]
    matmul_flops_per_s: Annotated[float, about("rate of the fastest square matrix product", "FLOP/s")]
    launch_us: Annotated[float, about("host time of a launch; on a CPU: time of an operator", "us")]
    seconds: Annotated[float, about("duration of measuring all this", "s")]
    conv_flops_per_s: Annotated[float | None, about("rate of the fastest of several convolutions", "FLOP/s")] = None
    other_flops_per_s: Annotated[
        Mapping[str, float], about("rates of the fastest square matrix products of other dtypes, by dtype", "FLOP/s")
    ] = {}
    gap_us: Annotated[float | None, about("time of a kernel in a CUDA graph beyond its duration", "us")] = None
    replay_us: Annotated[float | None, about("time of a replay besides its kernels", "us")] = None
    lost_share: Annotated[float | None, about("share of CPU time that other processes took", "0 to 1")] = None
    disturbed: Annotated[bool, about("other processes made these ceilings too low; absent: false")] = False

    @property
    def flops_per_s(self) -> float:
        """The faster of the two FLOP rates: no operator should exceed it."""
        return max(self.matmul_flops_per_s, self.conv_flops_per_s or 0.0)

    def flops_ceiling(self, dtype: str | None) -> float:
        """Return the FLOP/s that no operator on `dtype` should exceed; of one that was not measured, the run's dtype's.

        `dtype` is a name of `profiling.trace.flops.product_dtype`. A device without units for 8 bits computes with
        wider numbers.
        """
        rate = self.other_flops_per_s.get(dtype or "", self.flops_per_s)
        return max(rate, self.flops_per_s) if dtype in ("int8", "float8") else rate

    def compute_ms(self, flops: Mapping[str, int]) -> dict[str, float]:
        """Return the milliseconds that FLOPs by dtype take at the ceilings of their dtypes."""
        return {dtype: 1e3 * count / self.flops_ceiling(dtype) for dtype, count in flops.items()}

    def times_us(self, size: float, flops: float, dtype: str | None) -> tuple[float, float]:
        """Return the microseconds of `size` bytes at the bandwidth and of `flops` on `dtype` at the FLOP ceiling."""
        return 1e6 * size / self.bytes_per_s(size) if size else 0.0, 1e6 * flops / self.flops_ceiling(dtype)

    def shares(self, kernel: Kernel | KernelFinding) -> tuple[float, float]:
        """Return which share of the bandwidth and of the FLOP ceiling (0 to 1) a kernel reaches; 0 where not known.

        Few bytes may come from a cache, so the bandwidth is that for the bytes of a launch, of launches of several
        sizes one that takes the time. On a CPU it is that of a large copy: an operator writes memory that was just
        allocated. Copies over the bus have none, and neither have FLOPs in a dtype that was not measured.
        """
        us, name, dtype = 1e3 * kernel.ms / (kernel.count or 1.0), "", None
        if isinstance(kernel, Kernel):
            us, name, dtype = kernel.typical_us or kernel.mean_us or us, kernel.name, kernel.dtype
        size = 0.0 if name.startswith(_OVER_THE_BUS) else (kernel.gbps or 0.0) * us * 1e3
        flops = (kernel.tflops or 0.0) * us * 1e6 if dtype in (None, self.dtype, *self.other_flops_per_s) else 0.0
        memory_us, compute_us = self.times_us(size, flops, dtype)
        if kernel.kind == "operator":
            memory_us = 1e6 * size / self.copy_bytes_per_s
        return (memory_us / us, compute_us / us) if us else (0.0, 0.0)

    def bytes_per_s(self, size: float) -> float:
        """Return the best bandwidth, in bytes/s, for a call that touches `size` bytes.

        Repeated calls find their bytes in a cache that is large enough, so this is the fastest rate measured at a
        quarter of `size` or more: a roofline time must not exceed the time that a cache makes possible.
        """
        return max(rate for touched, rate in self.bandwidth if touched >= size / 4 or touched == self.bandwidth[-1][0])


class Environment(Section, frozen=True, kw_only=True):
    """Machine, versions, settings and code of a run."""

    captured_at: Annotated[str | None, about("UTC, ISO 8601")] = None
    command: Annotated[str | None, about("the command line")] = None
    user_git: Annotated[Git | None, about("checkout of the folder that the command ran in")] = None
    checkout: Annotated[str | None, about("of a comparison of two: the revision or folder whose code ran")] = None
    module_git: Annotated[Mapping[str, Git], about("code of each module, and of the user's steps, by `_target_`")] = {}
    tool_git: Annotated[Git | None, about("checkout of this tool")] = None
    tool_version: Annotated[str | None, about("version of this tool")] = None
    versions: Annotated[Mapping[str, str], about("by name: python, torch, cuda, cudnn, triton, numpy, driver, os")] = {}
    device: Annotated[Device | None, about("the device")] = None
    cpu: Annotated[Cpu | None, about("the host's processor")] = None
    threads: Annotated[int | None, about("threads of torch")] = None
    seed: Annotated[int | None, about("seed of weights and inputs")] = None
    scale: Annotated[str | None, about("full or tiny")] = None
    dtype: Annotated[str | None, about("dtype of the run")] = None
    tf32: Annotated[bool | None, about("whether float32 products may use TF32")] = None
    ceilings_reason: Annotated[str | None, about("why there are no ceilings")] = None
    variables: Annotated[Mapping[str, str], about("environment variables that change what is measured")] = {}
    ceilings: Annotated[Ceilings | None, about("best rates of the device, measured")] = None

    @property
    def device_kind(self) -> str | None:
        """The model of the device, of a CPU with its number of cores: only times on one kind can be ranked."""
        if self.device is None:
            return None
        if self.device.type != "cpu":
            return self.device.name
        cpu = self.cpu or Cpu()
        cores = f"{cpu.cores} core{'s' * (cpu.cores != 1)}" if cpu.cores else ""
        return " · ".join(filter(None, (cpu.model or self.device.name or "CPU", cores)))

    @property
    def revision(self) -> str | None:
        """Short revision of the user's code, `tool …` where only this tool's is known; + for uncommitted changes."""
        for prefix, git in (("", self.user_git), ("tool ", self.tool_git)):
            if git is not None and git.revision:
                return f"{prefix}{git.revision[:7]}{'+' if git.dirty else ''}"
        return None

    @property
    def is_known(self) -> bool:
        """Whether anything is known."""
        return self != Environment()


def read_environment(run: Path) -> Environment:
    """Return the run's environment; empty where the file is missing or damaged."""
    return decoded(run / ENVIRONMENT_FILE, Environment) or Environment()


def encode_environment(environment: Environment) -> dict[str, Any]:
    """Return the content of `environment.json`, plain JSON."""
    return msgspec.to_builtins(environment, str_keys=True)
