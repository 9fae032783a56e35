"""The compiler caches of cells: cells that compile the same code share one cold compile, and one package.

With `compile_cache=fresh` the first cell of a component and of a compiler's options gets an empty folder, and later
cells with equal options start from what it left; with `cold` each cell gets an empty one. The record says which
(`prepare.cache`), and the seconds of preparing from an empty cache (`prepare.cold_s`).
"""

from __future__ import annotations

import getpass
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

from msgspec.structs import replace

from profiling.components.spec import PACKAGES_FOLDER
from profiling.results.measured import Prepare, Start
from profiling.results.record import decode_section, encode_sections
from profiling.results.run_folder import write_json
from profiling.run.events import Event, Sections
from profiling.run.job import RECIPE, Job
from profiling.run.session import most_processes
from profiling.run.task import Cell, Task

#: The variable that makes torch write its compile log into a folder.
TORCH_TRACE = "TORCH_TRACE"
#: Options of a recipe that do not change the compiled code.
_NOT_COMPILED = {"capture", "tolerance"}
#: In the options of a compiler that times candidates while it compiles.
_BENCHMARKING = ("max-autotune", '"max_autotune": true', '"coordinate_descent_tuning": true')
#: In the options of a compiler that writes into a folder of its own, from which no other cell can load.
_KEEPING = '"keep_kernels": true'
#: Phases of preparing that a filled cache shortens.
FROM_CACHE = ("inductor", "autotune", "package")


@dataclass
class Cache:
    """A folder of compiled code, that of its packages, and the first cell that prepared from them."""

    folder: TemporaryDirectory[str] | None = None  # None: inductor's default one, which may hold code of earlier runs
    packages: Path | None = None  # in the run folder, so that a package is linked and not copied; None: not shared
    filled_by: str | None = None  # its variant
    phases: Mapping[str, float] = field(default_factory=dict)  # of preparing it, in seconds
    cells: int = 0  # that use it now

    @property
    def variables(self) -> Mapping[str, str]:
        """Environment variables that point compilers to it."""
        return {} if self.folder is None else cache_variables(self.folder.name, self.packages)

    @property
    def is_fillable(self) -> bool:
        """Whether it is empty, and later cells will start from it."""
        return self.packages is not None and self.filled_by is None

    def fill(self, starts: Sequence[Start], by: str) -> None:
        """Record that cold starts filled the cache: those of `by`."""
        self.filled_by = by
        self.phases = {
            phase: sum(each.phases.get(phase, 0.0) for each in starts)
            for phase in dict.fromkeys(phase for each in starts for phase in each.phases)
        }

    def empty(self) -> None:
        """Remove what a failed start left."""
        if self.folder is not None and self.is_fillable:
            self.remove()
            Path(self.folder.name).mkdir()

    def remove(self) -> None:
        """Remove the folders."""
        if self.folder is not None:
            self.folder.cleanup()
        if self.packages is not None:
            shutil.rmtree(self.packages, ignore_errors=True)

    def describe(self, event: Event, variant: str) -> Event:
        """Return the event of a cell, with the cache that it compiled from in its section `prepare`."""
        if self.folder is None or not isinstance(event, Sections) or "prepare" not in event.sections:
            return event
        try:
            prepare: Prepare | None = decode_section("prepare", event.sections["prepare"])
        except ValueError:  # the record says what is wrong with it
            return event
        if prepare is None or not prepare.graphs:
            return event
        if self.filled_by is not None and prepare.cache_hits:
            saved = (self.phases.get(phase, 0.0) - prepare.phases.get(phase, 0.0) for phase in FROM_CACHE)
            cold_s = max(prepare.seconds + sum(saved), prepare.seconds)
            prepare = replace(prepare, cache=f"from {self.filled_by}", cold_s=cold_s)
        else:
            if self.filled_by is None:
                self.filled_by, self.phases = variant, prepare.phases
            prepare = replace(prepare, cache="cold")
        return Sections({**event.sections, **encode_sections(prepare=prepare)})


