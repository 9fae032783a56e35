"""The command line of the targets that run cells: Hydra, exit codes, errors in one line, interruption, the report."""

from __future__ import annotations

import errno
import math
import os
import re
import signal
import sys
import textwrap
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

import hydra
import yaml
from hydra import compose, initialize_config_dir
from hydra._internal.utils import get_args_parser
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from profiling.cli.files import CONF, check_size, find_file, names_in, read_yaml
from profiling.cli.variants import is_expression, register, short_names, step_nodes
from profiling.errors import (
    InputError,
    causes,
    command,
    did_you_mean,
    discard_output,
    override,
    prepare_output,
    print_text,
    printable,
    python_command,
    shell_words,
    working_directory,
)
from profiling.results.jsonl import RESULTS_FILE, read_records
from profiling.results.record import AND, NOT_ENDED
from profiling.results.run_folder import CONFIG_FILE, JOB_FILE, SWEEP_FILE, claimed, flat, new_folder, resume_command
from profiling.run.job import RunConfig
from profiling.variants.steps import read_steps

if TYPE_CHECKING:
    from profiling.run.runner import Run

INTERRUPTED = 130
#: Config groups of which a run chooses several files.
LISTS = ("component", "variant", "metric")
#: Options of a sweep; its runs do not get them.
SWEEP_OPTIONS = ("launcher", "devices", "retries", "job_timeout")

#: Flags with which Hydra shows the config, or itself, and nothing runs.
_SHOWS_THE_CONFIG = ("help", "hydra_help", "cfg", "info", "shell_completion")

Target = Callable[[DictConfig, Path], int]


def main(target: str, run: Target) -> None:
    """Run a target from the command line and exit with its code."""
    prepare_output()
    sys.exit(launch(target, run))


@contextmanager
def ending_as_on_ctrl_c() -> Iterator[None]:
    """End the block as on Ctrl-C if the process is terminated or its terminal closes (SIGTERM, SIGHUP).

    A run that a scheduler or `timeout` terminates keeps its finished cells.
    """
    with ExitStack() as stack:
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) not in (None, signal.SIG_IGN):  # as under nohup
                stack.callback(signal.signal, number, signal.signal(number, signal.default_int_handler))
        yield


def let_interrupts_raise() -> None:
    """Let Ctrl-C raise KeyboardInterrupt from here on, because there is work to keep; before, it ends this process.

    `profiling/__init__.py` says why. Where interrupts are ignored, as in a shell's background, they stay ignored.
    """
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def launch(target: str, run: Target) -> int:
    """Compose the config of `target` from the command line, call `run(config, run folder)`, return the exit code.

    With --multirun each run is a process of its own (`profiling.cli.sweep`), and the exit code the highest of all runs.
    """
    started = time.time()
    with ending_as_on_ctrl_c():
        try:
            parsed = _parsed(sys.argv[1:])
            added = Path(parsed.config_dir or CONF)
            folders = [CONF] if added.is_dir() and added.samefile(CONF) else [CONF, added]
            with explaining(target, parsed.overrides, folders):
                return _launched(target, run, parsed, folders, started)
        except KeyboardInterrupt:
            return INTERRUPTED
        except BrokenPipeError:  # the reader of --help is gone
            discard_output()
            return 0
        except InputError as error:
            print(f"error: {error}", file=sys.stderr)
            return InputError.exit_code


def _launched(target: str, run: Target, parsed: Namespace, folders: Sequence[Path], started: float) -> int:
    for added in folders[1:]:
        _check_own_files(added)
    given = check_overrides(parsed.overrides, folders, is_sweep=parsed.multirun)
    if any(getattr(parsed, each) for each in _SHOWS_THE_CONFIG):
        if parsed.multirun and parsed.cfg:
            raise InputError("--multirun runs a sweep, and --cfg only shows a config. Leave out --multirun.")
        register_resolvers()
        sys.argv += register(target, parsed.overrides, folders)
        os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises, so that errors can be printed in one line
        hydra.main(version_base=None, config_path=str(CONF), config_name=target)(lambda cfg: None)()
        return 0
    if parsed.multirun:
        from profiling.cli.sweep import sweep

        return sweep(target, sys.argv[1:], given, folders, started)
    from profiling.run.fork_server import ForkServer

    # It imports torch while the config is composed.
    with ForkServer().started_early() as server:
        cfg = _composed(target, parsed.overrides, folders)
        if cfg.get("isolation") == "none" or cfg.get("trace"):
            server.close()  # it would not be used
        HydraConfig.instance().set_config(cfg)  # of which the folder is made
        folder = Path(cfg.hydra.run.dir)
        folder.mkdir(parents=True, exist_ok=True)
        warn = partial(print, file=sys.stderr)
        with claimed(folder, cfg.get("resume"), warn, started=started), explaining_os_errors(folder):
            return run(_without_hydra(cfg), folder)


