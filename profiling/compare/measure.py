"""Measures two checkouts of the user's code: two runs of the main job, whose cells of the same name take turns.

The tool, its options and its metrics are those of the checkout that the user started, for both. The modules, and the
YAML files of components and variants, come from each checkout.
"""

from __future__ import annotations

import contextlib
import signal
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from profiling.cli.app import (
    CONF,
    check_overrides,
    command_line,
    compose_config,
    explaining,
    explaining_interrupts,
    raising_interrupts,
    text_of,
)
from profiling.cli.config import read_config
from profiling.compare.worktrees import LETTERS, opened
from profiling.components.spec import ComponentSpec
from profiling.errors import InputError
from profiling.report.render import write_report
from profiling.results.environment import read_environment
from profiling.results.jsonl import RESULTS_FILE
from profiling.results.run_folder import check_is_new, claimed, new_folder, remove_empty
from profiling.run.checkouts import Checkout
from profiling.run.job import RunConfig
from profiling.run.progress import Progress
from profiling.run.runner import Run, execute

TARGET = "generic_forward"
#: The option that names the folder of both runs.
_FOLDER = "hydra.run.dir"
#: Options that have no meaning for two checkouts, with the reason.
_REFUSED = {
    "resume": "an interrupted comparison is started again, because its runs must take turns",
    "isolation": "each checkout needs processes of its own",
    "counters": "hardware counters are measured of one checkout; use profiling.generic_forward",
    "check": "there is nothing to compare; check one checkout with profiling.generic_forward",
}


def measure(
    names: Sequence[str], overrides: Sequence[str], config_folder: Path | None
) -> tuple[tuple[Path, ...], bool]:
    """Measure each of `names`, folders or git revisions; return the run folders, and whether all reports were written.

    `overrides` are those of the main job; `config_folder` has further YAML files, and each checkout its own copy of it.

    Raises:
        InputError: a name, an override or a YAML file is wrong, or a module of a component cannot be imported.
        OSError: a file cannot be written.
        KeyboardInterrupt: the user stopped the runs; finished cells are on disk.

    """
    with explaining([CONF]):
        given = check_overrides(overrides)
    for key in (key for key in given if key in _REFUSED):
        raise InputError(f"{given[key].input_line}: {_REFUSED[key]}. Leave it out.")
    kept = [each for each in overrides if not each.startswith(f"{_FOLDER}=")]
    own = sorted(file.stem for file in (config_folder / "component").glob("*.yaml")) if config_folder else []
    if own and "component" not in given:  # the user's networks, and not those of the tool
        kept.append(f"component=[{','.join(own)}]")
    with contextlib.ExitStack() as stack:
        stack.enter_context(raising_interrupts(signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
        checkouts = stack.enter_context(opened(names))
        configs = _configs(checkouts, kept, config_folder)
        chosen = text_of(given.get(_FOLDER))
        base = new_folder("compare") if chosen is None else Path(chosen)
        if chosen is not None:
            check_is_new(base)
        folders = [base / letter for letter, _ in zip(LETTERS, checkouts, strict=False)]
        progress = Progress()
        stack.callback(progress.close)
        stack.callback(remove_empty, base)
        for folder in folders:
            folder.mkdir(parents=True)
            stack.enter_context(claimed(folder, None, progress.say))
        command = command_line("compare")
        runs = [
            Run(TARGET, config, folder.resolve(), progress, command, checkout)
            for config, folder, checkout in zip(configs, folders, checkouts, strict=True)
        ]
        try:
            execute(runs)
        except KeyboardInterrupt:
            progress.close()
            progress.say(f"interrupted; finished cells are in {base}. To measure again, repeat the command.")
            raise
        finally:
            is_reported = _write_reports(folders, progress)
        _say_what_is_installed(runs, progress)
    return tuple(folders), is_reported


def _write_reports(folders: Sequence[Path], progress: Progress) -> bool:
    """Write the reports of the runs that have results; return whether all could be written, and say which not."""
    measured = [folder for folder in folders if (folder / RESULTS_FILE).exists()]
    with explaining_interrupts(progress.say, *measured):
        failures = list(filter(None, (write_report(folder).failure for folder in measured)))
    for failure in failures:
        progress.say(failure)
    return not failures


def _configs(checkouts: Sequence[Checkout], overrides: Sequence[str], config_folder: Path | None) -> list[RunConfig]:
    configs, errors = list[RunConfig](), list[str]()
    for checkout in checkouts:
        with tempfile.TemporaryDirectory(prefix="profiling-") as folder:
            try:
                conf = _conf(checkout, config_folder, Path(folder))
                with explaining(conf):
                    config = read_config(compose_config(TARGET, overrides, conf))
            except InputError as error:
                errors.append(f"{checkout.name}: {error}")
            else:
                configs.append(_with_weights(config, checkout))
    if errors:
        rule = " Only what all checkouts have can be compared." if configs else ""
        raise InputError(errors[0] + rule)
    return configs


def _conf(checkout: Checkout, config_folder: Path | None, made: Path) -> list[Path]:
    """Return the folders with the YAML files of a checkout: `made` mixes those of the tool with its components."""
    conf, theirs = CONF, Path(checkout.counterpart(CONF))
    if theirs != CONF and theirs.is_dir():
        for entry in CONF.iterdir():
            (made / entry.name).symlink_to(theirs / entry.name if entry.name == "component" else entry)
        conf = made
    if config_folder is None:
        return [conf]
    absolute = config_folder.is_absolute()
    added = Path(checkout.counterpart(config_folder) if absolute else Path(checkout.folder) / config_folder)
    if not added.is_dir():
        raise InputError(f"there is no folder {added}, which --config-dir={config_folder} names.")
    return [conf, added]


def _with_weights(config: RunConfig, checkout: Checkout) -> RunConfig:
    """Return the config with checkpoints of the working directory where the checkout lacks them: git ignores many."""

    def located(spec: ComponentSpec) -> ComponentSpec:
        if spec.checkpoint is None or (Path(checkout.folder) / spec.checkpoint).exists():
            return spec
        here = Path(spec.checkpoint).absolute()
        return replace(spec, checkpoint=str(here)) if here.exists() else spec

    return replace(config, components=tuple(located(spec) for spec in config.components))


def _say_what_is_installed(runs: Sequence[Run], progress: Progress) -> None:
    """Print a line for each component whose module comes from no checkout, so that its code is the same for all."""
    environments = [read_environment(run.folder) for run in runs]
    if any(environment.user_git is None for environment in environments):
        return  # folders outside git, of which no module is known to come from them
    for spec in runs[0].config.components:
        target = str(spec.module["_target_"])
        if not any(target in environment.module_git for environment in environments):
            progress.say(f"note: {spec.name}: {target} is installed; its code is the same for all checkouts")
