"""A container engine of the tests' own: started on first use, with an image made from this host's Python.

Needs root, ``dockerd``, ``docker``, ``ip``, ``nsenter``, ``curl`` and ``openssl``. Where these are missing the tests
are skipped, in CI they fail: there the engine must be there. Tests run inside the engine's network namespace, so that
ports of containers are those of their own loopback.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import helpers_tls
import pytest

from pytest_startup.launch.identity import Identity, alive, identify

SCRIPTS = Path(__file__).with_name("containers")
TESTS = Path(__file__).parent
_CLONE_NEWNET = 0x40000000
_PROGRAMS = ("dockerd", "docker", "ip", "nsenter", "curl", "openssl")


def why_not() -> str | None:
    """Why there can be no container engine here."""
    missing = [p for p in _PROGRAMS if shutil.which(p, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") is None]
    if missing:
        return f"a container engine is needed, and {', '.join(missing)} is missing (Debian: apt-get install docker.io)"
    if os.geteuid() != 0:
        return "a container engine of its own can only be started by root"
    return None


def need_engine() -> None:
    reason = why_not()
    if reason is not None and os.environ.get("CI"):
        pytest.fail(f"in CI the container engine must be there: {reason}")
    if reason is not None:
        pytest.skip(reason)


class TestEngine:
    """One dockerd in a network namespace of its own. ``url`` is its DOCKER_HOST."""

    __test__ = False

    def __init__(self, **options: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ce", dir="/tmp"))
        self.url = f"unix://{self.folder}/docker.sock"
        #: Where it listens with TLS once it is ``secure``, inside its network; what clients need is in that folder.
        self.secured, self.certificates = "tcp://127.0.0.1:2376", _beside(self.folder)
        self._options = options
        self._image: str | None = None

    def start(self) -> TestEngine:
        self._script("engine.sh", "start", str(self.folder))
        me = identify(os.getpid())
        assert me is not None
        (self.folder / "owner").write_text(f"{me.pid} {me.start}")
        return self

    def secure(self) -> TestEngine:
        """Before the start: let it listen with TLS, too."""
        made = helpers_tls.make(self.certificates)
        words = f"--tlscacert {made}/ca.pem --tlscert {made}/server-cert.pem --tlskey {made}/server-key.pem"
        self._options["EXTRA"] = f"{self._options.get('EXTRA', '')} -H {self.secured} --tlsverify {words}"
        return self

    def stop(self) -> None:
        self._script("engine.sh", "stop", str(self.folder))
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.rmtree(_beside(self.folder), ignore_errors=True)

    def kill(self) -> None:
        """The daemon, at once; its containers run on."""
        pid = self.pid
        os.kill(pid, signal.SIGKILL)
        wait_gone(pid)

    @property
    def pid(self) -> int:
        return int((self.folder / "docker.pid").read_text())

    @property
    def image(self) -> str:
        """Id of an image with this Python and a shell; made on first use, kept as an archive for the next engine."""
        if self._image is None:
            python = Path(sys.executable).resolve()
            mark = hashlib.sha256(f"{python} {(SCRIPTS / 'make-image.sh').read_text()}".encode()).hexdigest()[:12]
            archive = Path(tempfile.gettempdir()) / f"startup-tests-{os.getuid()}-{mark}.tar"
            name = f"startup-tests:{mark}"
            if archive.exists() and archive.stat().st_uid == os.getuid():
                self.docker("load", "-i", str(archive))
                self._image = self.docker("image", "inspect", "-f", "{{.Id}}", name)
            else:
                self._image = self._script("make-image.sh", str(python), name)
                draft = archive.with_suffix(f".{os.getpid()}")
                self.docker("save", "-o", str(draft), name)
                draft.replace(archive)
        return self._image

    def docker(self, *words: str, check: bool = True) -> str:
        """The docker command against this engine."""
        done = subprocess.run(["docker", "-H", self.url, *words], capture_output=True, text=True, check=False)
        assert not check or done.returncode == 0, f"docker {' '.join(words)}: {done.stderr}"
        return done.stdout.strip()

    def inspect(self, name: str) -> dict[str, Any]:
        return json.loads(self.docker("inspect", name))[0]

    def labelled(self) -> list[str]:
        """Ids of all containers that carry our label."""
        return self.docker("ps", "-aq", "--no-trunc", "--filter", "label=org.pytest-startup.run").split()

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """This thread, and all that it starts, in the engine's network namespace."""
        libc = ctypes.CDLL(None, use_errno=True)
        with open("/proc/self/ns/net") as outside, open(f"/run/netns/{self.folder.name}") as own:
            assert libc.setns(own.fileno(), _CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
            try:
                yield
            finally:
                assert libc.setns(outside.fileno(), _CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())

    def _script(self, name: str, *words: str) -> str:
        env = {**os.environ, **self._options, "DOCKER_HOST": self.url}
        env["PATH"] = f"{env.get('PATH', '')}:/usr/sbin:/sbin"
        done = subprocess.run(
            [str(SCRIPTS / name), *words],
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{name} {' '.join(words)}: {done.stderr[-2000:]}"
        return done.stdout.strip()


def _beside(folder: Path) -> Path:
    """Certificates are not in the folder itself: starting mounts something over it."""
    return folder.with_name(f"{folder.name}-tls")


def sweep() -> None:
    """Stop engines of test runs that were killed."""
    for owner in Path("/tmp").glob("ce*/owner"):
        pid, start = (int(word) for word in owner.read_text().split())
        if not alive(Identity(pid, start)):
            subprocess.run([str(SCRIPTS / "engine.sh"), "stop", str(owner.parent)], check=False)
            shutil.rmtree(_beside(owner.parent), ignore_errors=True)


@pytest.fixture(scope="session")
def container_engine() -> Iterator[TestEngine]:
    """One engine for all tests that do not break it."""
    need_engine()
    sweep()
    engine = TestEngine(FAKE_GPU="1").secure().start()
    yield engine
    engine.stop()


@pytest.fixture
def engine(container_engine: TestEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestEngine]:
    """The engine, the test inside its network, with a registry and locks of the test's own; emptied behind it."""
    from helpers_launch import isolate

    isolate(tmp_path, monkeypatch)
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    with container_engine.inside():
        yield container_engine
    left = container_engine.docker("ps", "-aq").split()
    if left:
        container_engine.docker("rm", "-fv", *left)
    volumes = container_engine.docker("volume", "ls", "-q").split()
    if volumes:
        container_engine.docker("volume", "rm", *volumes)


@pytest.fixture
def launcher() -> Iterator[Any]:
    from pytest_startup.launch.container.launcher import ContainerLauncher

    made = ContainerLauncher()
    yield made
    made.close()


def docker_context(folder: Path, name: str, host: str, tls: Mapping[str, bytes] | None = None, **more: Any) -> None:
    """What ``docker context create`` writes below the configuration ``folder``; ``tls``: files and their contents."""
    mark = hashlib.sha256(name.encode()).hexdigest()
    meta = folder / "contexts" / "meta" / mark
    meta.mkdir(parents=True)
    (meta / "meta.json").write_text(json.dumps({"Name": name, "Endpoints": {"docker": {"Host": host, **more}}}))
    if tls is not None:
        secured = folder / "contexts" / "tls" / mark / "docker"
        secured.mkdir(parents=True)
        for file, data in tls.items():
            (secured / file).write_bytes(data)


def wait_gone(pid: int, limit: float = 20.0) -> None:
    from helpers_launch import gone, until

    until(lambda: gone(pid), f"pid {pid} gone", limit)


def fake_volumes() -> dict[str, str]:
    """What the stand-in engine needs in a container."""
    return {str(TESTS): f"{TESTS}:ro"}


def fake_env(how: Mapping[str, Any] | None = None) -> dict[str, str]:
    return {"FAKE_ENGINE": json.dumps(how)} if how else {}


def gate_yaml(
    engine: TestEngine, *, container: str = "network: host", caches: str = "", restarts: str = "", **more: str
) -> str:
    """A whole profile of the stand-in engine in a container. ``container``: more lines of it, separated by ``\\n``;
    ``port``, ``env`` (inside the braces), ``top``: lines at the top level."""
    lines = "\n".join(f"    {line}" for line in container.splitlines())
    return f"""\
schema: 1
name: contained
engine:
  kind: vllm
  version: 0.31.0
  model: models/dense
  env: {{{more.get("env", "")}}}
launch:
  container:
    image: {engine.image}
    command: [python3, {TESTS}/fake_engine.py, serve]
    docker_host: {engine.url}
{lines}
  port: {more.get("port", "auto")}
deadlines: {{ready: 60s, stop: 5s, release: 10s}}
{caches}
restarts: [{restarts}]
expect: {{completion: {{prompt: "The capital of France is"}}}}
waive:
  - {{check: graphs, reason: "the recorded engine ran on a CPU"}}
  - {{check: autotune, reason: "the recorded engine ran on a CPU"}}
  - {{check: backend, reason: "the recorded engine never logs it"}}
{more.get("top", "")}"""


def gate(folder: Path, *words: str) -> list[str]:
    """The command of a pytest run with ``folder/profile.yaml``."""
    given = ["--startup-profile", str(folder / "profile.yaml"), "--rootdir", str(folder), str(folder)]
    return [sys.executable, "-m", "pytest", "-p", "pytest_startup.plugin", "-p", "no:cacheprovider", *given, *words]


def gate_env(**more: str) -> dict[str, str]:
    """The environment of such a run: ours, without what belongs to this pytest."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_") or k == "PYTEST_STARTUP_LOCKS"}
    kept.pop("CI", None)
    return {**kept, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(TESTS.parent), **more}


def container_profile(engine: TestEngine, folder: Path, **changes: Any) -> Any:
    """A profile of the stand-in engine in a container. ``changes``: members of the container, ``env``, ``launch``
    (members of the launch), ``deadlines``, ``restarts``, ``caches``, ``secrets``."""
    from pytest_startup.profile.model import ContainerLaunch, Deadlines, Engine, Launch, Profile

    env = {**changes.pop("env", {})}
    launch = changes.pop("launch", {})
    rest = {k: changes.pop(k) for k in ("restarts", "caches", "secrets") if k in changes}
    deadlines = changes.pop("deadlines", Deadlines(stop=5.0, release=10.0))
    members: dict[str, Any] = {
        "image": engine.image,
        "command": ("python3", str(TESTS / "fake_engine.py"), "serve"),
        "volumes": {**fake_volumes(), **changes.pop("volumes", {})},
        "network": "host",
        "docker_host": engine.url,
        **changes,
    }
    return Profile(
        path=folder / "fake.yaml",
        name="fake",
        engine=Engine("vllm", "models/dense", env=env),
        launch=Launch(container=ContainerLaunch(**members), **launch),
        deadlines=deadlines,
        origin={"launch.container.image": 7, "launch.port": 9, "launch.container.name": 8, "launch.container.gpus": 11},
        **rest,
    )


def container_plan(profile: Any, how: Mapping[str, Any] | None = None, **changes: Any) -> Any:
    """A plan of one start; ``port`` is chosen when it is not given."""
    from pytest_startup.launch import ports
    from pytest_startup.launch.base import StartPlan
    from pytest_startup.launch.container.options import INNER_PORT, published

    container = profile.launch.container
    name = changes.pop("name", "reference")
    run_id = changes.pop("run_id", f"test{os.getpid()}")
    port = changes.pop("port", None)
    if port is None and published(container):
        port = profile.launch.port or INNER_PORT
    if port is None:
        port, lock = ports.free_port("127.0.0.1", run_id)
        lock.release()
    host = ".".join("0000") if published(container) else "127.0.0.1"
    words = container.exec_command if container.exec_command is not None else container.command
    argv = changes.pop("argv", (*words, "models/dense", "--host", host, "--port", str(port)))
    env = {**fake_env(how), **changes.pop("env", {})}
    fresh = changes.pop("fresh", True)
    folder = profile.path.parent / "starts" / name
    kind = "fresh-container" if fresh else "same-container"
    return StartPlan(profile, name, kind, folder, run_id, port, tuple(argv), env, fresh)
