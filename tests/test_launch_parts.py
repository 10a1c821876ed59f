"""The launcher's small parts: process identity, the pump, the environment, ports, which process is the engine."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers_launch import LIMIT, process_row, until
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_startup.launch import identity, ports
from pytest_startup.launch.environment import engine_environment
from pytest_startup.launch.identity import Identity, Process, parse_stat
from pytest_startup.launch.once import StopOnce
from pytest_startup.launch.process.pump import Pump
from pytest_startup.record import Leftover
from pytest_startup.redact import Redactor

pytestmark = pytest.mark.usefixtures("isolated")


# identity


@given(st.text(st.characters(blacklist_categories=["Cs"]), min_size=1, max_size=15))
def test_parse_stat_of_any_name(name):
    process = parse_stat(f"42 ({name}) S 7 40 39 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 3 0 123456 999 1 2 3")
    assert process == Process(Identity(42, 123456), 7, 40, 39, "S", name, 3)


@pytest.mark.parametrize("text", ["", "42", "42 (x) S 1", "x (y) " + "1 " * 20])
def test_parse_stat_refuses_other_text(text):
    with pytest.raises(ValueError, match=r"not a /proc/PID/stat line|invalid literal"):
        parse_stat(text)


def test_signal_reaches_only_the_very_process(sleeper):
    me = identity.identify(sleeper.pid)
    assert not identity.send(Identity(me.pid, me.start + 1), signal.SIGKILL)
    assert sleeper.poll() is None
    assert identity.alive(me)
    assert identity.send(me, signal.SIGKILL)
    assert sleeper.wait(LIMIT) == -signal.SIGKILL
    assert not identity.alive(me)
    assert not identity.send(me, signal.SIGKILL)


def test_signal_without_pidfd(sleeper, monkeypatch):
    monkeypatch.delattr(os, "pidfd_open")
    me = identity.identify(sleeper.pid)
    assert not identity.send(Identity(me.pid, me.start + 1), signal.SIGKILL)
    assert sleeper.poll() is None
    assert identity.send(me, signal.SIGKILL)


def test_a_process_whose_first_thread_has_ended_runs_while_another_does():
    code = """
