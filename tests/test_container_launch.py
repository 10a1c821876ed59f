"""Containers on a real engine: started as pinned, followed, restarted, stopped with proof."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import subprocess
import time
from dataclasses import replace

import pytest
from helpers_docker import TESTS, container_plan, container_profile
from helpers_launch import log_of, logged, until

from pytest_startup.launch import registry
from pytest_startup.launch.base import LaunchError
from pytest_startup.observe.http import Http
from pytest_startup.profile.model import Deadlines

READY = "Application startup complete."


def health(running) -> bool:
    with Http(running.base_url) as http:
        return http.get("/health").ok


def values(running, name: str) -> list:
    return [fact.value for fact in running.facts() if fact.name == name]


@pytest.mark.parametrize("network", ["host", "bridge"])
def test_start_log_and_stop_with_proof(engine, launcher, tmp_path, network):
    profile = container_profile(engine, tmp_path, network=network, secrets=frozenset({"very-secret-value"}))
    assert launcher.preflight(profile) == []
    running = launcher.start(container_plan(profile, {"insert": {"Starting vLLM": "token very-secret-value here"}}))
    logged(running, READY)
    until(lambda: health(running), "health 200")
    assert running.owner().who == "ours"
    assert running.exited() is None
    left = running.stop()
    assert all(one.released for one in left), left
    assert {"container", "pid", "port"} <= {one.kind for one in left}
    assert running.stop() is left  # idempotent
    text = log_of(running)
    assert "Application shutdown complete." in text  # nothing of the log is lost
    assert "very-secret-value" not in text
    rows = [line.split("\t") for line in running.logs[0].lines.read_text().splitlines()]
    assert [int(number) for number, _ in rows] == list(range(1, text.count("\n") + 1))
    times = [float(seconds) for _, seconds in rows]
    assert times == sorted(times)
    assert 0 <= times[0] <= times[-1] < 60
    ended = running.exited()
    assert (ended.code, ended.reason, ended.node) == (0, "exited", "head")
    assert launcher.close() == []
    assert engine.labelled() == []
    assert list(registry.entries(registry.state_folder())) == []


@pytest.mark.parametrize("network", ["host", "bridge"])
def test_same_container_and_fresh_container(engine, launcher, tmp_path, network):
    profile = container_profile(engine, tmp_path, network=network)
    first = launcher.start(container_plan(profile))
    logged(first, READY)
    port = first._plan.port
    again = launcher.start(container_plan(profile, name="restart-1", fresh=False, port=port))
    logged(again, READY)
    until(lambda: health(again), "health 200 at the port of this boot")
    assert again.container == first.container
    assert values(again, "container.started_at") != values(first, "container.started_at")
    assert values(again, "process.pid") != values(first, "process.pid")
    assert values(again, "container.memory_peak")[0] > 0
    fresh = launcher.start(container_plan(profile, name="restart-2", port=port))
    logged(fresh, READY)
    assert fresh.container != first.container
    fresh.stop()
    boots = [log_of(running) for running in (first, again, fresh)]
    assert [text.count(READY) for text in boots] == [1, 1, 1]  # each log is that of its boot alone
    assert [text.count("Application shutdown complete.") for text in boots] == [1, 1, 1]
    assert len({text.splitlines()[0] for text in boots}) <= 3
    assert all(text.splitlines()[0].count("[") == boots[0].splitlines()[0].count("[") for text in boots)


def test_a_container_that_is_not_there_can_not_be_started_again(engine, launcher, tmp_path):
    profile = container_profile(engine, tmp_path)
    with pytest.raises(LaunchError, match="there is no container of an earlier start to start again"):
        launcher.start(container_plan(profile, fresh=False))


def test_every_option_is_passed_on(engine, launcher, tmp_path):
    profile = container_profile(
        engine,
        tmp_path,
        name="with-options",
        ipc="shareable",
        shm_size="96m",
        ulimits={"nofile": "1024:4096", "stack": "67108864"},
        devices=("/dev/null:/dev/infiniband:rw",),
        cap_add=("SYS_NICE",),
        user="0:0",
        working_dir="/tmp",
        memory="1g",
        init=True,
        gpus=("0", "GPU-1"),
        env={"VLLM_CACHE_ROOT": "/nowhere", "PYTHONUNBUFFERED": "0"},
        engine_options={"CpusetCpus": "0", "ExtraHosts": ["peer:127.0.0.2"], "PidsLimit": 512},
    )
    running = launcher.start(container_plan(profile, {"hang": "Starting"}))
    seen = engine.inspect("with-options")
    host, config = seen["HostConfig"], seen["Config"]
    assert (host["NetworkMode"], host["IpcMode"], host["ShmSize"], host["Memory"]) == (
        "host",
        "shareable",
        96 << 20,
        1 << 30,
    )
    assert {u["Name"]: (u["Soft"], u["Hard"]) for u in host["Ulimits"]} == {
        "nofile": (1024, 4096),
        "stack": (67108864, 67108864),
    }
    assert host["Devices"] == [
        {"PathOnHost": "/dev/null", "PathInContainer": "/dev/infiniband", "CgroupPermissions": "rw"}
    ]
    assert host["DeviceRequests"][0]["DeviceIDs"] == ["0", "GPU-1"]
    assert host["DeviceRequests"][0]["Capabilities"] == [["gpu"]]
    assert (host["CapAdd"], host["Init"], host["CpusetCpus"], host["ExtraHosts"], host["PidsLimit"]) == (
        ["SYS_NICE"],
        True,
        "0",
        ["peer:127.0.0.2"],
        512,
    )
    assert (config["User"], config["WorkingDir"]) == ("0:0", "/tmp")
    assert {"VLLM_CACHE_ROOT=/nowhere", "PYTHONUNBUFFERED=0"} <= set(config["Env"])
    assert seen["Mounts"][0]["RW"] is False
    assert config["Labels"]["org.pytest-startup.run"] == running._plan.run_id
    assert running.stop()[0].released  # init passes the signal on


def test_identity_facts(engine, launcher, tmp_path):
    patch = tmp_path / "patch.py"
    patch.write_text("print('patched')\n")
    digest = hashlib.sha256(patch.read_bytes()).hexdigest()
    hub = tmp_path / "hub" / "models--org--name" / "refs"
    hub.mkdir(parents=True)
    (hub / "main").write_text("a" * 40)
    from pytest_startup.profile.model import ContainerFile

    profile = container_profile(
        engine,
        tmp_path,
        files=(ContainerFile(patch, "/opt/patch.py", digest),),
        volumes={str(tmp_path / "hub"): "/hub"},
        env={"HF_HUB_CACHE": "/hub", "API_TOKEN": "abcdefgh12345"},
        secrets=frozenset({"abcdefgh12345"}),
    )
    profile = replace(profile, engine=replace(profile.engine, model="org/name"))
    running = launcher.start(container_plan(profile, {"hang": "Starting"}))
    facts = {fact.name: fact for fact in running.facts()}
    assert facts["container.image"].value == engine.image
    assert facts["container.command"].value[:3] == ["python3", f"{TESTS}/fake_engine.py", "serve"]
    assert facts["process.argv"].value == facts["container.command"].value
    assert facts["file.sha256"].value == digest
    assert facts["file.sha256"].detail["path"] == "/opt/patch.py"
    assert facts["file.sha256"].detail["expected"] == digest
    assert facts["engine.revision"].value == "a" * 40
    assert "[redacted]" in facts["container.env"].value["API_TOKEN"]
    assert "abcdefgh12345" not in json.dumps([fact.value for fact in running.facts()])
    mounts = {mount["Destination"]: mount for mount in engine.inspect(running.container)["Mounts"]}
    assert mounts["/opt/patch.py"]["RW"] is False
    patch.write_text("print('changed')\n")  # in place: the container sees it
    running.stop()
    with pytest.raises(LaunchError) as error:
        launcher.start(container_plan(profile, name="restart-1", fresh=False, port=running._plan.port))
    text = str(error.value)
    assert f"{patch} is not the pinned file: its sha256 is {hashlib.sha256(patch.read_bytes()).hexdigest()}" in text
    assert f"expected {digest}" in text


def test_an_exit_is_noticed_within_a_second(engine, launcher, tmp_path):
    mark = tmp_path / "go"
    how = {"hold": {"at": READY, "until": str(mark)}, "exit": {"at": "end", "code": 7}}
    profile = container_profile(engine, tmp_path, volumes={str(tmp_path): str(tmp_path)})
    running = launcher.start(container_plan(profile, how))
    logged(running, READY)
    assert running.exited() is None
    begin = time.monotonic()
    mark.touch()
    ended = running.wait_exit(20)
    took = time.monotonic() - begin
    assert (ended.code, ended.reason) == (7, "exited")
    assert took < 1.0 + 0.5  # the engine's own end, and the host's load, included
    assert f"({running.container[:12]}) ended with exit code 7" in ended.text


def test_a_kill_and_a_removal_by_somebody_else(engine, launcher, tmp_path):
    profile = container_profile(engine, tmp_path)
    running = launcher.start(container_plan(profile))
    logged(running, "Starting")
    engine.docker("kill", running.container)
    ended = running.wait_exit(10)
    assert (ended.code, ended.reason) == (-9, "killed")
    assert "was killed by SIGKILL (exit code 137)" in ended.text
    running = launcher.start(container_plan(profile, name="restart-1"))
    logged(running, "Starting")
    engine.docker("rm", "-f", running.container)
    ended = running.wait_exit(10)
    # A look between the kill and the removal sees the kill.
    seen = {"container-gone": "was removed by somebody else while the engine ran", "killed": "SIGKILL"}
    assert seen[ended.reason] in ended.text
    assert all(one.released for one in running.stop())


def test_a_restart_by_somebody_else_is_no_start_of_ours(engine, launcher, tmp_path):
    running = launcher.start(container_plan(container_profile(engine, tmp_path), {"ignore_term": "always"}))
    logged(running, "Starting")
    engine.docker("restart", "-t", "0", running.container)
    ended = running.wait_exit(10)
    # The look between stop and start sees the kill, one after it sees the other boot.
    assert ended.reason in ("killed", "exited")
    assert "killed by SIGKILL" in ended.text or "was restarted by somebody else at" in ended.text


def test_memory_limit(engine, launcher, tmp_path):
    profile = container_profile(engine, tmp_path, memory="64m", engine_options={"MemorySwap": 64 << 20})
    running = launcher.start(container_plan(profile, {"allocate": 256 << 20}))
    ended = running.wait_exit(20)
    assert (ended.code, ended.reason) == (-9, "oom-killed")
    assert "hit its memory limit: OOMKilled, exit code 137" in ended.text
    assert values(running, "container.oom_killed") == [True]
    assert all(one.released for one in running.stop())


def test_a_term_that_is_ignored_ends_in_a_kill(engine, launcher, tmp_path):
    profile = container_profile(engine, tmp_path)
    profile = replace(profile, deadlines=replace(profile.deadlines, stop=1.0))
    running = launcher.start(container_plan(profile, {"ignore_term": "always"}))
    logged(running, READY)
    begin = time.monotonic()
    assert all(one.released for one in running.stop())
    assert 0.9 < time.monotonic() - begin < 6
    assert running.exited() is None or running.exited().code == -9


def test_a_name_that_is_taken(engine, launcher, tmp_path):
    other = engine.docker("run", "-d", "--name", "taken", "--network", "none", engine.image, "sleep", "1000")
    profile = container_profile(engine, tmp_path, name="taken")
    (reason,) = launcher.preflight(profile)
    assert reason.startswith("fake.yaml:8: the name taken is taken by container " + other[:12])
    assert f"(taken, image {engine.image}, running since 20" in reason
    assert "it is not ours and was not touched: remove or rename it, or choose another name" in reason
    with pytest.raises(LaunchError, match="the name taken is taken by container"):
        launcher.start(container_plan(profile))
    assert engine.inspect("taken")["State"]["Running"]
    assert engine.labelled() == []


@pytest.mark.parametrize("network", ["host", "bridge"])
def test_a_port_that_somebody_else_s_container_holds(engine, launcher, tmp_path, network):
    words = ["--network", network] + (["-p", "127.0.0.1:18765:18765"] if network == "bridge" else [])
    fake = [f"{TESTS}/fake_engine.py", "m", "--host", ".".join("0000"), "--port", "18765"]
    mount = ["-v", f"{TESTS}:{TESTS}:ro"]
    other = engine.docker("run", "-d", "--name", "holder", *words, *mount, engine.image, "python3", *fake)
    until(lambda: subprocess.run(["curl", "-fs", "http://127.0.0.1:18765/health"], check=False).returncode == 0, "up")
    profile = container_profile(engine, tmp_path, launch={"port": 18765})
    (reason,) = launcher.preflight(profile)
    assert reason.startswith(f"fake.yaml:9: port 18765 is already taken by container {other[:12]} (holder, image ")
    assert reason.endswith("; it is not ours, and not touched")
    with pytest.raises(LaunchError, match="port 18765 is already taken by container"):
        launcher.start(container_plan(profile, port=18765))
    assert engine.inspect("holder")["State"]["Running"]
    assert engine.labelled() == []


def test_a_missing_image_is_never_pulled(engine, launcher, tmp_path):
    wrong = "sha256:" + "1" * 64
    profile = container_profile(engine, tmp_path, image=wrong)
    (reason,) = launcher.preflight(profile)
    assert reason.startswith(f"fake.yaml:7: there is no image {wrong}, and an id can't be pulled; load it (docker -H ")
    pinned = "some/where/engine@sha256:" + "2" * 64
    (reason,) = launcher.preflight(container_profile(engine, tmp_path, image=pinned))
    assert reason.startswith("fake.yaml:7: image some/where/engine is not there, and nothing is pulled by itself; ")
    assert reason.endswith(f"pull it: docker -H {engine.url} pull {pinned}")
    with pytest.raises(LaunchError, match="nothing is pulled by itself"):
        launcher.start(container_plan(container_profile(engine, tmp_path, image=pinned)))
    assert engine.labelled() == []


def test_a_port_that_somebody_takes_is_told_as_not_released_and_not_waited_for(engine, launcher, tmp_path):
    profile = container_profile(engine, tmp_path, deadlines=Deadlines(stop=5.0, release=600.0))
    running = launcher.start(container_plan(profile, {"hang": "Loading weights took"}))
    logged(running, "Loading weights took")
    port = int(running.base_url.rpartition(":")[2])
    with socket.create_server(("127.0.0.1", port)):
        (found,) = [one for one in running.stop() if one.kind == "port"]
    assert not found.released
    assert f"held by pid {os.getpid()}: " in found.what


def test_what_can_not_be_started_leaves_nothing(engine, launcher, tmp_path):
    profile = container_profile(engine, tmp_path, entrypoint=("/no/such/program",))
    with pytest.raises(LaunchError, match=r"container.entrypoint: the container engine refused: .*no such file"):
        launcher.start(container_plan(profile))
    assert engine.labelled() == []
    profile = container_profile(engine, tmp_path, volumes={str(tmp_path / "missing"): "/cache"})
    (reason,) = launcher.preflight(profile)
    assert f"{tmp_path / 'missing'} is not there; make it first" in reason
    assert not (tmp_path / "missing").exists()
    profile = container_profile(engine, tmp_path, runtime="nvidia")
    (reason,) = launcher.preflight(profile)
    assert "the daemon knows no runtime nvidia (known: io.containerd." in reason
    assert "install the NVIDIA Container Toolkit" in reason


def test_exec_and_a_log_file_inside(engine, launcher, tmp_path):
    """A container that idles, the engine started in it by exec, its log a file; over two boots of one container."""
    fake = f"{TESTS}/fake_engine.py"
    profile = container_profile(
        engine,
        tmp_path,
        command=("sleep", "infinity"),
        exec_command=("/bin/sh", "-c", 'exec python3 "$@" >>/tmp/vllm.log 2>&1', "sh", fake, "serve"),
        log_file="/tmp/vllm.log",
    )
    running = launcher.start(container_plan(profile))
    logged(running, READY)
    until(lambda: health(running), "health 200")
    assert running.owner().who == "ours"
    assert values(running, "process.argv")[0][:3] == ["python3", fake, "serve"]  # what the shell has become
    assert values(running, "container.command") == [["sleep", "infinity"]]
    assert all(one.released for one in running.stop())
    assert log_of(running).count("Application shutdown complete.") == 1  # exec's engine got its TERM
    port = running._plan.port
    again = launcher.start(container_plan(profile, name="restart-1", fresh=False, port=port))
    logged(again, READY)
    assert again.container == running.container
    assert log_of(again).count(READY) == 1  # the file holds both boots, the log one
    os.kill(again._engine.main.pid, signal.SIGKILL)
    ended = again.wait_exit(10)
    assert ended.reason == "exited"
    assert "still runs, but the engine that was started in it ended with 137" in ended.text


@pytest.mark.parametrize("redirect", [">>", ">"])
def test_what_a_volume_keeps_of_an_earlier_log_is_not_read(engine, launcher, tmp_path, redirect):
    """A fresh container, and a log file from before: the engine goes on behind it, or begins it anew."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/vllm.log").write_text(f"an older engine\n{READY}\n")
    profile = container_profile(
        engine,
        tmp_path,
        volumes={str(tmp_path / "logs"): "/logs"},
        command=(
            "/bin/sh",
            "-c",
            f'exec python3 "$@" {redirect}/logs/vllm.log 2>&1',
            "sh",
            f"{TESTS}/fake_engine.py",
            "serve",
        ),
        log_file="/logs/vllm.log",
    )
    running = launcher.start(container_plan(profile))
    logged(running, READY)
    assert all(one.released for one in running.stop())
    log = log_of(running)
    assert (log.count(READY), log.count("an older engine")) == (1, 0)
    assert log.splitlines()[0] in (tmp_path / "logs/vllm.log").read_text()


