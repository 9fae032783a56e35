"""Stands in for Slurm: sbatch runs the tasks of an array on this machine, each with the GPU of its number."""

import sys
from pathlib import Path

_SBATCH = """#!{python}
import os, re, subprocess, sys
script = sys.argv[-1]
array = re.search(r"--array=0-([0-9]+)%([0-9]+)", open(script).read())
print("Submitted batch job 4711", flush=True)
if os.fork() == 0:
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    for task in range(int(array[1]) + 1):
        names = dict(JOB_ID=47110 + task, ARRAY_JOB_ID=4711, ARRAY_TASK_ID=task, NTASKS=1, JOB_NUM_NODES=1, NODEID=0,
                     PROCID=0, LOCALID=0, JOB_NODELIST="localhost")
        given = {{f"SLURM_{{name}}": str(value) for name, value in names.items()}}
        subprocess.run(["bash", script], env=os.environ | given | {{"CUDA_VISIBLE_DEVICES": str(task)}})
    os._exit(0)
"""
_SRUN = """#!/bin/sh
while [ $# -gt 0 ]; do
  case "$1" in --output|--error) shift 2;; --*) shift;; *) break;; esac
done
exec "$@"
"""
_SACCT = "#!/bin/sh\necho 'JobID|State|NodeList'\necho '4711_0|RUNNING|localhost'\n"


def install(folder: Path) -> None:
    """Write the commands into `folder`."""
    folder.mkdir()
    for name, text in {"sbatch": _SBATCH.format(python=sys.executable), "srun": _SRUN, "sacct": _SACCT}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
