"""How the cached world model makes a frame."""

from dataclasses import dataclass

from models.params import require
from models.ring_attention import KERNELS

COMMITS = ("fused", "separate")


@dataclass(frozen=True)
class FrameOptions:
    """How a frame is made.

    `steps` denoising passes, Euler steps from noise (t = 1) to the latent (t = 0). `commit=fused`: a frame is committed
    in the first pass of the next, with twice the tokens and the same weights to read; `separate`: in a pass of its own.
    `guidance` is the scale of classifier-free guidance, a second row of the batch without controls (None: off).
    `kernel=triton`: all fused kernels; `sdpa`: plain operations; `auto`: the former where they can run.

    Raises:
        ValueError: a value out of range.

    """

    steps: int = 1
    t_commit: float = 0.0
    commit: str = "fused"
    guidance: float | None = None
    batch: int = 1
    kernel: str = "auto"

    def __post_init__(self) -> None:
        require(isinstance(self.steps, int) and self.steps >= 1, f"steps={self.steps}: a whole number of at least 1")
        require(isinstance(self.batch, int) and self.batch >= 1, f"batch={self.batch}: a whole number of at least 1")
        require(0 <= self.t_commit <= 1, f"t_commit={self.t_commit}: a noise level from 0 to 1")
        require(
            self.guidance is None or (isinstance(self.guidance, int | float) and not isinstance(self.guidance, bool)),
            f"guidance={self.guidance!r}: a number, or null for none",
        )
        require(self.commit in COMMITS, f"commit={self.commit!r} is none of {', '.join(COMMITS)}")
        require(self.kernel in KERNELS, f"kernel={self.kernel!r} is none of {', '.join(KERNELS)}")

    @property
    def rows(self) -> int:
        """Rows of the batch inside the network."""
        return self.batch if self.guidance is None else 2 * self.batch
