"""Containers of nodes as commands of each node's own ``docker``: pure; the keeper there runs them in the foreground.

The daemon's socket never has to leave the node; the output is the container's, and the exit code too; a daemon that
dies ends the command at once. A value of the environment is never on a command line: ``-e NAME`` takes it from the
command's own environment.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pytest_startup.launch.base import LaunchError
from pytest_startup.profile.model import ContainerLaunch, Profile
from pytest_startup.profile.nodes import Node, files_of

#: The label by which a keeper finds its containers again: the run's id and the node's name.
LABEL = "org.pytest-startup.node-run"


def docker(node: Node) -> list[str]:
    """The command for the node's daemon."""
    return ["docker", *(("-H", node.container.docker_host) if node.container.docker_host else ())]


def container_name(profile: Profile, node: Node) -> str:
    container = profile.launch.container
    shared = container.name if container is not None else None
    return node.container.name or shared or f"pytest-startup-{profile.name}-{node.name}"


def gpus_of(profile: Profile, node: Node) -> tuple[str, ...]:
    """The GPUs that the engine gets on this node: the node's own key, else that of all containers."""
    container = profile.launch.container
    return tuple(node.gpus) or (tuple(container.gpus or ()) if container is not None else ())


def run_command(
    profile: Profile, node: Node, argv: Sequence[str], env: Collection[str], label: str, files: Mapping[str, str]
) -> list[str]:
    """``docker run …`` in the foreground. ``env``: names; ``files``: path in the container → path on the node."""
    container = _container(profile)
    name = container_name(profile, node)
    return [
        *docker(node),
        "run",
        "--name",
        name,
        "--label",
        f"{LABEL}={label}",
        *options(profile, node, env, files),
        *_image(container),
        *argv,
    ]


def options(profile: Profile, node: Node, env: Collection[str], files: Mapping[str, str]) -> list[str]:
    """What the profile says of the container, as options of ``docker run``, in a fixed order."""
    c = _container(profile)
    gpus = gpus_of(profile, node)
    out: list[str] = []
    if gpus:
        out += ["--gpus", "all" if tuple(gpus) == ("all",) else f'"device={",".join(gpus)}"']
    for option, value in (
        ("--network", c.network), ("--ipc", c.ipc), ("--shm-size", c.shm_size), ("--runtime", c.runtime),
        ("--user", c.user), ("--workdir", c.working_dir), ("--memory", c.memory),
    ):  # fmt: skip
        out += [option, value] if value is not None else []
    for capability in c.cap_add:
        out += ["--cap-add", capability]
    for limit, value in c.ulimits.items():
        out += ["--ulimit", f"{limit}={value}"]
    for device in c.devices:
        out += ["--device", device]
    out += ["--init"] if c.init else []
    for source, target in {**c.volumes, **node.container.volumes}.items():
        out += ["-v", f"{source}:{target}"]
    for file in files_of(profile, node):
        mode = ":ro" if file.read_only else ""
        out += ["-v", f"{files.get(file.path, str(file.host))}:{file.path}{mode}"]
    for variable in env:
        out += ["-e", variable]
    if c.entrypoint is not None:
        out += ["--entrypoint", c.entrypoint[0] if c.entrypoint else ""]
    return out


def exec_command(profile: Profile, node: Node, argv: Sequence[str], env: Collection[str]) -> list[str]:
    """``docker exec`` of something in the node's container, in the foreground."""
    variables = [part for name in env for part in ("-e", name)]
    return [*docker(node), "exec", *variables, container_name(profile, node), *argv]


def commands(
    profile: Profile, node: Node, argv: Sequence[str], env: Mapping[str, str], label: str, files: Mapping[str, str]
) -> dict[str, Any]:
    """What the keeper on the node is asked for: ``steps`` first, then ``argv`` in the foreground; ``by_exec``: in a
    container that runs already.

    With ``exec_command`` the container idles: it is started detached, the steps run in it, and then the engine where
    the API is; on the other nodes the container's own output is followed, which ends when it ends.
    """
    container = _container(profile)
    if container.exec_command is None:
        return {"steps": [], "argv": run_command(profile, node, argv, env, label, files)}
    idle = run_command(profile, node, container.command, env, label, files)
    at = idle.index("run") + 1
    steps: list[dict[str, Any]] = [{"argv": [*idle[:at], "-d", *idle[at:]], "until": None, "within": 120.0}]
    for step in node.steps:
        steps.append(
            {
                "argv": exec_command(profile, node, step.exec, env),
                "until": step.until,
                "within": step.within,
                "shown": " ".join(step.exec),
            }
        )
    if node.api:
        return {"steps": steps, "argv": exec_command(profile, node, argv, env), "by_exec": True}
    return {"steps": steps, "argv": [*docker(node), "logs", "-f", container_name(profile, node)]}


def engine_words(profile: Profile, node: Node) -> tuple[str, ...]:
    """The words before the engine's arguments."""
    process, container = profile.launch.process, profile.launch.container
    if node.command:
        return node.command
    if container is not None:
        return container.command if container.exec_command is None else container.exec_command
    return process.command if process is not None else ()


def _image(container: ContainerLaunch) -> list[str]:
    return [container.image, *(container.entrypoint or ())[1:]]


def _container(profile: Profile) -> ContainerLaunch:
    if profile.launch.container is None:
        raise LaunchError(f"{profile.place('launch')}: no launch.container")
    return profile.launch.container
