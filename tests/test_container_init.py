"""``pytest-startup init --from-container`` against a real daemon: which one is asked, and that its profile runs."""

from __future__ import annotations

import hashlib
import subprocess
import sys

from helpers_docker import TESTS, docker_context, gate, gate_env, gate_yaml

from pytest_startup import init
from pytest_startup.profile.load import load
from pytest_startup.profile.model import ContainerFile


def test_the_daemon_that_is_asked(engine, tmp_path, monkeypatch, capsys):
    """As ``docker`` chooses it: DOCKER_HOST, DOCKER_CONTEXT, the current context; the note names it."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.delenv("DOCKER_CONTEXT", raising=False)
    docker_context(tmp_path, "tests", engine.url)
    docker_context(tmp_path, "dead", f"unix://{tmp_path}/none.sock")
    made = engine.docker("create", "--name", "asked", "--network", "none", engine.image, "vllm", "serve", "org/m")

    def ask(name: str = "asked") -> tuple[int, str]:
        code = init.main(["--from-container", name])
        out, err = capsys.readouterr()
        assert (f"image: {engine.image}" in out) is (code == 0)
        return code, err

    where = f"the container engine at {engine.url}"
    (tmp_path / "config.json").write_text('{"currentContext": "tests"}')
    code, err = ask()
    assert code == 0
    assert f"note: read from {where} (context tests, current context of {tmp_path}/config.json), which the" in err
    assert ask(made[:12])[0] == 0
    monkeypatch.setenv("DOCKER_CONTEXT", "dead")
    code, err = ask()
    assert code == 2
    assert f"unix://{tmp_path}/none.sock (context dead, DOCKER_CONTEXT) does not run: No such file" in err
    monkeypatch.setenv("DOCKER_HOST", engine.url)
    code, err = ask()
    assert code == 0
    assert f"read from {where} (DOCKER_HOST), which the profile does not name" in err
    code, err = ask("nobody")
    assert code == 2
    assert err.startswith(f"pytest-startup init: {engine.url} (DOCKER_HOST): No such container: nobody")
    assert f"`docker -H {engine.url} ps -a` lists what there is" in err
    monkeypatch.delenv("DOCKER_HOST")
    monkeypatch.setenv("DOCKER_CONTEXT", "unknown")
    assert ask() == (2, "pytest-startup init: DOCKER_CONTEXT: no Docker context 'unknown' (known: dead, tests)\n")


def test_a_tag(engine, tmp_path, monkeypatch, capsys):
    """A profile with a tag is refused, and says the id to pin; ``init`` pins it."""
    engine.docker("tag", engine.image, "org/serving:1")
    profile = tmp_path / "profile.yaml"
    profile.write_text(gate_yaml(engine).replace(engine.image, "org/serving:1"))
    (tmp_path / "test_mine.py").write_text("def test_mine(): pass\n")

    def refused() -> list[str]:
        done = subprocess.run(gate(tmp_path), cwd=tmp_path, env=gate_env(), capture_output=True, text=True, check=False)
        assert done.returncode == 4
        return [line.removeprefix("ERROR: ") for line in done.stderr.splitlines() if line]

    first, second = refused()
    assert first.startswith("profile.yaml:10: launch.container.image: org/serving:1 is a tag, and a tag can move; ")
    assert second == (f"launch.container.image: org/serving:1 is now {engine.image}; pin that, if it is the right one")
    profile.write_text(gate_yaml(engine).replace(engine.image, "org/serving:2"))
    assert refused()[1] == (
        "launch.container.image: org/serving:2 is not there, and nothing is pulled by itself; pull it: "
        f"docker -H {engine.url} pull org/serving:2"
    )
    profile.write_text(gate_yaml(engine).replace(engine.image, "org/serving:1").replace(engine.url, "unix:///none"))
    (only,) = refused()
    assert only.startswith("profile.yaml:10: launch.container.image: org/serving:1 is a tag")

    monkeypatch.setenv("DOCKER_HOST", engine.url)
    assert init.main(["--from-docker-run", "docker run org/serving:1 m"]) == 0
    out, err = capsys.readouterr()
    assert f"    image: {engine.image}\n" in out
    assert f"note: org/serving:1 is a tag, and a tag can move; what it names now is pinned: {engine.image}\n" in err
    engine.docker("rmi", "org/serving:1")


#: The stand-in engine under the name by which servers are known.
VLLM = f"""\
#!/usr/bin/env python3
import runpy
runpy.run_path("{TESTS}/fake_engine.py", run_name="__main__")
"""


def test_the_profile_runs(engine, tmp_path):
    """From what is run today to its gate, told as a command line or as a container: one profile, and it starts.

    The same image, mounts and limits; the program that was patched in is pinned.
    """
    site = tmp_path / "site"
    site.mkdir()
    program = site / "vllm.py"
    program.write_text(VLLM)
    program.chmod(0o755)
    options = ["--network", "host", "--ulimit", "nofile=1024:4096", "-m", "1g", "-e", "VLLM_CACHE_ROOT=/cache",
               "-v", "kept:/cache", "-v", f"{TESTS}:{TESTS}:ro", "-v", f"{program}:/usr/local/bin/vllm:ro",
               "--shm-size", "96m"]  # fmt: skip
    words = [engine.image, "vllm", "serve", "models/dense", "--port", "18774", "--max-model-len", "64"]
    engine.docker("run", "-d", "--name", "today", *options, *words)
    command = " ".join(["docker", "run", "-d", "--name", "today", *options, *words])
    env = gate_env(DOCKER_HOST=engine.url)
    profiles = []
    for source in (["--from-docker-run", command], ["--from-container", "today"]):
        (site / "profile.yaml").unlink(missing_ok=True)
        argv = [sys.executable, "-m", "pytest_startup.cli", "init", *source, "--name", "today", "-o", "profile.yaml"]
        done = subprocess.run(argv, cwd=site, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        profiles.append(load(site / "profile.yaml", {}))
    profile = profiles[1]
    assert profiles[0].launch == profile.launch
    assert profiles[0].engine == profile.engine
    container = profile.launch.container
    assert container is not None
    assert (container.image, container.network, container.shm_size) == (engine.image, "host", "96m")
    assert (container.ulimits, container.memory) == ({"nofile": "1024:4096"}, "1g")
    assert container.volumes == {"kept": "/cache", str(TESTS): f"{TESTS}:ro"}
    pinned = hashlib.sha256(program.read_bytes()).hexdigest()
    assert container.files == (ContainerFile(program, "/usr/local/bin/vllm", pinned),)
    assert (profile.launch.port, profile.engine.model) == (18774, "models/dense")
    engine.docker("rm", "-f", "today")
    argv = gate(site, "-k", "reference and (ready or identity)")
    done = subprocess.run(argv, cwd=site, env=env, capture_output=True, text=True, check=False)
    assert "2 passed" in done.stdout, done.stdout
