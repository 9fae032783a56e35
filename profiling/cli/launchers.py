"""The launchers of a sweep (joblib, submitit, Ray): which is installed, where its jobs run, and how it gets them."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from omegaconf import OmegaConf

from profiling.errors import InputError, missing_package
from profiling.machine.places import visible_gpus
from profiling.machine.run_queue import physical_cores
from profiling.results.sweep import Launcher
from profiling.run.sweep_job import JobTask, run_job

#: The package that starts the jobs.
PACKAGES = {"local": "joblib", "slurm": "submitit", "ray": "ray"}
#: Prefix of the keys of a launcher's options, and the key that names the cluster of submitit.
OWN, ENGINE = "hydra.launcher.", "hydra/launcher"
#: By launcher, the prefixes of the options that it takes. A launcher that is not listed takes none.
_OPTION_PREFIXES = {"slurm": (OWN, ENGINE), "ray": (f"{OWN}ray.init.", f"{OWN}ray.remote.")}
#: Seconds in which a Ray cluster must answer.
ANSWER_SECONDS = 30.0
#: CPUs that Slurm gives a job, and minutes that a job may take where it has no limit.
_SLURM_CPUS, _SLURM_MINUTES = 8, 1440


@dataclass(frozen=True)
class SweepOptions:
    """How the jobs of a sweep are started.

    `devices` is how many jobs of this machine run at a time, each alone on its device. `own` are the launcher's own
    options, by the keys of the command line.
    """

    launcher: Launcher = "basic"
    devices: int | None = None
    retries: int = 0
    job_timeout: float | None = None
    own: Mapping[str, Any] = field(default_factory=dict)

    @property
    def cluster(self) -> str | None:
        """What submitit starts the jobs on: "slurm", or "local" (`hydra/launcher=submitit_local`), this machine."""
        return str(self.own.get(ENGINE, "slurm")).removeprefix("submitit_") if self.launcher == "slurm" else None

    def own_below(self, prefix: str) -> dict[str, Any]:
        """Return the launcher's options that start with `prefix`, without it; dotted keys become nested mappings."""
        nested = OmegaConf.create({})
        for key, value in self.own.items():
            if key.startswith(prefix):
                OmegaConf.update(nested, key.removeprefix(prefix), value, force_add=True)
        return cast(dict[str, Any], OmegaConf.to_container(nested))

    @property
    def ray_address(self) -> str:
        """The address of a running Ray cluster, or "local"."""
        return str(self.own.get(f"{OWN}ray.init.address", "local"))


@dataclass(frozen=True)
class Places:
    """Where jobs run: how many at a time on a host, and of what each gets one GPU; None: the launcher hands it out."""

    number: int = 1
    gpus: tuple[str, ...] | None = ()
    cpus: int | None = None


def places_for(options: SweepOptions, jobs: Sequence[Sequence[str]]) -> Places:
    """Return where the jobs run, after a check that the launcher can be used.

    Raises:
        InputError: the launcher is not installed or does not answer, or there are fewer devices than asked for.

    """
    for key in options.own:
        if not key.startswith(begin := _OPTION_PREFIXES.get(options.launcher, ())):
            has = f"whose options begin with {' or '.join(begin)}" if begin else "which has no options but devices=N"
            raise InputError(f"{key} is no option of launcher={options.launcher}, {has}. Leave it out.")
    if options.launcher == "basic":
        if options.devices not in (None, 1):
            raise InputError(
                f"devices={options.devices}: without a launcher, jobs run one after another. Add launcher=local."
            )
        return Places()
    if missing := missing_package(PACKAGES[options.launcher]):
        raise InputError(f"launcher={options.launcher}: {missing}")
    devices = {word.partition("=")[2] for job in jobs for word in job if word.startswith("device=")} or {"auto"}
    if numbered := sorted(each for each in devices if each.startswith("cuda:")):
        raise InputError(
            f"device={numbered[0]}: the launcher hands out the devices. Write device=cuda, and "
            f"CUDA_VISIBLE_DEVICES={numbered[0][5:]} before the command to use no other."
        )
    if options.cluster == "slurm" and shutil.which("sbatch") is None:
        raise InputError("launcher=slurm needs sbatch, which is not on the path. Start the sweep on a Slurm host.")
    if options.cluster is not None:
        _submitit(options, Path(), {})  # which refuses wrong parameters
    if options.cluster == "slurm":
        return Places(gpus=() if devices == {"cpu"} else None)
    if options.launcher == "ray" and options.ray_address != "local":
        return _places_of_cluster(options, devices)
    gpus = () if devices == {"cpu"} else tuple(visible_gpus())
    if "cuda" in devices and not gpus:
        raise InputError(
            "device=cuda: the driver names no GPU of this machine that CUDA_VISIBLE_DEVICES allows, so that there is "
            "none to hand out. Check nvidia-smi -L, or write device=cpu."
        )
    cores = physical_cores()
    kind, most = ("GPUs", len(gpus)) if gpus else ("physical CPU cores", len(cores))
    number = options.devices or (len(gpus) if gpus else 1)
    if number > most:
        raise InputError(f"devices={number}: this machine has {most} {kind}. Give {most} or fewer.")
    cpus = sum(len(core) for core in cores) // number
    is_ray = options.launcher == "ray"  # which hands out the GPUs itself
    return Places(number, None if is_ray and gpus else gpus[:number], cpus)


