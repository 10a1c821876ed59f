"""What a schema can't say: rules between the values of a profile, on whatever of it is well-typed."""

from __future__ import annotations

import datetime
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_startup.profile import units
from pytest_startup.profile.names import CHECKS, ENGINES, NODES_KINDS, PHASE_KEYS, RESTART_KINDS
from pytest_startup.profile.nodes_rules import check_nodes
from pytest_startup.profile.problems import KeyPath, nearest, not_a_pattern, suggested
from pytest_startup.redact import holds_token

Wrong = Iterator[tuple[KeyPath, str]]
_PINNED = re.compile(r"(?:[^@\s]+@)?sha256:[0-9a-f]{64}")
_VOLUME_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_OWN_OPTIONS = {
    "--host": "launch.host",
    "--port": "launch.port",
    "--model": "engine.model",
    "--model-path": "engine.model",
}


@dataclass(frozen=True)
class Known:
    """What the rules need to know besides the file: names added by hooks, the day, the profile's folder."""

    checks: Collection[str]
    engines: Collection[str]
    launchers: Collection[str]
    today: datetime.date
    folder: Path


def check_rules(data: Mapping[str, Any], known: Known) -> list[tuple[KeyPath, str]]:
    """Everything that breaks a rule: path and message."""
    alone: tuple[Callable[[Mapping[str, Any]], Wrong], ...] = (
        _image,
        _gpus,
        _volumes,
        _restarts,
        _deadlines,
        _ranges,
        _throughput,
        _patterns,
        _literal_secrets,
        _nodes,
    )
    knowing: tuple[Callable[[Mapping[str, Any], Known], Wrong], ...] = (_engine, _launcher, _caches, _waivers)
    out = [wrong for rule in alone for wrong in rule(data)]
    return out + [wrong for rule in knowing for wrong in rule(data, known)]


def warnings_of(data: Mapping[str, Any]) -> tuple[str, ...]:
    """What is allowed, but hardly meant."""
    out = []
    if not data.get("restarts"):
        out.append("restarts: none; only the reference start is judged, and nothing proves that it can be repeated")
    image = str(_get(data, "launch", "container").get("image", ""))
    if image.endswith("sha256:" + "0" * 64):
        out.append("launch.container.image: the digest is the placeholder of an example; pin your own")
    if any(r.get("drop_page_cache") for r in data.get("restarts") or ()) and "checkpoint" not in data["launch"]:
        model = str(data["engine"]["model"])
        if not model.startswith((".", "/", "~")):
            out.append(
                "launch.checkpoint: not given, and the model is no path; "
                "the page cache of a hub's model can't be dropped"
            )
    return tuple(out)


def _get(data: Any, *path: str | int, kind: type | tuple[type, ...] = dict) -> Any:
    """The value at ``path`` if it is of ``kind``, else an empty one (None where ``kind`` is several types)."""
    for part in path:
        if isinstance(data, dict) and isinstance(part, str):
            data = data.get(part)
        elif isinstance(data, list) and isinstance(part, int) and part < len(data):
            data = data[part]
        else:
            data = None
    if isinstance(data, kind) and not (isinstance(data, bool) and kind is not bool):
        return data
    return None if isinstance(kind, tuple) else kind()


def _engine(data: Mapping[str, Any], known: Known) -> Wrong:
    kind = _get(data, "engine", "kind", kind=str)
    names = (*ENGINES, *known.engines)
    if kind and kind not in names:
        near = nearest(kind, names)
        hint = f"; did you mean {near}?" if near else ""
        yield ("engine", "kind"), f"unknown engine {kind}; expected {', '.join(names)}, or one added by a hook{hint}"
    for place in (("engine", "args"), *(("restarts", i, "change", "args") for i in range(len(_rows(data))))):
        for index, arg in enumerate(_get(data, *place, kind=list)):
            option = arg.partition("=")[0] if isinstance(arg, str) else ""
            if option in _OWN_OPTIONS:
                yield (*place, index), f"{option} is set by us; expected it in {_OWN_OPTIONS[option]}"


