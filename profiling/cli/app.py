"""The command line of the targets that run cells: Hydra, exit codes, errors in one line, interruption, the report."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import re
import signal
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import hydra
import yaml
from hydra import compose, initialize_config_dir
from hydra._internal.utils import get_args_parser
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from profiling.cli.variants import CONF, is_expression, register, short_names, step_nodes
from profiling.errors import (
    InputError,
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
from profiling.results.run_folder import CONFIG_FILE, JOB_FILE, SWEEP_FILE, claimed, new_folder, resume_command
from profiling.run.job import RunConfig
from profiling.variants.steps import read_steps

if TYPE_CHECKING:
    from profiling.run.runner import Run

INTERRUPTED = 130
#: Config groups of which a run chooses several files.
LISTS = ("component", "variant", "metric")
#: Options of a sweep; its runs do not get them.
SWEEP_OPTIONS = ("launcher", "devices", "retries", "job_timeout")
#: Most bytes of a YAML file.
MOST_BYTES = 2_000_000

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
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    changed = {number: handler for number, handler in before.items() if handler not in (None, signal.SIG_IGN)}
    for number in changed:  # not where they are ignored, as under nohup
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in changed.items():
            signal.signal(number, handler)


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
            return _launched(target, run, started)
        except KeyboardInterrupt:
            return INTERRUPTED
        except BrokenPipeError:  # the reader of --help is gone
            discard_output()
            return 0
        except (InputError, *_EXPLAINED) as error:
            line = str(error) if isinstance(error, InputError) else _explained(error, target, _config_folders())
            print(f"error: {line}", file=sys.stderr)
            return InputError.exit_code


def _launched(target: str, run: Target, started: float) -> int:
    folders = _config_folders()
    parsed = check_arguments(sys.argv[1:], folders)
    for added in folders[1:]:
        if not added.is_dir():
            raise InputError(
                f"--config-dir={added}: there is no such folder. Name the one that holds component/my_net.yaml."
            )
        _check_own_names(added)
    if any(getattr(parsed, each) for each in _SHOWS_THE_CONFIG):
        register_resolvers()
        sys.argv += register(target, parsed.overrides, folders)
        os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises, so that errors can be printed in one line
        hydra.main(version_base=None, config_path=str(CONF), config_name=target)(lambda cfg: None)()
        return 0
    if parsed.multirun:
        from profiling.cli.sweep import sweep

        return sweep(target, sys.argv[1:], parsed, folders, started)
    from profiling.run.fork_server import ForkServer

    # It imports torch while the config is composed.
    with contextlib.nullcontext() if "isolation=none" in parsed.overrides else ForkServer().begun():
        cfg = _composed(target, parsed.overrides, folders)
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

    @cache
    def run_folder(target: str, resume: str | None) -> str:
        if resume:
            return resume
        return str(new_folder(target))

    def names(group: str) -> str:
        stems = (
            list(read_steps(step_nodes()))
            if group == "step"
            else sorted(path.stem for path in (CONF / group).glob("*.yaml"))
        )
        return "\n      ".join(textwrap.wrap(" ".join(stems), 94, break_on_hyphens=False))

    OmegaConf.register_new_resolver("run_folder", run_folder, replace=True)
    OmegaConf.register_new_resolver("names", names, replace=True)
    OmegaConf.register_new_resolver("python", python_command, replace=True)
    OmegaConf.register_new_resolver("product", lambda *factors: math.prod(factors), replace=True)


def compose_config(target: str, overrides: Sequence[str], folders: Sequence[Path]) -> DictConfig:
    """Compose the config of `target` from YAML files below `folders`; the first one holds the target's own.

    Raises:
        InputError: an override or a YAML file is wrong.

    """
    try:
        check_arguments(overrides, folders)
        return _without_hydra(_composed(target, overrides, folders))
    except InputError:
        raise
    except _EXPLAINED as error:
        raise InputError(_explained(error, target, folders)) from None


def _without_hydra(cfg: DictConfig) -> DictConfig:
    with open_dict(cfg):
        del cfg["hydra"]
    return cfg


def _composed(target: str, overrides: Sequence[str], folders: Sequence[Path]) -> DictConfig:
    """Return the config of `target` with that of Hydra, whose overrides have been checked."""
    register_resolvers()
    # A path that Hydra adds is searched once it has found the file of the target.
    own = next((folder for folder in folders if (folder / f"{target}.yaml").is_file()), folders[0])
    places = (override("", f"file://{folder.absolute()}")[1:] for folder in folders if folder != own)
    added = f"hydra.searchpath=[{','.join(places)}]"
    steps = register(target, overrides, folders)
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(own.absolute()), version_base=None):
        return compose(target, [*overrides, *steps, added], return_hydra_config=True)


def _check_own_names(added: Path) -> None:
    """Check that no file of the user's config folder is too large, or has the name of one in conf, which comes first.

    Raises:
        InputError: names the file.

    """
    steps = step_nodes()
    for file in sorted(added.glob("*/*.yaml")):
        name = file.relative_to(added)
        if name.parent.name in _groups():
            _check_size(file)  # another file may include it
        if name.parent.name == "variant" and is_expression(file.stem, steps):
            raise InputError(f"{file} has the name of a recipe of the tool. Rename the file and the key in it.")
        if name.parent.name == "step" and not added.samefile(CONF):
            check_yaml(file)
            if same := sorted(set(yaml.safe_load(file.read_text(encoding="utf-8")) or {}) & set(steps)):
                raise InputError(f"{file}: the tool has a step {same[0]} of its own. Rename that of the file.")
        if (CONF / name).exists() and not added.samefile(CONF):
            key = f"{name.parent.name}.{name.stem}.KEY=VALUE"
            raise InputError(
                f"{file} would not be used: the tool has a {name} of its own, which comes first. Rename the file and "
                f"the key in it, or change the tool's one on the command line: {key}"
            )


def override_values(target: str, overrides: Sequence[str]) -> dict[str, Any]:
    """Return {key: value} of overrides on the command line of `target`.

    Raises:
        InputError: one cannot be parsed.

    """
    try:
        parsed = OverridesParser.create().parse_overrides(list(overrides))
        return {each.key_or_group: None if each.is_delete() else each.value() for each in parsed}
    except HydraException as error:
        raise InputError(_explained(error, target, [CONF])) from None


def check_arguments(arguments: Sequence[str], folders: Sequence[Path]) -> Any:
    """Check what Hydra accepts and does not mean, or answers with a traceback; return what its parser says.

    YAML files lie below `folders`.

    Raises:
        InputError: an argument that is not printable text, an override without a key, a key that is given twice or
            deleted, a config group whose value is no name, a YAML file that cannot be read, or no folder to resume.
        HydraException: an override that cannot be parsed.

    """
    working_directory()
    for argument in arguments:
        if not argument.isprintable():
            raise InputError(
                f"{argument!r} holds control characters, or bytes that are not UTF-8. Rename what it names."
            )
    parser = get_args_parser()
    parser.error = _refuse_argument  # instead of printing the usage of Hydra
    given: dict[str, str] = {}
    parsed = parser.parse_args(arguments)
    for flag in ("config_name", "config_path", "experimental_rerun"):
        if getattr(parsed, flag, None) is not None:
            name = flag.replace("_", "-")
            raise InputError(f"--{name}: each target has one config. Leave it out; --config-dir adds your own files.")
    for each in OverridesParser.create().parse_overrides(parsed.overrides):
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
        value = each.value()
        if match := re.fullmatch(r"variant\.([^.]+)\.(.*)", key):
            _check_own_variant(match[1], match[2], folders)
        if key in _groups():
            check_choices(key, value, folders)
        if key == "resume" and value is not None:
            folder = OmegaConf.create({"folder": value}).folder  # without the escapes of an interpolation
            if not isinstance(folder, str) or not Path(folder).is_dir():
                raise InputError(f"resume={folder}: there is no such folder. Give the folder of the interrupted run.")
            if (Path(folder) / SWEEP_FILE).is_file() and not parsed.multirun:
                raise InputError(f"resume={folder} is a sweep. Add --multirun, or resume one of its runs.")
    return parsed


def _refuse_argument(message: str) -> NoReturn:
    key = re.match(r"unrecognized arguments: --(\w[\w.]*)[= ](\S+)", message)
    advice = "Options with a dash stand before the first KEY=VALUE"
    raise InputError(
        f"{message}. {f'Keys have no dashes: write {key[1]}={key[2]}' if key else advice}; --help shows the usage."
    )


def check_choices(group: str, value: object, folders: Sequence[Path]) -> None:
    """Check the value of a config group, and the YAML files below `folders` that it names.

    The top key of a component, variant or metric is the file's name: another one could overwrite another file's entry.

    Raises:
        InputError: it is no name and no list of names, or a file is not valid YAML or has another top key.

    """
    names = value if isinstance(value, list) and group in LISTS else [value]
    if not all(isinstance(name, str) for name in names):
        example = f"{group}=[NAME,NAME]" if group in LISTS else f"{group}=NAME"
        wrong = next(name for name in names if not isinstance(name, str))
        kinds = {bool: "a flag", int: "a number", float: "a number", type(None): "nothing"}
        if type(wrong) in kinds:
            written = "null" if wrong is None else str(wrong).lower()
            example += f" ({written} is read as {kinds[type(wrong)]})"
        shown = repr(value).replace("None", "null")  # as it is written
        raise InputError(f"{group}={shown} does not name YAML files. Write {example}; --help lists the names.")
    for path in (folder / group / f"{name}.yaml" for folder in folders for name in names):
        if path.is_file() and check_yaml(path) - {"defaults"} != {path.stem} and group in LISTS:
            raise InputError(f"{group}/{path.name} must have one top key, its own name: `{path.stem}:`")


def check_yaml(path: Path) -> set[str]:
    """Check that Hydra can read a YAML file, and return its top keys.

    Raises:
        InputError: it is not valid UTF-8 or YAML, or has more than `MOST_BYTES`.

    """
    _check_size(path)
    try:
        node = yaml.compose(path.read_text(encoding="utf-8"), yaml.SafeLoader)
    except RecursionError:
        raise InputError(f"{path} is not valid: it is nested too deeply.") from None
    except (ValueError, yaml.YAMLError) as error:
        raise InputError(f"{path} is not valid: {error}. Correct the file.") from None
    return {key.value for key, _ in node.value} if isinstance(node, yaml.MappingNode) else set()


def _check_size(path: Path) -> None:
    """Raise an InputError for a YAML file of more than `MOST_BYTES`, which takes minutes to read."""
    if (size := path.stat().st_size) > MOST_BYTES:
        most = f"a config has at most {MOST_BYTES / 1e6:.0f}"
        raise InputError(f"{path} has {size / 1e6:.0f} MB; {most}. Name another file.")


def _check_own_variant(name: str, option: str, folders: Sequence[Path]) -> None:
    """Check that a variant whose option is set has a YAML of its own: those of other variants are options of steps.

    Raises:
        InputError: it has none.

    """
    if not any((folder / "variant" / f"{name}.yaml").is_file() for folder in folders):
        steps = short_names().get(name, name).split(AND)
        raise InputError(
            f"variant.{name}.{option}: the options of a recipe are those of its steps. Write "
            f"step.{steps[0]}.{option.rpartition('.')[2]}=VALUE, for example; --cfg job lists them."
        )


def _groups() -> set[str]:
    return {"hydra", *LISTS, *(path.name for path in CONF.iterdir() if path.is_dir())}


# Errors: each is one line on stderr that says what was wrong, with what, and what to type next.


#: Errors that become one line.
_EXPLAINED = (HydraException, OmegaConfBaseException, yaml.YAMLError, RecursionError, OSError)


def _explained(error: Exception, target: str, folders: Sequence[Path]) -> str:
    """Return one line for an error of the config, which lies below `folders`, or of the operating system."""
    text = " ".join(str(error).split())
    of_config = isinstance(error, HydraException | OmegaConfBaseException)  # also an OSError where a YAML is missing
    reported = error.__cause__ or error.__context__ if of_config else error
    if isinstance(reported, OSError):
        return _explained_os_error(reported)
    if isinstance(error, RecursionError):
        return "the config is nested too deeply, or contains itself. Correct the YAML files."
    if isinstance(error, yaml.YAMLError):
        return f"a YAML file is not valid: {text}"
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, name = str(error.missing_cfg_file).rpartition("/")
        options = sorted({path.stem for folder in folders for path in (folder / group).glob("*.yaml")})
        hint = _where_it_is(group, name, folders) or f"{did_you_mean(name, options)} Available: {', '.join(options)}"
        return f"there is no {group or 'target'} {name!r}.{hint}"
    if isinstance(error, OverrideParseException) and error.override:
        key, equals, _ = error.override.partition("=")
        advice = (
            "Complete its brackets, quotes and lists. A value with brackets, commas, quotes, = or letters beyond ASCII "
            f"needs quotes within those of the shell: \"{printable(key, 100)}='...'\""
            if equals
            else "Write KEY=VALUE"
        )
        return f"cannot read {printable(error.override, 200)}. {advice}; --help shows the usage."
    if match := re.search(r"Could not override '([^']+)'", text):
        if match[1] in SWEEP_OPTIONS:
            return f"{match[1]}= is an option of a sweep. Add --multirun, or leave it out."
        near = _near_key(match[1], target, folders)
        return (
            f"there is no key {match[1]!r} in the config.{near} --cfg job lists all keys; "
            f"to add one, write +{match[1]}=VALUE"
        )
    detail = " ".join(str(cause).split()) or text
    return f"{detail.rstrip('.')}. --help shows the usage."


def _config_folders() -> list[Path]:
    """Return the folders that hold config groups: conf, and the one that the user adds with --config-dir."""
    added = re.findall(r"(?:^|\0)(?:--config-dir|-cd)[=\0]([^\0]+)", "\0".join(sys.argv[1:]))
    return [CONF, *map(Path, added[-1:])]


def _where_it_is(group: str, name: str, folders: Sequence[Path]) -> str:
    """Return `" Add --config-dir=. to use component/my_net.yaml."` if it is nearby; or where a target's must be."""
    known = {folder.resolve() for folder in (*folders, *_config_folders())}
    file = Path(group, f"{name}.yaml")
    for folder in (Path(), Path(".."), *(each.parent for each in _config_folders()[1:])):
        if (folder / file).is_file() and folder.resolve() not in known:
            return f" Add {shell_words([f'--config-dir={folder}'])} to use {folder / file}."
    return "" if group else f" Its YAML must be conf/{file}, or {file} in the folder that --config-dir=FOLDER names."