import ctypes, sys, threading
hold = threading.Thread(target=sys.stdin.read)
hold.start()
ctypes.CDLL(None).syscall(SYS_EXIT, 0)
""".replace("SYS_EXIT", str({"x86_64": 60}.get(os.uname().machine, 93)))
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    until(lambda: identity.look(process.pid).state == "Z", "the first thread's end")
    me = identity.identify(process.pid)
    assert identity.alive(me)
    assert process.poll() is None
    process.stdin.close()
    until(lambda: not identity.alive(me), "the end")
    assert process.wait(LIMIT) == 0


def test_descendants_parents_first_and_no_loops():
    processes = {
        p.pid: p
        for p in [process_row(2, 1), process_row(3, 2), process_row(4, 3), process_row(5, 1), process_row(6, 6)]
    }
    assert [p.pid for p in identity.descendants([2], processes)] == [3, 4]
    assert [p.pid for p in identity.descendants([1], processes)] == [2, 5, 3, 4]
    assert identity.descendants([6, 9], processes) == []


def test_ours_by_identity_session_and_parent():
    far = 3_000_000  # above any pid: nothing is read from /proc for these
    processes = {
        p.pid: p
        for p in [
            process_row(far, 1, far, start=5),
            process_row(far + 1, 1, far),  # same session, its parent has died
            process_row(far + 2, far + 1, far + 2),  # left the session, still a child
            process_row(far + 3, 1, far + 3),  # a stranger
            process_row(far + 4, 1, far + 4, start=9),  # a known pid, used again
            process_row(far + 5, far, far, state="Z"),
        ]
    }
    known = [Identity(far, 5), Identity(far + 4, 8), Identity(far + 9, 1)]
    assert [p.pid for p in identity.ours("no-such-run", known, processes)] == [far, far + 1, far + 2]
    assert identity.ours("no-such-run", [Identity(far, 6)], processes) == []


def test_ours_by_marker():
    env = {**os.environ, identity.MARKER: "marker-test"}
    other = {**os.environ, identity.MARKER: "marker-test-2"}
    code = [sys.executable, "-c", "print(flush=True); import time; time.sleep(600)"]
    one = subprocess.Popen(code, env=env, start_new_session=True, stdout=subprocess.PIPE)
    two = subprocess.Popen(code, env=other, start_new_session=True, stdout=subprocess.PIPE)
    try:
        for process in (one, two):
            process.stdout.readline()
        assert [p.pid for p in identity.ours("marker-test", [])] == [one.pid]
    finally:
        for process in (one, two):
            process.kill()
            process.wait()
            process.stdout.close()


def test_command_line_is_one_printable_line():
    code = "print(flush=True)\nimport time\n# \x1b[31m\ntime.sleep(600)"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        process.stdout.readline()
        text = identity.command_line(process.pid)
        assert text == f"{sys.executable} -c print(flush=True) import time # [31m time.sleep(600)"
        assert identity.command_line(process.pid, 10) == sys.executable[:9] + "…"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    assert identity.command_line(process.pid) == "?"


# pump


class Piped:
    def __init__(self, folder: Path, secrets=()) -> None:
        read, self.write_end = os.pipe()
        self.log, self.lines = folder / "engine.log", folder / "lines.tsv"
        self.pump = Pump(read, self.log, self.lines, time.monotonic(), Redactor(secrets).stream())

    def put(self, data: bytes) -> None:
        os.write(self.write_end, data)
        self.pump.drain()

    def end(self) -> tuple[bytes, list[str]]:
        os.close(self.write_end)
        self.pump.drain()
        assert self.pump.closed
        return self.log.read_bytes(), self.lines.read_text().splitlines()


@settings(max_examples=60, deadline=None)
@given(chunks=st.lists(st.tuples(st.sampled_from([b"a", b"\n", b"bc\n", b"\r", b"x\ny", b"\xff\n\n"]), st.booleans())))
def test_pump_keeps_every_byte_and_one_time_per_line(tmp_path_factory, chunks):
    piped = Piped(tmp_path_factory.mktemp("pump"))
    for data, quiet in chunks:
        piped.put(data)
        if quiet:
            piped.pump.flush()
            assert piped.log.read_bytes().endswith(data)  # nothing is held back for longer than a quiet moment
    data = b"".join(data for data, _ in chunks)
    log, rows = piped.end()
    assert log == data
    count = data.count(b"\n") + (not data.endswith(b"\n") and bool(data))
    assert [int(r.split("\t")[0]) for r in rows] == list(range(1, count + 1))
    times = [float(r.split("\t")[1]) for r in rows]
    assert times == sorted(times)


def test_a_line_has_the_time_of_its_first_byte(tmp_path):
    piped = Piped(tmp_path)
    piped.put(b"Loading: 0%")
    piped.pump._launched_at -= 100  # later on
    piped.put(b"\rLoading: 100%\nnext\n")
    _, rows = piped.end()
    first, second = (float(r.split("\t")[1]) for r in rows)
    assert first < 50
    assert second >= 100


def test_a_secret_in_pieces_never_reaches_the_disk(tmp_path):
    piped = Piped(tmp_path, ["s3cr3t-value"])
    for piece in (b"key s3cr", b"3t-va", b"lue end\n", b"fine\n"):
        piped.put(piece)
        assert b"s3cr" not in piped.log.read_bytes()
    log, rows = piped.end()
    assert log == b"key [redacted] end\nfine\n"
    assert len(rows) == 2


# environment


def test_environment_is_an_allow_list():
    caller = {
        "PATH": "/bin",
        "LC_ALL": "C",
        "HF_TOKEN": "x",
        "HTTPS_PROXY": "http://proxy",
        "https_proxy": "http://proxy",
        "VLLM_USE_V1": "0",
        "NCCL_DEBUG": "INFO",
        "NCCL_IB_HCA": "mlx5",
    }
    out = engine_environment(caller, {"A": "1", "PATH": "/opt/bin"}, "run-1")
    assert out == {"PATH": "/opt/bin", "LC_ALL": "C", "A": "1", "PYTHONUNBUFFERED": "1", identity.MARKER: "run-1"}
    more = engine_environment(caller, {}, "run-1", ["NCCL_*", "HF_TOKEN", "UNSET"])
    assert {k for k in more if k not in out} == {"NCCL_DEBUG", "NCCL_IB_HCA", "HF_TOKEN"}
    assert "HTTPS_PROXY" not in engine_environment(caller, {}, "r", ["*"])
    assert "HTTPS_PROXY" in engine_environment(caller, {}, "r", ["HTTPS_PROXY"])


def test_environment_of_gpus():
    out = engine_environment({}, {}, "r", (), ["0", "GPU-abc"])
    assert out["CUDA_VISIBLE_DEVICES"] == "0,GPU-abc"
    assert out["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert engine_environment({}, {"CUDA_VISIBLE_DEVICES": "7"}, "r", (), ["0"])["CUDA_VISIBLE_DEVICES"] == "7"
    assert "CUDA_VISIBLE_DEVICES" not in engine_environment({"CUDA_VISIBLE_DEVICES": "3"}, {}, "r")


# ports

TCP = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:22B8 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 12482 1 0 100 0 0 10 0
   1: 0100007F:22B8 0100007F:A5EB 01 00000000:00000000 00:00000000 00000000  1000        0 12494 1 0 100 0 0 10 0
"""
TCP6 = """  sl  local_address rem_address st tx_queue rx_queue tr tm->when retrnsmt uid timeout inode
   0: 00000000000000000000000001000000:1F90 00000000000000000000000000000000:0000 0A 0:0 00:0 0  0  0 77 1 0 100 0
"""


