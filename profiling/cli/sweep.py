"""`--multirun`: a run for each combination of the swept values, started by a launcher of Hydra.

The command line is expanded here and written to `sweep.json` before the first job begins. Hydra's launcher then gets
nothing but the numbers of the jobs (`conf/sweep`), and starts `profiling.run.sweep_job.JobTask` with each. Retries and
resume go by the state that the jobs write into their folders, so they are the same for all launchers.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import hydra
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from msgspec.structs import replace
from omegaconf import OmegaConf

from profiling.cli.app import SWEEP_OPTIONS
from profiling.errors import (
    InputError,
    check_choice,
    check_number,
    check_whole,
    command,
    override,
    print_text,
    reason_of,
)
from profiling.machine.places import physical_cores, visible_gpus
from profiling.results.jsonl import RESULTS_FILE
from profiling.results.run_folder import claimed, new_folder
from profiling.results.sweep import (
    ENDED,
    LAUNCHERS,
    Launcher,
    Sweep,
    SweepJob,
    read_plan,
    read_sweep,
    write_job,
    write_sweep,
)
from profiling.run.sweep_job import INTERRUPTED, JobTask

#: The plugin of each launcher.
PLUGINS = {"local": "hydra-joblib-launcher", "slurm": "hydra-submitit-launcher", "ray": "hydra-ray-launcher"}
#: Seconds in which a Ray cluster must answer.
ANSWER_SECONDS = 30.0
#: Most jobs: a sweep of more is a mistake in a list of values.
MOST_JOBS = 10_000
_CONFIG = Path(__file__).resolve().parents[2] / "conf" / "sweep"
_POLL_SECONDS = 0.5
_FOLDER = "hydra.sweep.dir"

Launch = Callable[[Sequence[int]], None]


@dataclass(frozen=True)
class SweepOptions:
    """How the jobs of a sweep are started.

    `devices` is how many jobs of this machine run at a time, each alone on its device. `own` are the overrides of the
    launcher's own config.
    """

    launcher: Launcher = "basic"
    devices: int | None = None
    retries: int = 0
    job_timeout: float | None = None
    own: tuple[str, ...] = ()

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


def sweep(
    target: str, arguments: Sequence[str], parsed: Any, validate: Callable[[Sequence[str]], None], started: float
) -> int:
    """Run the sweep of a command line with --multirun; return the highest exit code of its runs.

    Args:
        target: of `python -m profiling.TARGET`.
        arguments: the words after it.
        parsed: what Hydra's parser makes of them.
        validate: raises an InputError where the overrides of a job are wrong.
        started: when this process began (`time.time`).

    Raises:
        InputError: a wrong option, a swept key or value that does not exist, a launcher that is not installed or does
            not answer, or a folder that is in use, or belongs to something else.

    """
    given = OverridesParser.create().parse_overrides(list(parsed.overrides))
    options, jobs, folder, resume = _plan(given)
    for job in _one_for_each_value(jobs):
        validate(job)
    places = _places(options, jobs)
    if folder is None:
        folder = new_folder(Path("runs") / target, datetime.now().strftime("%Y-%m-%d_%H-%M-%S"))
    folder.mkdir(parents=True, exist_ok=True)
    flags = [word for word in arguments if word not in parsed.overrides and word not in ("--multirun", "-m")]
    task = JobTask(
        folder=str(folder.absolute()),
        command=(*run_command(target), *flags),
        working_dir=str(Path.cwd()),
        python_path=os.pathsep.join(path or str(Path.cwd()) for path in sys.path),
        locks=str(Path(tempfile.gettempdir()) / f"rt-profiling-{os.getuid()}"),
        gpus=places.gpus,
        cpus=places.cpus,
        retries=options.retries,
        timeout=options.job_timeout,
    )
    with claimed(folder, resume, lambda line: print(line, file=sys.stderr), started=started, key=_FOLDER):
        if resume is None:
            planned = tuple(SweepJob(number=n, folder=str(n), overrides=tuple(job)) for n, job in enumerate(jobs))
            own = Sweep(
                target=target,
                launcher=options.launcher,
                began=datetime.now(UTC).isoformat(timespec="seconds"),
                argv=tuple(arguments),
                jobs=planned,
            )
            write_sweep(folder, own)
        else:
            _resume(folder, target, jobs, options.launcher)
        repeat = command("-m", f"profiling.{target}", *(word for word in arguments if not word.startswith("resume=")))
        return perform(folder, options, task, _launch_with(options, places, task), repeat)


def run_command(target: str) -> tuple[str, ...]:
    """Return the first words of the command of a run."""
    return (sys.executable, "-m", f"profiling.{target}")


def perform(folder: Path, options: SweepOptions, task: JobTask, launch: Launch, repeat: str) -> int:
    """Launch the jobs that are left until none is, print a line for each that ends, return the highest exit code.

    `repeat` is the command that began the sweep.
    """
    failure = None
    with _progress(folder, options):
        try:
            failure = _launched_until_none_is_left(folder, task.retries, launch)
        except KeyboardInterrupt:
            for job in _silent(folder):
                write_job(folder, replace(job, state="waiting", tries=job.tries - 1, reason="interrupted"))
            failure = "interrupted; finished cells are kept"
            if options.launcher == "slurm":
                failure += ", and jobs that Slurm has go on (scancel ends them)"
    jobs = read_sweep(folder).jobs
    if any((folder / job.folder / RESULTS_FILE).exists() for job in jobs):
        from profiling.report.sweep import write_sweep_report  # imports what a refused command line does not need

        print_text(write_sweep_report(folder))
    counts = Counter(job.state for job in jobs)
    summary = ", ".join(f"{number} {state}" for state, number in counts.items())
    print(f"sweep: {summary} -> {folder}", file=sys.stderr)
    if failure is not None:
        print(f"{failure}.", file=sys.stderr)
    if counts["done"] < len(jobs):
        print(f"To run what is missing:\n  {repeat} {override('resume', folder)}", file=sys.stderr)
    if failure is not None and failure.startswith("interrupted"):
        return INTERRUPTED
    return max([int(failure is not None), *(_exit_code(job) for job in jobs)])


def _exit_code(job: SweepJob) -> int:
    if job.state in ("failed", "done"):
        return job.exit_code or 0
    return 1


# The plan.


def _plan(given: Sequence[Override]) -> tuple[SweepOptions, list[list[str]], Path | None, str | None]:
    """Return the options of the sweep, the overrides of each job, the folder where it is given, and `resume`."""
    values: dict[str, Any] = dict(SWEEP_OPTIONS)
    own: list[str] = []
    of_jobs: list[Override] = []
    folder: Path | None = None
    resume: str | None = None
    for each in given:
        key, text = each.get_key_element().lstrip("+"), each.input_line or ""
        if key in (*SWEEP_OPTIONS, "resume") and each.is_sweep_override():
            raise InputError(f"{text}: {key} is of the whole sweep. Give one value.")
        if key in SWEEP_OPTIONS:
            values[key] = each.value()
        elif key == "resume":
            resume = None if each.value() is None else _path(each)
        elif key == _FOLDER:
            folder = Path(_path(each))
        elif key.startswith(("hydra.launcher.", "hydra/launcher")):
            own.append(text)
        elif key.startswith(("hydra.sweep", "hydra/sweep")):
            raise InputError(f"{text} has no effect: the folders of a sweep are numbered. Leave it out.")
        elif not key.startswith("hydra.run."):
            of_jobs.append(each)
    check_choice("launcher", values["launcher"], LAUNCHERS)
    if values["devices"] is not None:
        check_whole("devices", values["devices"], most=10_000)
    check_whole("retries", values["retries"], least=0, most=100)
    if values["job_timeout"] is not None:
        check_number("job_timeout", values["job_timeout"], above=0)
    if resume is not None and folder is not None and folder.resolve() != Path(resume).resolve():
        raise InputError(f"resume={resume} and hydra.sweep.dir={folder} are different folders. Leave one out.")
    number = math.prod(len(list(each.sweep_string_iterator())) for each in of_jobs if each.is_discrete_sweep())
    if number > MOST_JOBS:
        raise InputError(f"the swept values make {number:,} jobs. Sweep fewer values: at most {MOST_JOBS:,} jobs.")
    (jobs,) = BasicSweeper.split_arguments(list(of_jobs), None)
    options = SweepOptions(own=tuple(own), **values)
    return options, jobs, Path(resume) if resume is not None else folder, resume


def _path(given: Override) -> str:
    return str(OmegaConf.create({"path": given.value()}).path)  # without the escapes of an interpolation


def _one_for_each_value(jobs: Sequence[list[str]]) -> Iterator[list[str]]:
    """Yield jobs until each value of each override was in one of them."""
    seen: set[str] = set()
    for job in jobs:
        if not seen.issuperset(job):
            seen.update(job)
            yield job


def _resume(folder: Path, target: str, jobs: Sequence[Sequence[str]], launcher: Launcher) -> None:
    """Let the jobs that did not end well begin anew.

    Raises:
        InputError: the folder holds no sweep, or another one.

    """
    before = read_plan(folder)
    if before.target != target or [job.overrides for job in before.jobs] != [tuple(job) for job in jobs]:
        repeat = command("-m", f"profiling.{before.target}", *before.argv, override("resume", folder))
        raise InputError(f"resume={folder} was begun with other words. Repeat its command: {repeat}")
    write_sweep(folder, replace(before, launcher=launcher))
    for job in read_sweep(folder).jobs:
        if job.state not in ("done", "running") and (folder / job.folder).is_dir():
            write_job(folder, SweepJob(number=job.number, folder=job.folder, overrides=job.overrides))


# Where the jobs run.


def _places(options: SweepOptions, jobs: Sequence[Sequence[str]]) -> Places:
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
        return _places_of_cluster(address, options, needs_gpu=devices != {"cpu"})
    gpus = () if devices == {"cpu"} else tuple(visible_gpus())
    cores = physical_cores()
    kind, most = ("GPUs", len(gpus)) if gpus else ("physical CPU cores", len(cores))
    number = options.devices or (len(gpus) if gpus else 1)
    if number > most:
        raise InputError(f"devices={number}: this machine has {most} {kind}. Give {most} or fewer.")
    cpus = sum(len(core) for core in cores) // number
    is_ray = options.launcher == "ray"  # which hands out the GPUs itself
    return Places(number, None if is_ray and gpus else gpus[:number], int(bool(gpus)), cpus)


_ASK_RAY = """
import json, sys, ray
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
print(json.dumps([node["Resources"] for node in ray.nodes() if node["Alive"]]))
"""


def _places_of_cluster(address: str, options: SweepOptions, *, needs_gpu: bool) -> Places:
    """Ask a running Ray cluster for its GPUs and CPUs.

    Raises:
        InputError: it does not answer within `ANSWER_SECONDS`, or has no node for a job.

    """
    try:
        words = [sys.executable, "-c", _ASK_RAY, address]
        answer = subprocess.run(words, capture_output=True, text=True, timeout=ANSWER_SECONDS, check=True)
        nodes = cast(list[dict[str, float]], json.loads(answer.stdout.strip().splitlines()[-1]))
    except (subprocess.SubprocessError, ValueError, IndexError):
        raise InputError(
            f"no Ray cluster answers at {address} within {ANSWER_SECONDS:g} s. Start one (ray start --head), or leave "
            "hydra.launcher.ray.init.address out: a cluster is then started on this machine."
        ) from None
    with_gpu = [node for node in nodes if node.get("GPU", 0) >= 1]
    if needs_gpu and with_gpu:
        return Places(1, None, 1, min(max(1, int(node.get("CPU", 1) // node["GPU"])) for node in with_gpu))
    cpus = min(int(node.get("CPU", 0)) for node in nodes if node.get("CPU", 0) >= 1)
    return Places(1, (), 0, max(1, cpus // (options.devices or 1)))


def _is_installed(plugin: str) -> bool:
    with contextlib.suppress(ModuleNotFoundError):
        return find_spec(f"hydra_plugins.{plugin.replace('-', '_')}") is not None
    return False


# The launch.


def _launch_with(options: SweepOptions, places: Places, task: JobTask) -> Launch:
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
        with _arguments(["--multirun", f"job={jobs}", *words, *options.own]):
            hydra.main(version_base=None, config_path=str(_CONFIG), config_name=options.launcher)(task)()

    return launch


def _ray_words(options: SweepOptions, places: Places, task: JobTask) -> list[str]:
    """Return the settings of a cluster that is started for the sweep, or of the connection to another one."""
    init = "+hydra.launcher.ray.init"
    if any("ray.init.address=" in each and not each.endswith("=local") for each in options.own):
        return [override(f"{init}.runtime_env.env_vars.PYTHONPATH", task.python_path)]
    return [
        f"{init}.num_gpus={places.number * places.gpus_of_a_job}",
        f"{init}.num_cpus={places.number * (places.cpus or 1)}",
        f"{init}.include_dashboard=false",
        f"{init}.log_to_driver=false",
        f"{init}.logging_level=WARNING",
    ]


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


def _launched_until_none_is_left(folder: Path, retries: int, launch: Launch) -> str | None:
    """Launch jobs until none is left that may be tried; return what keeps the launcher from going on, in one line.

    A launcher may fail because a worker is gone; joblib then kills the workers of all other jobs, too. If several jobs
    have lost theirs, one of them may be the cause: each is tried once more alone, and this try is not counted.
    """
    while True:
        jobs = read_sweep(folder).jobs
        waiting = [job.number for job in jobs if job.state == "waiting"]
        silent = _silent(folder)
        for job in silent:
            if len(silent) > 1:
                write_job(folder, replace(job, state="waiting", tries=job.tries - 1))
            elif job.tries > retries:
                write_job(folder, replace(job, ended=datetime.now(UTC).isoformat(timespec="seconds")))
        alone = [job.number for job in silent if len(silent) > 1 or job.tries <= retries]
        if not alone and not waiting:
            if not any(job.state == "running" for job in jobs):
                return None
            time.sleep(_POLL_SECONDS)  # a launcher that failed may have left jobs on other hosts
            continue
        before = [(job.state, job.tries) for job in jobs]
        try:
            launch(alone[:1] or waiting)
        except Exception as error:
            if [(job.state, job.tries) for job in read_sweep(folder).jobs] == before:
                return f"the launcher failed: {reason_of(error)}"


def _silent(folder: Path) -> list[SweepJob]:
    """Return the jobs that have ended without a word: nothing but their silence says so."""
    return [job for job in read_sweep(folder).jobs if job.state == "died" and job.ended is None]


@contextmanager
def _progress(folder: Path, options: SweepOptions) -> Iterator[None]:
    """Print a line for each job that ends while the block runs."""
    jobs = read_sweep(folder).jobs
    told = {job.number for job in jobs if job.state in ENDED}
    values: dict[str, set[str]] = {}
    for job in jobs:
        for word in job.overrides:
            values.setdefault(word.partition("=")[0], set()).add(word)
    swept = {key for key, words in values.items() if len(words) > 1}
    kept = f", {len(told)} of them done" if told else ""
    print(f"sweep: {len(jobs)} jobs{kept}, launcher={options.launcher} -> {folder}", file=sys.stderr)
    stop = threading.Event()

    def tell() -> None:
        for job in read_sweep(folder).jobs:
            if job.number in told or job.state not in ENDED or job.ended is None:
                continue
            told.add(job.number)
            words = " ".join(word for word in job.overrides if word.partition("=")[0] in swept)
            end = f": {job.reason}" if job.reason else ""
            device = f" on {job.device}" if job.device else ""
            print(f"[{len(told)}/{len(jobs)}] job {job.number} {job.state}{device}: {words}{end}", file=sys.stderr)

    def watch() -> None:
        while not stop.wait(_POLL_SECONDS):
            tell()

    thread = threading.Thread(target=watch, name="sweep-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        tell()