def test_a_stop_in_haste(engine, launcher, tmp_path):
    """Ctrl-C came twice before the stop began."""
    profile = container_profile(engine, tmp_path, deadlines=Deadlines(stop=300.0, release=10.0))
    running = launcher.start(container_plan(profile, {"ignore_term": "always"}))
    logged(running, READY)
    running.hurry()
    begin = time.monotonic()
    assert all(one.released for one in running.stop())
    assert time.monotonic() - begin < 120


def test_exec_with_its_output_as_the_log(engine, launcher, tmp_path):
    fake = f"{TESTS}/fake_engine.py"
    profile = container_profile(
        engine, tmp_path, command=("sleep", "infinity"), exec_command=("python3", fake, "serve")
    )
    running = launcher.start(container_plan(profile))
    logged(running, READY)
    assert all(one.released for one in running.stop())
    assert log_of(running).count("Application shutdown complete.") == 1
    assert not [fact for fact in running.facts() if fact.name == "log.incomplete"]


def test_an_engine_that_only_its_container_may_signal(engine, launcher, tmp_path, monkeypatch):
    """Who is in the group of the daemon's socket may not signal what root runs in a container."""
    monkeypatch.setattr("pytest_startup.launch.container.exec.send", lambda *_: False)
    fake = f"{TESTS}/fake_engine.py"
    profile = container_profile(
        engine, tmp_path, command=("sleep", "infinity"), exec_command=("python3", fake, "serve")
    )
    running = launcher.start(container_plan(profile))
    logged(running, READY)
    assert all(one.released for one in running.stop())
    assert log_of(running).count("Application shutdown complete.") == 1


