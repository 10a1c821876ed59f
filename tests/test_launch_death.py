"""Nothing survives: pytest killed, interrupted or timed out; the keeper killed; both killed; left up on purpose."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers_launch import LIMIT, gone, logged, plan, until

from pytest_startup import clean
from pytest_startup.launch import ports, registry
from pytest_startup.launch.identity import Identity, identify
from pytest_startup.launch.process.launcher import ProcessLauncher

pytestmark = pytest.mark.usefixtures("isolated")

TESTS = Path(__file__).parent
CHILD = {"setsid": True, "shm": 4096}

#: Stands for a pytest process: starts an engine as told by argv[1], says its pids, and does what argv[2] says.
PARENT = f"""
import json, os, signal, sys, time
from pathlib import Path
sys.path[:0] = [{str(TESTS)!r}, {str(TESTS.parent)!r}]
from helpers_launch import logged, plan
from pytest_startup.launch.process.launcher import ProcessLauncher
folder, how, end = Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3]
launcher = ProcessLauncher()
made = plan(folder, how=how, run_id="parent")
running = launcher.start(made)
logged(running, sys.argv[4])
if end == "keep":
    assert running.keep()
told = json.dumps(dict(engine=running.pid, keeper=running._link.pid, port=made.port))
if end in ("os._exit", "forked"):
    print(told, flush=True)
if end == "os._exit":
    os._exit(1)
if end == "forked":  # a forked child keeps our end of the pipe open
    if os.fork() == 0:
        signal.alarm(60)
        signal.pause()
    os._exit(1)
try:
    print(told, flush=True)
    if end not in ("leave", "keep"):
        running.wait_exit(600)
except KeyboardInterrupt:
    launcher.close()
    print("interrupted", flush=True)
"""


class Parent:
    def __init__(self, folder: Path, how: dict, end: str, at: str = "Application startup complete.") -> None:
        self.folder = folder
        self.child = folder / "child"
        how = {"children": [{**CHILD, "pid_file": str(self.child)}], **how}
        argv = [sys.executable, "-c", PARENT, str(folder), json.dumps(how), end, at]
        self.process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, start_new_session=True)
        self.told = json.loads(self.process.stdout.readline())
        self.pids = [self.told["engine"], self.told["keeper"], int(self.child.read_text())]
        self.shm = Path(f"/dev/shm/fake_engine_{self.pids[2]}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        for pid in self.pids:
            if not gone(pid):
                os.kill(pid, signal.SIGKILL)
        self.shm.unlink(missing_ok=True)

    def all_gone(self, limit: float = LIMIT) -> None:
        until(lambda: all(map(gone, self.pids)), f"pids {self.pids} gone", limit)
        assert not self.shm.exists()
        assert ports.why_taken("127.0.0.1", self.told["port"]) is None
        assert list(registry.entries(registry.state_folder())) == []


@pytest.mark.parametrize("mode", [{}, {"ignore_term": "always"}], ids=["obedient", "ignores-term"])
def test_sigkill_of_pytest(tmp_path, mode):
    with Parent(tmp_path, mode, "wait") as parent:
        parent.process.kill()
        parent.all_gone()


@pytest.mark.parametrize("end", ["os._exit", "forked", "leave"])
def test_pytest_ends_without_a_word(tmp_path, end):
    """``os._exit`` is what pytest-timeout does; ``forked``: somebody else still holds our pipe."""
    with Parent(tmp_path, {}, end) as parent:
        parent.all_gone()


def test_interrupt_during_weights(tmp_path):
    how = {"hang": "Starting to load model", "ignore_term": "start"}
    with Parent(tmp_path, how, "wait", "Starting to load model") as parent:
        os.killpg(parent.process.pid, signal.SIGINT)  # as the terminal does
        assert parent.process.stdout.readline().strip() == "interrupted"
        assert parent.process.wait(LIMIT) == 0
        parent.all_gone()
        log = (tmp_path / "starts/reference/head/engine.log").read_text()
        assert "shutdown" not in log  # the interrupt itself never reached the engine


def test_keeper_killed(tmp_path):
    launcher = ProcessLauncher()
    child = tmp_path / "child"
    running = launcher.start(plan(tmp_path, how={"children": [{**CHILD, "pid_file": str(child)}]}))
    logged(running, "Application startup complete.")
    entry = registry.entry_path(registry.state_folder(), running._plan.run_id, "reference")
    until(lambda: registry.read(entry).shm and len(registry.read(entry).known) >= 2, "all is known")
    os.kill(running._link.pid, signal.SIGKILL)
    ended = running.wait_exit(LIMIT)
    assert (ended.code, ended.reason) == (None, "killed")
    assert "the process that keeps the engine" in ended.text
    until(lambda: gone(running.pid), "the engine dies with its keeper")
    left = running.stop()
    assert all(one.released for one in left), left
    assert gone(int(child.read_text()))
    assert not Path(f"/dev/shm/fake_engine_{child.read_text()}").exists()
    assert not entry.exists()
    launcher.close()


def test_keeper_told_to_end(tmp_path):
    with Parent(tmp_path, {}, "wait") as parent:
        os.kill(parent.told["keeper"], signal.SIGTERM)
        parent.all_gone()
        assert parent.process.wait(LIMIT) == 0  # it saw its engine end, and went on to its own end


def test_next_run_removes_what_a_killed_run_and_keeper_left(tmp_path):
    with Parent(tmp_path, {}, "wait") as parent:
        folder = registry.state_folder()
        until(lambda: any(e.shm and len(e.known) >= 2 for e in registry.entries(folder)), "all is known")
        os.kill(parent.told["keeper"], signal.SIGSTOP)  # so that it can't clean up before it is killed
        parent.process.kill()
        parent.process.wait()
        os.kill(parent.told["keeper"], signal.SIGKILL)
        until(lambda: gone(parent.told["engine"]), "the engine dies with its keeper")
        assert not gone(parent.pids[2])
        until(lambda: clean.find(folder), "the keeper's own threads have ended")
        (found,) = clean.find(folder)
        assert any(thing.startswith(f"pid {parent.pids[2]}: ") for thing in found.things)
        assert not gone(parent.pids[2])  # looking changes nothing
        (text,) = clean.sweep()
        assert text.startswith("a dead run had left behind: process of run parent, reference, started ")
        assert f"pid {parent.pids[2]} " in text
        assert f"shm {parent.shm} removed" in text
        parent.all_gone()
        assert clean.sweep() == []


def test_left_up_on_purpose(tmp_path, capsys):
    with Parent(tmp_path, {}, "keep") as parent:
        assert parent.process.wait(LIMIT) == 0
        log = tmp_path / "starts/reference/head/engine.log"
        os.kill(parent.told["engine"], 0)
        assert not any(map(gone, parent.pids))
        (text,) = clean.sweep()
        assert text.startswith("still up: process of run parent")
        assert "pytest-startup clean --yes" in text
        assert not any(map(gone, parent.pids))
        assert clean.main(["--dry-run"]) == 1
        assert not any(map(gone, parent.pids))
        assert clean.main(["--yes"]) == 0
        assert f"pid {parent.pids[0]} " in capsys.readouterr().out
        parent.all_gone()
        assert "Application shutdown complete." in log.read_text()  # its log was written to the end


def test_a_pid_used_again_is_never_touched():
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    try:
        now = identify(bystander.pid)
        dead = Identity(bystander.pid, now.start - 1)
        folder = registry.state_folder()
        gone_owner = Identity(os.getpid(), 1)
        entry = registry.Entry(
            "old", "reference", "process", gone_owner, keeper=dead, known=(dead,), boot=registry.boot_id(),
            namespace=registry.pid_namespace(), shm=("../passwd", "no_such_entry"),
        )  # fmt: skip
        registry.write(folder, entry)
        (found,) = clean.find(folder)
        assert found.things == ()
        assert clean.remove(folder, found) == []
        assert bystander.poll() is None
        assert list(registry.entries(folder)) == []
    finally:
        bystander.kill()
        bystander.wait()


def test_time_to_clean_up(tmp_path):
    with Parent(tmp_path, {}, "wait") as parent:
        begin = time.monotonic()
        parent.process.kill()
        parent.all_gone()
        assert time.monotonic() - begin < 10
    assert "Application shutdown complete." in (tmp_path / "starts/reference/head/engine.log").read_text()


def test_log_goes_on_while_pytest_is_stopped(tmp_path):
    """A pytest that stands still (a debugger, Ctrl-Z) must not block the engine's output."""
    go = tmp_path / "go"
    how = {"hold": {"at": "Starting to load model", "until": str(go)}}
    with Parent(tmp_path, how, "wait", "Starting to load model") as parent:
        parent.process.send_signal(signal.SIGSTOP)
        go.touch()
        log = tmp_path / "starts/reference/head/engine.log"
        until(lambda: "Application startup complete." in log.read_text(), "the log goes on")
        parent.process.send_signal(signal.SIGCONT)
        parent.process.kill()
        parent.all_gone()


