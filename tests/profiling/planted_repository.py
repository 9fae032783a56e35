"""Git repositories of a user with a tiny network, commit by commit."""

import subprocess
from pathlib import Path

IDENTITY = ("-c", "user.name=n", "-c", "user.email=e@example.org")
#: A network that multiplies as often as its file says.
NET = """
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(256, 256)

    def forward(self, x):
        for _ in range({times}):
            x = self.layer(x)
        return x
"""
COMPONENT = "{name}:\n  module: {{_target_: user_net.Net}}\n  inputs:\n    x: {{shape: [64, 256]}}\n"


def git(folder, *arguments):
    """Run git and return what it prints."""
    command = ["git", "-C", str(folder), *IDENTITY, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def commit(folder: Path, files: dict[str, str | None]) -> str:
    """Write the files, remove those that are None, commit all, and return the revision; a new folder is a new one."""
    if not (folder / ".git").exists():
        folder.mkdir(parents=True, exist_ok=True)
        git(folder, "init", "-q", "-b", "main")
    for name, text in files.items():
        path = folder / name
        if text is None:
            path.unlink()
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "--allow-empty", "-m", "planted")
    return git(folder, "rev-parse", "HEAD")


def with_network(folder: Path, *times: int) -> list[str]:
    """Commit the network and its YAML, with another number of multiplications each time; return the revisions."""
    files = {"component/net.yaml": COMPONENT.format(name="net"), ".gitignore": "runs\n__pycache__\n"}
    return [commit(folder, {**files, "user_net.py": NET.format(times=number)}) for number in times]
