"""The target `python -m profiling.checkpoints`: download the published checkpoints."""
