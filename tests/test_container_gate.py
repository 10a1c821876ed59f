"""Whole runs of the gate on containers, from outside: verdicts, and what is said of ends that no log tells."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from helpers_docker import TESTS, TestEngine, gate, gate_env, gate_yaml, need_engine
from helpers_launch import isolate, until

from pytest_startup.record import StartRecord
from pytest_startup.record_json import record_from_json

#: Says what the recorded engine says until it loads weights, then takes all the memory that there is.
HUNGRY = """\
import os, sys
text = open(sys.argv[1]).read()
os.write(1, text[:text.index("Loading safetensors")].encode())
held = []
while True:
    held.append(bytearray(1 << 20))
"""


def run(site: Path, text: str, *words: str) -> subprocess.CompletedProcess[str]:
    (site / "profile.yaml").write_text(text)
    argv = gate(site, *words)
    return subprocess.run(argv, cwd=site, env=gate_env(), capture_output=True, text=True, check=False)


def record(site: Path, start: str) -> StartRecord:
    (path,) = site.glob(f".startup/*/*/{start}/record.json")
    return record_from_json(json.loads(path.read_text()))


def fake_mount(more: str = "") -> str:
    return f"volumes: {{{TESTS}: {TESTS}:ro{more}}}"


def test_the_matrix_of_restart_kinds(engine, tmp_path):
    """Same and fresh container, warm and wiped, over a named volume: one profile, every verdict green."""
    site = tmp_path / "site"
    site.mkdir()
    text = gate_yaml(
        engine,
        container="network: bridge\n" + fake_mount(", vllm-cache: /cache"),
        env="VLLM_CACHE_ROOT: /cache",
        caches="caches: {compile-cache: {container: /cache/torch_compile_cache, kind: compile}}",
        restarts="{kind: same-container}, {kind: fresh-container}, {kind: fresh-container, wipe: [compile-cache]}",
    )
    done = run(site, text)
    assert done.returncode == 0, done.stdout
    assert "restart-3: cache compile-cache wiped: 1 files" in done.stdout
    starts = [record(site, name) for name in ("reference", "restart-1", "restart-2", "restart-3")]
    assert [len(start.caches_before[0].files) for start in starts] == [0, 1, 1, 0]
    assert [bool(start.named("compile.cache_loaded")) for start in starts] == [False, True, True, False]
    ids = [start.named("container.id")[0].value for start in starts]
    assert ids[0] == ids[1]
    assert len(set(ids)) == 3
    assert engine.labelled() == []


#: An entrypoint that runs the engine, from the second start of its volume on with an argument more.
SCRIPT = """\
#!/bin/sh
test -e /state/ran && set -- "$@" --enforce-eager
: >/state/ran
"$@" &
child=$!
trap 'kill $child' TERM
wait $child
wait $child
"""


def test_a_script_of_the_image_that_launches_another_engine_after_the_restart(engine, tmp_path):
    """The daemon's word is the command that was asked for; what runs below the script is another one."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "entry.sh").write_text(SCRIPT)
    mounts = fake_mount(f", {site}: {site}:ro, ran: /state")
    text = gate_yaml(
        engine,
        container=f"network: host\n{mounts}\nentrypoint: [/bin/sh, {site}/entry.sh]",
        restarts="{kind: fresh-container}",
    )
    done = run(site, text)
    assert done.returncode == 1, done.stdout
    assert "REJECTED  restart-1: identity" in done.stdout
    assert "the running engine has other options than on the reference start: --enforce-eager" in done.stdout
    (shown,) = record(site, "restart-1").named("process.argv")
    assert shown.evidence.where.startswith("/proc/")
    assert f"{TESTS}/fake_engine.py" in shown.value


