#!/usr/bin/env python3
"""Trials of the gate on the real engine: each fault must turn exactly the right checks red, and the message say why.

usage: trials.py [--engine DIR] [--out DIR] [CASE …]

Without CASE all cases run, one after the other (about 60 starts of a real vLLM for CPU; 30 to 60 s each on two cores).
The engine is the one of ``examples/cpu-vllm/make_engine.py``. Prints a table: case, expected red, seen red, seconds,
the first line of the message; exit code 1 if a case was not as expected.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as ElementTree

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]


@dataclasses.dataclass(frozen=True)
class Case:
    """``red``: items that must fail (``restart-2::kv``); all others must be green or errors behind a failed start.

    ``says``: parts of the output that must stand in it. ``kill``: (log pattern, process) killed by SIGKILL when seen.
    """

    name: str
    red: frozenset[str]
    says: tuple[str, ...] = ()
    restarts: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    model: str = "facts"
    damage: tuple[tuple[str, str], ...] = ()
    proxy: str | None = None
    kill: tuple[str, str] | None = None
    occupied: bool = False
    env: tuple[tuple[str, str], ...] = ()
    tp: int = 1
    ready: str = "6m"


def change(*args: str) -> str:
    return "{kind: process, change: {args: " + json.dumps(list(args)) + "}}"


WARM = "{kind: process}"
#: The access line of the first completion, which makes the engine ready.
ANSWERED = '"POST /v1/completions HTTP/1.1" 200'
CASES = (
    Case("three warm restarts", frozenset(), restarts=(WARM, WARM, WARM), says=("ACCEPTED",)),
    Case(
        "eager",
        frozenset({"restart-1::artifacts", "restart-1::graphs"}),
        restarts=(change("--enforce-eager"),),
        says=("the engine loaded no compiled artifact", "lowered its CUDA graph mode"),
    ),
    Case("smaller kv", frozenset({"restart-1::kv"}), restarts=(change("--kv-cache-memory-bytes", "134217728"),)),
    Case(
        "attention backend forced",
        frozenset({"restart-1::backend"}),
        restarts=(change("--attention-backend", "FLASHINFER"),),
    ),
    Case(
        "artifact deleted",
        frozenset({"restart-1::artifacts"}),
        restarts=(WARM,),
        damage=(("restart-1", "delete"),),
        says=("written during a warm start",),
    ),
    Case("artifact emptied", frozenset({"restart-1::artifacts"}), restarts=(WARM,), damage=(("restart-1", "empty"),)),
    Case("artifact edited", frozenset({"restart-1::artifacts"}), restarts=(WARM,), damage=(("restart-1", "edit"),)),
    Case(
        "killed at weights",
        frozenset({"reference::ready"}),
        kill=("Starting to load model", "VLLM::Worker"),
        # How it died is known where the kernel or a living parent still tells.
        says=("failed in phase weights", "VLLM::Worker (pid", "before the engine was ready"),
    ),
    Case(
        "killed at warm-up",
        frozenset({"reference::ready"}),
        kill=("Warming up model", "VLLM::EngineCore"),
        says=("VLLM::EngineCore (pid", "was killed by SIGKILL before the engine was ready"),
    ),
    Case(
        "killed after ready",
        frozenset({"reference::ready"}),
        kill=(ANSWERED, "vllm serve"),
        says=("failed in phase serving", "the engine ended while it served", "was killed by SIGKILL"),
    ),
    Case("second server on the port", frozenset(), occupied=True, says=("is already taken by",)),
    Case("wrong model path", frozenset({"reference::ready"}), model="missing", says=("start failed",)),
    Case(
        "length over capacity",
        frozenset({"reference::ready"}),
        args=("--kv-cache-memory-bytes", "1048576", "--max-model-len", "2048"),
        says=("start failed",),
    ),
    Case(
        "worker killed under TP 2",
        frozenset({"reference::ready"}),
        kill=("Warming up model", "VLLM::Worker_TP1"),
        tp=2,
        says=("on rank TP1", "VLLM::Worker_TP1 (pid", "was killed by SIGKILL before the engine was ready"),
    ),
    Case(
        "worker killed under TP 2 after ready",
        frozenset({"reference::ready"}),
        kill=(ANSWERED, "VLLM::Worker_TP1"),
        tp=2,
        says=("failed in phase serving", "VLLM::Worker_TP1 (pid", "was killed by SIGKILL while the engine served"),
    ),
    Case("proxy: empty", frozenset({"reference::ready"}), proxy="empty", says=("HTTP 200 with empty text",)),
    Case("proxy: truncated", frozenset({"reference::ready"}), proxy="truncated", says=("HTTP 200 answer cut off",)),
    Case(
        "proxy: slow",
        frozenset({"reference::ready", "reference::phases"}),  # the deadline of the whole start passes
        proxy="slow",
        ready="4m",
        says=("not ready after 240", "no complete answer within 20 s"),
    ),
    Case("proxy: garbage", frozenset({"reference::ready"}), proxy="garbage", says=("unusable: body is not JSON",)),
    Case("twenty warm restarts", frozenset(), restarts=("{kind: process, times: 20}",), says=("ACCEPTED",)),
)

PROFILE = """\
schema: 1
name: trial
engine:
  kind: vllm
  version: 0.31.0
  model: {model}
  served_name: facts
  args: {args}
  env: {env}
