"""identity, first part: what runs is what the profile pins: version, model, arguments, image, files, host."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import PurePath

from pytest_startup.checks import common
from pytest_startup.observe.host import PINNED
from pytest_startup.profile.model import ContainerFile, Profile
from pytest_startup.record import Fact, StartRecord
from pytest_startup.redact import MASK, Redactor

_PLAIN_RELEASE = re.compile(r"\d+(\.\d+)*")


def same_version(pinned: str, said: str) -> bool:
    """Is ``said`` the pinned version?

    Compared exactly (``rc``, ``.dev`` and ``+local`` parts included), with one exception: a plain release (``0.31.0``)
    also accepts a local build label (``0.31.0+cpu``), since wheels carry one that the same engine's banner leaves out.
    """
    pinned, said = pinned.strip().removeprefix("v"), said.strip().removeprefix("v")
    if pinned == said:
        return True
    return _PLAIN_RELEASE.fullmatch(pinned) is not None and said.partition("+")[0] == pinned


def version(judging: common.Judging, profile: Profile, start: StartRecord) -> None:
    """The engine says one version, and it is the pinned one."""
    facts = [f for f in start.named("engine.version") if isinstance(f.value, str)]
    pinned = profile.engine.version
    judging.saw(*facts)
    said = {str(f.value): f for f in facts}
    if pinned is None:
        plain = min(said, key=len) if said else ""
        other = [v for v in said if not same_version(plain, v)]
        if other:
            judging.failed(
                f"the engine gives two versions: {plain} and {other[0]}",
                "one version",
                [f"{v} ({f.evidence.source})" for v, f in said.items()],
                facts,
                ("two installations are mixed: look at PATH and PYTHONPATH of the engine",),
            )
    elif not facts:
        judging.not_observable(
            f"the engine never said its version, {pinned} is pinned",
            pinned,
            "a version in the log's banner or at the version endpoint",
            common.nearest(start, "engine."),
            ("a log level above INFO hides the banner",),
            "engine.version",
        )
    else:
        wrong = [f for v, f in said.items() if not same_version(pinned, v)]
        if wrong:
            judging.failed(
                f"engine {wrong[0].value} runs, {pinned} is pinned",
                pinned,
                [f"{f.value} ({f.evidence.source})" for f in wrong],
                wrong,
                ("install the pinned build, or validate this one and pin it",),
                "engine.version",
            )


def model(judging: common.Judging, profile: Profile, start: StartRecord) -> None:
    """What is served is the pinned model."""
    accepted = {profile.engine.model, str(PurePath(profile.engine.model)), profile.engine.served_name}
    facts = [f for f in start.named("engine.model") if isinstance(f.value, str)]
    judging.saw(*facts)
    wrong = [f for f in facts if f.value not in accepted and str(PurePath(str(f.value))) not in accepted]
    if wrong:
        judging.failed(
            f"the engine serves {wrong[0].value}, {profile.engine.model} is pinned",
            profile.engine.served_name or profile.engine.model,
            [f"{f.value} ({f.evidence.place()})" for f in wrong],
            wrong,
            ("is another server on this port, or another --served-model-name in force?",),
            "engine.model",
        )


def revision(judging: common.Judging, profile: Profile, start: StartRecord) -> None:
    """The revision in force is the pinned one."""
    pinned = profile.engine.revision
    if pinned is None:
        return
    facts = [f for f in start.named("engine.revision") if isinstance(f.value, str) and f.value != "None"]
    argv = list(start.argv)
    passed = {argv[i + 1] for i, a in enumerate(argv[:-1]) if a == "--revision"}
    passed |= {a.partition("=")[2] for a in argv if a.startswith("--revision=")}
    said = {str(f.value) for f in facts} or passed
    judging.saw(*facts)
    if said - {pinned}:
        judging.failed(
            f"model revision {sorted(said - {pinned})[0]} is in force, {pinned} is pinned",
            pinned,
            sorted(said),
            facts,
            source="engine.revision",
        )
    elif not said and pinned not in profile.engine.model:
        judging.not_observable(
            f"nothing shows the model's revision, {pinned} is pinned",
            pinned,
            "a revision in the engine's config line, or --revision among its arguments",
            common.nearest(start, "engine."),
            ("pass --revision, or pin the checkpoint's files",),
            "engine.revision",
        )


def arguments(judging: common.Judging, profile: Profile, start: StartRecord) -> None:
    """The pinned arguments stand, in order, in the command line that the kernel shows.

    Secrets among them were taken out of it; a replay without the environment doesn't know them (``${VAR}``).
    """
    shown = Redactor(profile.secrets).argv(profile.engine.args)
    pinned = [re.sub(r"\$\{\w+\}", lambda _: MASK, arg) for arg in shown]
    for fact in start.named("process.argv"):
        argv = [str(a) for a in fact.value] if isinstance(fact.value, list) else str(fact.value).split()
        judging.saw(fact)
        rest, missing = iter(argv), []
        for wanted in pinned:
            if wanted not in rest:
                missing.append(wanted)
                break
        if missing:
            judging.failed(
                f"the pinned argument {missing[0]} is not in the command line of the running engine",
                " ".join(pinned),
                [f"{common.who(fact)}: {' '.join(argv)}"],
                [fact],
                ("the launch command drops or reorders arguments: does a wrapper script stand in between?",),
                "engine.args",
            )


def _hex(text: str) -> set[str]:
    return set(re.findall(r"[0-9a-f]{64}", text))


def _unseen(nodes: Sequence[str], facts: Sequence[Fact]) -> str:
    """`` on worker``: the nodes that none of these facts is of, as a part of a sentence; empty if each has one."""
    unseen = [n for n in nodes if n not in {f.node for f in facts}]
    return f" on {common.listed(unseen)}" if unseen else ""


def _pinned(profile: Profile) -> Iterator[tuple[str, ContainerFile, Sequence[str]]]:
    """Every overlay file with a hash: its key, and the nodes in whose containers it is (empty without nodes)."""
    shared = profile.launch.container.files if profile.launch.container else ()
    for i, file in enumerate(shared):
        if file.sha256 is None:
            continue
        own = [n.name for n in profile.nodes if any(f.path == file.path for f in n.container.files)]
        nodes = [n.name for n in profile.nodes if n.name not in own]
        if nodes or not own:
            yield f"launch.container.files.{i}", file, nodes
    for node in profile.nodes:
        for i, file in enumerate(node.container.files):
            if file.sha256:
                yield f"nodes.{node.name}.container.files.{i}", file, [node.name]


def image(judging: common.Judging, profile: Profile, start: StartRecord) -> None:
    """Every container runs the pinned image."""
    container = profile.launch.container
    if container is None:
        return
    facts = start.named("container.image")
    judging.saw(*facts)
    where = _unseen([n.name for n in profile.nodes], facts)
    if not facts or where:
        judging.not_observable(
            f"nothing shows the image of the running container{where}",
            container.image,
            "the image id and repo digests of the container at the daemon",
            source="launch.container.image",
        )
    for fact in facts:
        if not _hex(container.image) & _hex(f"{fact.value} {dict(fact.detail)}"):
            judging.failed(
                f"the container runs image {fact.value}, another one is pinned",
                container.image,
                [f"{common.who(fact)}: {fact.value}"],
                [fact],
                ("a tag was moved, or the image was built again: pin the id or digest that was validated",),
                "launch.container.image",
            )


def files(judging: common.Judging, profile: Profile, start: StartRecord) -> None:
    """Every overlay file in a container has its pinned hash."""
    for key, pinned, nodes in _pinned(profile):
        facts = [f for f in start.named("file.sha256") if f.detail.get("path") in (pinned.path, str(pinned.host))]
        facts = [f for f in facts if not nodes or f.node in nodes]
        judging.saw(*facts)
        where = _unseen(nodes, facts)
        if not facts or where:
            judging.not_observable(
                f"nothing shows the hash of {pinned.path}{where}",
                str(pinned.sha256),
                "file.sha256 of that path",
                [f for f in start.named("file.unreadable") if f.value == pinned.path],
                source=key,
            )
        wrong = [f for f in facts if f.value != pinned.sha256]
        if wrong:
            judging.failed(
                f"{pinned.path} is not the pinned file",
                f"sha256 {pinned.sha256}",
                [f"{common.who(f)}: sha256 {f.value}" for f in wrong],
                wrong,
                source=key,
            )


def host(judging: common.Judging, profile: Profile, start: StartRecord) -> None:
    """Page size, kernel, GPUs and driver are the pinned ones."""
    host = profile.host
    for key, name in PINNED.items():
        pinned, facts = getattr(host, key), start.named(name)
        judging.saw(*facts)
        if pinned is None:
            continue
        if not facts:
            judging.not_observable(
                f"{name} is pinned to {pinned} and was not seen", str(pinned), name, source=f"host.{key}"
            )
        wrong = [f for f in facts if not host.fits(key, f.value)]
        if wrong:
            judging.failed(
                f"{name} is {wrong[0].value}, {pinned} is pinned",
                str(pinned),
                [f"{common.who(f)}: {f.value}" for f in wrong],
                wrong,
                source=f"host.{key}",
            )
    for node, count in _gpu_counts(profile).items():
        _count_gpus(judging, start, node, count)


def _gpu_counts(profile: Profile) -> dict[str | None, int]:
    """How many GPUs are to be seen, on each node by name; None: on this host. The pin speaks of a host's GPUs, and of
    those that a profile chooses no others are seen."""
    pinned, container = profile.host.gpu_count, profile.launch.container
    if pinned is None:
        return {}
    chosen = {n.name: n.gpus or ((container.gpus or ()) if container is not None else ()) for n in profile.nodes}
    counts: dict[str | None, int] = {}
    for node, gpus in chosen.items():
        counts[node] = min(pinned, len(gpus)) if gpus and "all" not in gpus else pinned
    return counts or {None: pinned}


def _count_gpus(judging: common.Judging, start: StartRecord, node: str | None, count: int) -> None:
    seen = [f for f in start.named("gpu.uuid") if node in (None, f.node)]
    judging.saw(*seen)
    found = {str(f.value) for f in seen}
    where = f" of node {node}" if node else ""
    if count and not found:
        judging.not_observable(
            f"{count} GPUs{where} are pinned and none was seen",
            f"{count} GPUs",
            "gpu.uuid of NVML",
            [f for f in start.named("gpu.memory_unknown") if f.node == node],
            source="host.gpu_count",
        )
    elif len(found) != count:
        judging.failed(
            f"{len(found)} GPUs{where} are in use, {count} are pinned",
            f"{count} GPUs",
            sorted(found),
            seen,
            source="host.gpu_count",
        )
