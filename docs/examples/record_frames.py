"""Does your own loop hold its frame rate, and why is a frame late? Records a loop as it is and saves a report.

python docs/examples/record_frames.py
"""

import random
import time

import profiling


def world(action: int) -> float:
    """Stand in for a world model: a stage that takes about 3 ms."""
    time.sleep(0.003)
    return action / 2


def decode(latent: float) -> str:
    """Stand in for a decoder that is slow now and then."""
    time.sleep(0.03 if random.random() < 0.02 else 0.002)
    return f"picture of {latent}"


if __name__ == "__main__":
    frames = profiling.FrameRecorder(fps=60)
    for action in range(100):
        with frames.frame():
            with frames.stage("world"):
                latent = world(action)
            with frames.stage("decode"):
                picture = decode(latent)
    print(frames.save("runs/my_loop"))
