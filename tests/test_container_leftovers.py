"""pytest is killed, or two runs meet: the next run removes what is left of dead ones of ours, and nothing else."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from helpers_docker import TESTS, gate, gate_env, gate_yaml
from helpers_launch import isolate, until

from pytest_startup.launch import registry
from pytest_startup.launch.container import labels as container_labels
from pytest_startup.launch.identity import Identity

#: A plugin that stops pytest between the creation of a container and its start.
BETWEEN = """\
import pathlib, time
from pytest_startup.launch.container.daemon import Daemon

def start(self, container):
    pathlib.Path("created").write_text(container)
    time.sleep(600)

Daemon.start = start
"""


#: A test of the user's own that has the engine and does not end.
SERVING = """\
import time

def test_long(engine):
    open("serving", "w").close()
    time.sleep(600)
"""


def clean(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "pytest_startup.cli", "clean", *words]
    return subprocess.run(argv, env=gate_env(**env), capture_output=True, text=True, check=False)


def write(engine, folder: Path, name: str = "the-engine", **more: str) -> None:
    volumes = f"volumes: {{{TESTS}: {TESTS}:ro, ./.: {folder}}}"
    container = f"network: host\nname: {name}\n{volumes}"
    (folder / "profile.yaml").write_text(gate_yaml(engine, container=container, **more))


def hold(folder: Path, mark: str) -> str:
    return f"""FAKE_ENGINE: '{{"hold": {{"at": "{mark}", "until": "{folder}/go"}}}}'"""


@pytest.mark.parametrize("at", ["created", "loading", "serving"])
def test_pytest_is_killed(engine, tmp_path, at):
    """At three points: the container created but not started, the engine loading, the engine serving."""
    site = tmp_path / "site"
    site.mkdir()
    write(engine, site, port="18770", env=hold(site, "Loading weights took" if at == "loading" else "no such line"))
    (site / "between.py").write_text(BETWEEN)
    (site / "test_own.py").write_text(SERVING)
    words = ["-p", "between"] if at == "created" else []
    env = gate_env()
    env["PYTHONPATH"] += os.pathsep + str(site)
    run = subprocess.Popen([*gate(site), *words], cwd=site, env=env, stdout=subprocess.DEVNULL, start_new_session=True)
    try:

        def reached() -> bool:
            assert run.poll() is None
            if at == "loading":
                logs = list(site.glob(".startup/*/*/reference/head/engine.log"))
                return bool(logs) and "Loading weights took" in logs[0].read_text()
            return (site / at).exists()

        until(reached, at, 60)
    finally:
        run.send_signal(signal.SIGKILL)
        run.wait()
    state = engine.inspect("the-engine")["State"]["Status"]
    assert state == ("created" if at == "created" else "running")
    (found,) = engine.labelled()
    seen = clean("--dry-run")
    assert seen.returncode == 1, seen.stderr
    assert f"  container {found[:12]} (the-engine, image {engine.image}" in seen.stdout
    assert "nothing was touched; remove it with --yes" in seen.stdout
    assert engine.labelled() == [found]
    # The next run wants the same name and port.
    (site / "go").touch()
    write(engine, site, port="18770")
    (site / "test_own.py").unlink()
    done = subprocess.run(gate(site), cwd=site, env=gate_env(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    told = " ".join(done.stdout.split())
    assert re.search(rf"a dead run had left behind: container of run \w+, \S+, started .*{found[:12]}", told)
    assert "removed" in told
    assert engine.labelled() == []
    assert clean("--dry-run").returncode == 0


def test_clean_removes_what_a_dead_run_left_and_nothing_else(engine, tmp_path):
    site = tmp_path / "site"
    site.mkdir()
    write(engine, site)
    (site / "between.py").write_text(BETWEEN)
    env = gate_env()
    env["PYTHONPATH"] += os.pathsep + str(site)
    run = subprocess.Popen([*gate(site), "-p", "between"], cwd=site, env=env, stdout=subprocess.DEVNULL)
    until((site / "created").exists, "created", 60)
    foreign = engine.docker("run", "-d", "--network", "none", "--label", "who=other", engine.image, "sleep", "1000")
    strange = container_labels.labels("0" * 12, "p", "reference")  # a run of this very process, which lives
    flags = [word for key, value in strange.items() for word in ("--label", f"{key}={value}")]
    living = engine.docker("run", "-d", "--network", "none", *flags, engine.image, "sleep", "1000")
    assert clean("--yes").stdout == "nothing is left of dead runs\n"  # its run lives
    run.kill()
    run.wait()
    done = clean("--yes")
    assert done.returncode == 0, done.stdout
    assert re.search(r"  container \w{12} \(the-engine, image .*\) removed\n", done.stdout)
    assert set(engine.docker("ps", "-aq", "--no-trunc").split()) == {foreign, living}
    engine.docker("rm", "-f", foreign, living)


def test_clean_finds_a_dead_run_s_container_by_its_labels_alone(engine):
    """The registry may be lost; then the engine that the environment names is asked. What lives or is foreign stays."""
    dead = {**container_labels.labels("0" * 12, "p", "reference"), container_labels.OWNER: f"{os.getpid()}:1"}
    made = []
    for given in (dead, container_labels.labels("1" * 12, "p", "reference"), {"who": "other"}):
        flags = [word for key, value in given.items() for word in ("--label", f"{key}={value}")]
        made.append(engine.docker("create", "--network", "none", *flags, engine.image, "sleep", "1000"))
    assert clean("--dry-run").returncode == 0  # no engine is named
    seen = clean("--dry-run", DOCKER_HOST=engine.url)
    assert seen.returncode == 1
    assert seen.stdout.startswith("container of a run that is not in the registry (any more)\n")
    assert f"  container {made[0][:12]} (" in seen.stdout
    done = clean("--yes", DOCKER_HOST=engine.url)
    assert done.returncode == 0, done.stdout
    assert set(engine.docker("ps", "-aq", "--no-trunc").split()) == set(made[1:])


def test_two_runs_on_one_port(engine, tmp_path):
    """The second waits for the first, says for whom, and then starts."""
    sites = [tmp_path / "one", tmp_path / "two"]
    for site in sites:
        site.mkdir()
    write(engine, sites[0], "one", port="18771", env=hold(sites[0], "Loading weights took"))
    write(engine, sites[1], "two", port="18771")
    runs = []
    try:
        for site in sites:
            out = (site / "out.txt").open("w")
            runs.append(subprocess.Popen(gate(site), cwd=site, env=gate_env(), stdout=out))
            out.close()
            if site is sites[0]:
                until(lambda: engine.labelled(), "the first one's container", 60)
        until(lambda: "waiting for port 18771" in (sites[1] / "out.txt").read_text(), "the second waits", 60)
        text = (sites[1] / "out.txt").read_text()
        assert "in use by run " in text
        assert f"(pid {runs[0].pid}: " in text
        assert len(engine.labelled()) == 1
        (sites[0] / "go").touch()
        assert [run.wait(120) for run in runs] == [0, 0]
    finally:
        for run in runs:
            run.kill()
            run.wait()
    assert engine.labelled() == []


def test_left_up_on_purpose(engine, tmp_path):
    site = tmp_path / "site"
    site.mkdir()
    write(engine, site, top="  - {check: cleanup, reason: it is left up}\n")
    argv = gate(site, "--startup-keep")
    done = subprocess.run(argv, cwd=site, env=gate_env(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "left running at http://127.0.0.1:" in done.stdout
    (found,) = engine.labelled()
    assert engine.inspect(found)["State"]["Running"]
    write(engine, site, "another")
    done = subprocess.run(gate(site), cwd=site, env=gate_env(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "still up: container of run" in done.stdout
    assert engine.labelled() == [found]
    assert clean("--yes").returncode == 0
    assert engine.labelled() == []


def test_a_daemon_that_can_not_be_asked(tmp_path, monkeypatch):
    isolate(tmp_path, monkeypatch)
    folder = registry.state_folder()
    labels = {"daemon": f"unix://{tmp_path}/gone.sock", "name": "lost"}
    entry = registry.Entry("r1", "reference", "container", Identity(1, 0), labels=labels, boot=registry.boot_id(),
                           namespace=registry.pid_namespace())  # fmt: skip
    path = registry.write(folder, entry)
    done = clean("--yes")
    assert done.returncode == 1
    assert (
        f"lost: the container engine at unix://{tmp_path}/gone.sock (of that run) does not run: No such file"
        in done.stdout
    )
    assert f"or, if it is gone for good, delete {path}" in done.stdout
    assert path.exists()
