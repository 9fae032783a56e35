"""Stands in for the run of a job: says where it runs, and does what the first argument plans for its seed."""

import json
import os
import signal
import sys
import time
from pathlib import Path

plan = json.loads(sys.argv[1])
given = dict(word.split("=", 1) for word in sys.argv[2:] if "=" in word)
folder = Path(given["hydra.run.dir"].strip("'"))
times = folder / "times.jsonl"
earlier = len(times.read_text().splitlines()) if times.exists() else 0
actions = plan.get(given["seed"], "end").split(" then ")
action = actions[min(earlier, len(actions) - 1)]
(folder / "config.yaml").touch()
began = time.time()


def write() -> None:
    line = {
        "began": began,
        "ended": time.time(),
        "gpus": os.environ.get("CUDA_VISIBLE_DEVICES", "").split(","),
        "cpus": sorted(os.sched_getaffinity(0)),
        "flags": [word for word in sys.argv[2:] if word.startswith("-")],
        "resumed": "resume" in given,
        "resume_changed": given.get("resume_changed"),
        "pid": os.getpid(),
    }
    with times.open("a") as file:
        file.write(json.dumps(line) + "\n")


signal.signal(signal.SIGTERM, lambda *_: (write(), os._exit(130)))
if action == "raise":
    write()
    raise RuntimeError("planted")
if action.startswith("exit"):
    write()
    print("error: planted")
    sys.exit(int(action.split()[1]))
if action == "fail":  # as a run whose cells failed
    write()
    failed = {"target": "generic_forward", "component": "net", "status": "failed", "reason": "out of memory"}
    records = [{"schema": 2, **failed, "variant": name} for name in ("baseline", "compile")]
    (folder / "results.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    print("report: report.html")
    sys.exit(1)
if action == "die":
    write()
    os.kill(os.getpid(), signal.SIGKILL)
if action == "kill the worker":
    write()
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)
if action == "hang":
    time.sleep(60)
if action.startswith("meet"):  # the job of another seed, which runs at the same time
    while not (folder.parent / action.split()[1] / "config.yaml").exists() and time.time() < began + 60:
        time.sleep(0.05)
time.sleep(0.1)
write()
