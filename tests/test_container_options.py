"""A profile's container as the API's own body; where a path of the container comes from. Plain data, no daemon."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_startup.launch.container import options
from pytest_startup.launch.container.checks import Checks
from pytest_startup.launch.container.facts import file_problems
from pytest_startup.launch.container.refusals import explain_refusal, left_out, unknown_members
from pytest_startup.profile.model import ContainerFile, ContainerLaunch, Engine, Launch, Profile

IMAGE = "sha256:" + "a" * 64


def profile(container: ContainerLaunch, **launch) -> Profile:
    return Profile(
        path=Path("/site/p.yaml"),
        name="p",
        engine=Engine("vllm", "m"),
        launch=Launch(container=container, **launch),
        origin={"launch.container": 5, "launch.container.engine_options.Binds": 6, "launch.container.gpus": 7},
    )


def test_the_smallest_container():
    assert options.body(
        profile(ContainerLaunch(IMAGE, network="host")), ("serve", "m"), {"A": "b"}, 8000, {"l": "1"}
    ) == {
        "Image": IMAGE,
        "Cmd": ["serve", "m"],
        "Env": ["A=b"],
        "Labels": {"l": "1"},
        "HostConfig": {"Mounts": [], "NetworkMode": "host"},
    }


def test_everything():
    container = ContainerLaunch(
        IMAGE,
        entrypoint=(),
        volumes={"/srv/models": "/models:ro", "cache": "/root/.cache"},
        files=(ContainerFile(Path("/site/a.py"), "/opt/a.py", "0" * 64), ContainerFile(Path("/b"), "/b", None, False)),
        gpus=("all",),
        network="mynet",
        ipc="host",
        shm_size="16g",
        ulimits={"memlock": "-1", "nofile": "1024:4096"},
        devices=("/dev/infiniband", "/dev/a:/dev/b", "/dev/c:r", "/dev/d:/dev/e:rw"),
        cap_add=("IPC_LOCK",),
        runtime="nvidia",
        user="1000:1000",
        working_dir="/work",
        memory="8g",
        init=True,
        engine_options={"CpusetCpus": "0-3", "Sysctls": {"net.core.somaxconn": "1024"}},
    )
    body = options.body(profile(container, host="127.0.0.1", port=8888), (), {}, 8888, {})
    assert body["Cmd"] is None
    assert (body["Entrypoint"], body["User"], body["WorkingDir"]) == ([], "1000:1000", "/work")
    assert body["ExposedPorts"] == {"8888/tcp": {}}
    assert body["HostConfig"] == {
        "CpusetCpus": "0-3",
        "Sysctls": {"net.core.somaxconn": "1024"},
        "Mounts": [
            {"Type": "bind", "Source": "/srv/models", "Target": "/models", "ReadOnly": True},
            {"Type": "volume", "Source": "cache", "Target": "/root/.cache", "ReadOnly": False},
            {"Type": "bind", "Source": "/site/a.py", "Target": "/opt/a.py", "ReadOnly": True},
            {"Type": "bind", "Source": "/b", "Target": "/b", "ReadOnly": False},
        ],
        "NetworkMode": "mynet",
        "PortBindings": {"8888/tcp": [{"HostIp": "127.0.0.1", "HostPort": "8888"}]},
        "IpcMode": "host",
        "ShmSize": 16 << 30,
        "Ulimits": [{"Name": "memlock", "Soft": -1, "Hard": -1}, {"Name": "nofile", "Soft": 1024, "Hard": 4096}],
        "Devices": [
            {"PathOnHost": "/dev/infiniband", "PathInContainer": "/dev/infiniband", "CgroupPermissions": "rwm"},
            {"PathOnHost": "/dev/a", "PathInContainer": "/dev/b", "CgroupPermissions": "rwm"},
            {"PathOnHost": "/dev/c", "PathInContainer": "/dev/c", "CgroupPermissions": "r"},
            {"PathOnHost": "/dev/d", "PathInContainer": "/dev/e", "CgroupPermissions": "rw"},
        ],
        "CapAdd": ["IPC_LOCK"],
        "Runtime": "nvidia",
        "Memory": 8 << 30,
        "Init": True,
        "DeviceRequests": [{"Driver": "", "Capabilities": [["gpu"]], "Count": -1}],
    }


def test_members_beside_hostconfig_and_cdi_devices():
    """``docker run --device nvidia.com/gpu=all`` is a request for devices of the driver cdi."""
    given = {"Hostname": "n1", "StopSignal": "SIGINT", "Healthcheck": {"Test": ["NONE"]}, "CpusetCpus": "0"}
    container = ContainerLaunch(
        IMAGE, network="host", gpus=("0",), devices=("nvidia.com/gpu=all", "/dev/a"), engine_options=given
    )
    body = options.body(profile(container), ("m",), {}, 8000, {})
    assert (body["Hostname"], body["StopSignal"], body["Healthcheck"]) == ("n1", "SIGINT", {"Test": ["NONE"]})
    assert set(body["HostConfig"]) == {"CpusetCpus", "Mounts", "NetworkMode", "Devices", "DeviceRequests"}
    assert [device["PathOnHost"] for device in body["HostConfig"]["Devices"]] == ["/dev/a"]
    assert body["HostConfig"]["DeviceRequests"] == [
        {"Driver": "", "Capabilities": [["gpu"]], "DeviceIDs": ["0"]},
        {"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=all"]},
    ]


def test_an_ephemeral_port_is_the_daemon_s_choice():
    host = options.host_config(profile(ContainerLaunch(IMAGE)), 8000)
    assert host["PortBindings"] == {"8000/tcp": [{"HostIp": "127.0.0.1", "HostPort": ""}]}


@pytest.mark.parametrize(
    ("container", "text"),
    [
        ({"engine_options": {"Binds": []}}, "p.yaml:6: Binds has a key of its own: launch.container.volumes and files"),
        (
            {"engine_options": {"RestartPolicy": {"Name": "always"}}},
            "p.yaml:5: RestartPolicy is not passed on: an engine that comes back by itself hides that it ended; "
            "leave restarts to the profile",
        ),
        (
            {"engine_options": {"AutoRemove": True}},
            "p.yaml:5: AutoRemove is not passed on: the exit code and the last lines would be lost with the container; "
            "it is removed by us",
        ),
        (
            {"engine_options": {"LogConfig": {"Type": "syslog"}}},
            "p.yaml:5: LogConfig is not passed on: the log is read from the daemon, which needs its own format",
        ),
        (
            {"network": "none"},
            "p.yaml:5: network none leaves no way to reach the engine; expected host, bridge, or the name of a network",
        ),
        (
            {"network": "container:x"},
            "p.yaml:5: network container:x leaves no way to reach the engine; expected host, bridge, or the name of a "
            "network",
        ),
    ],
)
def test_what_can_not_be_done_as_it_stands(container, text):
    assert options.option_problems(profile(ContainerLaunch(IMAGE, **container))) == [text]


def test_what_can_be_done():
    fine = {"LogConfig": {"Type": "local", "Config": {"max-size": "10m"}}, "Privileged": True}
    assert options.option_problems(profile(ContainerLaunch(IMAGE, engine_options=fine))) == []


@pytest.mark.parametrize(
    ("inside", "found"),
    [
        ("/cache/x/y", ("/srv/cache", "x/y")),
        ("/cache", ("/srv/cache", "")),
        ("/cache/deep/z", ("volume", "z")),
        ("/cachet", None),
        ("/opt/a.py", ("/site/a.py", "")),
        ("/", None),
    ],
)
def test_where_a_path_comes_from(inside, found):
    container = ContainerLaunch(
        IMAGE,
        volumes={"/srv/cache": "/cache", "volume": "/cache/deep:ro"},
        files=(ContainerFile(Path("/site/a.py"), "/opt/a.py"),),
    )
    assert options.host_path(container, inside) == found


def test_files_that_are_not_the_pinned_ones(tmp_path):
    (tmp_path / "a").write_text("x")
    right = "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"
    files = (
        ContainerFile(tmp_path / "a", "/a", right),
        ContainerFile(tmp_path / "a", "/b"),
        ContainerFile(tmp_path / "a", "/c", "0" * 64),
        ContainerFile(tmp_path / "none", "/d", right),
        ContainerFile(tmp_path, "/e", right),
    )
    assert file_problems(profile(ContainerLaunch(IMAGE, files=files))) == [
        f"p.yaml:5: {tmp_path}/a is not the pinned file: its sha256 is {right}, expected {'0' * 64}; restore the file, "
        "or validate the new one and pin it",
        f"p.yaml:5: {tmp_path}/none is not there or no file; it is to be mounted at /d",
        f"p.yaml:5: {tmp_path} is not there or no file; it is to be mounted at /e",
    ]


@pytest.mark.parametrize(
    "said",
    [
        'could not select device driver "" with capabilities: [[gpu]]',
        "OCI runtime create failed: nvidia-container-cli: initialization error: nvml error: driver not loaded: unknown",
        "unresolvable CDI devices nvidia.com/gpu=0",
    ],
)
def test_a_daemon_without_a_gpu_runtime(said):
    text = explain_refusal(said, profile(ContainerLaunch(IMAGE, gpus=("0", "1"))))
    assert text == (
        "p.yaml:7: the container asks for GPUs (0, 1), and the daemon has no working GPU runtime; install the NVIDIA "
        "Container Toolkit (Debian, Ubuntu: apt-get install nvidia-container-toolkit), then nvidia-ctk runtime "
        f"configure --runtime=docker, and restart the daemon; the daemon said: {said}"
    )


def test_a_daemon_without_cdi():
    said = 'could not select device driver "cdi" with capabilities: []'
    text = explain_refusal(said, profile(ContainerLaunch(IMAGE, devices=("/dev/a", "nvidia.com/gpu=all"))))
    assert text.startswith("p.yaml:5: the container asks for GPUs (nvidia.com/gpu=all), and the daemon has no working")


@pytest.mark.parametrize(
    ("said", "key"),
    [
        ('invalid CapAdd: unknown capability: "CAP_IPC_LOK"', "cap_add"),
        ('error gathering device information while adding device "/dev/x": no such file or directory', "devices"),
        ("failed to create shim task: … setting rlimits for ready process: error setting rlimit type 8", "ulimits"),
        ("unable to find user nosuch: no matching entries in passwd file", "user"),
        ("network nosuch not found", "network"),
        ("Minimum memory limit allowed is 6MB", "memory"),
        ('exec: "nosuch": executable file not found in $PATH: unknown', "command"),
        ("json: cannot unmarshal number into Go struct field HostConfig.HostConfig.CpusetCpus of type string",
         "engine_options.CpusetCpus"),
    ],
)  # fmt: skip
def test_what_a_refusal_is_about(said, key):
    container = ContainerLaunch(IMAGE, engine_options={"Binds": [], "CpusetCpus": 3})
    assert (
        explain_refusal(said, profile(container))
        == f"p.yaml:5: launch.container.{key}: the container engine refused: {said}"
    )


def test_a_member_of_which_the_daemon_knows_nothing():
    """dockerd takes any JSON; a misspelt limit would simply not be there."""
    given = {"CpusetCpu": "0", "pidslimit": 5, "Annotations": {}, "Hostname": "n1"}
    container = profile(ContainerLaunch(IMAGE, engine_options=given))
    asked = options.host_config(container, 8000)
    assert unknown_members(container, asked, {"CpusetCpus": "", "PidsLimit": 5, "CpusetMems": ""}) == [
        "p.yaml:5: the daemon knows no member CpusetCpu of HostConfig, and leaves it out without a word; did you mean "
        "CpusetCpus?"
    ]
    assert unknown_members(container, asked, {"PidsLimit": 5, "CpusetCpu": "0"}) == []


def test_any_other_refusal_is_the_daemon_s_own_text():
    assert explain_refusal("no space", profile(ContainerLaunch(IMAGE))) == "the container engine refused: no space"


def test_limits_that_the_daemon_leaves_out():
    """As a rootless dockerd 20.10 on control groups v1 does, with a warning behind the answer to create."""
    limited = profile(ContainerLaunch(IMAGE, memory="1g", engine_options={"CpusetCpus": "0", "PidsLimit": -1}))
    asked = options.host_config(limited, 8000)
    assert left_out(limited, asked, {"Memory": 1 << 30, "CpusetCpus": "0"}) == []
    assert left_out(limited, asked, {"Memory": 0, "CpusetCpus": "", "PidsLimit": None}) == [
        "p.yaml:5: the daemon leaves Memory out (asked for 1073741824): it has no control group for it, as a "
        "rootless one on control groups v1 (docker info warns of it); leave it out, or use a daemon that can",
        "p.yaml:5: the daemon leaves CpusetCpus out (asked for 0): it has no control group for it, as a "
        "rootless one on control groups v1 (docker info warns of it); leave it out, or use a daemon that can",
    ]


class Rootless:
    """What ``info`` and ``version`` say of a rootless engine."""

    def __init__(self, engine: str) -> None:
        self.engine = engine

    def info(self) -> dict[str, object]:
        return {"SecurityOptions": ["name=seccomp,profile=default", "name=rootless"]}

    def is_podman(self) -> bool:
        return self.engine == "Podman"

    def image(self, name: str) -> dict[str, object]:
        return {"Id": name}


@pytest.mark.parametrize(
    ("engine", "network", "refused"),
    [("Docker", "host", True), ("Docker", "bridge", False), ("Podman", "host", False)],
)
def test_network_host_of_a_rootless_daemon(engine, network, refused, tmp_path):
    of = profile(ContainerLaunch(IMAGE, network=network), port=None)
    problems = Checks(Rootless(engine), of, tmp_path).all()
    assert bool(problems) is refused
    assert all("a rootless one, whose network host is not this host's" in problem for problem in problems)
    assert all("use network: bridge, which publishes launch.port" in problem for problem in problems)
