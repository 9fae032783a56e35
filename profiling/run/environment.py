"""The environment of a run: everything its numbers depend on, and the ceilings of the device."""

from __future__ import annotations

import os
import platform
import time
from contextlib import suppress
from pathlib import Path

import numpy
import psutil
import torch

from profiling.components.spec import Settings
from profiling.machine import nvml
from profiling.machine.ceilings import kept_ceilings
from profiling.machine.run_queue import RUN_PROCESS
from profiling.results.environment import Ceilings, Cpu, Device, Environment
from profiling.roofline.measure_ceilings import measure_ceilings
from profiling.run.events import Emit, Phase
from profiling.run.revisions import version_of

#: Prefixes of the environment variables that can change results or times.
VARIABLES = (
    *("CUDA_LAUNCH_", "CUDA_MODULE_", "CUDA_VISIBLE_", "CUDA_DEVICE_", "CUBLAS", "CUDNN", "NVIDIA_TF32_"),
    *("PYTORCH_", "TORCH", "TRITON_", "OMP_", "MKL_", "KMP_"),
)
#: Variables with such a prefix that this tool sets, with another value in each process.
OWN_VARIABLES = ("TORCH_TRACE", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
#: Most seconds to wait for the other processes of a run before ceilings are measured.
IDLE_SECONDS = 20.0


def environment(settings: Settings) -> Environment:
    """Return versions, device, clocks, threads and seed; facts that cannot be determined are absent."""
    device = torch.device(settings.device)
    on_cuda = device.type == "cuda"
    versions = {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda if on_cuda else None,
        "cudnn": str(torch.backends.cudnn.version()) if on_cuda else None,
        "triton": version_of("triton"),
        "numpy": numpy.__version__,
        "driver": nvml.driver_version() if on_cuda else None,
        "os": f"{platform.system()} {platform.release()}",
    }
    return Environment(
        versions={name: version for name, version in versions.items() if version is not None},
        device=_cuda_device(device) if on_cuda else Device(type="cpu", name=_cpu_model()),
        cpu=Cpu(model=_cpu_model(), cores=len(os.sched_getaffinity(0))),
        threads=settings.threads,
        seed=settings.seed,
        scale=settings.scale,
        dtype=settings.dtype,
        tf32=settings.tf32,
        variables={
            name: value
            for name, value in sorted(os.environ.items())
            if name.startswith(VARIABLES) and name not in OWN_VARIABLES
        },
    )


def _cuda_device(device: torch.device) -> Device:
    properties = torch.cuda.get_device_properties(device)
    return Device(
        type="cuda",
        name=properties.name,
        memory_bytes=properties.total_memory,
        l2_bytes=properties.L2_cache_size,
        multiprocessors=properties.multi_processor_count,
        capability=f"{properties.major}.{properties.minor}",
        power_limit_w=nvml.power_limit_w(device),
    )


def _cpu_model() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or None
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), None)


def ceilings_of(settings: Settings, environment: Environment, emit: Emit) -> Ceilings:
    """Return the ceilings of the device in the resolved `settings`, measured in an earlier run or now.

    If they are measured now, the phase "ceilings" is sent before.

    Raises:
        RuntimeError: the device failed, or has too little free memory.

    """
    device, threads = torch.device(settings.device), settings.threads or torch.get_num_threads()
    known = environment.device or Device()
    key = {
        "device": known.name,
        "uuid": str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else None,
        "power_limit_w": known.power_limit_w,
        "driver": environment.versions.get("driver"),
        "torch": str(torch.__version__),
        "dtype": settings.dtype,
        "tf32": settings.tf32,
        "threads": threads,
    }
    dtype: torch.dtype = getattr(torch, settings.dtype)

    def measure() -> Ceilings:
        emit(Phase("ceilings"))
        wait_until_idle()
        return measure_ceilings(device, dtype, threads=threads, tf32=settings.tf32)

    return kept_ceilings(key, measure)


def wait_until_idle() -> None:
    """Wait until the other processes of this run are idle, `IDLE_SECONDS` at most: they import what cells need."""
    run, until, before = os.environ.get(RUN_PROCESS), time.monotonic() + IDLE_SECONDS, -1.0
    while run and time.monotonic() < until:
        used = 0.0  # seconds of a core
        with suppress(psutil.Error):  # one has ended
            others = [each for each in psutil.Process(int(run)).children(recursive=True) if each.pid != os.getpid()]
            used = sum(sum(each.cpu_times()[:2]) for each in others)
        if used == before:
            return
        before = used
        time.sleep(0.1)