def _launcher(data: Mapping[str, Any], known: Known) -> Wrong:
    launch = _get(data, "launch")
    given = [k for k in ("process", "container", "custom") if k in launch]
    if launch and not given:
        yield ("launch",), "no launcher; expected exactly one of process, container and custom"
    for extra in given[1:]:
        yield (
            ("launch", extra),
            f"a second launcher beside {given[0]}; expected exactly one of process, container and custom",
        )
    custom = _get(data, "launch", "custom", kind=str)
    if custom and custom not in known.launchers:
        near = nearest(custom, known.launchers)
        hint = f"; did you mean {near}?" if near else ""
        names = ", ".join(known.launchers) or "none is"
        yield ("launch", "custom"), f"unknown launcher {custom}; expected one added by a hook ({names} known){hint}"
    if "options" in launch and "custom" not in launch:
        yield ("launch", "options"), "options are for a custom launcher; expected launch.custom beside them"
    container = _get(data, "launch", "container")
    if "docker_host" in container and "context" in container:
        yield ("launch", "container", "context"), "both docker_host and context; expected one of them"


def _image(data: Mapping[str, Any]) -> Wrong:
    image = _get(data, "launch", "container", "image", kind=str)
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
            f"{name} is a tag, and a tag can move; expected an image id (sha256:…) or NAME@sha256:…; "
            "find the id to pin with: "
            f"docker image inspect -f '{{{{.Id}}}}' {name}"
        ),
    )


def _gpus(data: Mapping[str, Any]) -> Wrong:
    for place in (("launch", "gpus"), ("launch", "container", "gpus")):
        seen: dict[str, object] = {}
        for index, gpu in enumerate(_get(data, *place, kind=list)):
            if str(gpu) in seen and seen[str(gpu)] != gpu:
                yield (*place, index), f"given twice: GPU {gpu}; remove one"
            seen.setdefault(str(gpu), gpu)
    outer, inner = _get(data, "launch").get("gpus"), _get(data, "launch", "container").get("gpus")
    if outer is not None and inner not in (None, "all", outer):
        yield (
            ("launch", "gpus"),
            "differs from launch.container.gpus; expected the same GPUs, or only one of the two keys",
        )


def _volumes(data: Mapping[str, Any]) -> Wrong:
    targets: dict[str, str] = {}
    volumes = _get(data, "launch", "container", "volumes")
    for source, target in volumes.items():
        path = ("launch", "container", "volumes", source)
        if not source.startswith((".", "/", "${profile_dir}")) and not _VOLUME_NAME.fullmatch(source):
            yield path, f"neither a path nor a volume's name; for a path relative to the profile write ./{source}"
        if isinstance(target, str):
            inside = target.partition(":")[0].rstrip("/")
            if inside in targets:
                yield path, f"{inside} is mounted twice, also from {targets[inside]}; expected one source"
            targets.setdefault(inside, source)


def _rows(data: Mapping[str, Any]) -> list[Any]:
    rows: list[Any] = _get(data, "restarts", kind=list)
    return rows


def _restarts(data: Mapping[str, Any]) -> Wrong:
    launch = _get(data, "launch")
    given = [k for k in ("process", "container", "custom") if k in launch]
    caches = {**_get(data, "caches")}
    for node in _get(data, "nodes"):
        caches |= _get(data, "nodes", node, "caches")
    for index, row in enumerate(_rows(data)):
        kind = _get(row, "kind", kind=str)
        kinds = NODES_KINDS if "nodes" in data else RESTART_KINDS
        legal = kinds.get(given[0]) if len(given) == 1 else None
        if legal and kind in ("process", "same-container", "fresh-container") and kind not in legal:
            if kind == "same-container" and "nodes" in data:
                text = "with nodes every container is a fresh one: a stop removes it; expected fresh-container"
                yield ("restarts", index, "kind"), f"{text} (caches stay in volumes)"
                continue
            yield (
                ("restarts", index, "kind"),
                f"{kind} needs launch.{'process' if kind == 'process' else 'container'}; "
                f"expected {' or '.join(legal)} with launch.{given[0]}",
            )
        if kind == "same-container" and "change" in (row if isinstance(row, dict) else {}):
            yield (
                ("restarts", index, "change"),
                "the same container keeps its arguments and environment; expected kind: fresh-container for a change",
            )
        for number, name in enumerate(_get(row, "wipe", kind=list)):
            if isinstance(name, str) and name not in caches:
                yield ("restarts", index, "wipe", number), f"no entry {name} in caches; {suggested(name, caches)}"