def test_the_owner_of_a_listener_is_found_behind_a_handle_that_has_been_closed():
    """Reading the list of one's own handles opens one, which has gone when it is looked at."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        high = fcntl.fcntl(server.fileno(), fcntl.F_DUPFD_CLOEXEC, 200)
        port = server.getsockname()[1]
    try:
        (found,) = ports.listeners(port)
        assert found.pid == os.getpid()
    finally:
        os.close(high)


def test_parse_listeners():
    assert list(ports.parse_listeners(TCP, False)) == [ports.Listener("127.0.0.1", 8888, 1000, 12482)]
    assert list(ports.parse_listeners(TCP6, True)) == [ports.Listener("::1", 8080, 0, 77)]
    assert str(ports.Listener("192.0.2.7", 1, 33, 5)) == "a process of uid 33 (port 1, address 192.0.2.7)"


@pytest.mark.parametrize("host", ["127.0.0.1", ""])
def test_a_taken_port_names_its_holder(host):
    port, lock = ports.free_port("127.0.0.1", "test")
    assert ports.why_taken(host, port) is None
    with socket.create_server(("127.0.0.1", port)):
        text = ports.why_taken(host, port)
    assert text.startswith(f"pid {os.getpid()}: ")
    assert text.endswith(f"(port {port}, address 127.0.0.1)")
    assert ports.why_taken(host, port) is None
    lock.release()


def test_a_shared_port_is_taken():
    """SO_REUSEPORT lets a second server bind without an error: the table of listeners does not."""
    with socket.create_server(("127.0.0.1", 0), reuse_port=True) as server:
        port = server.getsockname()[1]
        assert ports.why_taken("127.0.0.1", port).startswith(f"pid {os.getpid()}: ")


def test_a_connection_that_ends_is_told_as_such():
    server = socket.socket()
    server.bind(("127.0.0.1", 0))  # without SO_REUSEADDR, as a careless engine
    server.listen()
    port = server.getsockname()[1]
    with socket.create_connection(("127.0.0.1", port)) as client:
        accepted, _ = server.accept()
        accepted.close()
        server.close()
        assert client.recv(1) == b""
        assert ports.why_taken("127.0.0.1", port) == (
            f"a connection that has not ended yet (nobody listens on 127.0.0.1:{port}; up to a minute)"
        )


def test_a_host_that_is_not_here():
    assert "can't be listened on: Cannot assign requested address" in ports.why_taken("192.0.2.1", 12345)


def test_free_ports_differ_and_keep_off_the_ephemeral_range():
    got = [ports.free_port("127.0.0.1", "test") for _ in range(5)]
    numbers = [port for port, _ in got]
    assert len(set(numbers)) == 5
    low, high = ports._ephemeral()
    assert not [n for n in numbers if low <= n <= high]
    for _, lock in got:
        lock.release()


# the engine among our processes


def test_the_arguments_of_the_engine_are_those_that_the_kernel_shows(tmp_path: Path) -> None:
    """Below a script that leaves arguments out, its engine's own are shown."""
    script = tmp_path / "serve.sh"
    code = "import sys; print('up', flush=True); sys.stdin.read()"
    script.write_text(f'#!/bin/sh\n"{sys.executable}" -c "{code}" --port "$2"; true\n')
    script.chmod(0o755)
    with subprocess.Popen(
        [str(script), "--port", "4711", "--dropped"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        main = identity.identify(process.pid)
        assert main is not None
        found = identity.engine_arguments(main, 4711)
        assert found is not None
        assert found[0] != process.pid
        assert found[1] == [sys.executable, "-c", code, "--port", "4711"]
        assert identity.engine_arguments(main, 4712) is None
        process.stdin.close()
    assert identity.engine_arguments(main, 4711) is None


def test_of_forked_processes_the_first_is_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that was forked a moment ago shows its parent's arguments, and is another one at the next look."""
    engine, script = ["python", "serve", "--port", "4711"], ["sh", "serve.sh", "--port", "4711", "--dropped"]
    lines = {10: script, 11: engine, 12: engine, 13: ["VLLM::EngineCore"], 14: engine}
    parents = {10: 1, 11: 10, 12: 11, 13: 11, 14: 12}
    rows = [identity.Process(identity.Identity(p, p), parents[p], p, p, "S", "x") for p in (12, 14, 10, 13, 11)]
    monkeypatch.setattr(identity, "arguments", lines.get)
    assert identity.shown_arguments(rows, ["4711"]) == (11, engine)
    assert identity.shown_arguments(rows[:1], ["4711"]) == (12, engine)
    assert identity.shown_arguments(rows, ["4712"]) is None


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("0.0.0.0", "http://127.0.0.1:80"),  # noqa: S104 - a text
        ("", "http://127.0.0.1:80"),
        ("::", "http://[::1]:80"),
        ("[::1]", "http://[::1]:80"),
        ("fe80::1", "http://[fe80::1]:80"),
        ("localhost", "http://localhost:80"),
    ],
)
def test_where_a_server_of_this_host_is_asked(host, url):
    assert ports.local_url(host, 80) == url


def test_a_stop_is_made_once_and_ctrl_c_is_raised_when_it_is_over():
    limits = []

    def end(limit):
        limits.append(limit)
        return (Leftover("pid", "1", True),), True

    stop = StopOnce(5.0, end)
    assert not stop.made
    with pytest.raises(KeyboardInterrupt):
        stop()
    assert stop.made
    assert [left.what for left in stop(1.0)] == ["1"]
    assert limits == [5.0]
    hurried = StopOnce(5.0, end)
    hurried.hurry()
    with pytest.raises(KeyboardInterrupt):
        hurried(3.0)
    assert limits == [5.0, 0.0]
