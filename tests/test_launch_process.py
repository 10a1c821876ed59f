"""The process launcher from outside: a start, its end noticed, its stop proved, its refusals."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import pytest
from helpers_launch import FAKE, LIMIT, gone, log_of, logged, plan, profile, until

from pytest_startup.launch.base import LaunchError
from pytest_startup.launch.process.launcher import ProcessLauncher, find_command
from pytest_startup.profile.model import Deadlines

pytestmark = pytest.mark.usefixtures("isolated")

READY = "Application startup complete."


@pytest.fixture
def launcher():
    made = ProcessLauncher()
    yield made
    made.close()


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


def by_name(running) -> dict[str, object]:
    return {f.name: f for f in running.facts()}


def test_start_log_and_clean_stop(launcher, tmp_path):
    running = launcher.start(plan(tmp_path, how={}))
    logged(running, READY)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def healthy():
        try:
            with opener.open(running.base_url + "/health", timeout=LIMIT) as answer:
                return answer.status == 200
        except OSError:
            return False

    until(healthy, "health 200")
    assert running.exited() is None
    left = running.stop()
    assert all(one.released for one in left), left
    assert {one.kind for one in left} == {"pid", "port"}
    assert running.stop() is left  # idempotent
    assert "Application shutdown complete." in log_of(running)  # nothing of the log is lost
    ended = running.exited()
    assert (ended.code, ended.reason, ended.node) == (0, "exited", "head")


def test_lines_have_receive_times_from_launch(launcher, tmp_path):
    code = "import time\nprint('one', flush=True)\ntime.sleep(1)\nprint('two\\nthree', end='', flush=True)"
    running = launcher.start(plan(tmp_path, python(code)))
    assert running.wait_exit(LIMIT)
    running.stop()
    assert log_of(running) == "one\ntwo\nthree"
    rows = [row.split("\t") for row in running.logs[0].lines.read_text().splitlines()]
    assert [int(n) for n, _ in rows] == [1, 2, 3]
    first, second, third = (float(s) for _, s in rows)
    assert 0 <= first < second - 0.3 <= third - 0.3
    assert third < time.monotonic() - running.launched_at


@pytest.mark.parametrize(
    ("code", "expected", "reason", "text"),
    [
        ("raise SystemExit(0)", 0, "exited", "ended with exit code 0 after"),
        ("raise SystemExit(3)", 3, "exited", "ended with exit code 3 after"),
        ("import os; os.kill(os.getpid(), 9)", -9, "killed", "was killed by SIGKILL"),
        ("import os; os.abort()", -6, "killed", "was killed by SIGABRT"),
    ],
)
def test_every_exit_is_noticed_at_once(launcher, tmp_path, code, expected, reason, text):
    stamp = f"import time; print(time.monotonic(), flush=True); {code}"
    running = launcher.start(plan(tmp_path, python(stamp)))
    ended = running.wait_exit(LIMIT)
    noticed = time.monotonic()
    assert (ended.code, ended.reason) == (expected, reason)
    assert text in ended.text
    running.stop()
    assert noticed - float(log_of(running)) < 2.0  # a loaded machine; usually a few ms


def test_wait_returns_none_in_time_and_exited_is_cheap(launcher, tmp_path):
    running = launcher.start(plan(tmp_path, how={"hang": "start"}))
    begin = time.monotonic()
    assert running.wait_exit(0.1) is None
    assert time.monotonic() - begin < 2.0
    begin = time.monotonic()
    for _ in range(100):
        assert running.exited() is None
    assert (time.monotonic() - begin) / 100 < 0.05


def test_facts_name_the_process_and_hide_secrets(launcher, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_AbCdEf123456789")
    how = {"insert": {"non-default args": "token is s3cr3t-value-42"}, "allocate": 96 * 2**20}
    made = plan(tmp_path, how=how, secrets=["s3cr3t-value-42"], env={"MY_KEY": "s3cr3t-value-42"})
    made = type(made)(**{**made.__dict__, "argv": (*made.argv, "--api-key", "s3cr3t-value-42")})
    running = launcher.start(made)
    logged(running, READY)
    until(lambda: "host.memory_peak" in by_name(running) and by_name(running)["host.memory_peak"].value > 0.09, "peak")
    facts = by_name(running)
    assert facts["process.pid"].value == running.pid
    assert facts["process.argv"].value[-2:] == ["--api-key", "[redacted]"]
    assert facts["process.argv"].value[1] == FAKE
    peak = facts["host.memory_peak"]
    assert peak.unit == "GiB"
    assert peak.evidence.source == "host"
    assert peak.value < 1.0
    assert facts["process.start_time"].unit == "s"
    running.stop()
    assert "host.memory_peak" in by_name(running)  # still known after the end
    written = b"".join(p.read_bytes() for p in tmp_path.rglob("*") if p.is_file())
    assert b"s3cr3t-value-42" not in written
    assert b"token is [redacted]" in written
    assert "hf_AbCdEf" not in repr(running.facts())


def test_memory_is_known_from_the_first_question_on(launcher, tmp_path):
    running = launcher.start(plan(tmp_path, how={"hang": "start"}))
    assert by_name(running)["host.memory_peak"].value >= 0


def test_term_ignored_then_killed(launcher, tmp_path):
    how = {"ignore_term": "always", "hang": "Starting to load model"}
    running = launcher.start(plan(tmp_path, how=how, deadlines=Deadlines(stop=0.3, release=10)))
    logged(running, "Starting to load model")
    left = running.stop()
    assert all(one.released for one in left), left
    assert running.exited().code == -signal.SIGKILL
    assert gone(running.pid)


def test_stop_with_its_own_limit(launcher, tmp_path):
    running = launcher.start(plan(tmp_path, how={"ignore_term": "always"}, deadlines=Deadlines(stop=600, release=10)))
    logged(running, READY)
    begin = time.monotonic()
    assert all(one.released for one in running.stop(limit=0))
    assert time.monotonic() - begin < 10


def test_a_second_interrupt_kills_at_once_and_is_not_lost(launcher, tmp_path, monkeypatch):
    how = {"ignore_term": "always"}
    running = launcher.start(plan(tmp_path, how=how, deadlines=Deadlines(stop=600, release=20)))
    logged(running, READY)
    real = running._link.wait
    interrupts = [KeyboardInterrupt()]

    def wait(*args):
        if interrupts:
            raise interrupts.pop()
        return real(*args)

    monkeypatch.setattr(running._link, "wait", wait)
    with pytest.raises(KeyboardInterrupt):
        running.stop()
    assert gone(running.pid)
    left = running.stop()
    assert all(one.released for one in left), left


def test_children_that_left_the_session_are_ours(launcher, tmp_path):
    pid_file = tmp_path / "child"
    how = {
        "children": [{"setsid": True, "ignore_term": True, "shm": 4096, "port": True, "pid_file": str(pid_file)}],
        "exit": {"at": "Starting to load model", "code": 1},
    }
    running = launcher.start(plan(tmp_path, how=how, deadlines=Deadlines(stop=0.2, release=10)))
    assert running.wait_exit(LIMIT).code == 1
    child = int(pid_file.read_text())
    shm = Path(f"/dev/shm/fake_engine_{child}")
    assert shm.exists()
    assert not gone(child)
    left = running.stop()
    assert all(one.released for one in left), left
    assert gone(child)
    assert not shm.exists()
    assert [one for one in left if one.kind == "pid" and one.what.startswith(f"{child} ")]
    (found,) = [one for one in left if one.kind == "shm"]
    assert found.what == f"{shm} (left behind by the engine; removed)"


def serve_health() -> tuple[subprocess.Popen, int]:
    code = (
        "import http.server, sys\n"
        "class H(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self): self.send_response(200); self.end_headers()\n"
        "s = http.server.HTTPServer(('127.0.0.1', 0), H); print(s.server_port, flush=True); s.serve_forever()\n"
    )
    other = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    return other, int(other.stdout.readline())


def test_port_of_somebody_else_is_refused_before_launch(launcher, tmp_path):
    other, port = serve_health()
    dump = tmp_path / "dump"
    try:
        made = plan(tmp_path, how={"dump": str(dump)}, plan_port=port, port=port)
        (reason,) = launcher.preflight(made.profile)
        wanted = rf"port {port} is already taken by pid {other.pid}: .* \(port {port}, address 127.0.0.1\)"
        assert reason.startswith(f"fake.yaml:9: port {port} is already taken by pid {other.pid}: ")
        with pytest.raises(LaunchError, match=wanted):
            launcher.start(made)
        assert not dump.exists()
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()
        other.stdout.close()
    assert launcher.preflight(made.profile) == []


def test_next_start_is_refused_until_release_is_proved(tmp_path):
    held = ["GPU 0: 2.1 GiB held by pid 7"]
    launcher = ProcessLauncher(gpu_held=lambda *_: held)
    running = launcher.start(plan(tmp_path, how={}, gpus=("0",), deadlines=Deadlines(stop=1, release=0.2)))
    logged(running, READY)
    refused = plan(tmp_path, how={}, gpus=("0",), name="restart-1")
    with pytest.raises(
        LaunchError, match=r"the start before has not released gpu-memory GPU 0: 2\.1 GiB held by pid 7"
    ):
        launcher.start(refused)
    assert gone(running.pid)
    assert [one.what for one in launcher.close()] == held


def test_restart_on_the_same_port(launcher, tmp_path):
    first = plan(tmp_path, how={})
    one = launcher.start(first)
    logged(one, READY)
    two = launcher.start(plan(tmp_path, how={}, name="restart-1", plan_port=first.port))
    assert gone(one.pid)
    logged(two, READY)
    assert two.pid != one.pid


def test_gpus_are_visible_as_locked(launcher, tmp_path):
    dump = tmp_path / "dump"
    running = launcher.start(plan(tmp_path, how={"dump": str(dump)}, gpus=("1", "3")))
    logged(running, READY)
    assert json.loads(dump.read_text())["env"]["CUDA_VISIBLE_DEVICES"] == "1,3"


def test_what_cannot_be_started_says_why(launcher, tmp_path):
    plain = tmp_path / "plain"
    plain.write_text("not a program")
    for argv, text in (
        (("no-such-engine", "serve"), "fake.yaml:7: command 'no-such-engine' is not there or may not be executed"),
        (("./plain",), "fake.yaml:7: command './plain' is not there or may not be executed"),
    ):
        (reason,) = launcher.preflight(profile(tmp_path, argv))
        assert reason == text
        with pytest.raises(LaunchError) as raised:
            launcher.start(plan(tmp_path, argv))
        assert str(raised.value).startswith(text)
        assert "Traceback" not in str(raised.value)
    plain.chmod(0o755)
    with pytest.raises(LaunchError, match=r"command '.*/plain' can't be started: \[Errno 8\] Exec format error"):
        launcher.start(plan(tmp_path, ("./plain",)))
    missing = profile(tmp_path, cwd=tmp_path / "away")
    (reason,) = launcher.preflight(missing)
    assert reason.endswith(f"working folder {tmp_path / 'away'} is not there")


def test_artifacts_that_cannot_be_written_say_why(launcher, tmp_path):
    dump = tmp_path / "dump"
    made = plan(tmp_path, how={"dump": str(dump)})
    (made.folder / "head" / "engine.log").mkdir(parents=True)
    with pytest.raises(LaunchError, match=r"the log .*/head/engine.log can't be written: Is a directory"):
        launcher.start(made)
    other = plan(tmp_path, how={"dump": str(dump)}, name="restart-1")
    other.folder.write_text("")
    with pytest.raises(LaunchError, match=r"the artifacts folder .*/restart-1/head can't be made: Not a directory"):
        launcher.start(other)
    assert not dump.exists()


def test_find_command(tmp_path):
    tool = tmp_path / "bin" / "tool"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    assert find_command("bin/tool", tmp_path, None) == str(tool)
    assert find_command("tool", tmp_path, str(tool.parent)) == str(tool)
    assert find_command("tool", tmp_path, str(tmp_path)) is None
    assert find_command("bin", tmp_path, None) is None


def test_log_flood_is_complete_and_never_blocks_the_engine(launcher, tmp_path):
    code = "import os\nblock = b'x' * 99 + b'\\n'\nfor _ in range(200): os.write(1, block * 1000)"
    running = launcher.start(plan(tmp_path, python(code)))
    assert running.wait_exit(60).code == 0
    running.stop()
    assert running.logs[0].path.stat().st_size == 200 * 1000 * 100
    assert running.logs[0].lines.read_text().count("\n") == 200 * 1000


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full as a disk without space")
def test_an_unfinished_line_is_written_although_others_keep_the_host_busy(launcher, tmp_path):
    """Everything that anybody creates in /dev/shm wakes whoever watches the engine."""
    running = launcher.start(plan(tmp_path, how={"open_line": "half a line", "hold": {"at": "open", "until": "/none"}}))
    done = threading.Event()

    def churn() -> None:
        name = Path(f"/dev/shm/pytest-startup-churn-{os.getpid()}")
        while not done.wait(0.02):
            name.touch()
            name.unlink()

    busy = threading.Thread(target=churn)
    busy.start()
    try:
        until(lambda: log_of(running).endswith("half a line"), "the line's beginning")
    finally:
        done.set()
        busy.join()
    running.stop(0)


def test_full_disk_does_not_stop_the_engine_and_is_told(launcher, tmp_path):
    made = plan(tmp_path, python("print('x' * 200000); raise SystemExit(5)"))
    node = made.folder / "head"
    node.mkdir(parents=True)
    (node / "engine.log").symlink_to("/dev/full")
    running = launcher.start(made)
    assert running.wait_exit(LIMIT).code == 5
    running.stop()
    assert "No space left on device" in by_name(running)["log.incomplete"].value


def test_output_of_a_child_that_outlives_the_engine_is_kept(launcher, tmp_path):
    code = (
        "import subprocess, sys\n"
        "subprocess.Popen([sys.executable, '-c', "
        "\"import signal,time; signal.signal(15, lambda *_: (print('late', flush=True), exit(0)));"
        "print('up', flush=True); time.sleep(600)\"])\n"
        "import time; time.sleep(0.5)\n"
    )
    running = launcher.start(plan(tmp_path, python(code)))
    assert running.wait_exit(LIMIT).code == 0
    logged_up = until(lambda: "up" in log_of(running), "the child is up")
    assert logged_up
    assert all(one.released for one in running.stop())
    assert log_of(running).endswith("late\n")


def test_a_port_that_somebody_takes_is_told_as_not_released_and_not_waited_for(launcher, tmp_path):
    running = launcher.start(plan(tmp_path, how={"hang": "start"}, deadlines=Deadlines(stop=600, release=600)))
    port = int(running.base_url.rpartition(":")[2])
    with socket.create_server(("127.0.0.1", port)):
        (found,) = [one for one in running.stop() if one.kind == "port"]
    assert not found.released
    assert f"held by pid {os.getpid()}: " in found.what