def execute(target: str, config: RunConfig, folder: Path, perform: Callable[[Run], int] | None = None) -> int:
    """Run the cells of `config` into `folder`, print the report, and return the exit code, from `perform` if given."""
    # Imported here because they would be a third of the time of `--help` and of a wrong option, which need none.
    from profiling.report.render import write_report
    from profiling.run.progress import Progress
    from profiling.run.runner import Run

    let_interrupts_raise()
    progress = Progress()
    config = config.for_check() if config.settings.check else config
    started_by = command_line(target, folder if (folder / JOB_FILE).exists() else None)
    try:
        code = (perform or Run.execute)(Run(target, config, folder, progress, started_by))
    except KeyboardInterrupt:
        code = INTERRUPTED
    finally:
        progress.close()
    if (folder / RESULTS_FILE).exists():
        with explaining_interrupts(progress.say, folder):
            printed = write_report(folder, details=config.details)
        print_text(printed.text)
        code = code if printed.is_written else max(code, 1)
    if code == INTERRUPTED and (folder / CONFIG_FILE).exists():
        resumption = resume_command(folder, started_by)
        progress.say(f"interrupted; finished cells are kept. To resume:\n  {resumption}")
    return code


@contextmanager
def explaining_interrupts(say: Callable[[str], None], *folders: Path) -> Iterator[None]:
    """If the user interrupts the block, which writes the reports of runs or sweeps, say how to get them."""
    try:
        yield
    except KeyboardInterrupt:
        again = "\n  ".join(command("-m", "profiling.report", folder) for folder in folders)
        say(f"interrupted while writing the report; all records are saved. To write the report:\n  {again}")
        raise


def command_line(target: str, folder: Path | None = None) -> str:
    """Return the command line of this run, as recorded in `environment.json`.

    It starts with `python`, whatever the path of the interpreter, so that records of two machines can be compared. The
    folder of a job of a sweep is not part of it.
    """
    arguments = [word for word in sys.argv[1:] if folder is None or word != override("hydra.run.dir", folder)]
    return shell_words(["python", "-m", f"profiling.{target}", *arguments])


def register_resolvers() -> None:
    """Register the OmegaConf resolvers.

    `run_folder` creates a run's folder, `python` is its command, `names` lists the YAML files of a group, or the steps,
    for a help text that is indented by six characters, and `product` multiplies.
    """

    def names(group: str) -> str:
        stems = read_steps(step_nodes()) if group == "step" else names_in(group, [CONF])
        return "\n      ".join(textwrap.wrap(" ".join(stems), 94, break_on_hyphens=False))

    def run_folder(target: str, resume: str | None) -> str:
        return resume or str(new_folder(target))

    resolvers = {"names": names, "python": python_command, "product": lambda *factors: math.prod(factors)}
    for name, resolver in resolvers.items():
        OmegaConf.register_new_resolver(name, resolver, replace=True)
    OmegaConf.register_new_resolver("run_folder", run_folder, replace=True, use_cache=True)  # one folder for a config


def compose_config(target: str, overrides: Sequence[str], folders: Sequence[Path]) -> DictConfig:
    """Compose the config of `target` from YAML files below `folders`; the first one holds the target's own.

    Raises:
        InputError: an override or a YAML file is wrong.

    """
    with explaining(target, overrides, folders):
        check_overrides(overrides, folders)
        return _without_hydra(_composed(target, overrides, folders))


