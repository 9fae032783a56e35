"""A job of a sweep, as a launcher starts it: a run in a fresh process, on a device that it holds alone.

Launchers pickle this (joblib, submitit) or send it to other hosts (Ray); the run itself is a child process
`python -m profiling.TARGET`, so that its device is set before torch is imported, and that its death costs this job
only, whatever the cause. The child does not outlive this process.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from profiling.errors import INTERRUPTED, InputError, override, printable
from profiling.machine.places import Place, held_place, visible_gpus
from profiling.results.jsonl import read_records
from profiling.results.run_folder import CONFIG_FILE, JOB_LOG
from profiling.results.sweep import ENDED, State, SweepJob, keep_alive, read_job, read_plan, write_job
from profiling.run.child import end, signal_name, started

#: Seconds in which a run that is out of time may end by itself and write its records.
GRACE_SECONDS = 20.0
#: Bytes of the end of a job's output in which its error is looked for.
_TAIL = 16_384


@dataclass(frozen=True)
class JobTask:
    """Starts jobs of the sweep in `folder`, by their numbers.

    A job gets one of `gpus`, or where they are empty, none; and holds so many `cpus` alone. None: those that the
    launcher has handed out, GPUs as CUDA_VISIBLE_DEVICES says.
    """

    folder: str  # all hosts see it under this path
    command: tuple[str, ...]  # words before the overrides of a job
    working_dir: str  # of the jobs
    python_path: str  # PYTHONPATH of the jobs, so that they find what the launching process found
    locks: str  # folder for the lock files of a host's devices
    gpus: tuple[str, ...] | None = None
    cpus: int | None = None
    retries: int = 0  # how often a job that did not end well is started again
    timeout: float | None = None  # in seconds, of a try; None: any

    def __call__(self, number: int) -> None:
        """Start the job and wait for its end; its state is in its `job.json`."""
        folder = Path(self.folder)
        planned = read_plan(folder).jobs[number]
        job = read_job(folder, planned)
        if job.state == "died" and job.tries > self.retries:  # its process could not write that itself
            write_job(folder, job)
        while self._may_start(job):
            choices = [tuple(visible_gpus())] if self.gpus is None else [(gpu,) for gpu in self.gpus] or [()]
            say = partial(print, f"job {job.number}", file=sys.stderr, flush=True)
            with held_place(Path(self.locks), choices, self.cpus, say) as place:
                job = read_job(folder, planned)  # another process may have run it while this one waited for its place
                if self._may_start(job):
                    job = self._tried(folder, replace(planned, tries=job.tries + 1), place)

    def _may_start(self, job: SweepJob) -> bool:
        """Return whether to try a job: no process runs or has done it, its input is not wrong, and tries are left."""
        refused = job.state in ENDED and job.exit_code == InputError.exit_code
        return job.tries <= self.retries and job.state not in ("running", "done") and not refused

    def _tried(self, folder: Path, job: SweepJob, place: Place) -> SweepJob:
        """Start the job's process once and return what became of it."""
        host, pid = socket.gethostname(), os.getpid()
        job = replace(job, state="running", host=host, pid=pid, device=place.label, began=now())
        (folder / job.folder).mkdir(exist_ok=True)
        write_job(folder, job)
        log = folder / job.folder / JOB_LOG
        earlier = log.stat().st_size if log.exists() else 0  # bytes that earlier tries printed
        with keep_alive(folder, job):
            try:
                code, is_late = self._run(folder / job.folder, job, place)
            except KeyboardInterrupt:
                write_job(folder, replace(job, state="waiting", ended=now(), tries=job.tries - 1, reason="interrupted"))
                raise
        state, reason = self._outcome(code, is_late, folder / job.folder, earlier)
        job = replace(job, state=state, exit_code=code, ended=now(), reason=reason)
        write_job(folder, job)
        return job

    def _run(self, run: Path, job: SweepJob, place: Place) -> tuple[int, bool]:
        """Return the exit code of the job's process, and whether it was ended because its time was over."""
        resumption = [override("resume", run)] if (run / CONFIG_FILE).exists() else []
        words = [*self.command, *job.overrides, override("hydra.run.dir", run), *resumption]
        variables = os.environ | place.variables() | {"PYTHONPATH": self.python_path}
        with ExitStack() as stack:
            with (run / JOB_LOG).open("ab") as log, place.on_its_cpus():
                options = {"env": variables, "cwd": self.working_dir, "pass_fds": place.locks}  # held to its end
                process = stack.enter_context(started(words, log, **options))
            try:
                return process.wait(self.timeout), False
            except subprocess.TimeoutExpired:
                is_late = True
            finally:
                end([process], GRACE_SECONDS)
            return process.wait(), is_late

    def _outcome(self, code: int, is_late: bool, run: Path, earlier: int) -> tuple[State, str | None]:
        """Return the state of a job whose process has ended, and the reason in one line.

        `earlier` are the bytes of its output that earlier tries printed.
        """
        if is_late:
            return "timed out", f"it took longer than job_timeout={self.timeout:g} s; finished cells are kept"
        if code == 0:
            return "done", None
        if code < 0:
            return "died", f"its process was killed by {signal_name(-code)}"
        if code == INTERRUPTED:
            return "died", "its process was ended by SIGTERM or Ctrl-C; finished cells are kept"
        return "failed", _why_failed(run, earlier)


def run_job(task: JobTask, number: int) -> None:
    """Run a job: what launchers call in their workers, by the name of this function."""
    task(number)


def _why_failed(run: Path, earlier: int) -> str | None:
    """Return the last error that a try printed, else the first cell that failed, else the last printed line."""
    log = run / JOB_LOG
    with log.open("rb") as file:
        file.seek(max(earlier, log.stat().st_size - _TAIL))
        lines = [line for line in file.read().decode("utf-8", errors="replace").splitlines() if line.strip()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    with suppress(InputError):  # it ended before its first cell
        wrong = [record for record in read_records(run).records if record.status in ("failed", "invalid")]
        if wrong and not errors:
            more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
            first = f"{wrong[0].component}.{wrong[0].variant} {wrong[0].status}: {wrong[0].reason}"
            return f"{printable(first, 450)}{more}"
    return printable((errors or lines)[-1], 500) if lines else None


def now() -> str:
    """Return the time in UTC (ISO 8601)."""
    return datetime.now(UTC).isoformat(timespec="seconds")
