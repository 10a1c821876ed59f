"""identity: what runs is what is pinned, and the same on a restart as on the reference start."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import PurePath

from pytest_startup.baseline import Baseline, mismatch
from pytest_startup.checks import common
from pytest_startup.checks.base import Verdict
from pytest_startup.leftup import left_up
from pytest_startup.observe.host import PINNED
from pytest_startup.profile.model import ContainerFile, Profile
from pytest_startup.record import JSON, Fact, StartRecord
from pytest_startup.redact import MASK, Redactor

#: Facts that must not change from the reference start to a restart.
STABLE = (
    "container.image",
    "host.page_size",
    "host.kernel",
    "gpu.name",
    "gpu.uuid",
    "gpu.driver",
    "config.max_model_len",
)
_PLAIN_RELEASE = re.compile(r"\d+(\.\d+)*")


def check(profile: Profile, reference: StartRecord | None, start: StartRecord, baseline: Baseline | None) -> Verdict:
    """Judges version, model, revision, arguments, image, files, host and GPUs; then equality with the reference."""
    judging = common.Judging("identity", "version, model, arguments, image, GPU or host facts of this start")
    _version(judging, profile, start)
    _model(judging, profile, start)
    _revision(judging, profile, start)
    _arguments(judging, profile, start)
    _image(judging, profile, start)
    _files(judging, profile, start)
    _host(judging, profile, start)
    if reference is not None:
        _same_as_reference(judging, profile, reference, start)
    if baseline is not None and (reasons := mismatch(baseline, profile, start)):
        judging.failed(
            "the baseline was accepted for something else, so nothing was compared with it: " + reasons[0],
            "the identity of the baseline",
            reasons,
            helps=("validate this engine anew and propose a new baseline (--startup-baseline propose)",),
            source="baseline",
        )
    elif (
        start.failure is None
        and (known := common.population(baseline, start))
        and (missing := _silent_ranks(known.values.get("ranks"), start))
    ):
        judging.not_observable(
            f"no line of this start is of rank {common.listed(missing)}, which the baseline has",
            common.listed(missing, 16),
            "a line of each rank",
            source="baseline",
        )
    return judging.verdict()


def same_version(pinned: str, said: str) -> bool:
    """Is ``said`` the pinned version?

    Compared exactly (``rc``, ``.dev`` and ``+local`` parts included), with one exception: a plain release (``0.31.0``)
    also accepts a local build label (``0.31.0+cpu``), since wheels carry one that the same engine's banner leaves out.
    """
    pinned, said = pinned.strip().removeprefix("v"), said.strip().removeprefix("v")
    if pinned == said:
        return True
    return _PLAIN_RELEASE.fullmatch(pinned) is not None and said.partition("+")[0] == pinned


def _version(judging: common.Judging, profile: Profile, start: StartRecord) -> None:
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


def _model(judging: common.Judging, profile: Profile, start: StartRecord) -> None:
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


def _revision(judging: common.Judging, profile: Profile, start: StartRecord) -> None:
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


def _arguments(judging: common.Judging, profile: Profile, start: StartRecord) -> None:
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


def _image(judging: common.Judging, profile: Profile, start: StartRecord) -> None:
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


def _files(judging: common.Judging, profile: Profile, start: StartRecord) -> None:
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


def _host(judging: common.Judging, profile: Profile, start: StartRecord) -> None:
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
    gpus = {(f.node, str(f.value)) for f in start.named("gpu.uuid")}
    if host.gpu_count and not gpus:
        judging.not_observable(
            f"{host.gpu_count} GPUs are pinned and none was seen",
            f"{host.gpu_count} GPUs",
            "gpu.uuid of NVML",
            source="host.gpu_count",
        )
    elif host.gpu_count is not None and len(gpus) != host.gpu_count:
        judging.failed(
            f"{len(gpus)} GPUs are in use, {host.gpu_count} are pinned",
            f"{host.gpu_count} GPUs",
            sorted(u for _, u in gpus),
            start.named("gpu.uuid"),
            source="host.gpu_count",
        )


def _without_port(argv: tuple[str, ...]) -> list[str]:
    out, skip = [], False
    for part in argv:
        if skip or part == "--port":
            skip = part == "--port"
        elif not part.startswith("--port="):
            out.append(part)
    return out


def _same_fingerprint(judging: common.Judging, reference: StartRecord, start: StartRecord) -> None:
    """vLLM's ``system_fingerprint`` hashes the whole configuration: equal over restarts, other for any other flag."""
    before, now = ({c.fingerprint: c for c in r.completions if c.fingerprint} for r in (reference, start))
    if before and now and set(before) != set(now):
        judging.failed(
            "the engine's own fingerprint changed since the reference start: it runs in another configuration",
            common.listed(sorted(before)),
            sorted(now),
            [common.answer_evidence(c) for c in (*before.values(), *now.values())],
            ("compare arguments and environment, and what the engine made of them: backend, eager mode, sleep mode",),
            "reference",
        )