def _without_hydra(cfg: DictConfig) -> DictConfig:
    with open_dict(cfg):
        del cfg["hydra"]
    return cfg


def _composed(target: str, overrides: Sequence[str], folders: Sequence[Path]) -> DictConfig:
    """Return the config of `target` with that of Hydra, whose overrides have been checked."""
    register_resolvers()
    # A path that Hydra adds is searched once it has found the file of the target.
    file = find_file(target, folders)
    own = folders[0] if file is None else file.parent
    places = (override("", f"file://{folder.absolute()}")[1:] for folder in folders if folder != own)
    added = f"hydra.searchpath=[{','.join(places)}]"
    steps = register(target, overrides, folders)
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(own.absolute()), version_base=None):
        return compose(target, [*overrides, *steps, added], return_hydra_config=True)


def _check_own_files(added: Path) -> None:
    """Check the user's config folder: no file may be too large, or have the name of one in conf, which comes first.

    Raises:
        InputError: there is no such folder, or names the file.

    """
    if not added.is_dir():
        raise InputError(f"--config-dir={added}: there is no such folder. Name one that holds component/my_net.yaml.")
    if added.samefile(CONF):
        return
    steps = step_nodes()
    for file in sorted(added.glob("*/*.yaml")):
        group, name = file.parent.name, file.stem
        if group in _groups():
            check_size(file)  # another file may include it
        if group == "variant" and is_expression(name, steps):
            raise InputError(f"{file} has the name of a recipe of the tool. Rename the file and the key in it.")
        if group == "step" and (same := sorted({*read_yaml(file)} & {*steps})):
            raise InputError(f"{file}: the tool has a step {same[0]} of its own. Rename that of the file.")
        if find_file(f"{group}/{name}", [CONF]):
            raise InputError(
                f"{file} would not be used: the tool has a {group}/{file.name} of its own, which comes first. Rename "
                f"the file and the key in it, or change the tool's one on the command line: {group}.{name}.KEY=VALUE"
            )


def unescaped(value: Any) -> str:
    """Return the text of an override's value without the escapes that keep it from being an interpolation."""
    return str(OmegaConf.create({"value": value}).value)


def _parsed(arguments: Sequence[str]) -> Namespace:
    """Return what Hydra's parser says of a command line.

    Raises:
        InputError: an argument is unknown or not printable text, or the working directory was deleted.

    """
    working_directory()
    for argument in arguments:
        if not argument.isprintable():
            raise InputError(
                f"{argument!r} holds control characters, or bytes that are not UTF-8. Rename what it names."
            )
    parser = get_args_parser()
    parser.error = _refuse_argument  # instead of printing the usage of Hydra
    parsed = parser.parse_args(arguments)
    for flag in ("config_name", "config_path", "experimental_rerun"):
        if getattr(parsed, flag) is not None:
            name = flag.replace("_", "-")
            raise InputError(f"--{name}: each target has one config. Leave it out; --config-dir adds your own files.")
    return parsed


def check_overrides(overrides: Sequence[str], folders: Sequence[Path], *, is_sweep: bool = False) -> list[Override]:
    """Check what Hydra accepts and does not mean, or answers with a traceback; return the parsed overrides.

    YAML files lie below `folders`.

    Raises:
        InputError: an override without a key, a key that is given twice or deleted, an option of a recipe, a config
            group whose value is no name, a YAML file that cannot be read, or no folder to resume.
        HydraException: an override that cannot be parsed.

    """
    given: dict[str, str] = {}
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    for each in parsed:
        key, text = each.get_key_element().lstrip("+~"), each.input_line or ""
        if not key:
            raise InputError(f"{text!r} names no key. Write KEY=VALUE; --help shows the keys.")
        if key in given:
            raise InputError(f"{key} is given twice: {given[key]} and {text}. Leave one out.")
        given[key] = text
        if each.is_delete() and "." not in key and key not in LISTS:
            raise InputError(f"{text}: {key} cannot be deleted. Leave it out, or give it another value.")
        if each.is_delete() or each.is_sweep_override():
            continue
        match = re.fullmatch(r"variant\.([^.]+)\.(?:.*\.)?(.*)", key)
        if match and find_file(f"variant/{match[1]}", folders) is None:
            step = short_names().get(match[1], match[1]).partition(AND)[0]
            raise InputError(
                f"{key}: the options of a recipe are those of its steps. Write step.{step}.{match[2]}=VALUE, for "
                "example; --cfg job lists them."
            )
        if key in _groups():
            _check_chosen_files(key, each, folders)
        if key == "resume" and each.value() is not None:
            folder = Path(unescaped(each.value()))
            if not folder.is_dir():
                raise InputError(f"resume={folder}: there is no such folder. Give the folder of the interrupted run.")
            if (folder / SWEEP_FILE).is_file() and not is_sweep:
                raise InputError(f"resume={folder} is a sweep. Add --multirun, or resume one of its runs.")
    return parsed


