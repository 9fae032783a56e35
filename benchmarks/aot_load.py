"""Find which AOTInductor packages can be loaded here, and where a load crashes: python benchmarks/aot_load.py --out DIR

Each form of a tiny network (one linear layer, or one without weights) is compiled, loaded and called in a process of
its own. The table names the last stage that a process reached and how it ended. On one machine (torch 2.11, CUDA 13)
each load ended in a segmentation fault: its g++ has no `libstdc++.so`, so packages held a copy of libstdc++. The last
form is linked to the libstdc++ of the process, as `profiling.variants.aot_inductor` does there. If the first form
crashes and cuda-gdb or gdb is installed, it is run again under it, and the stack is written to DIR.
"""

import argparse
import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

FORMS: dict[str, dict[str, object]] = {
    "as it is": {},
    "no weights": {},
    "single-threaded runner": {},
    "weights beside the code": {"aot_inductor.package_constants_in_so": False},
    "weights by the caching allocator": {"aot_inductor.weight_use_caching_allocator": True},
    "kernels beside the code": {"aot_inductor.embed_kernel_binary": False},
    "kernels in the code": {"aot_inductor.embed_kernel_binary": True},
    "several architectures": {"aot_inductor.emit_multi_arch_kernel": True},
    "constants without assembly": {"aot_inductor.use_consts_asm_build": False},
    "not linked to libtorch": {"aot_inductor.link_libtorch": False},
    "wrapper not optimised": {"aot_inductor.compile_wrapper_opt_level": "O0"},
    "library opened alone": {},
    "runner of the library": {},
    "torch._export.aot_load": {},
    "linked to libstdc++.so.6": {"aot_inductor.custom_op_libs": [":libstdc++.so.6"]},
}
LIMIT_S = 150


def run_form(form: str, device: str, folder: Path) -> None:
    """Compile, load and call one form, and print each stage when it is reached."""
    import faulthandler

    import torch
    from torch import nn

    faulthandler.enable()
    module: nn.Module = nn.Sequential(nn.Linear(64, 64), nn.ReLU()).eval().to(device)
    if form == "no weights":
        module = nn.SiLU()
    x = torch.randn(4, 64, device=device)
    options = FORMS[form]
    with torch.inference_mode():
        expected = module(x)
        if form == "torch._export.aot_load":
            library = torch._export.aot_compile(
                module, (x,), options={"aot_inductor.output_path": str(folder / "a.so")}
            )
            stage("compiled")
            call = torch._export.aot_load(library, device)
        else:
            program = torch.export.export(module, (x,))
            path = torch._inductor.aoti_compile_and_package(
                program, package_path=str(folder / "package.pt2"), inductor_configs=options
            )
            stage("compiled")
            with zipfile.ZipFile(path) as archive:
                archive.extractall(folder / "files")
            library = str(next((folder / "files").rglob("*.so")))
            if form == "library opened alone":
                ctypes.CDLL(library)
                stage("opened")
                return
            if form == "runner of the library":
                names = {"cpu": "AOTIModelContainerRunnerCpu", "cuda": "AOTIModelContainerRunnerCuda"}
                runner = getattr(torch._C._aoti, names[device.split(":")[0]])
                call = runner(library, 1) if device == "cpu" else runner(library, 1, device)
                stage("loaded")
                call.run([x])
                stage("called")
                return
            call = torch._inductor.aoti_load_package(path, run_single_threaded=form == "single-threaded runner")
            if form == "weights beside the code":
                call.load_constants(dict(module.state_dict()), check_full_update=True, user_managed=False)
        stage("loaded")
        result = call(x)
        stage("called")
    stage(f"difference {float((result - expected).abs().max()):.1e}")


def stage(name: str) -> None:
    print("STAGE", name, flush=True)


def try_form(form: str, device: str, out: Path, debugger: str | None) -> str:
    """Return a line about a form, from a process of its own."""
    folder = out / form.replace(" ", "_")
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, __file__, "--form", form, "--device", device, "--out", str(folder)]
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    with (folder / "log.txt").open("w") as log:
        try:
            code = subprocess.run(command, stdout=log, stderr=log, env=environment, timeout=LIMIT_S).returncode
        except subprocess.TimeoutExpired:
            return f"{form}: longer than {LIMIT_S} s"
    text = (folder / "log.txt").read_text(errors="replace")
    stages = [line.removeprefix("STAGE ") for line in text.splitlines() if line.startswith("STAGE ")]
    reached = stages[-1] if stages else "nothing"
    if code == 0:
        return f"{form}: works ({reached})"
    unpacked = re.escape(tempfile.gettempdir()) + r"/\w+/"
    why = re.sub(unpacked, "", text.strip().splitlines()[-1])[:150] if text.strip() else ""
    if code > 0:
        return f"{form}: failed after '{reached}': {why}"
    if debugger and form == next(iter(FORMS)):
        script = ["-batch", "-ex", "run", "-ex", "bt 25", "-ex", "info sharedlibrary", "-ex", "info registers rip"]
        with (folder / "stack.txt").open("w") as stack:
            subprocess.run(
                [debugger, *script, "--args", *command], stdout=stack, stderr=stack, env=environment, timeout=240
            )
    return f"{form}: {signal.Signals(-code).name} after '{reached}'"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default=None, help="cuda:0 where there is a GPU, else cpu")
    parser.add_argument("--form", choices=FORMS, help=argparse.SUPPRESS)
    parser.add_argument("--at-once", type=int, default=max((os.cpu_count() or 2) // 2, 1))
    asked = parser.parse_args()
    import torch
    from torch._inductor import cpp_builder

    device = asked.device or ("cuda:0" if torch.cuda.is_available() else "cpu")
    if asked.form:
        run_form(asked.form, device, asked.out)
        return
    debugger = shutil.which("gdb") or shutil.which("cuda-gdb")
    where = torch.cuda.get_device_name() if device != "cpu" else "CPU"
    print(f"AOTInductor packages: {where}, torch {torch.__version__}, debugger: {debugger or 'none'}")
    compiler = cpp_builder.get_cpp_compiler()
    for library in ("libstdc++.so", "libstdc++.so.6", "libstdc++.a"):
        answer = subprocess.run([compiler, f"-print-file-name={library}"], capture_output=True, text=True, check=True)
        found = answer.stdout.strip()
        print(f"{compiler} finds {library}: {found if Path(found).exists() else 'no'}", flush=True)
    with ThreadPoolExecutor(asked.at_once) as pool:
        for line in pool.map(lambda form: try_form(form, device, asked.out, debugger), FORMS):
            print(line, flush=True)
    for stack in sorted(asked.out.glob("*/stack.txt")):
        frames = [line for line in stack.read_text(errors="replace").splitlines() if line.startswith("#")]
        print(
            f"\n{stack.parent.name}:", *(re.sub(r" from /\S*/", " from ", frame)[:200] for frame in frames), sep="\n  "
        )


if __name__ == "__main__":
    main()
