"""What a schema can't say: rules between the values of a profile, on whatever of it is well-typed."""

from __future__ import annotations

import datetime
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pytest_startup.profile import launch_rules, units
from pytest_startup.profile.names import CHECKS, NODES_KINDS, PHASE_KEYS, RESTART_KINDS
from pytest_startup.profile.nodes_rules import check_nodes
from pytest_startup.profile.problems import KeyPath, not_a_pattern, suggested
from pytest_startup.profile.rule import Known, Wrong, value_at
from pytest_startup.redact import holds_token


def check_rules(data: Mapping[str, Any], known: Known) -> list[tuple[KeyPath, str]]:
    """Everything that breaks a rule: path and message."""
    alone: tuple[Callable[[Mapping[str, Any]], Wrong], ...] = (
        launch_rules.image,
        launch_rules.gpus,
        launch_rules.volumes,
        _restarts,
        _deadlines,
        _ranges,
        _throughput,
        _sessions,
        _patterns,
        _literal_secrets,
        _arguments,
        _nodes,
    )
    knowing: tuple[Callable[[Mapping[str, Any], Known], Wrong], ...] = (
        launch_rules.engine,
        launch_rules.launcher,
        _caches,
        _waivers,
    )
    out = [wrong for rule in alone for wrong in rule(data)]
    return out + [wrong for rule in knowing for wrong in rule(data, known)]


def warnings_of(data: Mapping[str, Any]) -> tuple[str, ...]:
    """What is allowed, but hardly meant."""
    out = []
    if not data.get("restarts"):
        out.append("restarts: none; only the reference start is judged, and nothing proves that it can be repeated")
    image = str(value_at(data, "launch", "container").get("image", ""))
    if image.endswith("sha256:" + "0" * 64):
        out.append("launch.container.image: the digest is the placeholder of an example; pin your own")
    if data["engine"]["model"] == "ORGANISATION/MODEL":
        out.append(
            "engine.model: ORGANISATION/MODEL is a placeholder; name your own, or a path relative to the profile"
        )
    if any(r.get("drop_page_cache") for r in data.get("restarts") or ()) and "checkpoint" not in data["launch"]:
        model = str(data["engine"]["model"])
        if not model.startswith((".", "/", "~")):
            out.append(
                "launch.checkpoint: not given, and the model is no path; "
                "the page cache of a hub's model can't be dropped"
            )
    return tuple(out)


def _restarts(data: Mapping[str, Any]) -> Wrong:
    launch = value_at(data, "launch")
    given = [k for k in ("process", "container", "custom") if k in launch]
    caches = {**value_at(data, "caches")}
    for node in value_at(data, "nodes"):
        caches |= value_at(data, "nodes", node, "caches")
    for index, row in enumerate(value_at(data, "restarts", kind=list)):
        kind = value_at(row, "kind", kind=str)
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
        for number, name in enumerate(value_at(row, "wipe", kind=list)):
            if isinstance(name, str) and name not in caches:
                yield ("restarts", index, "wipe", number), f"no entry {name} in caches; {suggested(name, caches)}"


def _caches(data: Mapping[str, Any], known: Known) -> Wrong:
    for name, cache in value_at(data, "caches").items():
        given = [key for key in ("path", "container") if isinstance(cache, dict) and key in cache]
        if len(given) != 1:
            yield (
                ("caches", name, *given[1:]),
                "expected exactly one of path (on the host) and container (a path in it)",
            )
        elif given == ["container"] and "container" not in value_at(data, "launch"):
            yield ("caches", name, "container"), "there is no launch.container; expected path, the folder on the host"
        text = value_at(cache, "path", kind=str)
        if not text:
            continue
        path = Path(os.path.normpath(known.folder / text.replace("${profile_dir}", str(known.folder))))
        if path in (Path("/"), Path.home(), known.folder, *known.folder.parents):
            yield (
                ("caches", name, "path"),
                f"{path} holds more than a cache, and wiping would remove all of it; expected a folder of its own",
            )


def _seconds(data: Mapping[str, Any], *path: str) -> float | None:
    text = value_at(data, *path, kind=(str,))
    try:
        return None if text is None else units.duration(text)
    except ValueError:
        return None


def _deadlines(data: Mapping[str, Any]) -> Wrong:
    deadlines = value_at(data, "deadlines")
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
        low, high = (value_at(data, *place, k, kind=(int, float)) for k in ("min", "max"))
        if low is not None and high is not None and low > high:
            yield (*place, "min"), f"{low} is above max {high}; expected min ≤ max"


def _throughput(data: Mapping[str, Any]) -> Wrong:
    asked = value_at(data, "expect", "throughput", "concurrency", kind=list)
    for key in value_at(data, "expect", "throughput", "min_tokens_per_second"):
        if asked and key not in [str(c) for c in asked]:
            path = ("expect", "throughput", "min_tokens_per_second", key)
            yield path, f"concurrency {key} is not measured; expected one of {', '.join(str(c) for c in asked)}"


def _sessions(data: Mapping[str, Any]) -> Wrong:
    tiers = value_at(data, "expect", "tiers")
    if "sessions" in tiers and tiers.get("external") in (None, False):
        found = "there is none" if "external" not in tiers else "that is false"
        yield (
            ("expect", "tiers", "sessions"),
            f"only external is judged by the returns of sessions, and {found}; "
            "expected external: true, or its least rate, beside it",
        )


def _patterns(data: Mapping[str, Any]) -> Wrong:
    for key in ("forbid", "require"):
        for index, row in enumerate(value_at(data, "expect", "log", key, kind=list)):
            path: KeyPath = ("expect", "log", key, index)
            pattern = row
            if isinstance(row, dict):
                path, pattern = (*path, "pattern"), row.get("pattern")
            if isinstance(pattern, str) and (wrong := not_a_pattern(pattern)):
                yield path, wrong


def _waivers(data: Mapping[str, Any], known: Known) -> Wrong:
    names = (*CHECKS, *known.checks)
    seen: dict[str, int] = {}
    for index, row in enumerate(value_at(data, "waive", kind=list)):
        check = value_at(row, "check", kind=str)
        if check and check not in names:
            yield ("waive", index, "check"), f"unknown check {check}; {suggested(check, names)}"
        elif check in seen:
            yield ("waive", index, "check"), f"{check} is waived twice, also in waive.{seen[check]}; remove one"
        seen.setdefault(check, index)
        until = value_at(row, "until", kind=str)
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


def _arguments(data: Mapping[str, Any]) -> Wrong:
    """Nothing goes through a shell: an option and its value in one element are an option that no engine knows."""
    for index, text in enumerate(value_at(data, "engine", "args", kind=list)):
        if isinstance(text, str) and (found := re.match(r"(--?[A-Za-z][\w.-]*)\s+(\S.*)", text)):
            yield (
                ("engine", "args", index),
                f"an option and its value in one element; expected two: {found[1]}, {found[2]!r}",
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