launch:
  process: {{command: {command}}}
  port: {port}
caches:
  compile-cache: {{path: {cache}/torch_compile_cache, kind: compile}}
deadlines: {{ready: {ready}, stop: 10s, request: 20s}}
restarts: [{restarts}]
expect:
  kv: {{tokens: baseline}}
  completion: {{prompt: "The capital of France is", contains: Paris}}
  throughput: {{concurrency: [8], output_tokens: 64, repeats: 7, tolerance: 80%}}
  quality: {{prompts: [{{prompt: "The capital of Norway is", contains: Oslo}}]}}
waive:
  - {{check: graphs, reason: "the CPU platform has no CUDA graphs"}}
  - {{check: autotune, reason: "FlashInfer's autotuner runs on CUDA only"}}
  - {{check: backend, reason: "this build never logs its default attention backend"}}
  - {{check: throughput, reason: "a trial on a shared machine"}}
"""


class Trial:
    """One case: its folder, its profile, the run of the gate, and what came of it."""

    def __init__(self, case: Case, engine: pathlib.Path, cache: pathlib.Path, out: pathlib.Path) -> None:
        self.case, self.engine, self.cache = case, engine, cache
        self.folder = out / case.name.replace(" ", "-").replace(":", "")
        self.folder.mkdir(parents=True, exist_ok=True)
        self.killed: float | None = None

    def profile(self, port: int) -> pathlib.Path:
        case = self.case
        plan = {
            "damage": dict(case.damage),
            "cache": str(self.cache),
            "proxy": case.proxy,
            "count": str(self.folder / "count"),
        }
        (self.folder / "count").unlink(missing_ok=True)
        (self.folder / "plan.json").write_text(json.dumps(plan))
        command = [sys.executable, str(HERE / "wrapper.py"), str(self.folder / "plan.json")]
        args = ["--served-model-name", "facts", "--max-model-len", "1024", "--kv-cache-memory-bytes", "268435456"]
        if case.tp > 1:
            args += ["--tensor-parallel-size", str(case.tp)]
        env = {"CPU_VLLM_COMPILE": "1", "VLLM_CACHE_ROOT": str(self.cache), "HF_HUB_OFFLINE": "1"}
        env["TRIAL"] = str(self.folder)
        if case.tp > 1:
            env["VLLM_CPU_OMP_THREADS_BIND"] = "0|1"
        text = PROFILE.format(
            model=self.engine / "models" / case.model,
            args=json.dumps([*args, *case.args]),
            env=json.dumps({**env, **dict(case.env)}),
            command=json.dumps([*command, str(self.engine / "venv/bin/vllm"), "serve"]),
            port=port or "auto",
            cache=self.cache,
            ready=case.ready,
            restarts=", ".join(case.restarts),
        )
        path = self.folder / "trial.yaml"
        path.write_text(text)
        return path

    def run(self) -> tuple[set[str], str, float]:
        """Run the gate; the red items, the whole output, seconds."""
        began = time.monotonic()
        with socket.socket() as other:
            port = 0
            if self.case.occupied:
                other.bind(("127.0.0.1", 0))
                other.listen()
                port = other.getsockname()[1]
            argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--junitxml={self.folder / 'junit.xml'}"]
            argv += ["--startup-profile", str(self.profile(port)), "--startup-artifacts", str(self.folder / "runs")]
            gate = subprocess.Popen(
                [*argv, str(self.folder)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=self.folder
            )
            done = threading.Event()
            killer = threading.Thread(target=self.kill, args=(done,))
            killer.start()
            output = gate.communicate(timeout=3600)[0]
            done.set()
            killer.join()
        (self.folder / "output.txt").write_text(output)
        cases = ElementTree.parse(self.folder / "junit.xml").getroot().iter("testcase")  # noqa: S314 - our own file
        red = {item_of(c) for c in cases if c.find("failure") is not None}
        return red, output, time.monotonic() - began

    def kill(self, done: threading.Event) -> None:
        """Kill the named process of this trial's engine as soon as the pattern stands in its log."""
        if self.case.kill is None:
            return
        pattern, name = self.case.kill
        known = set(self.folder.glob("runs/trial/*"))
        while not done.wait(0.05):
            logs = [p for run in set(self.folder.glob("runs/trial/*")) - known for p in run.glob("*/head/engine.log")]
            if logs and pattern in max(logs).read_text(errors="replace"):
                victims = [p for p in session_of(self.folder) if name in command(p)]
                for pid in victims[:1]:
                    # Held at this point for a second: a rank may have got its title only now, and none has seen it.
                    os.kill(pid, signal.SIGSTOP)
                    done.wait(1.0)
                    self.killed = time.monotonic()
                    os.kill(pid, signal.SIGKILL)
                if victims:
                    return


