"""Jobs, and configs of runs, as targets make them from a command line."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from profiling.components.spec import ComponentSpec, Settings
from profiling.run.job import FORWARD, Job, RunConfig, as_recipe

SETTINGS = Settings(device="cpu", dtype="float32", scale="tiny", ceilings="off", threads=1)
NET = ComponentSpec("net", {"_target_": "torch.nn.Identity"}, {"x": {"shape": [1]}})


def make_job(
    variant: str = "v", folder: Path | str = "run", component: ComponentSpec = NET, *, metrics=None, **changes: Any
) -> Job:
    """Return the job of a component under the recipe of these options; `settings` and `procedure` may be others."""
    settings, procedure = changes.pop("settings", SETTINGS), changes.pop("procedure", FORWARD)
    options, metrics = as_recipe(changes), metrics or {}
    return Job("generic_forward", component, variant, options, metrics, settings, str(folder), procedure)


def make_config(
    variants: Mapping[str, Any], components: tuple[ComponentSpec, ...] = (NET,), *, metrics=None, **options: Any
) -> RunConfig:
    """Return the config of a run whose cells have processes of their own."""
    defaults = {"settings": SETTINGS, "isolation": "process", "cell_timeout": 60.0, "resume": None, "source": {}}
    return RunConfig(components, variants, metrics or {}, **{**defaults, **options})
