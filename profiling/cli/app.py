"""The command line of the targets that run cells: Hydra, exit codes, errors in one line, interruption, the report."""

from __future__ import annotations

import errno
import math
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

import yaml
from hydra import compose, initialize_config_dir
from hydra._internal.hydra import Hydra
from hydra._internal.utils import get_args_parser
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from profiling.cli.groups import CONF, LISTS, check_own_files, find_file, names_in, register, step_nodes
from profiling.errors import (
    INTERRUPTED,
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
from profiling.results.record import NOT_ENDED
from profiling.results.run_folder import CONFIG_FILE, JOB_FILE, claimed, flat, new_folder, resume_command
from profiling.run.job import RunConfig
from profiling.variants.steps import read_steps

if TYPE_CHECKING:
    from profiling.run.runner import Run

#: Options of a sweep; its runs do not get them.
SWEEP_OPTIONS = ("launcher", "devices", "retries", "job_timeout")

Target = Callable[[DictConfig, Path], int]


def main(target: str, run: Target) -> None:
    """Run a target from the command line and exit with its code."""
    prepare_output()
    sys.exit(launch(target, run))


@contextmanager
def raising_interrupts(*signals: int) -> Iterator[None]:
    """Let these signals raise KeyboardInterrupt in the block, so that finished cells are kept.

    Where they are ignored, as under nohup or in a shell's background, they stay ignored. SIGINT (Ctrl-C) ends this
    process at once until there is work to keep: `profiling/__init__.py` says why.
    """
    with ExitStack() as stack:
        for number in signals:
            if signal.getsignal(number) not in (None, signal.SIG_IGN):
                stack.callback(signal.signal, number, signal.signal(number, signal.default_int_handler))
        yield


def launch(target: str, run: Target) -> int:
    """Compose the config of `target` from the command line, call `run(config, run folder)`, return the exit code.

    With --multirun each run is a process of its own (`profiling.cli.sweep`), and the exit code the highest of all runs.
    """
    started = time.time()
    try:
        parsed = _parsed(sys.argv[1:])
        folders = [CONF, Path(parsed.config_dir)] if parsed.config_dir else [CONF]
        with raising_interrupts(signal.SIGTERM, signal.SIGHUP), explaining(folders):
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
        check_own_files(added)
    if parsed.help or parsed.hydra_help or parsed.cfg or parsed.info or parsed.shell_completion:  # nothing runs
        if parsed.multirun and parsed.cfg:
            raise InputError("--multirun runs a sweep, and --cfg only shows a config. Leave out --multirun.")
        _show(target, parsed, folders)
        return 0
    if parsed.multirun:
        from profiling.cli.sweep import sweep

        return sweep(target, check_overrides(parsed.overrides), folders, started)
    from profiling.run.fork_server import ForkServer

    # It imports torch while the config is composed.
    with ForkServer().started_early() as server:
        with _composer(target, parsed.overrides, folders) as (_, given):
            cfg = compose(target, given, return_hydra_config=True)
        if cfg.get("isolation") == "none" or cfg.get("trace"):
            server.close()  # it would not be used
        HydraConfig.instance().set_config(cfg)  # of which the folder is made
        folder = Path(cfg.hydra.run.dir)
        with open_dict(cfg):
            del cfg.hydra
        with held(folder, cfg.get("resume"), started):
            return run(cfg, folder)


def execute(target: str, config: RunConfig, folder: Path, perform: Callable[[Run], int] | None = None) -> int:
    """Run the cells of `config` into `folder`, print the report, and return the exit code, from `perform` if given."""
    # Imported here because they would be a third of the time of `--help` and of a wrong option, which need none.
    from profiling.report.render import write_report
    from profiling.run.progress import Progress
    from profiling.run.runner import Run

    progress = Progress()
    config = config.for_check() if config.settings.check else config
    started_by = command_line(target, folder if (folder / JOB_FILE).exists() else None)
    with raising_interrupts(signal.SIGINT):
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
            progress.say(f"interrupted; finished cells are kept. To resume:\n  {resume_command(folder, started_by)}")
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


def _names(group: str) -> str:
    """Return the names of a group's YAML files, or of the steps, for a help text that is indented by six characters."""
    stems = read_steps(step_nodes()) if group == "step" else names_in(group, [CONF])
    return "\n      ".join(textwrap.wrap(" ".join(stems), 94, break_on_hyphens=False))


#: What YAML files refer to as `${NAME:...}`. A config has one `run_folder`, the first that is made for it.
_RESOLVERS: dict[str, Callable[..., Any]] = {
    "names": _names,
    "python": python_command,
    "product": lambda *factors: math.prod(factors),
    "run_folder": lambda target, resume: str(resume or new_folder(target)),
}
for _name, _resolver in _RESOLVERS.items():
    OmegaConf.register_new_resolver(_name, _resolver, replace=True, use_cache=_name == "run_folder")


def compose_config(target: str, overrides: Sequence[str], folders: Sequence[Path]) -> DictConfig:
    """Compose the config of `target` from YAML files below `folders`.

    Raises:
        InputError: an override or a YAML file is wrong.
        Exception: Hydra or OmegaConf say so (see `explaining`).

    """
    with _composer(target, overrides, folders) as (_, given):
        return compose(target, given)


@contextmanager
def _composer(target: str, overrides: Sequence[str], folders: Sequence[Path]) -> Iterator[tuple[Hydra, list[str]]]:
    """Yield Hydra, which finds the YAML files in `folders`, and the overrides with those that it needs for that."""
    # A path that Hydra adds is searched once it has found the file of the target.
    file = find_file(target, folders)
    own = folders[0] if file is None else file.parent
    places = (override("", f"file://{folder.absolute()}")[1:] for folder in folders if folder != own)
    added = f"hydra.searchpath=[{','.join(places)}]"
    # With an unknown key, `++key=` would add what nothing reads, and `key=` is an error of Hydra.
    asked = (re.sub(r"^\+\+(?=\w+=)", "", each) for each in overrides)
    given = [*asked, added, *register(target, check_overrides(overrides), folders)]
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(own.absolute()), job_name=target, version_base=None):
        yield cast(Hydra, GlobalHydra.instance().hydra), given


