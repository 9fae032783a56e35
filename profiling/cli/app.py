"""What the targets that run cells share: progress, an interruption that loses nothing, the report at the end."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import cache
from pathlib import Path

import hydra
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from profiling.errors import InputError, did_you_mean
from profiling.reporting.render import write_report
from profiling.reporting.terminal import print_what_it_can
from profiling.results.jsonl import RESULTS_FILE
from profiling.results.run_folder import clear_refused, command_of, new_folder
from profiling.run.job import RunConfig
from profiling.run.progress import make_progress
from profiling.run.runner import Run

CONF = Path(__file__).resolve().parents[2] / "conf"
INTERRUPTED = 130

Target = Callable[[DictConfig, Path], int]


def launch(target: str, run: Target) -> int:
    """Compose the config of `target` from the command line, call `run(config, run folder)`, return the exit code.

    With --multirun that is the worst code of all runs.
    """
    signal.signal(signal.SIGTERM, _interrupted)
    register_resolvers()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra hands its exceptions on, and we say them in one line
    codes: list[int] = []

    def checked(cfg: DictConfig) -> int:
        check_names(cfg, HydraConfig.get().overrides.task)
        return run(cfg, Path(HydraConfig.get().runtime.output_dir))

    def task(cfg: DictConfig) -> None:
        # Caught here and not around Hydra, which would add lines of its own and end a --multirun at the first.
        codes.append(_guarded(lambda: checked(cfg)))
        if codes[-1] == INTERRUPTED:
            raise KeyboardInterrupt  # the user means the whole sweep

    def compose_and_run() -> int:
        hydra.main(version_base=None, config_path=str(CONF), config_name=target)(task)()
        return max(codes, default=0)

    for argument in sys.argv[1:]:  # Hydra would make the folder before anybody could say that it is none
        key, _, folder = argument.partition("=")
        if key == "resume" and folder not in ("", "null") and not Path(folder).is_dir():
            return _complain(f"resume={folder} is no run: there is no such folder. Name one that a run printed.")
    return _guarded(compose_and_run, target)


def _interrupted(_signal: int, _frame: object) -> None:
    """End as at Ctrl-C: a job that is told to end by a scheduler, or by `timeout`, keeps what it has too."""
    raise KeyboardInterrupt


def _guarded(work: Callable[[], int], target: str = "") -> int:
    try:
        return work()
    except KeyboardInterrupt:
        return INTERRUPTED
    except InputError as error:
        return _complain(str(error))
    except (HydraException, OmegaConfBaseException) as error:
        cause = error.__cause__ or error.__context__
        return _complain(explain_os_error(cause) if isinstance(cause, OSError) else explain(error, target))
    except YAMLError as error:
        return _complain(f"a YAML file cannot be read: {' '.join(str(error).split())}. Correct it there.")
    except OSError as error:
        return _complain(explain_os_error(error))


def check_names(cfg: DictConfig, overrides: Sequence[str]) -> None:
    """Check that each chosen file brought what it is named for; another name would pose as that, or merge with it.

    Raises:
        InputError: a file whose top key is not its name.

    """
    for override in overrides:
        chosen = re.fullmatch(r"(component|variant|metric)=\[(.*)\]", override)
        names = [name.strip() for name in chosen[2].split(",") if name.strip()] if chosen else []
        found = set(cfg.get(chosen[1]) or {}) if chosen else set()
        wrong = [name for name in names if name not in found] or (names if found - set(names) else [])
        if chosen and wrong:
            raise InputError(f"{chosen[1]}/{wrong[0]}.yaml must hold one key at its top, its own name: `{wrong[0]}:`")


def _complain(message: str) -> int:
    print(f"error: {message}", file=sys.stderr)
    return InputError.exit_code


def explain(error: Exception, target: str) -> str:
    """Turn an exception of Hydra or OmegaConf into one line with the near matches."""
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, name = str(error.missing_cfg_file).rpartition("/")
        options = sorted(path.stem for folder in _config_folders() for path in (folder / group).glob("*.yaml"))
        return f"there is no {group} {name!r}.{did_you_mean(name, options)} There are: {', '.join(options)}"
    text = " ".join(str(error).split())
    if match := re.search(r"Could not override '([^']+)'", text):
        return f"there is no key {match[1]!r} in the config.{_near_key(match[1], target)} --help shows what there is."
    detail = " ".join(str(cause).split())
    return f"{detail or text} --help shows what there is."


def _config_folders() -> list[Path]:
    """Return where groups are looked for: conf, and the folder that the user adds with --config-dir."""
    added = re.search(r"(?:^|\0)(?:--config-dir|-cd)[=\0]([^\0]+)", "\0".join(sys.argv[1:]))
    return [CONF, *([Path(added[1])] if added else [])]


def _near_key(key: str, target: str) -> str:
    """Look for near keys in the config that the command line's groups compose."""
    groups = [argument for argument in sys.argv[1:] if re.match(r"(component|variant|metric)=", argument)]
    searchpath = f"hydra.searchpath=[{','.join(f'file://{folder.absolute()}' for folder in _config_folders()[1:])}]"
    GlobalHydra.instance().clear()
    with contextlib.suppress(Exception), initialize_config_dir(str(CONF), version_base=None):
        keys: list[str] = []
        _flatten(OmegaConf.to_container(compose(target, [*groups, searchpath]), resolve=False), "", keys)
        return did_you_mean(key, keys)
    return ""


def _flatten(node: object, path: str, keys: list[str]) -> None:
    if isinstance(node, dict):
        for name, value in node.items():
            full = f"{path}.{name}" if path else str(name)
            keys.append(full)
            _flatten(value, full, keys)


def explain_os_error(error: OSError) -> str:
    """Return one line for a disk that is full, a folder that cannot be written, and the like."""
    where = f" {error.filename}" if error.filename else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return (
            f"{error.strerror}{where}: the disk takes no more. The records of the cells that had ended are whole: "
            "free space, then go on with resume=RUN"
        )
    if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
        return f"cannot write{where}: {error.strerror}. Choose another folder: hydra.run.dir=FOLDER"
    return f"{error.strerror or error}{where}. Choose another folder: hydra.run.dir=FOLDER"


def register_resolvers() -> None:
    """Register what our YAML interpolates: `run_folder` makes a run's folder, `product` multiplies."""

    @cache
    def run_folder(target: str, resume: str | None) -> str:
        if resume:
            return resume
        return str(new_folder(Path("runs") / target, datetime.now().strftime("%Y-%m-%d_%H-%M-%S")))

    OmegaConf.register_new_resolver("run_folder", run_folder, replace=True)
    OmegaConf.register_new_resolver("product", lambda *factors: math.prod(factors), replace=True)


def execute(target: str, config: RunConfig, folder: Path) -> int:
    """Run the cells of `config` into `folder`, print the report, return the exit code."""
    progress = make_progress()
    try:
        code = Run(target, config, folder, progress).execute()
    except InputError:
        if config.resume is None:
            clear_refused(folder)
        raise
    except KeyboardInterrupt:
        progress.close()
        progress.say(f"interrupted; the cells that had ended are kept. Go on: {command_of(folder)} resume={folder}")
        code = INTERRUPTED
    finally:
        progress.close()
    if (folder / RESULTS_FILE).exists():
        print(write_report(folder))
    return code


def main(target: str, run: Target) -> None:
    """Start a target from the command line; does not return."""
    print_what_it_can()
    sys.exit(launch(target, run))