def _refuse_argument(message: str) -> NoReturn:
    advice = "Options with a dash stand before the first KEY=VALUE, and keys have none: seconds=3"
    raise InputError(f"{message}. {advice}; --help shows the usage.")


def _check_chosen_files(group: str, chosen: Override, folders: Sequence[Path]) -> None:
    """Check the value of a config group, and the YAML files below `folders` that it names.

    The top key of a component, variant or metric is the file's name: another one could overwrite another file's entry.

    Raises:
        InputError: it is no name and no list of names, or a file is not valid YAML or has another top key.

    """
    value = chosen.value()
    names = value if isinstance(value, list) and group in LISTS else [value]
    if not all(isinstance(name, str) for name in names):
        example = f"{group}=[NAME,NAME]" if group in LISTS else f"{group}=NAME"
        raise InputError(
            f"{chosen.input_line} does not name YAML files: null, true, false, nan and other numbers are no names. "
            f"Write {example}; --help lists the names."
        )
    for name in names:
        file = find_file(f"{group}/{name}", folders)
        if file is not None and {*read_yaml(file)} - {"defaults"} != {file.stem} and group in LISTS:
            raise InputError(f"{group}/{file.name} must have one top key, its own name: `{file.stem}:`")


def _groups() -> set[str]:
    return {"hydra", *LISTS, *(path.name for path in CONF.iterdir() if path.is_dir())}


# Errors: each is one line on stderr that says what was wrong, with what, and what to type next.


#: Errors that become one line.
_EXPLAINED = (HydraException, OmegaConfBaseException, yaml.YAMLError, RecursionError, OSError)


@contextmanager
def explaining(target: str, overrides: Sequence[str], folders: Sequence[Path]) -> Iterator[None]:
    """Raise an error in the config of `target`, or of the operating system, as an InputError, which is one line."""
    try:
        yield
    except BrokenPipeError:  # the reader of the output is gone
        raise
    except _EXPLAINED as error:
        if any(isinstance(cause, KeyboardInterrupt) for cause in causes(error)):  # the error came of it
            raise KeyboardInterrupt from None
        raise InputError(_explained(error, target, overrides, folders)) from None


def _explained(error: Exception, target: str, overrides: Sequence[str], folders: Sequence[Path]) -> str:
    """Return one line for an error of the config, which lies below `folders`, or of the operating system."""
    chain = [*causes(error)]
    for cause in chain:
        if isinstance(cause, OSError) and not isinstance(cause, HydraException):  # a missing YAML is both
            return _explained_os_error(cause)
    if isinstance(error, RecursionError):
        return "the config is nested too deeply, or contains itself. Correct the YAML files."
    if isinstance(error, yaml.YAMLError):
        return f"a YAML file is not valid: {error}"
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, name = str(error.missing_cfg_file).rpartition("/")
        options = names_in(group, folders)
        hint = _where_it_is(group, name, folders) or f"{did_you_mean(name, options)} Available: {', '.join(options)}"
        return f"there is no {group or 'target'} {name!r}.{hint}"
    if isinstance(error, OverrideParseException) and error.override:
        key, given = printable(error.override.partition("=")[0], 100), printable(error.override, 200)
        return (
            f"cannot read {given}. Write KEY=VALUE, with complete brackets, quotes and lists; a value with brackets, "
            f"commas, quotes, = or letters beyond ASCII needs quotes within those of the shell: \"{key}='...'\""
        )
    if match := re.search(r"Could not override '([^']+)'", str(error)):
        if match[1] in SWEEP_OPTIONS:
            return f"{match[1]}= is an option of a sweep. Add --multirun, or leave it out."
        missing = _missing_key(match[1], target, overrides, folders)
        return f"{missing} --cfg job lists all keys; to add one, write +{match[1]}=VALUE"
    detail = printable(chain[-1]) or printable(error)
    return f"{detail.rstrip('.')}. --help shows the usage."