def test_a_fresh_container_without_a_cache_volume(engine, tmp_path):
    site = tmp_path / "site"
    site.mkdir()
    text = gate_yaml(
        engine,
        container="network: host\n" + fake_mount(),
        env="VLLM_CACHE_ROOT: /tmp/cache",
        caches="caches: {compile-cache: {container: /tmp/cache/torch_compile_cache, kind: compile}}",
        restarts="{kind: same-container}, {kind: fresh-container}",
    )
    done = run(site, text)
    assert done.returncode == 1
    assert "REJECTED  restart-2: artifacts." in done.stdout
    assert "a volume that is not mounted, or another cache root, gives a cold start" in done.stdout
    assert record(site, "restart-2").named("compile.cache_written")


def test_out_of_memory_while_weights_are_loaded(engine, tmp_path):
    site = tmp_path / "site"
    site.mkdir()
    (site / "hungry.py").write_text(HUNGRY)
    limits = "memory: 96m\nengine_options: {MemorySwap: 100663296}"
    volumes = fake_mount(f", {site}: {site}:ro")
    text = gate_yaml(engine, container=f"network: host\n{volumes}\n{limits}")
    log = f"{TESTS}/data/fake_engine/cold.log"
    done = run(site, text.replace(f"{TESTS}/fake_engine.py, serve", f"{site}/hungry.py, {log}"))
    assert done.returncode == 1
    failure = record(site, "reference").failure
    assert (failure.kind, failure.phase) == ("out-of-host-memory", "weights"), failure
    assert "hit its memory limit: OOMKilled, exit code 137" in failure.summary
    assert "a loader that streams or maps the checkpoint" in failure.helps
    assert "hit its memory limit: OOMKilled" in " ".join(done.stdout.split())


@pytest.mark.parametrize("edit", ["wrong id", "changed file"])
def test_what_is_not_the_pinned_one_is_refused(engine, tmp_path, edit):
    site = tmp_path / "site"
    site.mkdir()
    (site / "patch.py").write_text("x")
    pinned = "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"
    files = f"files: [{{host: patch.py, path: /opt/patch.py, sha256: {pinned}}}]"
    text = gate_yaml(engine, container=f"network: host\n{fake_mount()}\n{files}")
    if edit == "wrong id":
        text = text.replace(engine.image, "sha256:" + "b" * 64)
    else:
        (site / "patch.py").write_text("y")
    done = run(site, text)
    assert done.returncode != 0
    told = " ".join(done.stdout.split())
    if edit == "wrong id":
        assert f"there is no image sha256:{'b' * 64}, and an id can't be pulled" in told
    else:
        assert f"{site}/patch.py is not the pinned file: its sha256 is a1fce4363854ff888cff4b8e7875d600c2682390" in told
    assert engine.labelled() == []


def test_the_daemon_dies_while_the_engine_starts(tmp_path, monkeypatch):
    """The verdict names the container engine, not the engine in the container."""
    need_engine()
    isolate(tmp_path, monkeypatch)
    site = tmp_path / "site"
    site.mkdir()
    engine = TestEngine().start()
    try:
        _ = engine.image
        with engine.inside():
            hang = """FAKE_ENGINE: '{"hang": "Loading weights took"}'"""
            (site / "profile.yaml").write_text(gate_yaml(engine, container=f"network: host\n{fake_mount()}", env=hang))
            out = (site / "out.txt").open("w")
            process = subprocess.Popen(gate(site), cwd=site, env=gate_env(), stdout=out)
            out.close()

            def loading() -> bool:
                logs = list(site.glob(".startup/*/*/reference/head/engine.log"))
                return bool(logs) and "Loading weights took" in logs[0].read_text()

            until(loading, "loading", 60)
            os.kill(engine.pid, signal.SIGKILL)
            until(lambda: not os.path.exists(f"/proc/{engine.pid}/exe"), "killed")
            engine.start()
            assert process.wait(120) == 1
        failure = record(site, "reference").failure
        assert failure.kind == "daemon-lost", failure
        assert (
            "the container engine" in failure.summary
        )  # "… itself went away", or, where it takes long, "… does not run"
        assert engine.labelled() == []
    finally:
        engine.stop()
