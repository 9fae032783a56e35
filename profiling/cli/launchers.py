"""Hydra's launchers of a sweep: which is installed, where its jobs run, and how they are handed to it."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import hydra
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from profiling.errors import InputError, command, did_you_mean, override
from profiling.machine.places import physical_cores, visible_gpus
from profiling.results.sweep import Launcher
from profiling.run.sweep_job import JobTask

#: The plugin of each launcher.
PLUGINS = {"local": "hydra-joblib-launcher", "slurm": "hydra-submitit-launcher", "ray": "hydra-ray-launcher"}
#: Seconds in which a Ray cluster must answer.
ANSWER_SECONDS = 30.0
#: Bytes of the object store of a cluster of our own, the least that Ray takes: jobs return nothing.
_OBJECT_STORE = 78_643_200
_CONFIG = Path(__file__).resolve().parents[2] / "conf" / "sweep"

#: Starts the jobs of these numbers, and returns when they have ended.
Launch = Callable[[Sequence[int]], None]


@dataclass(frozen=True)
class SweepOptions:
    """How the jobs of a sweep are started.

    `devices` is how many jobs of this machine run at a time, each alone on its device. `own` are the overrides of the
    launcher's own config, `of_all` those that each job gets beside its own.
    """

    launcher: Launcher = "basic"
    devices: int | None = None
    retries: int = 0
    job_timeout: float | None = None
    own: tuple[str, ...] = ()
    of_all: tuple[str, ...] = ()

    @property
    def engine(self) -> str:
        """The plugin's launcher where it is not the preset's: `submitit_local`, for example."""
        chosen = [each.partition("=")[2] for each in self.own if each.startswith("hydra/launcher=")]
        return chosen[0] if chosen else self.launcher


@dataclass(frozen=True)
class Places:
    """Where jobs run: how many at a time on a host, and what each gets; None: the launcher hands it out."""

    number: int = 1
    gpus: tuple[str, ...] | None = ()
    gpus_of_a_job: int = 0
    cpus: int | None = None


def places_for(options: SweepOptions, jobs: Sequence[Sequence[str]]) -> Places:
    """Return where the jobs run, after a check that the launcher can be used.

    Raises:
        InputError: the launcher is not installed or does not answer, or there are fewer devices than asked for.

    """
    if options.launcher == "basic":
        if options.devices not in (None, 1):
            raise InputError(
                f"devices={options.devices}: without a launcher, jobs run one after another. Add launcher=local."
            )
        if options.own:
            raise InputError(f"{options.own[0]} belongs to a launcher. Add launcher=local, slurm or ray.")
        return Places()
    plugin = PLUGINS[options.launcher]
    if not _is_installed(plugin):
        raise InputError(
            f"launcher={options.launcher} needs {plugin}, which is not installed. To install it: "
            f"{command('-m', 'pip', 'install', plugin)}"
        )
    _check_own_keys(options)
    devices = {word.partition("=")[2] for job in jobs for word in job if word.startswith("device=")} or {"auto"}
    if numbered := sorted(each for each in devices if each.startswith("cuda:")):
        raise InputError(
            f"device={numbered[0]}: the launcher hands out the devices. Write device=cuda, and "
            f"CUDA_VISIBLE_DEVICES={numbered[0][5:]} before the command to use no other."
        )
    if options.launcher == "slurm" and options.engine != "submitit_local":
        if shutil.which("sbatch") is None:
            raise InputError("launcher=slurm needs sbatch, which is not on the path. Start the sweep on a Slurm host.")
        return Places(options.devices or 0, None, int(devices != {"cpu"}), None)
    address = next((each.partition("=")[2] for each in options.own if "ray.init.address=" in each), "local")
    if options.launcher == "ray" and address != "local":
        return _places_of_cluster(address, options, devices=devices)
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
    return Places(number, None if is_ray and gpus else gpus[:number], int(bool(gpus)), cpus)


def _check_own_keys(options: SweepOptions) -> None:
    """Check the overrides of the launcher's own config.

    Raises:
        InputError: a key or a choice that does not exist, or a value of a wrong type.

    """
    if not options.own:
        return
    try:
        _launcher_config(options.launcher, ["job=0", "folder=.", *options.own])
    except (HydraException, OmegaConfBaseException) as error:
        what, cause = (str(each or "").strip().partition("\n")[0].rstrip(".") for each in (error, error.__cause__))
        unknown = re.search(r"Could not override '([^']+)'", what)
        if unknown is None:
            raise InputError(f"launcher={options.launcher}: {f'{what}: {cause}' if cause else what}.") from None
        keys = _dotted("hydra.launcher", _launcher_config(options.launcher, ["job=0", "folder=."]))
        more = f" To pass another one on to Ray: +{unknown[1]}=VALUE." if options.launcher == "ray" else ""
        raise InputError(
            f"launcher={options.launcher} has no key {unknown[1]!r}.{did_you_mean(unknown[1], keys)}{more} "
            f"Its keys: {', '.join(key.removeprefix('hydra.launcher.') for key in keys)}"
        ) from None


def _dotted(key: str, node: object) -> list[str]:
    if not isinstance(node, dict) or not node:
        return [key]
    values = cast(dict[str, object], node)
    return [each for name, value in values.items() if name != "_target_" for each in _dotted(f"{key}.{name}", value)]


def _launcher_config(launcher: Launcher, words: Sequence[str]) -> Any:
    """Return the config of a launcher's plugin as plain data."""
    with initialize_config_dir(str(_CONFIG), version_base=None):
        cfg = compose(launcher, list(words), return_hydra_config=True)
    return OmegaConf.to_container(cfg.hydra.launcher, resolve=True)