def _same_version_as(judging: common.Judging, reference: StartRecord, start: StartRecord) -> None:
    """Each source (the log's banner, the endpoint) says what it said before: a pin may allow more than one build."""
    facts = [f for f in start.named("engine.version") if isinstance(f.value, str)]
    for source in dict.fromkeys(f.evidence.source for f in facts):
        now = {str(f.value).removeprefix("v"): f for f in facts if f.evidence.source == source}
        before = [f for f in reference.named("engine.version") if f.evidence.source == source]
        old = {str(f.value).removeprefix("v") for f in before}
        if old and (other := [f for v, f in now.items() if v not in old]):
            judging.failed(
                f"engine {other[0].value} runs, the reference start was {common.listed(sorted(old))}",
                common.listed(sorted(old)),
                [f"{f.value} ({source})" for f in other],
                [*other, *before],
                ("the installation was changed between the starts: validate the new one from its own reference start",),
                "reference",
            )
            return


def _same_ranks(judging: common.Judging, reference: StartRecord, start: StartRecord) -> None:
    """Every rank that spoke in the log of the reference start speaks again: the others may serve without it."""
    before = [f for f in reference.facts if f.rank and f.evidence.source == "log"]
    if start.failure is not None:
        return
    names = _silent_ranks([*{f.rank: None for f in before}], start)
    silent = [f for f in before if f.rank in names]
    if names:
        judging.not_observable(
            f"no line of this start is of rank {common.listed(names)}, which the reference start had",
            f"ranks {common.listed(reference.ranks(), 16)}",
            "a line of each rank",
            silent,
            ("an engine of several ranks may come up and answer with fewer: look for the ranks that are missing",),
            "reference",
        )


def _silent_ranks(expected: JSON, start: StartRecord) -> list[str]:
    """Those of ``expected`` of which no line is. Lines of one rank may name more or fewer of its numbers."""
    now = [set(r.split("_")) for r in start.ranks()]
    ranks = [str(r) for r in expected] if isinstance(expected, list) else []
    silent = [r for r in ranks if not any(set(r.split("_")) <= p or p <= set(r.split("_")) for p in now)]
    return sorted(silent, key=common.natural)


def _began_later(reference: StartRecord, start: StartRecord, node: str | None) -> bool:
    """A pid that the kernel gave out again: the process began at another time."""
    before, now = ({f.value for f in r.named("process.start_time") if f.node == node} for r in (reference, start))
    return bool(before and now) and not before & now


def _same_options(judging: common.Judging, reference: StartRecord, start: StartRecord) -> None:
    """The options of the running engine are those of the reference start, whatever a script in between added."""
    for fact in start.named("process.argv"):
        before = [f for f in reference.named("process.argv") if f.node == fact.node]
        old, new = (
            {str(a).partition("=")[0] for f in fs for a in _list(f) if str(a).startswith("--")}
            for fs in (before, [fact])
        )
        if before and old != new:
            judging.failed(
                f"the running engine has other options than on the reference start: {common.listed(sorted(old ^ new))}",
                " ".join(map(str, _list(before[0]))),
                [f"{common.who(fact)}: {' '.join(map(str, _list(fact)))}"],
                [fact, *before],
                ("a wrapper script, or a file that it reads, changed between the starts",),
                "reference",
            )


def _list(fact: Fact) -> list[JSON]:
    return fact.value if isinstance(fact.value, list) else []


def _same_as_reference(judging: common.Judging, profile: Profile, reference: StartRecord, start: StartRecord) -> None:
    change = common.changed_on_purpose(common.restart_of(profile, start))
    if not change:
        _same_fingerprint(judging, reference, start)
    for name in (n for n in STABLE if not (change and n.startswith("config."))):
        before, now = reference.named(name), start.named(name)
        old, new = ({(f.node, str(f.value)) for f in facts} for facts in (before, now))
        if old and new and old != new:
            judging.failed(
                f"{name} changed since the reference start",
                common.listed(sorted(v for _, v in old)),
                [f"{common.who(f)}: {f.value}" for f in now],
                [*before, *now],
                ("nothing that was measured on the reference start holds for this one",),
                "reference",
            )
        elif old and not new and start.failure is None:
            judging.not_observable(
                f"{name} was seen on the reference start and is not on this one",
                common.listed(sorted(v for _, v in old)),
                name,
                before,
                ("what could be seen before is part of what was validated: a driver or tool that is gone hides it",),
                "reference",
            )
        judging.saw(*now)
    if not change and reference.argv and start.argv and _without_port(reference.argv) != _without_port(start.argv):
        judging.failed(
            "the restart was launched with other arguments than the reference start",
            " ".join(_without_port(reference.argv)),
            [" ".join(_without_port(start.argv))],
            source="reference",
        )
    _same_version_as(judging, reference, start)
    if not change:
        _same_options(judging, reference, start)
        _same_ranks(judging, reference, start)
    old_pids = {(f.node, str(f.value)) for f in reference.named("process.pid")}
    up = left_up(start)
    again: list[Fact] = [
        f for f in start.named("process.pid") if (f.node, str(f.value)) in old_pids and f.node not in up
    ]
    again = [f for f in again if not _began_later(reference, start, f.node)]
    if again:
        judging.failed(
            f"process {again[0].value} is still the one of the reference start: nothing was restarted",
            "a new process",
            [f"{common.who(f)}: pid {f.value}" for f in again],
            again,
            source="reference",
        )
