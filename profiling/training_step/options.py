"""Options of the training: steps, data, clipping, autocast, learning rates, and tolerances."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from profiling.errors import InputError, check_choice, check_number, check_whole


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """The options of a training.

    - `steps`: training steps that are compared with the same steps run eagerly.
    - `batches`: different batches in the data set, which `workers` processes load into pinned memory.
    - `lr_changes`: pairs of a step and the factor that the learning rate is multiplied by before it (None: 0.1 after
      half of the steps).
    - `tolerance`: largest accepted distance of the weights from those of eager training, relative to the distance that
      eager training moved its weights; `loss_tolerance`: largest accepted relative error of a loss.

    Raises:
        InputError: a number out of range or an unknown autocast dtype.

    """

    steps: int = 50
    batches: int = 8
    workers: int = 2
    clip_norm: float | None = None
    autocast: str | None = None
    lr_changes: Sequence[tuple[int, float]] | None = None
    tolerance: float = 0.05
    loss_tolerance: float = 0.01

    def __post_init__(self) -> None:
        for name, least in (("steps", 2), ("batches", 1), ("workers", 0)):
            check_whole(f"training.{name}", getattr(self, name), least)
        for name in ("clip_norm", "tolerance", "loss_tolerance"):
            if (value := getattr(self, name)) is not None:
                check_number(f"training.{name}", value, above=0)
        if self.autocast is not None:
            check_choice("training.autocast", self.autocast, ("bfloat16", "float16"))
        if self.lr_changes is None:
            object.__setattr__(self, "lr_changes", ((self.steps // 2, 0.1),))
        for step, factor in self.lr_changes or ():
            if not 0 <= step < self.steps or not factor > 0:
                pair = f"training.lr_changes={[step, factor]}"
                raise InputError(f"{pair}: must be [STEP, FACTOR], STEP from 0 to {self.steps - 1}, FACTOR above 0.")