def _caches(data: Mapping[str, Any], known: Known) -> Wrong:
    for name, cache in _get(data, "caches").items():
        given = [key for key in ("path", "container") if isinstance(cache, dict) and key in cache]
        if len(given) != 1:
            yield (
                ("caches", name, *given[1:]),
                "expected exactly one of path (on the host) and container (a path in it)",
            )
        elif given == ["container"] and "container" not in _get(data, "launch"):
            yield ("caches", name, "container"), "there is no launch.container; expected path, the folder on the host"
        text = _get(cache, "path", kind=str)
        if not text:
            continue
        path = Path(os.path.normpath(known.folder / text.replace("${profile_dir}", str(known.folder))))
        if path in (Path("/"), Path.home(), known.folder, *known.folder.parents):
            yield (
                ("caches", name, "path"),
                f"{path} holds more than a cache, and wiping would remove all of it; expected a folder of its own",
            )


def _seconds(data: Mapping[str, Any], *path: str) -> float | None:
    text = _get(data, *path, kind=(str,))
    try:
        return None if text is None else units.duration(text)
    except ValueError:
        return None


def _deadlines(data: Mapping[str, Any]) -> Wrong:
    deadlines = _get(data, "deadlines")
    for key in deadlines:
        if _seconds(data, "deadlines", key) == 0:
            yield ("deadlines", key), "expected more than 0"
    given = _seconds(data, "deadlines", "ready")
    ready = 1800.0 if given is None else given
    for key in PHASE_KEYS:
        phase = _seconds(data, "deadlines", key)
        if phase is not None and phase > ready:
            whole = units.shown_duration(ready) + (" (the default)" if given is None else "")
            yield (
                ("deadlines", key),
                f"{units.shown_duration(phase)} is longer than the whole start, ready: {whole}; "
                "expected at most that, or a longer ready",
            )


def _nodes(data: Mapping[str, Any]) -> Wrong:
    yield from check_nodes(data, _seconds(data, "deadlines", "stop"))


def _ranges(data: Mapping[str, Any]) -> Wrong:
    places = [("expect", "kv", k) for k in ("tokens", "available_gib")]
    places += [("expect", "memory", k) for k in ("weights_gib_per_rank", "gpu_peak_gib", "host_peak_gib")]
    for place in places:
        low, high = (_get(data, *place, k, kind=(int, float)) for k in ("min", "max"))
        if low is not None and high is not None and low > high:
            yield (*place, "min"), f"{low} is above max {high}; expected min ≤ max"


def _throughput(data: Mapping[str, Any]) -> Wrong:
    asked = _get(data, "expect", "throughput", "concurrency", kind=list)
    for key in _get(data, "expect", "throughput", "min_tokens_per_second"):
        if asked and key not in [str(c) for c in asked]:
            path = ("expect", "throughput", "min_tokens_per_second", key)
            yield path, f"concurrency {key} is not measured; expected one of {', '.join(str(c) for c in asked)}"


def _patterns(data: Mapping[str, Any]) -> Wrong:
    for key in ("forbid", "require"):
        for index, row in enumerate(_get(data, "expect", "log", key, kind=list)):
            path: KeyPath = ("expect", "log", key, index)
            pattern = row
            if isinstance(row, dict):
                path, pattern = (*path, "pattern"), row.get("pattern")
            if isinstance(pattern, str) and (wrong := not_a_pattern(pattern)):
                yield path, wrong


def _waivers(data: Mapping[str, Any], known: Known) -> Wrong:
    names = (*CHECKS, *known.checks)
    seen: dict[str, int] = {}
    for index, row in enumerate(_get(data, "waive", kind=list)):
        check = _get(row, "check", kind=str)
        if check and check not in names:
            yield ("waive", index, "check"), f"unknown check {check}; {suggested(check, names)}"
        elif check in seen:
            yield ("waive", index, "check"), f"{check} is waived twice, also in waive.{seen[check]}; remove one"
        seen.setdefault(check, index)
        until = _get(row, "until", kind=str)
        if re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", until):
            try:
                day = datetime.date.fromisoformat(until)
            except ValueError:
                yield ("waive", index, "until"), f"{until} is no day of the calendar; expected a date YYYY-MM-DD"
                continue
            if day < known.today:
                yield (
                    ("waive", index, "until"),
                    f"the waiver of {check} ended on {until}, today is {known.today}; "
                    "expected a later date, or no waiver",
                )


def _literal_secrets(data: Mapping[str, Any]) -> Wrong:
    stack: list[tuple[KeyPath, Any]] = [((), data)]
    while stack:
        path, value = stack.pop()
        if isinstance(value, dict):
            stack += [((*path, k), v) for k, v in value.items()]
        elif isinstance(value, list):
            stack += [((*path, i), v) for i, v in enumerate(value)]
        elif isinstance(value, str) and holds_token(value):
            yield path, "a token stands here in plain text; expected ${VAR}, in engine.env or engine.args"