def test_a_volume_that_only_the_daemon_may_enter(engine, launcher, tmp_path, monkeypatch):
    """It is looked at through a container that is never started, and left as it is."""
    from pathlib import Path

    from pytest_startup.profile.model import CacheFolder

    monkeypatch.setattr("pytest_startup.launch.container.caches.os.access", lambda *_: False)
    cache = CacheFolder("compile-cache", Path("/cache/torch_compile_cache"), "compile", "/cache/torch_compile_cache")
    profile = container_profile(
        engine,
        tmp_path,
        volumes={"vllm-cache": "/cache"},
        env={"VLLM_CACHE_ROOT": "/cache"},
        caches=(cache,),
    )
    before = launcher.snapshots(profile, {}, True)
    assert before["compile-cache"].tree.exists is False
    assert engine.docker("volume", "ls", "-q") == ""  # looking makes no volume
    running = launcher.start(container_plan(profile))
    logged(running, READY)
    running.stop()
    seen = launcher.snapshots(profile, before, True)["compile-cache"].tree
    assert (seen.exists, len(seen.files)) == (True, 1)
    assert engine.labelled() == [running.container]
    said = launcher.wipe(profile, cache, True)
    assert said == "cache compile-cache wiped: /cache/torch_compile_cache, in volume vllm-cache, by the image's own rm"
    assert launcher.snapshots(profile, before, True)["compile-cache"].tree.exists is False
    assert engine.labelled() == []
    monkeypatch.setattr("pytest_startup.launch.container.caches._RM", ("no-such-program",))
    with pytest.raises(LaunchError) as error:
        launcher.wipe(profile, cache, True)
    assert "lies in vllm-cache, which uid 0 may not enter, and a container of the image can't do it (" in str(
        error.value
    )
    assert "run as root, or give the cache a volume of its own" in str(error.value)
    assert engine.labelled() == []