def test_kept_engine_that_ends_by_itself_leaves_nothing(tmp_path):
    with Parent(tmp_path, {"exit": {"at": "requests:1", "code": 4}}, "keep") as parent:
        assert parent.process.wait(LIMIT) == 0
        for pid in (parent.told["engine"], parent.pids[2]):
            os.kill(pid, signal.SIGKILL)
        parent.all_gone()


def test_vendored_copy_uses_itself_and_nothing_of_the_caller(tmp_path):
    """The folder copied into a repo, nothing installed, and files beside it that would break any careless import."""
    repo = tmp_path / "repo"
    shutil.copytree(TESTS.parent / "pytest_startup", repo / "pytest_startup", ignore=shutil.ignore_patterns("*.pyc"))
    for name in ("json.py", "selectors.py", "sitecustomize.py", "signal.py"):
        (repo / "bad" / name).parent.mkdir(exist_ok=True)
        (repo / "bad" / name).write_text("raise RuntimeError('imported from the caller')\n")
    code = f"""
import os, sys
sys.path[:0] = [{str(repo)!r}, {str(TESTS)!r}]
from pathlib import Path
import pytest_startup
assert pytest_startup.__file__.startswith({str(repo)!r}), pytest_startup.__file__
from helpers_launch import plan, until
from pytest_startup.launch.process.launcher import ProcessLauncher
os.chdir({str(repo / "bad")!r})
os.environ["PYTHONPATH"] = {str(repo / "bad")!r}
launcher = ProcessLauncher()
running = launcher.start(plan(Path({str(tmp_path)!r}), ("/bin/sh", "-c", "exit 7")))
print(Path(f"/proc/{{running._link.pid}}/cmdline").read_text().split(chr(0))[3])
print(running.wait_exit(60).code, len(launcher.close()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [f"{repo}/pytest_startup/launch/process/reaper.py", "7 0"]
