"""Record from a wheel of torch_tensorrt what this tool calls and reads: python record.py WHEEL > signatures.json

Reads the source in the wheel, which needs no TensorRT: the parameters of functions, the fields of CompilationSettings,
the names of the back end, and the texts of the report that is logged.
"""

import ast
import json
import sys
import zipfile
from pathlib import PurePath

#: Name for the stand-in: (file in the package, function).
FUNCTIONS = {
    "dynamo.compile": ("dynamo/_compiler.py", "compile"),
    "save": ("_compile.py", "save"),
    "load": ("_compile.py", "load"),
    "Input": ("_Input.py", "Input.__init__"),
    "runtime.set_cudagraphs_mode": ("runtime/_cudagraphs.py", "set_cudagraphs_mode"),
    "runtime.get_cudagraphs_mode": ("runtime/_cudagraphs.py", "get_cudagraphs_mode"),
    "runtime.enable_cudagraphs": ("runtime/_cudagraphs.py", "enable_cudagraphs"),
    "wrapped.forward": ("dynamo/runtime/_CudaGraphsTorchTensorRTModule.py", "CudaGraphsTorchTensorRTModule.forward"),
    "backend": ("dynamo/backend/backends.py", "torch_tensorrt_backend"),
}
SETTINGS = ("dynamo/_settings.py", "CompilationSettings")
REPORT = "dynamo/_DryRunTracker.py"


def found(tree, path):
    """Return the function or class at a dotted path."""
    node = tree
    for name in path.split("."):
        node = next(each for each in node.body if getattr(each, "name", None) == name)
    return node


def parameters(function):
    """Return [name, kind, has a default] of each parameter but self; kinds are those of inspect.Parameter."""
    args = function.args
    by_place = [*args.posonlyargs, *args.args]
    first_default = len(by_place) - len(args.defaults)
    kinds = ["POSITIONAL_ONLY"] * len(args.posonlyargs) + ["POSITIONAL_OR_KEYWORD"] * len(args.args)
    rows = [
        [each.arg, kind, number >= first_default]
        for number, (each, kind) in enumerate(zip(by_place, kinds, strict=True))
    ]
    rows += [[args.vararg.arg, "VAR_POSITIONAL", False]] if args.vararg else []
    rows += [
        [each.arg, "KEYWORD_ONLY", default is not None]
        for each, default in zip(args.kwonlyargs, args.kw_defaults, strict=True)
    ]
    rows += [[args.kwarg.arg, "VAR_KEYWORD", False]] if args.kwarg else []
    return [row for row in rows if row[0] != "self"]


def texts(tree):
    """Return the strings of a module that have words, those between the values of an f-string one by one."""
    strings = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return sorted(each.strip() for each in strings if " " in each.strip() and "\n    " not in each)


def main() -> None:
    wheel = zipfile.ZipFile(sys.argv[1])

    def tree(file):
        return ast.parse(wheel.read(f"torch_tensorrt/{file}"))

    backend = found(tree("dynamo/backend/backends.py"), "torch_tensorrt_backend")
    settings = found(tree(SETTINGS[0]), SETTINGS[1])
    record = {
        "wheel": PurePath(sys.argv[1]).name,
        "functions": {name: parameters(found(tree(file), path)) for name, (file, path) in FUNCTIONS.items()},
        "settings": [node.target.id for node in settings.body if isinstance(node, ast.AnnAssign)],
        "backends": [keyword.value.value for call in backend.decorator_list for keyword in call.keywords],
        "report": texts(tree(REPORT)),
    }
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
