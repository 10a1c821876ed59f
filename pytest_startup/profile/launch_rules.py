"""Rules of ``engine`` and ``launch`` that a schema can't say: names, one launcher, pinned images, GPUs, volumes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pytest_startup.profile.names import ENGINES
from pytest_startup.profile.problems import nearest
from pytest_startup.profile.rule import Known, Wrong, value_at

_PINNED = re.compile(r"(?:[^@\s]+@)?sha256:[0-9a-f]{64}")
_VOLUME_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_OWN_OPTIONS = {
    "--host": "launch.host",
    "--port": "launch.port",
    "--model": "engine.model",
    "--model-path": "engine.model",
}


def engine(data: Mapping[str, Any], known: Known) -> Wrong:
    """The engine is known, and no argument is one that we set."""
    kind = value_at(data, "engine", "kind", kind=str)
    names = (*ENGINES, *known.engines)
    if kind and kind not in names:
        near = nearest(kind, names)
        hint = f"; did you mean {near}?" if near else ""
        yield ("engine", "kind"), f"unknown engine {kind}; expected {', '.join(names)}, or one added by a hook{hint}"
    for place in (
        ("engine", "args"),
        *(("restarts", i, "change", "args") for i in range(len(value_at(data, "restarts", kind=list)))),
    ):
        for index, arg in enumerate(value_at(data, *place, kind=list)):
            option = arg.partition("=")[0] if isinstance(arg, str) else ""
            if option in _OWN_OPTIONS:
                yield (*place, index), f"{option} is set by us; expected it in {_OWN_OPTIONS[option]}"


def launcher(data: Mapping[str, Any], known: Known) -> Wrong:
    """Exactly one launcher, a known one, with the options of its kind."""
    launch = value_at(data, "launch")
    given = [k for k in ("process", "container", "custom") if k in launch]
    if launch and not given:
        yield ("launch",), "no launcher; expected exactly one of process, container and custom"
    for extra in given[1:]:
        yield (
            ("launch", extra),
            f"a second launcher beside {given[0]}; expected exactly one of process, container and custom",
        )
    custom = value_at(data, "launch", "custom", kind=str)
    if custom and custom not in known.launchers:
        near = nearest(custom, known.launchers)
        hint = f"; did you mean {near}?" if near else ""
        names = ", ".join(known.launchers) or "none is"
        yield ("launch", "custom"), f"unknown launcher {custom}; expected one added by a hook ({names} known){hint}"
    if "options" in launch and "custom" not in launch:
        yield ("launch", "options"), "options are for a custom launcher; expected launch.custom beside them"
    container = value_at(data, "launch", "container")
    if "docker_host" in container and "context" in container:
        yield ("launch", "container", "context"), "both docker_host and context; expected one of them"


#: Of what ``movable`` says, whatever the name.
CAN_MOVE = ", and a tag can move"


def movable(name: str) -> str:
    """What is wrong with the name of an image that has no digest."""
    tagged = ":" in name.rpartition("/")[2]
    return f"{name} is a tag{CAN_MOVE}" if tagged else f"{name} names the tag latest{CAN_MOVE}"


def image(data: Mapping[str, Any]) -> Wrong:
    """An image is named by what can't move."""
    image = value_at(data, "launch", "container", "image", kind=str)
    if not image or _PINNED.fullmatch(image):
        return
    path = ("launch", "container", "image")
    name, at, digest = image.partition("@")
    if at or image.startswith("sha256:"):
        shown = digest if at else image
        yield path, f"expected sha256: and 64 lower-case hex digits; found {shown[:80]}"
        return
    yield (
        path,
        (
            f"{movable(name)}; expected an image id (sha256:…) or NAME@sha256:…; "
            "find the id to pin with: "
            f"docker image inspect -f '{{{{.Id}}}}' {name}"
        ),
    )


def gpus(data: Mapping[str, Any]) -> Wrong:
    """The GPUs of the engine, given once and alike."""
    for place in (("launch", "gpus"), ("launch", "container", "gpus")):
        seen: dict[str, object] = {}
        for index, gpu in enumerate(value_at(data, *place, kind=list)):
            if str(gpu) in seen and seen[str(gpu)] != gpu:
                yield (*place, index), f"given twice: GPU {gpu}; remove one"
            seen.setdefault(str(gpu), gpu)
    outer, inner = value_at(data, "launch").get("gpus"), value_at(data, "launch", "container").get("gpus")
    if outer is not None and inner not in (None, "all", outer):
        yield (
            ("launch", "gpus"),
            "differs from launch.container.gpus; expected the same GPUs, or only one of the two keys",
        )


def volumes(data: Mapping[str, Any]) -> Wrong:
    """Sources are paths or names of volumes, targets differ."""
    targets: dict[str, str] = {}
    volumes = value_at(data, "launch", "container", "volumes")
    for source, target in volumes.items():
        path = ("launch", "container", "volumes", source)
        if not source.startswith((".", "/", "${profile_dir}")) and not _VOLUME_NAME.fullmatch(source):
            yield path, f"neither a path nor a volume's name; for a path relative to the profile write ./{source}"
        if isinstance(target, str):
            inside = target.partition(":")[0].rstrip("/")
            if inside in targets:
                yield path, f"{inside} is mounted twice, also from {targets[inside]}; expected one source"
            targets.setdefault(inside, source)
