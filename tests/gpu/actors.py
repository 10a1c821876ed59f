"""What happens to an engine from outside while the gate runs: damaged caches, killed ranks, taken memory, a taken port.

An ``Event`` waits for its moment (a start's log line, its launch, or the proved end of the start before) and then acts
once. All events of a case run on one thread that looks at the run's folder; what was done is kept with its time.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

#: Seconds between two looks at the logs.
LOOK = 0.02

_HOG = """
import sys, time, torch
keep, step = float(sys.argv[1]) * 2**30, 2**33
torch.empty(1, device="cuda")
print("ready", flush=True)
sys.stdin.readline()
held = []
while step >= 2**21:
    size = min(step, int(torch.cuda.mem_get_info()[0] - keep))
    if size < 2**21:
        break
    try:
        held.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
    except torch.OutOfMemoryError:
        step //= 2
print("held", flush=True)
time.sleep(600)
"""


@dataclass(frozen=True)
class Scene:
    """What an action may need: the case's cache folder, the engine's Python, the port, the GPU, and the log so far."""

    cache: Path
    python: str
    port: int | None
    gpu: str
    log: str = ""


@dataclass(frozen=True)
class Event:
    """``start``: reference, restart-1 … ``when``: ``stopped`` (the start is over, the next one not begun), ``launched``
    (its log is there) or a regular expression for its log; ``named``: one more, for whom it is about. ``act`` does it
    and says what it did."""

    start: str
    when: str
    act: Callable[[Scene, list[Callable[[], None]]], str]
    named: str = ""


def damage(glob: str, how: str) -> Callable[[Scene, list[Callable[[], None]]], str]:
    """``how``: delete, truncate (to half), garble (64 bytes in the middle), break-json; for all that match."""

    def act(scene: Scene, _cleanups: list[Callable[[], None]]) -> str:
        files = sorted(p for p in scene.cache.glob(glob) if p.is_file())
        for path in files:
            size = path.stat().st_size
            if how == "delete":
                path.unlink()
            elif how == "break-json":
                path.write_text('{"truncated": ')
            else:
                with path.open("r+b") as handle:
                    if how == "truncate":
                        handle.truncate(size // 2)
                    else:
                        handle.seek(size // 2)
                        handle.write(os.urandom(min(64, size - size // 2)))
        return f"{how}: {', '.join(str(p.relative_to(scene.cache)) for p in files) or 'nothing matched ' + glob}"

    return act


def kill(start: str, when: str, process: str) -> Event:
    """SIGKILL for the process that the log names: ``EngineCore``, ``Worker_TP1``."""

    def act(scene: Scene, _cleanups: list[Callable[[], None]]) -> str:
        found = re.findall(rf"\({process} pid=(\d+)\)", scene.log)
        os.kill(int(found[-1]), signal.SIGKILL)
        return f"SIGKILL to {process}, pid {found[-1]}"

    return Event(start, when, act, rf"\({process} pid=")


def hog(keep: float) -> Callable[[Scene, list[Callable[[], None]]], str]:
    """Another process that takes the GPU's memory but for ``keep`` GiB, at once; it was started before (``armed``)."""

    def act(scene: Scene, cleanups: list[Callable[[], None]]) -> str:
        process = arm(scene, keep, cleanups)
        return fire(process)

    return act


class Armed:
    """A hog that is ready long before its moment, so that it strikes within milliseconds."""

    def __init__(self, keep: float) -> None:
        self._keep = keep
        self._process: subprocess.Popen[str] | None = None

    def ready(self, scene: Scene, cleanups: list[Callable[[], None]]) -> str:
        self._process = arm(scene, self._keep, cleanups)
        return f"a process is ready to take all but {self._keep:g} GiB"

    def strike(self, _scene: Scene, _cleanups: list[Callable[[], None]]) -> str:
        return fire(self._process) if self._process is not None else "no process was ready"


def arm(scene: Scene, keep: float, cleanups: list[Callable[[], None]]) -> subprocess.Popen[str]:
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": scene.gpu}
    process = subprocess.Popen(
        [scene.python, "-c", _HOG, str(keep)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
    )

    def end() -> None:
        process.kill()
        process.wait()

    cleanups.append(end)
    if process.stdout is not None:
        process.stdout.readline()
    return process


def fire(process: subprocess.Popen[str]) -> str:
    if process.stdin is None or process.stdout is None:
        return "the process has no pipes"
    process.stdin.write("go\n")
    process.stdin.flush()
    process.stdout.readline()
    return f"pid {process.pid} holds the GPU's memory"


def take_port(scene: Scene, cleanups: list[Callable[[], None]]) -> str:
    """A server of somebody else on the engine's port, that answers 200 to everything."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.headers.get("Content-Length"):
                self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        do_POST = do_GET  # noqa: N815 - the name is the base class's

        def log_message(self, *_: object) -> None:
            """Nobody reads it."""

    server = ThreadingHTTPServer(("127.0.0.1", scene.port or 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def end() -> None:
        server.shutdown()
        server.server_close()

    cleanups.append(end)
    return f"port {scene.port} answers 200 for somebody else"


@dataclass
class Done:
    start: str
    what: str
    at: float
    after_line_seconds: float | None


@dataclass
class Actor:
    """Runs the events of one case; ``close`` ends its thread and everything that the events left."""

    events: list[Event]
    artifacts: Path
    scene: Scene
    done: list[Done] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._cleanups: list[Callable[[], None]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        for cleanup in self._cleanups:
            cleanup()

    def _run(self) -> None:
        waiting = list(self.events)
        while waiting and not self._stop.wait(LOOK):
            event = waiting[0]
            folder = self._folder(event.start)
            log = self._log(folder)
            if not self._is_time(event, folder, log):
                continue
            waiting.pop(0)
            try:
                what = event.act(Scene(**{**self.scene.__dict__, "log": log or ""}), self._cleanups)
            except OSError as error:
                what = f"could not be done: {error}"
            self.done.append(Done(event.start, what, time.time(), _last_seconds(folder)))

    def _folder(self, start: str) -> Path:
        found = [p for p in self.artifacts.glob(f"**/{start}") if p.is_dir()]
        return found[0] if found else self.artifacts / start

    def _log(self, folder: Path) -> str | None:
        path = folder / "head" / "engine.log"
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else None

    def _is_time(self, event: Event, folder: Path, log: str | None) -> bool:
        if event.when == "now":
            return True
        if event.when == "launched":
            return log is not None
        if event.when == "stopped":
            try:
                return json.loads((folder / "record.json").read_text(encoding="utf-8")).get("cleanup") is not None
            except (OSError, ValueError):
                return False
        return log is not None and all(re.search(words, log) for words in (event.when, event.named))


def _last_seconds(folder: Path) -> float | None:
    """Seconds since launch of the last line so far."""
    try:
        rows = (folder / "head" / "lines.tsv").read_text().splitlines()
        return float(rows[-1].split("\t")[1])
    except (OSError, IndexError, ValueError):
        return None
