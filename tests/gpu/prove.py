#!/usr/bin/env python3
"""Proof on real GPUs: runs the gate against a real vLLM, breaks the engine in known ways, and sees which checks go red.

See README.md beside this file. Exit code 0 only if every case that ran was judged as expected.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from actors import Actor, Done, Scene
from cases import CASES, Case

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
#: Variables of the caller that the engine needs where CUDA's compilers and libraries are not in their usual places.
PASSED = (
    "PYTHONPATH",
    "LIBRARY_PATH",
    "CPATH",
    "NCCL_NVLS_ENABLE",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST",
    "NVSHMEM_DISABLE_NVLS",
)
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "NO_COLOR": "1",
}
GREEN = ("passed",)


@dataclass
class Result:
    """What a case gave. ``rows``: one per start (start, expected red, seen red, message); ``wrong``: what differs."""

    case: Case
    seconds: float = 0.0
    status: str = "not run"
    rows: list[tuple[str, str, str, str]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    done: list[Done] = field(default_factory=list)
    noticed: float | None = None


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Proof:
    """All cases of one call, run ``jobs`` at a time."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.out = Path(options.out).resolve()
        self.ends = time.monotonic() + options.seconds
        self.results: list[Result] = []
        self._free = threading.Condition()
        self._load: dict[str, list[Case]] = {gpu: [] for gpu in options.gpus}

    def run(self, cases: list[Case]) -> list[Result]:
        """Shared cases first, then those that need a GPU for themselves."""
        self.results = [Result(case) for case in cases]
        for wanted in (False, True):
            pending = [r for r in self.results if r.case.alone is wanted]
            width = self.options.jobs if not wanted else len(self.options.gpus)
            gate = threading.Semaphore(width)
            threads = []
            for result in pending:
                gate.acquire()
                thread = threading.Thread(target=self._guarded, args=(result, gate))
                thread.start()
                threads.append(thread)
            for thread in threads:
                thread.join()
        return self.results

    def _guarded(self, result: Result, gate: threading.Semaphore) -> None:
        gpus: list[str] = []
        try:
            gpus = self._take(result.case)
            left = self.ends - time.monotonic()
            if not gpus:
                result.status = "not run: too few GPUs"
            elif left < min(result.case.seconds, 60):
                result.status = "not run: no time left"
            else:
                self._case(result, gpus)
        except Exception as error:
            result.status = f"the script failed: {type(error).__name__}: {error}"
            result.wrong.append(result.status)
        finally:
            with self._free:
                for gpu in gpus:
                    self._load[gpu].remove(result.case)
                self._free.notify_all()
            gate.release()
            print(
                f"[{time.strftime('%H:%M:%S')}] {result.case.name}: {result.status} ({result.seconds:.0f} s)",
                flush=True,
            )
            for line in (*(d.what for d in result.done), *result.wrong):
                print(f"    {line[:300]}", flush=True)

    def _take(self, case: Case) -> list[str]:
        """The least used GPUs; for a case that must be alone, idle ones."""
        if case.gpus > len(self._load):
            return []
        with self._free:
            while True:
                order = sorted(self._load, key=lambda gpu: len(self._load[gpu]))[: case.gpus]
                if not case.alone or not any(self._load[gpu] for gpu in order):
                    for gpu in order:
                        self._load[gpu].append(case)
                    return sorted(order)
                self._free.wait()

    def _case(self, result: Result, gpus: list[str]) -> None:
        case = result.case
        folder = self.out / case.name
        folder.mkdir(parents=True, exist_ok=True)
        port = free_port() if case.fixed_port else None
        cache = self.out / "cache" / (case.cache or case.name)
        profile = folder / "profile.yaml"
        profile.write_text(json.dumps(self._profile(case, gpus, port, cache), indent=1) + "\n", encoding="utf-8")
        scene = Scene(cache, self.options.python, port, ",".join(gpus))
        began = time.monotonic()
        actor = Actor(list(case.events), folder / "run", scene)
        try:
            if any(event.when == "now" for event in case.events):
                deadline = time.monotonic() + 60
                while not actor.done and time.monotonic() < deadline:
                    time.sleep(0.05)
            code, output = self._pytest(case, folder, profile)
        finally:
            actor.close()
        result.seconds = time.monotonic() - began
        result.done = actor.done
        judge(result, folder, code, output)

    def _pytest(self, case: Case, folder: Path, profile: Path) -> tuple[int, str]:
        argv = [
            sys.executable, "-m", "pytest", "-p", "pytest_startup.plugin", "-p", "no:cacheprovider",
            "--rootdir", str(folder), "--startup-profile", str(profile), "--startup-artifacts", str(folder / "run"),
            "--startup-report", f"json={folder / 'report.json'}", f"--junitxml={folder / 'junit.xml'}", str(profile),
        ]  # fmt: skip
        if case.own_tests:
            argv.append(str(HERE / case.own_tests))
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(":")}
        log = folder / "pytest.txt"
        with log.open("wb") as handle:
            process = subprocess.Popen(argv, cwd=folder, env=env, stdout=handle, stderr=subprocess.STDOUT)
            try:
                code = process.wait(max(1.0, self.ends - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGINT)
                try:
                    code = process.wait(30)
                except subprocess.TimeoutExpired:
                    process.kill()
                    code = process.wait()
                return 99, log.read_text(encoding="utf-8", errors="replace")
        return code, log.read_text(encoding="utf-8", errors="replace")

    def _profile(self, case: Case, gpus: list[str], port: int | None, cache: Path) -> dict[str, Any]:
        options = self.options
        shared = options.jobs > 1 and not case.alone
        command = shlex.split(options.vllm)
        env = {
            **QUIET,
            "VLLM_CACHE_ROOT": str(cache),
            **dict(pair.split("=", 1) for pair in options.env),
            **({"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if shared else {}),
            **case.env,
        }
        expect = {"completion": {"prompt": "def main(argv):", "max_tokens": 16}, **case.expect}
        expect.setdefault("quality", {"prompts": [{"prompt": "import sys"}], "loops": "allow"})
        restarts = [dict(r) for r in case.restarts]
        if case.name == "noise" and options.restarts is not None:
            restarts = [{**r, "times": options.restarts} if "times" in r else r for r in restarts]
        watched = {
            "compile-cache": {"path": str(cache / "torch_compile_cache"), "kind": "compile"},
            "tuning-cache": {"path": str(cache / "flashinfer_autotune_cache"), "kind": "autotune"},
        }
        process = {"command": command, "cwd": str(self.out), "pass_env": [*PASSED, *options.pass_env]}
        whole: dict[str, Any] = {
            "schema": 1,
            "name": case.name,
            "engine": {
                "kind": "vllm",
                "model": str(Path(options.models).resolve() / case.model),
                "served_name": case.model,
                "args": ["--served-model-name", case.model, *case.args],
                "env": env,
            },
            "launch": {
                "process": process,
                "port": "auto" if port is None else port,
                **({} if shared or options.no_gpu or case.nodes else {"gpus": gpus}),
            },
            **({"caches": watched} if case.watch else {}),
            "deadlines": {"ready": "8m", "stop": "20s", "release": "30s", "request": "60s"},
            "settle": "1s",
            **({"restarts": restarts} if restarts else {}),
            "expect": expect,
            **({"waive": [{"check": c, "reason": r} for c, r in case.waive.items()]} if case.waive else {}),
        }
        return over_nodes(whole, [] if options.no_gpu else gpus, cache) if case.nodes else whole


def over_nodes(profile: dict[str, Any], gpus: list[str], cache: Path) -> dict[str, Any]:
    """The same engine as two nodes of this machine, 127.0.0.1 and .2, with a GPU and a cache folder each."""
    nodes = {}
    for rank, name in enumerate(("head", "worker")):
        own, address = cache / name, f"127.0.0.{rank + 1}"
        nodes[name] = {
            "address": address,
            "ranks": [rank],
            "args": ["--node-rank", str(rank), "--master-addr", "127.0.0.1", *(["--headless"] if rank else [])],
            "env": {"VLLM_HOST_IP": address, "VLLM_CACHE_ROOT": str(own)},
            **({"gpus": [gpus[rank]]} if gpus else {}),
            "caches": {"compile-cache": {"path": str(own / "torch_compile_cache"), "kind": "compile"}},
        }
    launch = {**profile["launch"], "port": free_port()}
    return {**{k: v for k, v in profile.items() if k != "caches"}, "launch": launch, "nodes": nodes}


def judge(result: Result, folder: Path, code: int, output: str) -> None:
    """Compare what was red with what is expected."""
    case = result.case
    report = folder / "report.json"
    checks = json.loads(report.read_text(encoding="utf-8"))["profiles"][0]["checks"] if report.exists() else []
    if code == 99:
        result.wrong.append("stopped by the time limit")
    if case.refused is not None:
        hit = case.refused in output and not list((folder / "run").glob("**/engine.log"))
        result.rows.append(("–", "refused", "refused" if hit else "not refused", _line_with(output, case.refused)))
        if not hit:
            result.wrong.append(f"nothing should have been started, with the words {case.refused!r}")
    elif not checks:
        result.wrong.append(f"no check was judged (exit code {code}): {output.strip().splitlines()[-1:]}")
    else:
        for start in dict.fromkeys(c["start"] for c in checks):
            _judge_start(result, start, [c for c in checks if c["start"] == start])
        if case.own_tests and not _own_tests_passed(output):
            result.wrong.append("its own tests did not pass")
    if case.noticed is not None:
        _noticed(result, folder)
    result.status = "as expected" if not result.wrong else "NOT as expected"


def _judge_start(result: Result, start: str, checks: list[dict[str, Any]]) -> None:
    case = result.case
    judged = {c["check"]: c for c in checks if c["outcome"] != "error"}
    errors = [c for c in checks if c["outcome"] == "error"]
    red = {n: c for n, c in judged.items() if c["outcome"] not in GREEN and not c["waived"]}
    must, may = case.red.get(start, {}), case.may.get(start, ())
    for check, words in must.items():
        text = red.get(check, {}).get("text", "")
        if check not in red:
            result.wrong.append(f"{start}: {check} is not red")
        result.wrong += [f"{start}: {check} does not say {w!r}" for w in words if check in red and w not in text]
    for check, item in red.items():
        if check not in must and check not in may:
            result.wrong.append(f"{start}: {check} is red ({item['outcome']}): {item['text'][:700]}")
    after = case.fails is not None and _number(start) >= _number(case.fails)
    if errors and not after:
        result.wrong.append(f"{start}: not judged: {errors[0]['text'][:300]}")
    if not judged:
        return
    message = next((red[c]["summary"] for c in [*must, *red] if c in red), "")
    wanted = ", ".join([*must, *(f"({c})" for c in may)]) or "–"
    result.rows.append((start, wanted, ", ".join(red) or "–", message))


def _number(start: str) -> int:
    """0 for the reference start, 2 for restart-2."""
    return int(start.rpartition("-")[2]) if "-" in start else 0


def _noticed(result: Result, folder: Path) -> None:
    """Seconds between the last event and the failure of the start that it hit."""
    record = next(iter(folder.glob(f"run/**/{result.case.fails}/record.json")), None)
    if record is None or not result.done or result.done[-1].after_line_seconds is None:
        result.wrong.append("nothing tells when the end was noticed")
        return
    failure = json.loads(record.read_text(encoding="utf-8")).get("failure") or {}
    result.noticed = round(failure.get("after_seconds", 1e9) - result.done[-1].after_line_seconds, 2)
    if result.noticed > (result.case.noticed or 0):
        result.wrong.append(f"the end was noticed after {result.noticed} s, {result.case.noticed} s are allowed")


def _own_tests_passed(output: str) -> bool:
    import re

    summary = output.strip().splitlines()[-1] if output.strip() else ""
    return "failed" not in summary and "error" not in summary and re.search(r"\d+ passed", summary) is not None


def _line_with(output: str, words: str) -> str:
    return next((line.strip() for line in output.splitlines() if words in line), "")


def table(results: list[Result]) -> str:
    """The Markdown table: case, start, expected red, seen red, message, seconds."""
    rows = ["| case | start | expected red | seen | message | seconds |", "|---|---|---|---|---|---|"]
    for result in results:
        name = f"**{result.case.name}**: {result.case.title}"
        if not result.rows:
            rows.append(f"| {name} | – | – | {result.status} | {'; '.join(result.wrong)[:200]} | – |")
        for number, (start, wanted, seen, message) in enumerate(result.rows):
            first, seconds = (name, f"{result.seconds:.0f}") if number == 0 else ("", "")
            text = message.replace("|", "\\|").replace("\n", " ")[:240]
            rows.append(f"| {first} | {start} | {wanted} | {seen} | {text} | {seconds} |")
        if result.noticed is not None:
            rows.append(f"| | | noticed within {result.case.noticed:g} s | {result.noticed:g} s | | |")
        rows += [
            f"| | | | **wrong** | {w[:240].replace('|', chr(92) + '|').replace(chr(10), ' ')} | |" for w in result.wrong
        ]
    return "\n".join(rows) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    names = [case.name for case in CASES]
    parser.add_argument("--vllm", default="vllm serve", help="the engine's command, before the model")
    parser.add_argument("--python", default=sys.executable, help="a Python with torch: makes models, takes memory")
    parser.add_argument("--models", default="models", help="folder of the models; made where they are missing")
    parser.add_argument("--out", default="proof", help="folder for runs, caches and the table")
    parser.add_argument("--gpus", nargs="+", default=["0"], help="GPU indices to use (two for the pair-… cases)")
    parser.add_argument(
        "--jobs", type=int, default=1, help="gates at a time; more than 1: GPUs are shared, no memory proof"
    )
    parser.add_argument(
        "--seconds", type=float, default=7200, help="time limit; what does not fit is listed as not run"
    )
    parser.add_argument("--cases", nargs="+", choices=names, default=names, metavar="CASE", help=", ".join(names))
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="for the engine")
    parser.add_argument("--pass-env", action="append", default=[], metavar="NAME", help="of the caller, for the engine")
    parser.add_argument("--restarts", type=int, help="identical restarts of the case noise (default 10)")
    parser.add_argument("--no-gpu", action="store_true", help="a dry run: lock and ask no GPU")
    options = parser.parse_args()
    chosen = [case for case in CASES if case.name in options.cases]
    needed = sorted({c.model for c in chosen if not (Path(options.models) / c.model / "config.json").exists()})
    if needed:
        subprocess.run([options.python, str(HERE / "make_models.py"), options.models, *needed], check=True)
    Path(options.out).mkdir(parents=True, exist_ok=True)
    results = Proof(options).run(chosen)
    text = table(results)
    Path(options.out, "table.md").write_text(text, encoding="utf-8")
    print(text)
    return 1 if any(r.wrong for r in results) else 0


if __name__ == "__main__":
    sys.exit(main())