_ASK_RAY = """
import json, sys, ray
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
print(json.dumps([node["Resources"] for node in ray.nodes() if node["Alive"]]))
"""


def _places_of_cluster(address: str, options: SweepOptions, devices: set[str]) -> Places:
    """Ask a running Ray cluster for its GPUs and CPUs; `devices` are those that jobs name.

    Raises:
        InputError: it does not answer within `ANSWER_SECONDS`, or has no GPU and a job names one.

    """
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
        return Places(1, None, 1, min(max(1, int(node.get("CPU", 1) // node["GPU"])) for node in with_gpu))
    cpus = min((int(node["CPU"]) for node in nodes if node.get("CPU", 0) >= 1), default=1)
    return Places(1, (), 0, max(1, cpus // (options.devices or 1)))


def _is_installed(plugin: str) -> bool:
    with contextlib.suppress(ModuleNotFoundError):
        return find_spec(f"hydra_plugins.{plugin.replace('-', '_')}") is not None
    return False


def launch_with(options: SweepOptions, places: Places, task: JobTask) -> Launch:
    """Return the function that starts jobs with the launcher, and returns when they have ended."""
    if options.launcher == "basic":

        def in_turns(numbers: Sequence[int]) -> None:
            for number in numbers:
                task({"job": number})

        return in_turns
    no_gpu = "null" if options.launcher == "slurm" else 0  # Slurm refuses to hand out 0 GPUs where it has none
    values: dict[str, Any] = {"places": places.number, "gpus": places.gpus_of_a_job or no_gpu}
    values |= {} if places.cpus is None else {"cpus": places.cpus}
    if options.job_timeout is not None:
        values["minutes"] = math.ceil((options.retries + 1) * (options.job_timeout + 60) / 60)
    words = [override("folder", task.folder), *(f"{key}={value}" for key, value in values.items())]
    if options.engine == "slurm" and options.devices is not None:
        words.append(f"hydra.launcher.array_parallelism={options.devices}")
    if options.launcher == "ray":
        words += _ray_words(options, places, task)

    def launch(numbers: Sequence[int]) -> None:
        jobs = ",".join(str(number) for number in numbers)
        os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises, so that errors can be printed in one line
        try:
            with _arguments(["--multirun", f"job={jobs}", *words, *options.own]):
                if options.launcher == "ray":
                    _start_ray([*words, *options.own])
                hydra.main(version_base=None, config_path=str(_CONFIG), config_name=options.launcher)(task)()
        finally:
            if "ray" in sys.modules:
                sys.modules["ray"].shutdown()

    return launch


def _ray_words(options: SweepOptions, places: Places, task: JobTask) -> list[str]:
    """Return the settings of a cluster that is started for the sweep, or of the connection to another one."""
    init = "+hydra.launcher.ray.init"
    words = [f"{init}.log_to_driver=false", f"{init}.logging_level=WARNING"]
    if any("ray.init.address=" in each and not each.endswith("=local") for each in options.own):
        return [*words, override(f"{init}.runtime_env.env_vars.PYTHONPATH", task.python_path)]
    os.environ.setdefault("RAY_worker_niceness", "0")  # 15 otherwise: others would run first on a job's cores
    return [
        *words,
        f"{init}.num_gpus={places.number * places.gpus_of_a_job}",
        f"{init}.num_cpus={places.number * (places.cpus or 1)}",
        f"{init}.include_dashboard=false",
        f"{init}.object_store_memory={_OBJECT_STORE}",
    ]


def _start_ray(words: Sequence[str]) -> None:
    """Start a cluster, or connect to one, before the plugin does: Ray takes SIGTERM, which is to end a sweep."""
    import ray  # type: ignore

    settings = _launcher_config("ray", ["job=0", *words])["ray"]["init"]
    before = signal.getsignal(signal.SIGTERM)
    ray.init(**settings)
    signal.signal(signal.SIGTERM, before)


@contextmanager
def _arguments(words: Sequence[str]) -> Iterator[None]:
    """Let Hydra read `words` as its command line."""
    before = sys.argv
    sys.argv = [before[0], *words]
    OmegaConf.clear_resolvers()  # launchers send them to their workers, and those of a run cannot be pickled
    GlobalHydra.instance().clear()
    try:
        yield
    finally:
        sys.argv = before
        GlobalHydra.instance().clear()
