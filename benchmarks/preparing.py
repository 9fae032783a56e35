"""Time `profiling.prepare` with warm caches: python benchmarks/preparing.py FOLDER [COMPONENT...]

FOLDER has the other revision: git worktree add FOLDER REVISION. Each preparation runs in a process of its own, and the
trees take turns after one that fills the compiler's cache. The table has the shortest of the seconds, and the ratio.
Expected: at most 1.1, since a prepared step is played against the module over 8 calls, which take milliseconds.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from shutil import which
from time import perf_counter

ROOT = Path(__file__).resolve().parents[1]
NETWORKS = ("world_model", "image_decoder", "audio_decoder")
VARIANTS = ("cuda_graph", "compile+cuda_graph") if which("nvidia-smi") else ("baseline", "compile")
TURNS = 2


def network(name):
    """Return (module, inputs) of a component of conf/ as a run builds it, at full size on a GPU, else tiny."""
    import torch
    import yaml
    from hydra.utils import instantiate

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    node = yaml.safe_load(Path(f"conf/component/{name}.yaml").read_text())[name]
    if device.type == "cpu":
        node["module"] |= node["tiny"]["module"]
    with device:
        module = instantiate(node["module"], _convert_="all").eval()
    instantiate(node["initialise"], module, seed=0)
    module.to(dtype)
    generator = torch.Generator(device).manual_seed(1)
    return module, dict(instantiate(node["inputs"], module, generator=generator, device=device.type, dtype=dtype))


def seconds(name, variant):
    """Return the seconds of one preparation in this process."""
    import profiling

    module, inputs = network(name)
    started = perf_counter()
    profiling.prepare(module, inputs, variant=variant).close()
    return perf_counter() - started


def in_tree(tree, name, variant, cache):
    """Return the seconds of one preparation by the code of `tree`."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tree), os.environ.get("PYTHONPATH", "")])}
    environment["TORCHINDUCTOR_CACHE_DIR"] = cache
    command = [sys.executable, str(Path(__file__).resolve()), "--one", name, variant]
    result = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
    if result.returncode:
        sys.exit(f"{tree}, {name}, {variant}: {result.stderr[-2000:]}")
    return float(result.stdout.split()[-1])


def main():
    if sys.argv[1:2] == ["--one"]:
        print(seconds(*sys.argv[2:]))
        return
    trees = [ROOT, Path(sys.argv[1]).resolve()]
    print(f"{'component':<16}{'variant':<22}{'this revision (s)':>18}{'the other (s)':>15}{'ratio':>7}")
    with tempfile.TemporaryDirectory() as cache:
        for name in sys.argv[2:] or NETWORKS:
            for variant in VARIANTS:
                for tree in trees:
                    in_tree(tree, name, variant, cache)
                turns = [[in_tree(tree, name, variant, cache) for tree in trees] for _ in range(TURNS)]
                this, other = (min(times) for times in zip(*turns, strict=True))
                print(f"{name:<16}{variant:<22}{this:>18.2f}{other:>15.2f}{this / other:>7.2f}", flush=True)


if __name__ == "__main__":
    main()
