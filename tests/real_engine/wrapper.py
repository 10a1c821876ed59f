"""What stands in front of the real engine in a trial: damages its cache before a start, or puts a bad proxy before it.

Run as the launch command of a profile: ``wrapper.py PLAN VLLM serve MODEL --host H --port P …``. PLAN is a JSON file::

    {"damage": {"restart-2": "delete" | "empty" | "edit"}, "cache": DIR, "proxy": MODE, "count": FILE}

The n-th start is the n-th time that the wrapper runs (``reference``, ``restart-1`` …), counted in ``count``. Without a
proxy the wrapper becomes the engine (exec). MODE: ``empty``, ``truncated``, ``slow``, ``garbage`` (of completions).
"""

from __future__ import annotations

import http.client
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def damage(cache: pathlib.Path, how: str) -> None:
    """Delete, empty or edit the first rank's AOT artifact, wherever the engine has put it."""
    for path in sorted(cache.glob("torch_compile_cache/torch_aot_compile/*/rank_0_0/model")):
        if how == "delete":
            path.unlink()
        elif how == "empty":
            path.write_bytes(b"")
        else:
            data = bytearray(path.read_bytes())
            data[len(data) // 2 : len(data) // 2 + 4096] = b"\xa5" * 4096
            path.write_bytes(bytes(data))


def proxy(mode: str, host: str, port: int, behind: int) -> None:
    """Serve ``port`` from the engine on ``behind``; health and all else pass, completions are spoilt."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            return

        def do_GET(self) -> None:
            self.relay(None)

        def do_POST(self) -> None:
            self.relay(self.rfile.read(int(self.headers.get("Content-Length", 0))))

        def relay(self, body: bytes | None) -> None:
            try:
                link = http.client.HTTPConnection(host, behind, timeout=60)
                link.request(self.command, self.path, body, {"Content-Type": "application/json"})
                answer = link.getresponse()
                status, data, kind = answer.status, answer.read(), answer.getheader("Content-Type", "text/plain")
            except OSError:
                self.close_connection = True
                return
            if body is not None:
                data = self.spoil(data)
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data) * (2 if body is not None and mode == "truncated" else 1)))
            self.end_headers()
            self.wfile.write(data)
            self.close_connection = True

        def spoil(self, data: bytes) -> bytes:
            if mode == "slow":
                threading.Event().wait(30)  # longer than the profile's request limit
            if mode == "truncated":
                return data[: len(data) // 2]
            if mode == "garbage":
                return b"\xff\xfe\x00<html>" * 20
            try:
                whole = json.loads(data)
            except ValueError:
                return b""
            for choice in whole.get("choices", []):
                choice["text"] = ""
                choice.get("message", {})["content"] = ""
            return json.dumps(whole).encode()

    ThreadingHTTPServer((host, port), Handler).serve_forever()


def main() -> None:
    plan = json.loads(pathlib.Path(sys.argv[1]).read_text())
    argv = sys.argv[2:]
    count = pathlib.Path(plan["count"])
    number = int(count.read_text()) if count.exists() else 0
    count.write_text(str(number + 1))
    name = "reference" if not number else f"restart-{number}"
    if name in plan.get("damage", {}):
        damage(pathlib.Path(plan["cache"]), plan["damage"][name])
    mode = plan.get("proxy")
    if mode is None:
        os.execv(argv[0], argv)  # noqa: S606 - no shell is wanted
    at = argv.index("--port") + 1
    port, host = int(argv[at]), argv[argv.index("--host") + 1]
    behind = port + 1
    engine = subprocess.Popen([*argv[:at], str(behind), *argv[at + 1 :]])
    signal.signal(signal.SIGTERM, lambda *_: engine.terminate())
    threading.Thread(target=proxy, args=(mode, host, port, behind), daemon=True).start()
    sys.exit(engine.wait())


if __name__ == "__main__":
    main()