def test_long_lines_and_both_streams_arrive_whole(engine, launcher, tmp_path):
    code = (
        "import sys,os\n"
        "for n in range(300):\n"
        " os.write(1, b'out %d ' % n + b'x' * (40000 if n % 50 == 7 else 20) + b'\\n')\n"
        " os.write(2, b'err %d\\n' % n)\n"
        "os.write(1, b'no end')\n"
    )
    profile = container_profile(engine, tmp_path)
    running = launcher.start(container_plan(profile, argv=("python3", "-c", code)))
    assert running.wait_exit(20).code == 0
    running.stop()
    lines = log_of(running).splitlines()
    out = [line.split()[1] for line in lines if line.startswith("out")]
    err = [line.split()[1] for line in lines if line.startswith("err")]
    assert out == err == [str(n) for n in range(300)]
    assert {len(line) for line in lines if line.startswith(("out 7 ", "out 57 "))} == {40006, 40007}
    assert lines[-1] == "no end" or "no end" in lines
    assert len(lines) == 601


def test_named_volumes_stay_and_are_wiped(engine, launcher, tmp_path):
    from pathlib import Path

    from pytest_startup.profile.model import CacheFolder

    cache = CacheFolder("compile-cache", Path("/cache/torch_compile_cache"), "compile", "/cache/torch_compile_cache")
    whole = CacheFolder("all", Path("/cache"), "other", "/cache")
    inside = CacheFolder("inside", Path("/tmp/own"), "other", "/tmp/own")
    profile = container_profile(
        engine,
        tmp_path,
        volumes={"vllm-cache": "/cache"},
        env={"VLLM_CACHE_ROOT": "/cache"},
        caches=(cache, whole, inside),
    )
    before = launcher.snapshots(profile, {}, True)
    assert [shot.tree.exists for shot in before.values()] == [False, False, False]
    running = launcher.start(container_plan(profile))
    logged(running, READY)
    code = "import os; os.mkdir('/tmp/own'); open('/tmp/own/x', 'w').write('y')"
    engine.docker("exec", running.container, "python3", "-c", code)
    after = launcher.snapshots(profile, before, False)
    assert len(after["compile-cache"].tree.files) == 1
    assert [f.path for f in after["inside"].tree.files] == ["x"]
    running.stop()
    port = running._plan.port
    warm = launcher.start(container_plan(profile, name="restart-1", port=port))
    logged(warm, READY)
    assert "Directly load AOT compilation" in log_of(warm)  # the volume outlived the container
    warm.stop()
    assert launcher.snapshots(profile, after, True)["inside"].tree.exists is False
    said = launcher.wipe(profile, cache, True)
    assert said.startswith("cache compile-cache wiped: 1 files")
    assert launcher.wipe(profile, whole, True).startswith("cache all wiped: 1 entries")
    assert "goes with the old container" in launcher.wipe(profile, inside, True)
    cold = launcher.start(container_plan(profile, name="restart-2", port=port))
    logged(cold, READY)
    assert "Directly load AOT compilation" not in log_of(cold)
    cold.stop()
    with pytest.raises(LaunchError, match=r"inside \(/tmp/own\) is in no volume of the container"):
        launcher.wipe(profile, inside, False)


