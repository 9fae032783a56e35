"""Times the frames of a pipeline, or of an application's own loop, against their deadlines.

How a loop is measured is in three files: `cell` does everything in turn, `pipeline` runs a tick, and `play` begins each
frame when it is due and records its times.

What is played: `graph` parses the pipeline in YAML, `plan` has the options of the loop and the number of ticks.
`assemble` connects stages, `sources` are their inputs from the host, and `mix` has the variants of stages.
`summary` makes the section of the record out of the series of all frames, with `deadlines` and `trend`; `recovery` does
so where the process died.

`recorder` records the frames of an application, with `cuda_timer` for the times on the device; `recorded_run` holds
their files.
"""
