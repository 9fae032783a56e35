"""What a launch costs on this machine: the numbers by which other reports tell a slow kernel from a starved device.

`profiling.calibration.launches.calibrate` measures them; `profiling.reporting.launches` shows them.
"""
