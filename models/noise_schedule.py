"""The noise levels through which a frame is made, on the device."""

import torch
from torch import Tensor

from models.precision import ConstantBuffers


class NoiseSchedule(ConstantBuffers):
    """Levels from noise (1) to a latent (0) in equal steps, after the level at which a finished frame is committed."""

    levels: Tensor
    deltas: Tensor

    def __init__(self, steps: int, t_commit: float) -> None:
        super().__init__()
        self.steps, self.t_commit = steps, t_commit
        self.register_constants()

    def constants(self) -> dict[str, Tensor]:
        """Return `levels` [1 + steps], the commit's and then each step's, and `deltas` [steps] between the steps."""
        steps = torch.linspace(1, 0, self.steps + 1, dtype=torch.float64, device="cpu")
        commit = torch.tensor([self.t_commit], dtype=torch.float64, device="cpu")
        return {"levels": torch.cat((commit, steps[:-1])).float(), "deltas": (steps[:-1] - steps[1:]).float()}
