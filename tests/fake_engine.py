"""A stand-in for a serving engine: speaks a real vLLM's recorded words and its API, and fails in any way asked for.

Run ``python tests/fake_engine.py [serve] MODEL --host H --port P [any engine argument]``. How it behaves is said by the
variable ``FAKE_ENGINE``: a JSON object, or ``@FILE`` with one, or a list of objects: one per start, the last one for
all later starts; starts are counted in the file that ``FAKE_ENGINE_COUNT`` names. A JSON object in
``FAKE_ENGINE_CHANGE`` is laid over it (for the ``change`` of one restart). All keys are optional:

log            file to print (default ``auto``: ``data/fake_engine/{cold,warm,eager}.log``). ``auto`` is like the real
               one: ``--enforce-eager`` compiles nothing; else an artifact below ``$VLLM_CACHE_ROOT`` is loaded if it
               is there and of the right content, and written if not. ``@PORT@``, ``@PID@``, ``@STAMP@`` … are filled.
replace        {text: text} applied to the log (another KV size, another backend).
insert         {mark: line or lines} printed after the line that holds ``mark``.
pace           seconds between two lines (default 0).
pauses         {mark: seconds} before the line that holds ``mark``: for tests of phases, where time is the subject.
hold           {"at": mark, "until": path}: prints nothing more, and goes on once the file ``path`` exists.
hang           mark: prints nothing more for ever.
exit           {"at": mark, "code": 1, "text": "last words"}.
kill           {"at": mark, "signal": "SIGKILL"}: ends itself by a signal.
at/mark        "start", "end" (log printed, not serving yet), "open" (``open_line`` printed, too), "ready" (serving),
               "requests:N" (after N completions), or a part of a log line (acted upon directly after that line).
ignore_term    "start" (until it serves, as vLLM does), "always", or absent: the recorded shutdown, exit code 0.
term_seconds   how long the shutdown takes.
children       list of {"setsid": bool, "ignore_term": bool, "shm": bytes, "port": bool, "at": mark, "name": text,
               "die_at": mark, "pid_file": path}: processes of its own: that leave the session, hold shared memory
               (``/dev/shm/fake_engine_<pid>``, never unlinked), listen on its port, keep the log's pipe open.
allocate       bytes of memory that the engine touches at the start.
dump           path: argv and environment are written there as JSON.
health         status code of GET /health (default 200); "never" accepts and does not answer.
health_from    mark from which the port listens and health answers (default "ready": as the real engine).
completion     a mode of ``helpers_fake_answers`` (default good), or a list: one per request, the last for all later.
crowded        the mode of completions while more than one is asked at once (each waits a moment for another one).
slow           seconds that each completion takes.
token_seconds  seconds per output token (throughput); ``"jitter": share`` varies it, seeded by the request's number.
model          the served name, instead of ``--served-model-name`` or the model.
version        what /version says (default 0.31.0).
kv_tokens      what /metrics says (default 262144), or a list: one per engine.
hits           prefix cache hits per query (default 0).
tier           "works", "quiet" (asked, gives nothing) or "idle" (never asked): an external tier behind a prefix cache
               of ``kv_tokens``, that drops whole prompts, least recently used first (see ``helpers_fake_tier``).
metrics        status code of GET /metrics, or a file to serve.
quiet          true: requests leave no line in the log.
open_line      text that is printed last before it serves, without the end of its line.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import helpers_fake_answers as answers
from helpers_fake_tier import Tier

DATA = Path(__file__).with_name("data") / "fake_engine"
ARTIFACT = "torch_compile_cache/torch_aot_compile/{hash}/rank_0_0/model"
HASH = "c51d7b155565cbd688b926c4f605aee346be65c16d65f087e91040c6d1189cb1"


def behaviour() -> dict[str, Any]:
    text = os.environ.get("FAKE_ENGINE", "{}")
    data = json.loads(Path(text[1:]).read_text(encoding="utf-8") if text.startswith("@") else text)
    if isinstance(data, list):
        counter = Path(os.environ["FAKE_ENGINE_COUNT"])
        number = int(counter.read_text()) if counter.exists() else 0
        counter.write_text(str(number + 1))
        data = data[min(number, len(data) - 1)]
    return {**data, **json.loads(os.environ.get("FAKE_ENGINE_CHANGE", "{}"))}


class Engine:
    """One start."""

    def __init__(self, argv: list[str], how: dict[str, Any]) -> None:
        self.argv = argv
        self.how = how
        self.args = [a for a in argv if a != "serve"]
        self.host = self.option("--host", "127.0.0.1")
        self.port = int(self.option("--port", "8000"))
        path = self.args[0] if self.args and not self.args[0].startswith("-") else self.option("--model", "m")
        self.path = path
        self.model = str(how.get("model", self.option("--served-model-name", path)))
        self.serving = threading.Event()
        self.lock = threading.Lock()
        self.requests = self.running = self.prompt_tokens = self.output_tokens = 0
        self.prompts: list[str] = []
        self.tier = Tier(int(how["kv_tokens"]), how["tier"]) if "tier" in how else None
        self.children: list[tuple[dict[str, Any], subprocess.Popen[bytes]]] = []
        self.memory = b""
        self.server: ThreadingHTTPServer | None = None

    def option(self, name: str, default: str) -> str:
        for number, arg in enumerate(self.args):
            if arg == name and number + 1 < len(self.args):
                return self.args[number + 1]
            if arg.startswith(name + "="):
                return arg.partition("=")[2]
        return default

    def fill(self, text: str) -> str:
        now = time.localtime()
        pid = os.getpid()
        for mark, value in {
            "@PORT@": str(self.port),
            "@MODEL@": self.path,
            "@PID@": str(pid),
            "@ENGINE_PID@": str(pid + 1),
            "@WORKER_PID@": str(pid + 2),
            "@CACHE@": os.environ.get("VLLM_CACHE_ROOT", "/nowhere"),
            "@STAMP@": time.strftime("%m-%d %H:%M:%S", now),
            "@GLOG@": time.strftime("%m%d %H:%M:%S.000000", now),
        }.items():
            text = text.replace(mark, value)
        return text

    def joined(self) -> bool:
        """Is another request being answered, or asked in a moment? Then it waits until no more of them come."""
        until = time.monotonic() + 0.6
        while self.running < 2 and time.monotonic() < until:
            time.sleep(0.005)
        several = self.running > 1
        seen, since = self.running, time.monotonic()
        while several and time.monotonic() < since + 0.2:
            if self.running > seen:
                seen, since = self.running, time.monotonic()
            time.sleep(0.005)
        return several

    def say(self, text: str) -> None:
        with contextlib.suppress(OSError):
            os.write(1, self.fill(text).encode())

    def log_file(self) -> Path:
        name = self.how.get("log", "auto")
        if name != "auto":
            return Path(name) if os.sep in name else DATA / name
        if not Path(self.path).exists() and os.sep in self.path and self.path.startswith("/"):
            self.how.setdefault("exit", {"at": "end", "code": 1})
            return DATA / "bad-model.log"
        if "--enforce-eager" in self.args:
            return DATA / "eager.log"
        root = os.environ.get("VLLM_CACHE_ROOT")
        artifact = Path(root, ARTIFACT.format(hash=HASH)) if root else None
        content = f"compiled {self.args}".encode()
        if artifact is not None and artifact.exists() and artifact.read_bytes().startswith(b"compiled"):
            return DATA / "warm.log"
        if artifact is not None:
            artifact.parent.mkdir(parents=True, exist_ok=True)
            artifact.write_bytes(content)
        return DATA / "cold.log"

    def start(self) -> None:
        self.signals()
        if "dump" in self.how:
            Path(self.how["dump"]).write_text(json.dumps({"argv": self.argv, "env": dict(os.environ)}))
        self.memory = b"x" * int(self.how.get("allocate", 0))
        self.reached("start")
        text = self.log_file().read_text(encoding="utf-8")
        for old, new in self.how.get("replace", {}).items():
            text = text.replace(old, new)
        for line in text.splitlines(keepends=True):
            for mark, seconds in self.how.get("pauses", {}).items():
                if mark in line:
                    time.sleep(seconds)
            self.say(line)
            for mark, more in self.how.get("insert", {}).items():
                if mark in line:
                    self.say("".join(f"{one}\n" for one in ([more] if isinstance(more, str) else more)))
            self.reached(line)
            if self.how.get("pace"):
                time.sleep(self.how["pace"])
        self.reached("end")
        self.say(self.how.get("open_line", ""))
        self.reached("open")
        self.listen()
        self.serving.set()
        self.reached("ready")

    def reached(self, place: str) -> None:
        """Do what is to be done at this place: a name, or a log line that may hold a mark."""

        def here(mark: str | None) -> bool:
            if mark in (None, "start", "end", "open", "ready"):
                return mark == place
            return mark == place or (place.endswith("\n") and str(mark) in place)

        how = self.how
        if here(how.get("health_from")):
            self.listen()
        for child in how.get("children", ()):
            if here(child.get("at", "start")):
                self.spawn(child)
        for child, process in self.children:
            if here(child.get("die_at")):
                process.kill()
                process.wait()
        if here(how.get("hold", {}).get("at")):
            while not os.path.exists(how["hold"]["until"]):
                time.sleep(0.01)
        if here(how.get("hang")):
            while True:
                time.sleep(3600)
        if here(how.get("kill", {}).get("at")):
            os.kill(os.getpid(), signal.Signals[how["kill"].get("signal", "SIGKILL")])
        if here(how.get("exit", {}).get("at")):
            if how["exit"].get("text"):
                self.say(how["exit"]["text"] + "\n")
            os._exit(how["exit"].get("code", 1))

    def spawn(self, child: dict[str, Any]) -> None:
        process = subprocess.Popen(
            [child.get("name", sys.executable), __file__, "--child", json.dumps({**child, "listen": self.port})],
            executable=sys.executable,
            start_new_session=bool(child.get("setsid")),
            stdout=subprocess.PIPE,
            stderr=1,
        )
        if process.stdout is not None:
            process.stdout.readline()  # it is up and has done what it should
        self.children.append((child, process))

    def signals(self) -> None:
        mode = self.how.get("ignore_term")

        def term(*_: object) -> None:
            if mode == "always" or (mode == "start" and not self.serving.is_set()):
                return
            self.say((DATA / "shutdown.log").read_text(encoding="utf-8"))
            time.sleep(float(self.how.get("term_seconds", 0)))
            os._exit(0)

        signal.signal(signal.SIGTERM, term)
        signal.signal(signal.SIGINT, term)

    def listen(self) -> None:
        if self.server is not None:
            return
        engine = self

        class Handler(Answer):
            pass

        Handler.engine = engine
        try:
            self.server = Server((self.host, self.port), Handler)
        except OSError:
            self.say((DATA / "port-taken.log").read_text(encoding="utf-8"))
            os._exit(1)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def metrics(self) -> str:
        kv = self.how.get("kv_tokens", 262144)
        template = (DATA / "metrics.txt").read_text(encoding="utf-8")
        out = []
        for number, tokens in enumerate(kv if isinstance(kv, list) else [kv]):
            for mark, value in {
                "@KV_TOKENS@": tokens,
                "@ENGINE@": number,
                "@RUNNING@": float(self.running),
                "@WAITING@": 0.0,
                "@QUERIES@": float(self.prompt_tokens),
                "@HITS@": float(
                    self.tier.own_hits if self.tier else round(self.prompt_tokens * self.how.get("hits", 0))
                ),
                "@EXTERNAL_QUERIES@": float(self.tier.queries if self.tier else 0),
                "@EXTERNAL_HITS@": float(self.tier.hits if self.tier else 0),
                "@PROMPT_TOKENS@": float(self.prompt_tokens),
                "@OUTPUT_TOKENS@": float(self.output_tokens),
                "@LENGTH@": float(self.requests),
                "@STARTED@": STARTED,
            }.items():
                template = template.replace(mark, str(value))
            lines = self.fill(template).splitlines()
            out += lines if number == 0 else [line for line in lines if not line.startswith("#") and "engine=" in line]
            template = (DATA / "metrics.txt").read_text(encoding="utf-8")
        return "\n".join(out) + "\n"


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def server_bind(self) -> None:
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def handle_error(self, *_: object) -> None:
        """Clients that go away are not worth a word."""


class Answer(BaseHTTPRequestHandler):
    engine: Engine
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_: object) -> None:
        pass

    def send(self, status: int, body: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        if self.engine.how.get("quiet"):
            return
        client = f"{self.client_address[0]}:{self.client_address[1]}"
        word = {200: "OK", 404: "Not Found", 500: "Internal Server Error", 503: "Service Unavailable"}.get(status, "")
        self.engine.say(f'INFO:     {client} - "{self.command} {self.path} HTTP/1.1" {status} {word}\n')

    def do_GET(self) -> None:
        how = self.engine.how
        path = self.path.partition("?")[0]
        if path == "/health":
            status = how.get("health", 200)
            if status == "never":
                time.sleep(3600)
            self.send(int(status), b"")
        elif path == "/v1/models":
            model = {"id": self.engine.model, "object": "model", "owned_by": "vllm", "root": self.engine.path}
            length = int(self.engine.option("--max-model-len", "1024"))
            self.send(200, json.dumps({"object": "list", "data": [{**model, "max_model_len": length}]}).encode())
        elif path == "/version":
            self.send(200, json.dumps({"version": how.get("version", "0.31.0")}).encode())
        elif path == "/metrics":
            source = how.get("metrics", 200)
            if isinstance(source, int) and source != 200:
                self.send(source, b"")
                return
            text = self.engine.metrics() if source == 200 else Path(source).read_text(encoding="utf-8")
            self.send(200, text.encode(), "text/plain; version=1.0.0; charset=utf-8")
        else:
            self.send(404, b'{"detail":"Not Found"}')

    def do_POST(self) -> None:
        engine, how = self.engine, self.engine.how
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        if self.path not in ("/v1/completions", "/v1/chat/completions"):
            self.send(404, b'{"detail":"Not Found"}')
            return
        if body.get("model") not in (None, engine.model):
            message = f"The model `{body['model']}` does not exist."
            error = {"message": message, "type": "NotFoundError", "param": "model", "code": 404}
            self.send(404, json.dumps({"error": error}).encode())
            return
        with engine.lock:
            number = engine.requests
            engine.requests += 1
            engine.running += 1
        modes = how.get("completion", "good")
        mode = modes if isinstance(modes, str) else modes[min(number, len(modes) - 1)]
        if "crowded" in how and engine.joined():
            mode = how["crowded"]
        own = answers.prompt_text(body)
        others = [prompt for prompt in engine.prompts if prompt != own]
        engine.prompts.append(own)
        if mode == "crossed" and others:
            body = {**body, "prompt": others[-1]}
        try:
            self.complete(body, mode, number)
        finally:
            with engine.lock:
                engine.running -= 1
        engine.reached(f"requests:{number + 1}")

    def complete(self, body: dict[str, Any], mode: str, number: int) -> None:
        engine, how = self.engine, self.engine.how
        if mode == "never":
            time.sleep(3600)
        longest, asked = int(engine.option("--max-model-len", "1024")), answers.prompt_tokens(body)
        if asked > longest:
            message = f"This model's maximum context length is {longest} tokens, and the prompt has {asked}."
            error = {"message": message, "type": "BadRequestError", "param": "input_tokens", "code": 400}
            self.send(400, json.dumps({"error": error}).encode())
            return
        tokens = answers.tokens_of(body, mode)
        share = 1 + how.get("jitter", 0) * random.Random(number).uniform(-1, 1)  # noqa: S311 - repeatable noise
        seconds = how.get("slow", 0) + how.get("token_seconds", 0) * len(tokens) * share
        if seconds:
            time.sleep(seconds)
        with engine.lock:
            engine.prompt_tokens += answers.prompt_tokens(body)
            if engine.tier:
                engine.tier.ask(answers.prompt_text(body).split())
            engine.output_tokens += len(tokens)
        if mode == "error":
            error = {"message": "EngineCore encountered an issue.", "type": "InternalServerError", "code": 500}
            self.send(500, json.dumps({"error": error}).encode())
        elif body.get("stream") and mode not in ("not-json", "html"):
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream; charset=utf-8")
            self.send_header("Connection", "close")
            self.end_headers()
            for event in answers.streamed(body, engine.model, mode):
                self.wfile.write(event)
            self.close_connection = True
        elif mode == "truncated":
            data = answers.whole(body, engine.model, "good")
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data[: len(data) // 2])
            self.close_connection = True
        else:
            kind = "text/html" if mode == "html" else "application/json"
            self.send(200, answers.whole(body, engine.model, mode), kind)


def child(how: dict[str, Any]) -> None:
    """A process of the engine that does nothing but hold what it was told to."""
    if how.get("ignore_term"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    held: list[Any] = []
    if how.get("shm"):
        handle = os.open(f"/dev/shm/fake_engine_{os.getpid()}", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        os.write(handle, b"x" * int(how["shm"]))
        held.append(handle)
    if how.get("port"):
        listener = socket.create_server(("127.0.0.1", how["listen"]))
        held.append(listener)
    if how.get("pid_file"):
        Path(how["pid_file"]).write_text(str(os.getpid()))
    os.write(1, b"up\n")
    while True:
        time.sleep(3600)


STARTED = round(time.time(), 2)


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        child(json.loads(sys.argv[2]))
        return
    Engine(sys.argv[1:], behaviour()).start()
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    main()
