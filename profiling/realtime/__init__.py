"""Times the frames of a pipeline, or of an application's own loop, against their deadlines.

How a loop is measured, in the order in which to read: `graph` parses the pipeline in YAML, and `plan` says how many
ticks a cell plays. `prepare` builds and prepares the stages, and `sides` plays what they are compared with. `assemble`
connects them (`sources` are the inputs from the host), and `pipeline` runs a tick. `play` is the loop itself: it begins
each frame when it is due and records its times. `cell` does all of this in turn. `summary` makes the section of the
record out of the series of all frames, with `deadlines` and `trend`.

`recorder` records the frames of an application, with `cuda_timer` for the times on the device; `recorded_run` holds
their files. `recovery` saves the frames of a process that died.
"""