def _submitit(options: SweepOptions, folder: Path, values: Mapping[str, Any]) -> Any:
    """Return the executor of submitit for parameters of its own, before which those of the user go.

    Raises:
        InputError: submitit does not know a parameter, or its value has a wrong type.

    """
    import submitit

    given = {**values, **options.own_below(OWN)}
    try:
        executor: Any = submitit.AutoExecutor(folder=folder, cluster=options.cluster)
        shared = executor._valid_parameters()  # by all executors; others have the name of theirs before them
        executor.update_parameters(
            **{name if name in shared else f"{executor.cluster}_{name}": value for name, value in given.items()}
        )
    except (NameError, TypeError, ValueError, AssertionError) as error:
        what = str(error).strip().partition("\n")[0].rstrip(".")
        raise InputError(f"launcher=slurm: submitit does not take {ENGINE} or {OWN}KEY=VALUE: {what}.") from None
    return executor


_ASK_RAY = """
import json, sys, ray
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
print(json.dumps([node["Resources"] for node in ray.nodes() if node["Alive"]]))
"""


def _places_of_cluster(options: SweepOptions, devices: set[str]) -> Places:
    """Ask a running Ray cluster for its GPUs and CPUs; `devices` are those that jobs name.

    Raises:
        InputError: it does not answer within `ANSWER_SECONDS`, or has no GPU and a job names one.

    """
    address = options.ray_address
    try:
        words = [sys.executable, "-c", _ASK_RAY, address]
        answer = subprocess.run(words, capture_output=True, text=True, timeout=ANSWER_SECONDS, check=True)
        nodes = cast(list[dict[str, float]], json.loads(answer.stdout.strip().splitlines()[-1]))
    except (subprocess.SubprocessError, ValueError, IndexError) as error:
        text = error.stderr if isinstance(error, subprocess.CalledProcessError) else ""
        if refused := re.search(r"AuthenticationError: (.{1,120}?)(?:\. |$)", text, re.MULTILINE):
            raise InputError(
                f"the Ray cluster at {address} refuses this process ({refused[1]}). Set RAY_AUTH_MODE=token, and "
                "RAY_AUTH_TOKEN to the cluster's token where ~/.ray/auth_token does not hold it."
            ) from None
        raise InputError(
            f"no Ray cluster answers at {address} within {ANSWER_SECONDS:g} s. "
            "Start one (ray start --head), or leave hydra.launcher.ray.init.address out: a cluster is then started on "
            "this machine."
        ) from None
    with_gpu = [node for node in nodes if node.get("GPU", 0) >= 1]
    if "cuda" in devices and not with_gpu:
        raise InputError(f"device=cuda: no node of the Ray cluster at {address} has a GPU. Write device=cpu.")
    if devices != {"cpu"} and with_gpu:
        return Places(1, None, min(max(1, int(node.get("CPU", 1) // node["GPU"])) for node in with_gpu))
    cpus = min((int(node["CPU"]) for node in nodes if node.get("CPU", 0) >= 1), default=1)
    return Places(1, (), max(1, cpus // (options.devices or 1)))


def launch(options: SweepOptions, places: Places, task: JobTask, numbers: Sequence[int]) -> None:
    """Start the jobs of these numbers with the launcher, and return when they have ended."""
    if options.launcher == "local":
        from joblib import Parallel, delayed

        one_by_one: Any = {"pre_dispatch": "n_jobs", "batch_size": 1}  # a worker that is free is given the next job
        Parallel(n_jobs=places.number, **one_by_one)(delayed(run_job)(task, number) for number in numbers)
    elif options.launcher == "slurm":
        _with_submitit(options, places, task, numbers)
    elif options.launcher == "ray":
        _with_ray(options, places, task, numbers)
    else:
        for number in numbers:
            task(number)


def _with_submitit(options: SweepOptions, places: Places, task: JobTask, numbers: Sequence[int]) -> None:
    minutes = _SLURM_MINUTES
    if options.job_timeout is not None:
        minutes = math.ceil((options.retries + 1) * (options.job_timeout + 60) / 60)
    asked = {"name": "profiling", "timeout_min": minutes, "cpus_per_task": places.cpus or _SLURM_CPUS}
    if places.gpus is None:  # Slurm refuses to hand out 0 GPUs where it has none
        asked["gpus_per_node"] = 1
    if options.cluster == "slurm" and options.devices is not None:
        asked["array_parallelism"] = options.devices
    folder = Path(task.folder, "launcher", ".submitit", "%j")
    for each in _submitit(options, folder, asked).map_array(task, numbers):
        each.result()


def _with_ray(options: SweepOptions, places: Places, task: JobTask, numbers: Sequence[int]) -> None:
    import ray  # type: ignore

    gpus = int(places.gpus is None)
    settings: dict[str, Any] = {"address": options.ray_address, "log_to_driver": False, "logging_level": "WARNING"}
    if options.ray_address == "local":
        os.environ.setdefault("RAY_worker_niceness", "0")  # 15 otherwise: others would run first on a job's cores
        settings |= {
            "num_gpus": places.number * gpus,
            "num_cpus": places.number * (places.cpus or 1),
            "include_dashboard": False,
            "object_store_memory": 78_643_200,  # bytes, the least that Ray takes: jobs return nothing
        }
    else:
        settings["runtime_env"] = {"env_vars": {"PYTHONPATH": task.python_path}}
    # A job whose worker is gone is started again; it counts its tries itself.
    asked = {"num_gpus": gpus, "num_cpus": places.cpus or 1, "max_retries": 20}
    before = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(**settings | options.own_below(f"{OWN}ray.init."))
        signal.signal(signal.SIGTERM, before)  # Ray takes it, which is to end a sweep
        run = ray.remote(**asked | options.own_below(f"{OWN}ray.remote."))(run_job)
        ray.get([run.remote(task, number) for number in numbers])
    finally:
        ray.shutdown()