def _where_it_is(group: str, name: str, folders: Sequence[Path]) -> str:
    """Return `" Add --config-dir=. to use component/my_net.yaml."` if it is nearby; or where a target's must be."""
    given = {Path(word.removeprefix("--config-dir=")).resolve() for word in sys.argv}
    file = Path(group, f"{name}.yaml")
    for folder in (Path(), Path(".."), *(each.parent for each in folders[1:])):
        if (folder / file).is_file() and folder.resolve() not in given:
            return f" Add {shell_words([f'--config-dir={folder}'])} to use {folder / file}."
    return "" if group else f" Its YAML must be conf/{file}, or {file} in the folder that --config-dir=FOLDER names."


def _missing_key(key: str, target: str, overrides: Sequence[str], folders: Sequence[Path]) -> str:
    """Return a sentence that says which part of a key the config lacks, and suggests another one.

    For example "there is no key 'ney' in component. Did you mean 'net'?"
    The suggestion is a similar key in the same place, or else the same name elsewhere in the config.
    """
    groups = [each for each in overrides if each.partition("=")[0].lstrip("+") in _groups()]
    if key.startswith("hydra."):
        return f"there is no key {key!r} in the config."
    try:
        config = OmegaConf.to_container(_without_hydra(_composed(target, groups, folders)))
    except (InputError, *_EXPLAINED):  # the target has no such group
        return f"there is no key {key!r} in the config."
    keys = [f".{each}" for each in (*dict(flat(cast(dict[str, Any], config))), *SWEEP_OPTIONS)]
    place, _, name = f".{key}".rpartition(".")
    while not any(each.startswith(f"{place}.") for each in keys):
        place, _, name = place.rpartition(".")
    siblings = [each.removeprefix(f"{place}.").partition(".")[0] for each in keys if each.startswith(f"{place}.")]
    elsewhere = [each[1:] for each in keys if each.endswith(f".{key}".removeprefix(place))]
    near = did_you_mean(name, siblings) or (f" Did you mean {elsewhere[0]!r}?" if elsewhere else "")
    return f"there is no key {name!r} in {place[1:] or 'the config'}.{near}"


@contextmanager
def explaining_os_errors(folder: Path) -> Iterator[None]:
    """Raise an error of the operating system in a run or sweep as an InputError, which says what `folder` has kept."""
    try:
        yield
    except BrokenPipeError:  # the reader of the output is gone
        raise
    except OSError as error:
        raise InputError(_explained_os_error(error, folder)) from None


def _explained_os_error(error: OSError, folder: Path | None = None) -> str:
    """Return one line for a full disk, a folder without write permission or another error of the operating system.

    `folder` is that of the run or sweep, if it had begun.
    """
    what = f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}"
    if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return f"{what}. Choose another folder: hydra.run.dir=FOLDER, or hydra.sweep.dir=FOLDER for a sweep"
    kept, resumption = "Nothing was measured", ""
    if folder is not None and _has_ended_cells(folder):
        kept = f"The records of finished cells in {folder} are complete"
        resumption = f" with {shell_words([override('resume', folder)])}"
    remedy = "Raise the limit (ulimit -f)" if error.errno == errno.EFBIG else "Free space"
    return f"{what}. {kept}. {remedy}, then repeat the command{resumption}"


def _has_ended_cells(folder: Path) -> bool:
    """Return whether the run in the folder, or one of the sweep there, has the record of a cell that has ended."""
    for file in (folder / RESULTS_FILE, *folder.glob(f"*/{RESULTS_FILE}")):
        with suppress(InputError):
            if any(record.reason != NOT_ENDED for record in read_records(file).records):
                return True
    return False
