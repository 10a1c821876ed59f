"""A profile to start from: what a docker command line or a container says must arrive in it, secrets must not."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_startup import init
from pytest_startup.dockerinspect import inspected
from pytest_startup.dockerrun import parse
from pytest_startup.draft import Draft, from_run
from pytest_startup.draftyaml import render
from pytest_startup.launch.container.pinning import Named
from pytest_startup.profile.load import load, load_bytes
from pytest_startup.profile.model import ContainerFile, Profile
from pytest_startup.profile.resolve import names_in

ID = "sha256:" + "0123456789abcdef" * 4
TOKEN = "hf_" + "abcdefGHIJ0123456789"
ENVIRON = {"HOME": "/home/op"}


def drafted(command: str, folder: Path = Path("/work-here")) -> Draft:
    return from_run(parse(command), ENVIRON, folder)


def loaded(command: str, folder: Path = Path("/work-here")) -> Profile:
    text = render(drafted(command, folder))
    return load_bytes(text.encode(), folder / "p.yaml", dict.fromkeys(names_in(text), "from-outside"))


def test_the_head_of_the_pair(tmp_path: Path) -> None:
    """The hand-written launcher of a GB10 head: every option arrives."""
    patch = tmp_path / "weight_utils.py"
    patch.write_text("patched = True\n")
    profile = loaded(
        f"""docker run -d --name qwen --gpus all --network host --ipc host --cap-add SYS_NICE \\
          --ulimit memlock=-1 --ulimit stack=67108864 --device /dev/infiniband \\
          -e HF_TOKEN={TOKEN} -e NCCL_SOCKET_IFNAME=enp1s0 -e GLOO_SOCKET_IFNAME=enp1s0 \\
          -v /srv/vllm:/cache/vllm -e VLLM_CACHE_ROOT=/cache/vllm -v hf:/root/.cache/huggingface \\
          -v {patch}:/usr/lib/weight_utils.py:ro {ID} nvidia/Qwen3.8-Flash-Next-NVFP4 --revision fc694b54 \\
          --tensor-parallel-size 2 --enable-expert-parallel --nnodes 2 --node-rank 0 --host 0.0.0.0 --port 8888"""
    )
    container = profile.launch.container
    assert container is not None
    assert (container.image, container.name, container.network, container.ipc) == (ID, "qwen", "host", "host")
    assert container.gpus == ("all",)
    assert container.cap_add == ("SYS_NICE",)
    assert container.ulimits == {"memlock": "-1", "stack": "67108864"}
    assert container.devices == ("/dev/infiniband",)
    assert container.volumes == {"/srv/vllm": "/cache/vllm", "hf": "/root/.cache/huggingface"}
    digest = hashlib.sha256(b"patched = True\n").hexdigest()
    assert container.files == (ContainerFile(patch, "/usr/lib/weight_utils.py", digest),)
    assert container.command == ()
    assert (profile.launch.host, profile.launch.port) == ("0.0.0.0", 8888)  # noqa: S104  what the launcher says
    assert profile.engine.model == "nvidia/Qwen3.8-Flash-Next-NVFP4"
    assert profile.engine.revision == "fc694b54"
    assert profile.engine.args == (
        *("--revision", "fc694b54", "--tensor-parallel-size", "2", "--enable-expert-parallel"),
        *("--nnodes", "2", "--node-rank", "0"),
    )
    assert profile.engine.env == {
        "HF_TOKEN": "from-outside",
        "NCCL_SOCKET_IFNAME": "enp1s0",
        "GLOO_SOCKET_IFNAME": "enp1s0",
        "VLLM_CACHE_ROOT": "/cache/vllm",
    }
    assert [(c.name, str(c.path)) for c in profile.caches] == [("compile-cache", "/srv/vllm/torch_compile_cache")]


def test_secrets_become_variables() -> None:
    text = render(
        drafted(
            f"docker run -e HF_TOKEN={TOKEN} -e WANDB_API_KEY=$MY_WANDB -e PLAIN=x -e GIVEN -e DB_PASSWORD=hunter2 "
            f"{ID} m --api-key swordfish --hf-token=mackerel --served-model-name $NAME --x {TOKEN}"
        )
    )
    for secret in (TOKEN, "hunter2", "swordfish", "mackerel"):
        assert secret not in text
    profile = load_bytes(text.encode(), Path("/p.yaml"), {n: f"<{n}>" for n in names_in(text)})
    assert profile.engine.env == {
        "HF_TOKEN": "<HF_TOKEN>",
        "WANDB_API_KEY": "<MY_WANDB>",
        "PLAIN": "x",
        "GIVEN": "<GIVEN>",
        "DB_PASSWORD": "<DB_PASSWORD>",
    }
    assert profile.engine.args == (
        *("--api-key", "<API_KEY>", "--hf-token=<HF_TOKEN>"),
        *("--served-model-name", "<NAME>", "--x", "<SECRET>"),
    )


#: (options of docker run, field of the container, its value)
OPTIONS: list[tuple[str, str, Any]] = [
    ("--gpus '\"device=0,1\"'", "gpus", ("0", "1")),
    ("--gpus device=GPU-1a2b", "gpus", ("GPU-1a2b",)),
    ("--gpus 2", "gpus", ("0", "1")),
    ("--gpus device=0,1", "gpus", ("0", "1")),
    ("--gpus '\"device=0,1\",\"capabilities=compute,utility\"'", "gpus", ("0", "1")),
    ("--gpus 'all,\"capabilities=compute,utility\"'", "gpus", ("all",)),
    ("--gpus count=2,driver=nvidia", "gpus", ("0", "1")),
    ("--device nvidia.com/gpu=all --device /dev/a", "devices", ("nvidia.com/gpu=all", "/dev/a")),
    ("--shm-size 10.24g", "shm_size", "10.24g"),
    ("-u $(id -u):`id -g`", "user", f"{os.getuid()}:{os.getgid()}"),
    ("-h node1 --domainname d --stop-signal SIGINT", "engine_options", {"Hostname": "node1", "Domainname": "d", "StopSignal": "SIGINT"}),
    ("--mount type=tmpfs,dst=/x,tmpfs-size=1g,tmpfs-mode=1777 --mount type=tmpfs,target=/y --tmpfs /z", "engine_options", {"Tmpfs": {"/x": "size=1g,mode=1777", "/y": "", "/z": ""}}),
    ("-it --rm --shm-size=16g", "shm_size", "16g"),
    ("-u 1000:1000", "user", "1000:1000"),
    ("--workdir /w", "working_dir", "/w"),
    ("-m 64g", "memory", "64g"),
    ("--runtime=nvidia", "runtime", "nvidia"),
    ("--init", "init", True),
    ("--net=host", "network", "host"),
    ("--device=/dev/a:/dev/b:r --device /dev/c:/dev/c", "devices", ("/dev/a:/dev/b:r", "/dev/c")),
    ("--ulimit nofile=1024:4096 --ulimit core=0:0", "ulimits", {"nofile": "1024:4096", "core": "0"}),
    ("--mount type=bind,src=/a,dst=/b,readonly --mount type=volume,source=v,target=/c", "volumes", {"/a": "/b:ro", "v": "/c"}),
    ("-v ~/x:/x -v $HOME/y:/y -v $(pwd)/z:/z -v ./w:/w", "volumes", {"/home/op/x": "/x", "/home/op/y": "/y", "/work-here/z": "/z", "/work-here/w": "/w"}),
    ("--entrypoint ''", "entrypoint", ()),
    ("--privileged --pid=host --security-opt a=b --security-opt c", "engine_options", {"Privileged": True, "PidMode": "host", "SecurityOpt": ["a=b", "c"]}),
    ("--add-host a:1.2.3.4 --sysctl net.x=1 --tmpfs /t:size=1g --cpus 1.5 --memory-swap -1", "engine_options",
     {"ExtraHosts": ["a:1.2.3.4"], "Sysctls": {"net.x": "1"}, "Tmpfs": {"/t": "size=1g"}, "NanoCpus": 1500000000, "MemorySwap": -1}),
]  # fmt: skip


@pytest.mark.parametrize(("options", "field", "value"), OPTIONS, ids=[o[0] for o in OPTIONS])
def test_an_option_arrives(options: str, field: str, value: Any) -> None:
    assert getattr(loaded(f"docker run {options} {ID} org/m").launch.container, field) == value


@pytest.mark.parametrize(
    ("words", "kind", "entrypoint", "command", "model", "args"),
    [
        ("org/m --a b", "vllm", None, (), "org/m", ("--a", "b")),
        ("--model org/m --a b", "vllm", None, (), "org/m", ("--a", "b")),
        ("vllm serve org/m --a b", "vllm", None, ("vllm", "serve"), "org/m", ("--a", "b")),
        (
            "python3 -m vllm.entrypoints.openai.api_server --model=org/m",
            *("vllm", None, ("python3", "-m", "vllm.entrypoints.openai.api_server"), "org/m", ()),
        ),
        (
            "python3 -m sglang.launch_server --model-path org/m --tp 2",
            *("sglang", None, ("python3", "-m", "sglang.launch_server"), "org/m", ("--tp", "2")),
        ),
        (
            "numactl -N 0 vllm serve org/m --a b",
            *("vllm", None, ("numactl", "-N", "0", "vllm", "serve"), "org/m", ("--a", "b")),
        ),
        (
            "--entrypoint python3 IMAGE /opt/conda/bin/vllm serve org/m",
            *("vllm", ("python3",), ("/opt/conda/bin/vllm", "serve"), "org/m", ()),
        ),
        ("python3 /opt/own.py --model org/m", "vllm", None, ("python3", "/opt/own.py"), "org/m", ()),
        ("bash -c 'exec vllm serve org/m --a \"b c\"'", "vllm", (), ("vllm", "serve"), "org/m", ("--a", "b c")),
    ],
)
def test_words_behind_the_image(
    words: str, kind: str, entrypoint: Any, command: tuple[str, ...], model: str, args: tuple[str, ...]
) -> None:
    before, image, behind = words.rpartition("IMAGE ")
    profile = loaded(f"docker run {before} {ID} {behind if image else words}")
    container = profile.launch.container
    assert container is not None
    assert (profile.engine.kind, container.entrypoint, container.command) == (kind, entrypoint, command)
    assert (profile.engine.model, profile.engine.args) == (model, args)


@pytest.mark.parametrize(
    ("options", "port"),
    [("-p 8888:8000", 8888), ("-p 127.0.0.1:9000:8000/tcp", 9000), ("-p 8000", None), ("", None)],
)
def test_published_ports(options: str, port: int | None) -> None:
    assert loaded(f"docker run {options} {ID} m").launch.port == port


def test_variables_from_a_file(tmp_path: Path) -> None:
    """As docker reads it: nothing is expanded, ``-e`` comes after it, a name alone is taken from the environment."""
    (tmp_path / "vllm.env").write_text(
        f"# c\n\n  A=b # not a comment\nQ='q'\nL=${{X}}$Y\nHF_TOKEN={TOKEN}\nHOME\nUNSET\nE=1\n"
    )
    draft = from_run(parse(f"docker run --env-file vllm.env -e E=2 {ID} m"), ENVIRON, tmp_path)
    text = render(draft)
    assert TOKEN not in text
    profile = load_bytes(text.encode(), Path("/p.yaml"), {"HF_TOKEN": "<token>", "HOME": "/home/op"})
    assert profile.engine.env == {
        "A": "b # not a comment", "Q": "'q'", "L": "${X}$Y", "HF_TOKEN": "<token>", "HOME": "/home/op", "E": "2",
    }  # fmt: skip
    assert (
        "the value of HF_TOKEN in vllm.env is a secret and was left out; set HF_TOKEN in the environment of pytest"
        in draft.notes
    )


def test_a_tag_is_pinned_where_a_daemon_knows_it() -> None:
    def image_of(named: Named | None) -> tuple[str, list[str]]:
        draft = from_run(parse("docker run org/img:1 m"), ENVIRON, Path("/work-here"), look_up=lambda _: named)
        return draft.data["launch"]["container"]["image"], draft.notes

    image, notes = image_of(Named(ID, (), "docker"))
    assert image == ID
    assert f"org/img:1 is a tag, and a tag can move; what it names now is pinned: {ID}" in notes
    assert image_of(Named(ID, (f"org/img@{ID}",), "docker"))[0] == f"org/img@{ID}"
    image, notes = image_of(Named(None, (), "docker -H unix:///x"))
    assert image == "sha256:" + "0" * 64
    assert "org/img:1 is not there: docker -H unix:///x pull org/img:1" in notes
    assert image_of(None)[0] == "sha256:" + "0" * 64


def test_a_host_path_behind_a_variable_of_the_environment() -> None:
    environ = {**ENVIRON, "MODELS": "/srv/models"}
    draft = from_run(parse(f"docker run -v $MODELS:/m -v ${{MODELS}}/x:/x {ID} m"), environ, Path("/work-here"))
    assert draft.data["launch"]["container"]["volumes"] == {"/srv/models": "/m", "/srv/models/x": "/x"}
    assert "$MODELS was resolved to /srv/models" in draft.notes


def test_a_compile_cache_in_a_named_volume() -> None:
    (cache,) = loaded(f"docker run -v vllm:/root/.cache {ID} m").caches
    assert (cache.name, cache.container) == ("compile-cache", "/root/.cache/vllm/torch_compile_cache")


@pytest.mark.parametrize(
    ("given", "gpus"),
    [("0,1", ("0", "1")), ("all", ("all",)), ("GPU-1a,GPU-2b", ("GPU-1a", "GPU-2b")), ("none", ()), ("$X", ())],
)
def test_gpus_that_a_variable_gives_are_locked(given: str, gpus: tuple[str, ...]) -> None:
    profile = loaded(f"docker run --runtime=nvidia -e NVIDIA_VISIBLE_DEVICES={given} {ID} m")
    assert profile.launch.gpus == gpus


#: What can't be carried over, or must be looked at, is said.
NOTES = [
    (f"docker run --gpus 'all,capabilities=utility' {ID} m", "--gpus all,capabilities=utility: capabilities=utility is not carried over"),
    (f"docker run --gpus some {ID} m", "--gpus some is not understood; all are given"),
    (f"docker run --env-file no.env {ID} m", "--env-file no.env can't be read (No such file or directory); give its variables in engine.env"),
    (f"docker run -p 8000-8002:8000-8002 {ID} m", "-p 8000-8002:8000-8002 names more than one port; give launch.port"),
    (f"docker run {ID} bash -c 'ray start --head'", "no known server in ray start; see that launch.container.command ends where the engine's own arguments begin"),
    (f"docker run --platform linux/amd64 {ID} m", "--platform linux/amd64 is not carried over: an image id is of one platform"),
    (f"docker run --health-cmd true {ID} m", "--health-cmd true is not carried over: the gate itself asks whether the engine is healthy"),
    ("docker run vllm/vllm-openai:latest m", "vllm/vllm-openai:latest is a tag, and a tag can move; give launch.container.image the id that this prints: docker image inspect -f '{{.Id}}' vllm/vllm-openai:latest"),
    ("docker run localhost:5000/vllm/vllm-openai m", "localhost:5000/vllm/vllm-openai names the tag latest, and a tag can move; give launch.container.image the id that this prints: docker image inspect -f '{{.Id}}' localhost:5000/vllm/vllm-openai"),
    ("docker run $IMG m", "$IMG can't be resolved; write launch.container.image itself, as docker image inspect prints it"),
    (f"docker run {ID} m --tensor-parallel-size $(nproc)", "$(nproc) in an argument is passed on as it stands: nothing goes through a shell here"),
    (f"docker run --restart always --label a=b {ID} m", "--restart always is not carried over: an engine that comes back by itself hides that it ended"),
    (f"docker run -l a=b {ID} m", "--label a=b is not carried over: the labels of the gate's containers are its own"),
    (f"docker run -v /data {ID} m", "-v /data is not carried over: an anonymous volume is gone with its container"),
    (f"docker run -v /a:/b:z {ID} m", "-v /a:/b:z: the option z is not carried over"),
    (f"docker run -v /a:/b -v /a:/c {ID} m", "/a is mounted a second time, at /c; that is not carried over"),
    (f"docker run --mount type=npipe,source=a,target=/x {ID} m", "--mount type=npipe,source=a,target=/x is not carried over"),
    (f"docker run -v $DATA/x:/x {ID} m", "$DATA/x can't be resolved; write the path itself"),
    (f"docker run {ID}", "no model on the command line; give engine.model"),
    (f"docker run {ID} python3 /opt/own.py --model m", "no known server in python3 /opt/own.py; see that launch.container.command ends where the engine's own arguments begin"),
    (f"docker run {ID} sleep infinity", "the container idles; give launch.container.exec_command, the words that start the engine in it"),
    (f"docker run {ID} bash -c 'a && b'", "the shell command line can't be taken apart, and nothing goes through a shell here; give the words themselves in launch.container.command"),
    (f"docker run -e HF_TOKEN={TOKEN} {ID} m", "the value of -e HF_TOKEN is a secret and was left out; set HF_TOKEN in the environment of pytest"),
    (f"docker run -v /none/patch.py:/p.py {ID} m", "/none/patch.py is not here, so it could not be pinned; add its sha256"),
    (f"docker run {ID} m", "no volume holds /root/.cache/vllm: a fresh container compiles everything again, and the check artifacts can see no cache"),
    (f"docker run -p 8000:8000 -p 9:9 {ID} m", "-p 9:9 is not carried over: only the port of the API is published"),
]  # fmt: skip


@pytest.mark.parametrize(("command", "note"), NOTES, ids=[n[1][:50] for n in NOTES])
def test_what_is_told(command: str, note: str) -> None:
    draft = drafted(command)
    assert note in draft.notes
    assert f"#   - {note}" in render(draft), "it stands in the file as well"


NO_CONTAINER = (
    " (of an engine that is started without a container: init alone, its command goes into launch.process, the rest into"
    " engine.args)"
)
REFUSED = [
    ("docker ps", "expected docker run …; found docker ps"),
    ("echo hello", f"expected docker run …; found echo{NO_CONTAINER}"),
    ("", f"expected docker run …; found nothing{NO_CONTAINER}"),
    ("docker run --gpu all img", "--gpu is no option of docker run; did you mean --gpus?"),
    ("docker run -Z img", "-Z (in -Z) is no option of docker run"),
    ("docker run -d", "no image; expected docker run [OPTIONS] IMAGE [ARGUMENTS]"),
    ("docker run -e", "-e needs a value, and nothing follows"),
    ("docker run 'img", "a quote is not closed (No closing quotation)"),
    ("docker --debug run img", "option --debug before run is not known; expected --context or --host"),
    ("docker run --oom-score-adj x img", "--oom-score-adj x is not a number"),
]


@pytest.mark.parametrize(("command", "message"), REFUSED, ids=[r[0] for r in REFUSED])
def test_what_is_no_docker_run(command: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert init.main(["--from-docker-run", command]) == 2
    assert capsys.readouterr() == ("", f"pytest-startup init: {message}\n")


def test_a_variable_of_the_docker_command_is_told() -> None:
    notes = drafted(f"CUDA_VISIBLE_DEVICES=0 docker run --rm {ID} m").notes
    told = "CUDA_VISIBLE_DEVICES=0 is not carried over: a variable of the docker command itself"
    assert [note for note in notes if note.startswith(told)]


def test_context_and_sudo() -> None:
    container = loaded(f"sudo DOCKER_X=1 docker --context far run {ID} m").launch.container
    assert container is not None
    assert container.context == "far"
    assert loaded(f"sudo -E docker run {ID} m").engine.model == "m"
    container = loaded(f"docker -H unix:///x.sock container run {ID} m").launch.container
    assert container is not None
    assert container.docker_host == "unix:///x.sock"


IMAGE_ATTRS = {
    "Config": {"Env": ["PATH=/usr/bin"], "Cmd": None, "Entrypoint": ["vllm", "serve"], "WorkingDir": "/vllm"}
}
CONTAINER_ATTRS = {
    "Name": "/qwen",
    "Image": ID,
    "Config": {
        "Image": "vllm/vllm-openai:v0.31.0",
        "Env": ["PATH=/usr/bin", f"HF_TOKEN={TOKEN}", "A=b"],
        "Cmd": ["org/m", "--max-model-len", "1024", "--port", "8888"],
        "Entrypoint": ["vllm", "serve"],
        "WorkingDir": "/vllm",
        "User": "",
        "Hostname": "this-host",
        "StopSignal": "SIGINT",
        "Healthcheck": {"Test": ["CMD-SHELL", "true"]},
    },
    "HostConfig": {
        "Binds": ["/srv/cache:/root/.cache:rw"],
        "Mounts": [{"Type": "bind", "Source": "/srv/data", "Target": "/data", "ReadOnly": True}],
        "DeviceRequests": [{"Count": 0, "DeviceIDs": ["0", "1"], "Capabilities": [["gpu"]]}],
        "Ulimits": [{"Name": "memlock", "Soft": -1, "Hard": -1}],
        "Devices": [
            {"PathOnHost": "/dev/infiniband", "PathInContainer": "/dev/infiniband", "CgroupPermissions": "rwm"}
        ],
        "CapAdd": ["SYS_NICE"],
        "IpcMode": "host",
        "NetworkMode": "host",
        "ShmSize": 134217728,
        "Memory": 536870912,
        "MemorySwap": 1073741824,
        "Runtime": "runc",
        "CgroupnsMode": "private",
        "OomScoreAdj": 0,
        "Privileged": True,
        "SecurityOpt": ["label=disable"],
        "RestartPolicy": {"Name": "always"},
        "PortBindings": {},
        "LogConfig": {"Type": "json-file", "Config": {"max-size": "10m"}},
        "Init": None,
    },
}


def test_a_container_as_inspected() -> None:
    draft = from_run(inspected(CONTAINER_ATTRS, IMAGE_ATTRS), ENVIRON, Path("/work-here"))
    text = render(draft)
    assert TOKEN not in text
    profile = load_bytes(text.encode(), Path("/p.yaml"), {"HF_TOKEN": "from-outside"})
    container = profile.launch.container
    assert container is not None
    assert (container.image, container.entrypoint, container.command) == (ID, None, ())
    assert (profile.engine.model, profile.engine.args) == ("org/m", ("--max-model-len", "1024"))
    assert profile.engine.env == {"HF_TOKEN": "from-outside", "A": "b"}
    assert profile.launch.port == 8888
    assert container.volumes == {"/srv/cache": "/root/.cache", "/srv/data": "/data:ro"}
    assert container.gpus == ("0", "1")
    assert container.ulimits == {"memlock": "-1"}
    assert container.devices == ("/dev/infiniband",)
    assert (container.ipc, container.network, container.cap_add) == ("host", "host", ("SYS_NICE",))
    assert (container.shm_size, container.memory, container.runtime, container.init) == ("128m", "512m", None, False)
    assert container.engine_options == {"Privileged": True, "SecurityOpt": ["label=disable"], "StopSignal": "SIGINT"}
    assert (
        "--log-opt max-size=10m is not carried over: the log is read from the daemon, in its own format and whole"
        in draft.notes
    )
    assert "--health-cmd is not carried over: the gate itself asks whether the engine is healthy" in draft.notes
    assert (
        "--restart always is not carried over: an engine that comes back by itself hides that it ended" in draft.notes
    )


@pytest.mark.parametrize(("hostname", "kept"), [("0123456789ab", False), ("node1", True)])
def test_the_host_name_of_a_container(hostname: str, kept: bool) -> None:
    """Only one that was asked for; with the host's network it is the host's own (above)."""
    attrs = {
        **CONTAINER_ATTRS,
        "Id": "0123456789ab" + "0" * 52,
        "Config": {**CONTAINER_ATTRS["Config"], "Hostname": hostname},
        "HostConfig": {
            **CONTAINER_ATTRS["HostConfig"],
            "NetworkMode": "bridge",
            "DeviceRequests": [{"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=0"]}],
        },
    }
    run = inspected(attrs, IMAGE_ATTRS)
    assert ("Hostname" in run.host_config) is kept
    assert run.kept["device"] == ["/dev/infiniband:/dev/infiniband:rwm", "nvidia.com/gpu=0"]
    assert "gpus" not in run.kept


def test_without_a_daemon(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    assert init.main(["--from-container", "qwen"]) == 2
    err = capsys.readouterr().err
    assert err.startswith(
        f"pytest-startup init: the container engine at unix://{tmp_path}/none.sock (DOCKER_HOST) does not run: "
        "No such file or directory"
    )
    monkeypatch.setenv("DOCKER_HOST", "ssh://me@far")
    assert init.main(["--from-container", "qwen"]) == 2
    assert "DOCKER_HOST: ssh://me@far is not supported, because" in capsys.readouterr().err


def test_the_starter_loads_and_is_never_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "p.yaml"
    assert init.main(["-o", str(file)]) == 0
    assert load(file, {}).name == "my-engine"
    file.write_text("mine\n")
    assert init.main(["-o", str(file)]) == 2
    assert file.read_text() == "mine\n"
    assert capsys.readouterr().err == f"pytest-startup init: {file} exists and is not overwritten; give another -o\n"
    assert init.main(["-o", str(tmp_path / "no" / "p.yaml")]) == 2
    assert init.main([]) == 0
    assert capsys.readouterr().out == init.STARTER


def test_what_the_starter_proposes_is_legal() -> None:
    """With its commented lines taken in (but for the second launcher and the revision), it still loads."""
    keys = r"version:|env:|gpus:|caches:|  compile-cache:|host:|- \{kind|backend:|graphs:|kv:|waive:|  - \{check"
    text, taken = re.subn(rf"(?m)^( *)# (?=(?:{keys}))", r"\1", init.STARTER.replace("  #   gpus", "  #   x"))
    assert taken == 13
    profile = load_bytes(text.encode(), Path("/p.yaml"), {"HF_TOKEN": "x" * 8})
    assert [r.population for r in profile.restarts][2:] == ["process+page-cache-dropped", "process+wiped:compile-cache"]
    assert profile.waiver("graphs") is not None
    assert profile.launch.gpus == ("0",)


def test_what_is_written_is_told_on_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "p.yaml"
    assert init.main(["--from-docker-run", "docker run --shm-size 1.5x img m", "--name", "n", "-o", str(file)]) == 0
    err = capsys.readouterr().err.splitlines()
    assert all(line.startswith("note: ") for line in err)
    assert (
        f"note: {file}:{file.read_text().splitlines().index('    shm_size: 1.5x') + 1}: launch.container.shm_size: "
        'expected a size such as 512m or 16g; found the text "1.5x"'
    ) in err


@given(
    st.lists(st.text(max_size=12), max_size=6),
    st.dictionaries(st.from_regex("[A-Z_]{1,6}", fullmatch=True), st.text(max_size=12), max_size=3),
)
@settings(max_examples=100, deadline=None)
def test_any_words_arrive_unchanged(words: list[str], env: dict[str, str]) -> None:
    """Arguments and values without a shell's or a secret's meaning are the same in the profile as on the command line."""
    plain = [w for w in words if w.isprintable() and not set(w) & set("$-`") and w]
    values = {f"V{k}V": v for k, v in env.items() if v.isprintable() and not set(v) & set("$`")}
    command = shlex.join(
        ["docker", "run", *(x for k, v in values.items() for x in ("-e", f"{k}={v}")), ID, "m", "--x", *plain]
    )
    profile = loaded(command)
    assert profile.engine.args == ("--x", *plain)
    assert profile.engine.env == values