class CompileCaches:
    """The compiler caches of a run, by its option `compile_cache`: fresh, cold or shared.

    `shared` is the folder of the caches that outlive the run. The memory that a cell takes is kept there, too. A later
    run with the same `setup` (versions, device, code) that finds it expects the cell's code in the caches.
    """

    def __init__(self, kind: str = "fresh", shared: Path | None = None) -> None:
        self.kind, self.setup = kind, ""
        self._caches: dict[str, Cache] = {}
        self._compiled = set[str]()  # code that cells of this run have compiled
        self._folder = None if shared is None or kind != "shared" else shared / "profiling"
        self._memory: dict[str, dict[str, int]] = {}  # by cell, as read before it began

    def has_code(self, job: Job) -> bool:
        """Return whether the caches contain the code of a cell, so that no other cell has to compile it first."""
        return compiled_code(job) in self._compiled or bool(self.memory_of(job))

    def add_code(self, job: Job) -> None:
        """Note that the caches contain the code of a cell from now on."""
        if shares_code(job) and (code := compiled_code(job)) is not None:
            self._compiled.add(code)

    def memory_of(self, job: Job) -> dict[str, int]:
        """Return the memory in bytes, by kind, that a cell took in an earlier run; empty where that is unknown."""
        if self._folder is None:
            return {}
        if job.name not in self._memory:
            self._memory[job.name] = {}
            with suppress(OSError, ValueError, TypeError, AttributeError, OverflowError):
                content = json.loads((self._folder / self._memory_file(job)).read_text(encoding="utf-8"))
                self._memory[job.name] = {str(kind): int(taken) for kind, taken in content.items()}
        return self._memory[job.name]

    def keep_memory(self, job: Job, taken: Mapping[str, int]) -> None:
        """Keep the memory in bytes, by kind, that a prepared cell takes; its code is in the caches."""
        if self._folder is not None and shares_code(job):
            with suppress(OSError):  # a folder that cannot be written to keeps nothing
                self._folder.mkdir(parents=True, exist_ok=True)
                write_json(self._folder / self._memory_file(job), taken)

    def _memory_file(self, job: Job) -> str:
        """Return the name of the file with a cell's memory. A cell that is built or prepared otherwise has another."""
        settings, parts = job.settings, [self.setup, job.row, job.variant_options, job.procedure]
        parts += [settings.device, settings.dtype, settings.scale, *map(asdict, job.networks)]
        return f"{sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:32]}.json"

    @contextmanager
    def lease(self, task: Task) -> Iterator[Cache]:
        """Yield the cache for a task; one that no cell has filled is removed when the last of its cells ends.

        Until it is filled, only one of the cells that share it prepares at a time.
        """
        if self.kind == "shared":
            yield Cache()
            return
        job = task.job if isinstance(task, Cell) else None
        key = compiled_code(job) if job is not None and self.kind == "fresh" else None
        cache = self._caches.get(key) if key is not None else None
        if cache is not None and cache.filled_by is None and job is not None and not job.compiles:
            cache, key = None, None  # without a compiler no cell waits for another, and two would fill it at a time
        if cache is None:
            cache = Cache(TemporaryDirectory(prefix="inductor-", ignore_cleanup_errors=True))
            if key is not None and job is not None:
                cache.packages = Path(job.run, "kernels", f".shared-{uuid4().hex}")
                self._caches[key] = cache
        cache.cells += 1
        try:
            yield cache
        finally:
            cache.cells -= 1
            if key is None or (cache.filled_by is None and not cache.cells and self._caches.pop(key, None) is not None):
                cache.remove()

    def clear(self) -> None:
        """Remove all folders; the cells that could use them have ended."""
        for cache in self._caches.values():
            cache.remove()
        self._caches.clear()


def shared_folder() -> Path:
    """Return the folder in which torch's compiler keeps code from run to run; it is named as torch does."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # in a container the user may have a number only
        user = f"uid_{os.getuid()}"
    name = re.sub(r'[\\/:*?"<>|]', "_", user)
    return Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR") or f"{tempfile.gettempdir()}/torchinductor_{name}")


def compiled_code(job: Job) -> str | None:
    """Return what determines the code that the cell compiles; None if unknown."""
    if job.variant_options.get("_target_") != RECIPE:
        return None
    options = {name: value for name, value in job.variant_options.items() if name not in _NOT_COMPILED}
    return json.dumps([job.row, options], sort_keys=True)


def compares_times(job: Job) -> bool:
    """Return whether a cell may compare times while it compiles, so that nothing else may run."""
    words = json.dumps(job.variant_options.get("compiler"))
    return bool(job.imports) and (compiled_code(job) is None or any(each in words for each in _BENCHMARKING))


def shares_code(job: Job) -> bool:
    """Return whether other cells load what this one has compiled."""
    keeps = _KEEPING in json.dumps(job.variant_options.get("compiler"))
    return job.settings.compile_cache != "cold" and compiled_code(job) is not None and not keeps


def compiled_ahead(job: Job) -> list[Job]:
    """Return the parts of a cell whose code is compiled side by side before its own process starts."""
    parts = [each for each in job.parts if each.imports and not compares_times(each)]
    return parts if len(parts) > 1 and most_processes() > 1 and job.settings.compile_cache != "cold" else []


def cache_variables(folder: str, packages: Path | None = None) -> dict[str, str]:
    """Return the environment variables that keep the files of inductor and Triton in `folder`.

    `packages` is the folder of packages that cells share; None: they share none.
    """
    shared = {} if packages is None else {PACKAGES_FOLDER: str(packages)}
    return {"TORCHINDUCTOR_CACHE_DIR": folder, "TRITON_CACHE_DIR": str(Path(folder) / "triton"), **shared}