def _near_key(key: str, target: str, folders: Sequence[Path]) -> str:
    """Return `" Did you mean …?"` with similar keys of the config that the command line selects, or "".

    Where the mapping above the key exists, these are its other keys, or keys of the same name elsewhere.
    """
    groups = [argument for argument in sys.argv[1:] if re.match(r"(component|variant|metric|pipeline|step)=", argument)]
    with contextlib.suppress(Exception):
        config = OmegaConf.to_container(_without_hydra(_composed(target, groups, folders)), resolve=False)
        keys, (parent, _, name) = [*_dotted_keys(config), *SWEEP_OPTIONS], key.rpartition(".")
        places = [each.rpartition(".") for each in keys]
        if siblings := [last for above, _, last in places if above == parent]:
            keys = [".".join((above, last)) for above, _, last in places if last == name]  # it stands elsewhere
            return did_you_mean(name, siblings) or (f" Did you mean {keys[0]!r}?" if keys else "")
        return did_you_mean(key, keys)
    return ""


def _dotted_keys(node: object, path: str = "") -> list[str]:
    if not isinstance(node, dict):
        return []
    keys = {f"{path}.{name}" if path else str(name): value for name, value in node.items()}
    return [*keys, *(nested for key, value in keys.items() for nested in _dotted_keys(value, key))]


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
    where = f" {error.filename}" if error.filename else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        cause, remedy = "the disk is full", "Free space"
        if error.errno == errno.EFBIG:
            cause, remedy = "it is above the limit on the size of a file", "Raise the limit (ulimit -f)"
        kept, resumption = "Nothing was measured", ""
        if folder is not None and _has_ended_cells(folder):
            kept = f"The records of finished cells in {folder} are complete"
            resumption = f" with {shell_words([override('resume', folder)])}"
        return f"{error.strerror}{where}: {cause}. {kept}. {remedy}, then repeat the command{resumption}"
    if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
        return f"cannot write{where}: {error.strerror}. Choose another folder: hydra.run.dir=FOLDER"
    return f"{error.strerror or error}{where}. Choose another folder: hydra.run.dir=FOLDER"


def _has_ended_cells(folder: Path) -> bool:
    """Return whether the run in the folder, or one of the sweep there, has the record of a cell that has ended."""
    for file in (folder / RESULTS_FILE, *folder.glob(f"*/{RESULTS_FILE}")):
        with contextlib.suppress(InputError):
            if any(record.reason != NOT_ENDED for record in read_records(file).records):
                return True
    return False