def test_a_bind_mount_that_is_wiped_is_there_again(engine, launcher, tmp_path):
    from pytest_startup.profile.model import CacheFolder

    folder = tmp_path / "site" / "cache"
    folder.mkdir(parents=True, mode=0o755)
    folder.chmod(0o711)
    (folder / "x").write_text("y")
    cache = CacheFolder("c", folder, "other")
    profile = container_profile(engine, tmp_path, volumes={str(folder): "/cache"}, caches=(cache,))
    assert launcher.wipe(profile, cache, True).startswith("cache c wiped: 1 files")
    assert list(folder.iterdir()) == []
    assert folder.stat().st_mode & 0o777 == 0o711
    running = launcher.start(container_plan(profile, {"hang": "Starting"}))
    assert running.exited() is None


def test_without_a_daemon(engine, launcher, tmp_path):
    profile = container_profile(engine, tmp_path, docker_host=f"unix://{tmp_path}/none.sock")
    (reason,) = launcher.preflight(profile)
    where = f"the container engine at unix://{tmp_path}/none.sock (launch.container.docker_host)"
    assert reason.startswith(f"{where} does not run: No such file or directory")
    with pytest.raises(LaunchError, match="does not run"):
        launcher.start(container_plan(profile))
    assert os.listdir(registry.state_folder()) == []