def item_of(case: ElementTree.Element) -> str:
    """``restart-1::kv`` of a JUnit test case."""
    return f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"


def command(pid: int) -> str:
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def session_of(folder: pathlib.Path) -> list[int]:
    """The processes of the engine's session. Only its first process is sure to keep the environment that we gave it."""
    pids = [int(p.name) for p in pathlib.Path("/proc").iterdir() if p.name.isdigit()]
    mark = f"TRIAL={folder}\0".encode()
    sessions: dict[int, int] = {}
    leaders = set()
    for pid in pids:
        try:
            sessions[pid] = os.getsid(pid)
            if mark in pathlib.Path(f"/proc/{pid}/environ").read_bytes():
                leaders.add(sessions[pid])
        except OSError:
            continue
    return sorted(pid for pid, session in sessions.items() if session in leaders)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", type=pathlib.Path, default=ROOT / ".engine")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(tempfile.gettempdir()) / "startup-trials")
    parser.add_argument("case", nargs="*", help=", ".join(c.name for c in CASES))
    options = parser.parse_args()
    unknown = set(options.case) - {c.name for c in CASES}
    if unknown:
        parser.error(f"unknown case {unknown.pop()!r}")
    wrong = 0
    for case in CASES:
        if options.case and case.name not in options.case:
            continue
        cache = options.out / ("cache-tp2" if case.tp > 1 else "cache")
        trial = Trial(case, options.engine, cache, options.out)
        red, output, seconds = trial.run()
        fine = red == set(case.red) and all(text in output for text in case.says)
        wrong += not fine
        first = next((line for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))), "")
        print(f"{'as expected' if fine else 'UNEXPECTED':<12} {case.name:<28} {seconds:6.0f} s", flush=True)
        print(f"    expected red {sorted(case.red) or 'nothing'}; seen {sorted(red) or 'nothing'}")
        print(f"    {first[:160]}", flush=True)
        for text in case.says:
            if text not in output:
                print(f"    not said: {text}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