def _show(target: str, parsed: Namespace, folders: Sequence[Path]) -> None:
    """Print the help, the config, or what else Hydra shows of it."""
    with _composer(target, () if parsed.shell_completion else parsed.overrides, folders) as (hydra, given):
        if parsed.help:
            hydra.app_help(target, get_args_parser(), Namespace(overrides=given, resolve=parsed.resolve))
        elif parsed.hydra_help:
            hydra.hydra_help(target, get_args_parser(), Namespace(overrides=[]))
        elif parsed.cfg:
            hydra.show_cfg(target, given, parsed.cfg, parsed.package, parsed.resolve)
        elif parsed.info:
            hydra.show_info(parsed.info, target, given)
        else:
            try:
                hydra.shell_completion(target, parsed.overrides)
            except (ValueError, LookupError):  # another word, an unknown shell, or no COMP_LINE
                said = "--shell-completion needs what to do. Write install=bash after it, for example."
                raise InputError(said) from None


def text_of(chosen: Override | None) -> str | None:
    """Return an override's value without the escapes that keep it from being an interpolation; None for null."""
    value = None if chosen is None else OmegaConf.create({"value": chosen.value()}).value
    return None if value is None else str(value)


def _parsed(arguments: Sequence[str]) -> Namespace:
    """Return what Hydra's parser says of a command line.

    Raises:
        InputError: an argument is unknown or not printable text, or the working directory was deleted.

    """
    working_directory()
    for word in arguments:
        if not word.isprintable():
            raise InputError(f"{word!r} holds control characters, or bytes that are not UTF-8. Rename what it names.")
    parser = get_args_parser()
    parser.error = _refuse_argument  # instead of printing the usage of Hydra
    parsed = parser.parse_args(arguments)
    for flag in ("config_name", "config_path", "experimental_rerun"):
        if getattr(parsed, flag) is not None:
            name = flag.replace("_", "-")
            raise InputError(f"--{name}: each target has one config. Leave it out; --config-dir adds your own files.")
    return parsed


def check_overrides(overrides: Sequence[str]) -> dict[str, Override]:
    """Check the keys of overrides, some of which Hydra accepts and does not mean; return the overrides by their keys.

    Raises:
        InputError: an override without a key, or a key that is given twice or deleted.
        HydraException: an override that cannot be parsed.

    """
    given: dict[str, Override] = {}
    for each in OverridesParser.create().parse_overrides(list(overrides)):
        key, text = each.get_key_element().lstrip("+~"), each.input_line or ""
        if not key:
            raise InputError(f"{text!r} names no key. Write KEY=VALUE; --help shows the keys.")
        if key in given:
            raise InputError(f"{key} is given twice: {given[key].input_line} and {text}. Leave one out.")
        given[key] = each
        if each.is_delete() and "." not in key and key not in LISTS:
            raise InputError(f"{text}: {key} cannot be deleted. Leave it out, or give it another value.")
    return given


