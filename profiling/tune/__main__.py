"""Search for the fastest correct recipe of a component within a budget: `python -m profiling.tune`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import yaml
from omegaconf import DictConfig

from profiling.cli.app import CONF, execute, main
from profiling.cli.config import read_config
from profiling.errors import InputError, command, override, printable
from profiling.report.cells import speedup_of
from profiling.report.format import show
from profiling.report.tune import TUNE, doubt
from profiling.results.jsonl import RESULTS_FILE, read_records
from profiling.results.record import BASELINE, Record
from profiling.results.run_folder import write_text
from profiling.results.verdicts import fastest_correct
from profiling.run.child import Child, end, started
from profiling.run.job import RunConfig
from profiling.run.runner import Run, exit_code
from profiling.run.runner import execute as run_cells
from profiling.tune.search import NOT_TRIED, SEARCHING, Search
from profiling.tune.space import Space

#: The winner's name as a variant.
TUNED = "tuned"
#: Seconds beyond their budget in which searches on further devices must end.
ENDING = 120.0


def run(cfg: DictConfig, folder: Path) -> int:
    """Search the recipes of a component."""
    config, space, excluded = checked(cfg)
    devices = devices_of(config)
    own, *others = shares_of(space, devices) if devices else [space]
    if devices:
        config = replace(config, settings=replace(config.settings, device=devices[0]))

    def perform(run: Run) -> int:
        for reason in dict.fromkeys(excluded.values()):
            names = ", ".join(name for name, each in excluded.items() if each == reason)
            run.progress.say(f"left out: {names} ({reason})")
        seconds, search = config.seconds or 0.0, Search(space, config.seconds or 0.0)
        with ExitStack() as stack:
            if others:
                shares = {device: share.steps for device, share in zip(devices[1:], others, strict=True)}
                others_in = folder.absolute() / "devices"
                elsewhere = searching(others_in, shares, SEARCHING * seconds, run.progress.say)
                search.own, search.others = own, stack.enter_context(elsewhere)
            run_cells((run,), search)
        return finished(run, search.space)

    return execute(TUNE, config, folder, perform)


def checked(cfg: DictConfig) -> tuple[RunConfig, Space, Mapping[str, str]]:
    """Return the run's config, the space, and why steps are left out of it, by name.

    The config has a variant for each step, for the probe to check.

    Raises:
        InputError: an option that a search does not support, or a step that is wrong.

    """
    config = read_config(cfg)
    if len(config.components) > 1:
        names = ",".join(spec.name for spec in config.components)
        raise InputError(f"component=[{names}]: a search takes one component. Start a search for each.")
    if set(config.variants) != {BASELINE}:
        raise InputError(f"variant=[{','.join(config.variants)}]: a search makes its recipes of steps=[NAME,NAME].")
    if config.seconds is None:
        raise InputError("seconds=null: a search needs a budget. Write seconds=600, for example.")
    space = Space.of(config.steps, config.source.get("steps"), config.source.get("max_rel_l2"))
    left_out = space.excluded()
    space = space.possible()
    if not space.steps:
        name, reason = next(iter(left_out.items()))
        raise InputError(f"no step is left to search: {name}: {reason}{'.' * (not reason.endswith('?'))}")
    for name, wrong in (("isolation=none", config.isolation == "none"), ("check=true", config.settings.check)):
        if wrong:
            raise InputError(f"{name}: a search times recipes in processes of their own. Leave it out.")
    variants = {BASELINE: config.variants[BASELINE], **space.variants()}
    config = replace(config, variants=variants, source={**config.source, "variant": variants})
    return config, space, left_out


def devices_of(config: RunConfig) -> list[str]:
    """Return the devices to search on at once; empty if `devices` is not given.

    Raises:
        InputError: `devices` is no list of names, names one twice, or `device` is given too.

    """
    devices = config.source.get("devices")
    if devices is None:
        return []
    if not isinstance(devices, list) or not devices or not all(isinstance(each, str) for each in devices):
        raise InputError(f"devices={devices}: write devices=[cuda:0,cuda:1], for example, or device=cuda:1 for one.")
    if len({*devices}) < len(devices):
        raise InputError(f"devices=[{','.join(devices)}] names a device twice. Name each once.")
    if config.settings.device != "auto":
        raise InputError(f"device={config.settings.device} and devices are given. Leave one out.")
    return devices


def shares_of(space: Space, devices: Sequence[str]) -> list[Space]:
    """Return the steps that each device searches, the first one until it has the results of the others.

    Raises:
        InputError: the steps cannot be divided among so many devices.

    """
    shares = space.shares(len(devices))
    if len(shares) < len(devices):
        raise InputError(
            f"devices=[{','.join(devices)}]: these steps are searched on {len(shares)} at most, since alternatives are "
            "divided among the devices: compilers, for example. Name fewer devices, or more steps."
        )
    return shares


@contextmanager
def searching(
    folder: Path, shares: Mapping[str, Iterable[str]], seconds: float, say: Callable[[str], None]
) -> Iterator[Callable[[float], list[Record]]]:
    """Inside the block, search on further devices for `seconds`, each the steps of its share; yield `joined`.

    Each is a run of its own in `folder`. Its command line is otherwise that of this process, with which it ends, also
    where that is killed. `say` is told of a search that failed.
    """
    replaced = ("devices=", "device=", "steps=", "seconds=", "resume=", "hydra.run.dir=")
    arguments = [each for each in sys.argv[1:] if not each.startswith(replaced)]
    folder.mkdir(exist_ok=True)
    searches, processes = list[Child](), ExitStack()
    try:
        for device, steps in shares.items():
            theirs = folder / device.replace(":", "_")
            begun = (theirs / RESULTS_FILE).exists()
            options = [override("resume" if begun else "hydra.run.dir", theirs), override("device", device)]
            options += [f"steps=[{','.join(steps)}]", f"seconds={seconds:g}"]
            with theirs.with_suffix(".log").open("ab") as log:
                words = [sys.executable, "-m", "profiling.tune", *arguments, *options]
                searches.append(processes.enter_context(started(words, log)))
        yield partial(joined, folder, searches)
    finally:
        end(searches, ENDING)
        for device, search in zip(shares, searches, strict=False):  # an interrupt may come before all have started
            if code := search.wait():
                log = folder / f"{device.replace(':', '_')}.log"
                say(f"note: the search on {device} ended with exit code {code}. Its output is in {log}")
        processes.close()


def joined(folder: Path, searches: Sequence[Child], seconds: float) -> list[Record]:
    """Wait for searches to end, for the `seconds` that are left of their budget, and return what they measured."""
    for process in searches:
        with suppress(subprocess.TimeoutExpired):
            process.wait(seconds + ENDING)
    files = sorted(folder.glob(f"*/{RESULTS_FILE}"))
    return [record for file in files for record in read_records(file).records if record.variant != BASELINE]


def finished(run: Run, space: Space) -> int:
    """Write the winner as `variant/tuned.yaml` into the run folder, say how to use it, and return the exit code.

    A component of the user's own is written beside it, since a command has one --config-dir.
    """
    records = tuple(run.records.values())
    best = fastest_correct(records)
    if best is None:
        eager = next((each for each in records if each.variant == BASELINE), None)
        others = [each for each in records if each.variant != BASELINE]
        refused = [each.reason for each in others if each.status == "skipped" and each.reason != NOT_TRIED]
        if refused and len(refused) == len(others):
            reason = f"none of its steps can run here: {refused[0]}. Name others: steps=[compile]"
        elif eager is None or eager.status == "skipped":
            seconds = run.config.seconds or 0.0
            reason = f"nothing was timed within seconds={seconds:g}. Write seconds={max(60, round(4 * seconds))}"
        else:
            reason = f"{BASELINE} {eager.status}: {eager.reason or 'it has no correct time'}"
        run.progress.say(f"error: the search has no winner: {reason}")
        return exit_code(() if eager is None else (eager,)) or 1
    chosen = space.chosen(best.variant)
    assert chosen is not None, "the winner is of this search"
    path = run.folder / "variant" / f"{TUNED}.yaml"
    path.parent.mkdir(exist_ok=True)
    recipe = yaml.safe_dump({TUNED: space.recipe(chosen)}, sort_keys=False)
    write_text(path, f"# {_evidence(best, records)}\n{recipe}")
    own = Path("component", f"{best.component}.yaml")
    if not (CONF / own).exists():
        (run.folder / own).parent.mkdir(exist_ok=True)
        node = {best.component: run.config.source["component"][best.component]}
        write_text(run.folder / own, yaml.safe_dump(node, sort_keys=False))
    if best.variant == BASELINE:
        run.progress.say(f"no recipe is known to be faster than eager, so {path} is eager.")
        return exit_code(records)
    words = ["-m", "profiling.generic_forward", f"--config-dir={run.folder}"]
    words += [f"component=[{best.component}]", f"variant=[{BASELINE},{TUNED}]"]
    run.progress.say(f"the winner is {best.variant}{doubt(best, records)}: {path}. To use it:\n  {command(*words)}")
    return exit_code(records)


def _evidence(best: Record, records: Sequence[Record]) -> str:
    """Return the measurements of the winner in one line."""
    error = best.parity.rel_l2 if best.parity is not None else None
    facts = [f"speedup over eager {show(speedup_of(best, records), 'ratio')}"]
    facts += [] if error is None else [f"relative L2 error {error:.2g}"]
    where = f"{best.component}, {best.scale}, {best.dtype} on {best.device}"
    return printable(f"Found by profiling.tune for {where}: {best.variant}, {', '.join(facts)}.")


if __name__ == "__main__":
    main(TUNE, run)