def _refuse_argument(message: str) -> NoReturn:
    advice = "Options with a dash stand before the first KEY=VALUE, and keys have none: seconds=3"
    raise InputError(f"{message}. {advice}; --help shows the usage.")


# Errors: each is one line on stderr that says what was wrong, with what, and what to type next.


@contextmanager
def explaining(folders: Sequence[Path]) -> Iterator[None]:
    """Raise an error in a config below `folders`, or of the operating system, as an InputError, which is one line."""
    try:
        yield
    except BrokenPipeError:  # the reader of the output is gone
        raise
    except (HydraException, OmegaConfBaseException, yaml.YAMLError, RecursionError, OSError) as error:
        if any(isinstance(cause, KeyboardInterrupt) for cause in causes(error)):  # the error came of it
            raise KeyboardInterrupt from None
        raise InputError(_explained(error, folders)) from None


def _explained(error: Exception, folders: Sequence[Path]) -> str:
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
    of_config = next((cause for cause in chain if isinstance(cause, OmegaConfBaseException)), None)
    if match := re.search(r"Could not override '([^']+)'", str(error)):
        if match[1] in SWEEP_OPTIONS:
            return f"{match[1]}= is an option of a sweep. Add --multirun, or leave it out."
        missing = _missing_key(match[1], of_config) if of_config else f"there is no key {match[1]!r} in the config."
        to_add = f"; to add one, write +{match[1]}=VALUE" if "." in match[1] else "."
        return f"{missing} --cfg job lists all keys{to_add}"
    said, key = (str(of_config).partition("\n")[0], of_config.full_key) if of_config else (printable(chain[-1]), None)
    return f"{said.rstrip('.')}{f' at {key}' if key and not said.endswith(key) else ''}. --help shows the usage."


def _where_it_is(group: str, name: str, folders: Sequence[Path]) -> str:
    """Return `" Add --config-dir=. to use component/my_net.yaml."` if it is nearby; or where a target's must be."""
    given = {Path(word.removeprefix("--config-dir=")).resolve() for word in sys.argv}
    file = Path(group, f"{name}.yaml")
    for folder in (Path(), Path(".."), *(each.parent for each in folders[1:])):
        if (folder / file).is_file() and folder.resolve() not in given:
            return f" Add {shell_words([f'--config-dir={folder}'])} to use {folder / file}."
    return "" if group else f" Its YAML must be conf/{file}, or {file} in the folder that --config-dir=FOLDER names."


def _missing_key(key: str, error: OmegaConfBaseException) -> str:
    """Say which part of a key the config lacks; suggest a similar one there, or the same name elsewhere."""
    place = error.parent_node
    config = cast(dict[str, Any], OmegaConf.to_container(place._get_root()))
    where = place._get_full_key(None)
    rest = key.removeprefix(f"{where}.")
    name = rest.partition(".")[0]
    siblings = [*map(str, place)] if where else [*config, *SWEEP_OPTIONS]
    elsewhere = [each for each, _ in flat(config) if each.endswith(f".{rest}") and not each.startswith("hydra.")]
    near = did_you_mean(name, siblings) or (f" Did you mean {elsewhere[0]!r}?" if elsewhere else "")
    return f"there is no key {name!r} in {where or 'the config'}.{near}"


@contextmanager
def held(folder: Path, resume: str | None, started: float, key: str = "hydra.run.dir") -> Iterator[None]:
    """Make and hold the folder of a run or sweep (see `claimed`); if the disk is full, say what the folder has kept."""
    try:
        if resume is None:
            folder.mkdir(parents=True, exist_ok=True)
        elif not Path(str(resume)).is_dir():
            raise InputError(f"resume={resume}: there is no such folder. Name that of an interrupted run or sweep.")
        with claimed(folder, resume, partial(print, file=sys.stderr), started=started, key=key):
            yield
    except BrokenPipeError:  # the reader of the output is gone
        raise
    except OSError as error:
        raise InputError(_explained_os_error(error, folder)) from None


def _explained_os_error(error: OSError, folder: Path | None = None) -> str:
    """Return one line for an error of the operating system; `folder` is that of the run or sweep, if it had begun."""
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
