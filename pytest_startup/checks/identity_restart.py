"""identity, second part: a restart is the engine of the reference start, in new processes."""

from __future__ import annotations

import re
from collections import Counter

from pytest_startup.checks import common
from pytest_startup.leftup import left_up
from pytest_startup.profile.model import Profile
from pytest_startup.record import JSON, Fact, StartRecord

#: Facts that must not change from the reference start to a restart.
STABLE = (
    "container.image",
    "host.page_size",
    "host.kernel",
    "gpu.name",
    "gpu.uuid",
    "gpu.driver",
    "config.max_model_len",
    "engine.revision",
)
#: Those of them that the arguments of a restart may change on purpose.
_ARGUED = ("config.max_model_len", "engine.revision")
#: Where scripts make files of their own, with another name each time.
_SCRATCH = ("/tmp/", "/var/tmp/", "/run/", "/dev/shm/")  # noqa: S108 - nothing is written there
_PORT_BEHIND = re.compile(r"(?<=[\w\].]):\d+$")


def silent_ranks(expected: JSON, start: StartRecord) -> list[str]:
    """Those of ``expected`` of which no line is. Lines of one rank may name more or fewer of its numbers."""
    now = [set(r.split("_")) for r in start.ranks()]
    ranks = [str(r) for r in expected] if isinstance(expected, list) else []
    silent = [r for r in ranks if not any(set(r.split("_")) <= p or p <= set(r.split("_")) for p in now)]
    return sorted(silent, key=common.natural)


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
    elif before and not now and any(c.status == 200 for c in start.completions):
        judging.not_observable(
            "the answers of the reference start carry the engine's fingerprint, those of this one none",
            common.listed(sorted(before)),
            "system_fingerprint of a completion",
            [common.answer_evidence(c) for c in before.values()],
            ("something else answers, or stands between: a proxy, another build",),
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
    silent = [
        f for f in reference.named("engine.version") if f.evidence.source not in {n.evidence.source for n in facts}
    ]
    if silent and start.failure is None:
        where = silent[0].evidence.source
        judging.not_observable(
            f"the version that the {where} gave on the reference start is not there on this one",
            str(silent[0].value),
            f"the engine's version ({where})",
            silent,
            ("what could be seen before is part of what was validated",),
            "reference",
        )


def _same_ranks(judging: common.Judging, reference: StartRecord, start: StartRecord) -> None:
    """Every rank that spoke in the log of the reference start speaks again: the others may serve without it."""
    before = [f for f in reference.facts if f.rank and f.evidence.source == "log"]
    if start.failure is not None:
        return
    names = silent_ranks([*{f.rank: None for f in before}], start)
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


def _began_later(reference: StartRecord, start: StartRecord, node: str | None) -> bool:
    """A pid that the kernel gave out again: the process began at another time."""
    before, now = ({f.value for f in r.named("process.start_time") if f.node == node} for r in (reference, start))
    return bool(before and now) and not before & now


def _same_options(judging: common.Judging, reference: StartRecord, start: StartRecord) -> None:
    """The arguments of the running engine are those of the reference start, whatever a script in between made of them.

    Words are compared where the kernel showed both; else, as for an engine that has ended, names of options alone.
    """
    for before in reference.named("process.argv"):
        fact = next((f for f in start.named("process.argv") if f.node == before.node), None)
        if fact is None:
            judging.not_observable(
                "the arguments of the running engine were seen on the reference start and are not on this one",
                " ".join(map(str, _list(before))),
                "process.argv",
                [before],
                source="reference",
            )
            continue
        both = all(f.evidence.where.startswith("/proc/") for f in (before, fact))
        old, new = (Counter(_settled(f)) if both else Counter({*_options(f)}) for f in (before, fact))
        other = sorted({*(old - new), *(new - old)})
        if other or (both and _settled(before) != _settled(fact)):
            what = common.listed(other) if other else "in another order"
            judging.failed(
                f"the running engine has other options than on the reference start: {what}",
                " ".join(map(str, _list(before))),
                [f"{common.who(fact)}: {' '.join(map(str, _list(fact)))}"],
                [fact, before],
                ("a wrapper script, or a file that it reads, changed between the starts",),
                "reference",
            )


def _options(fact: Fact) -> list[str]:
    return [str(a).partition("=")[0] for a in _list(fact) if str(a).startswith("--")]


def _settled(fact: Fact) -> list[str]:
    """What must be the same on each start: all words but the program itself, ports, and names in scratch folders."""
    out, option = [], ""
    for word in map(str, _list(fact)[1:]):
        name, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
        option = name if name else option
        if "port" in option:
            value = "PORT" if value else ""
        elif value.startswith(_SCRATCH):
            value = "SCRATCH"
        out.append(name + equals + _PORT_BEHIND.sub(":PORT", value))
    return out


def _same_files(judging: common.Judging, reference: StartRecord, start: StartRecord) -> None:
    """A file that is mounted without a pinned hash is at least the one of the reference start."""

    def hashes(record: StartRecord) -> dict[tuple[str | None, JSON], Fact]:
        return {(f.node, f.detail.get("path")): f for f in record.named("file.sha256")}

    before, now = hashes(reference), hashes(start)
    judging.saw(*now.values())
    changed = [(before[k], now[k]) for k in before if k in now and before[k].value != now[k].value]
    for old, new in changed:
        judging.failed(
            f"{new.detail.get('path')} changed since the reference start",
            f"sha256 {old.value}",
            [f"{common.who(new)}: sha256 {new.value}"],
            [old, new],
            ("nothing that was measured on the reference start holds for this one: pin the file by its sha256",),
            "reference",
        )
    gone = [f for k, f in before.items() if k not in now]
    if gone and start.failure is None:
        judging.not_observable(
            f"the hash of {gone[0].detail.get('path')} was seen on the reference start and is not on this one",
            f"sha256 {gone[0].value}",
            "file.sha256 of that path",
            gone,
            source="reference",
        )


def _still_up(judging: common.Judging, reference: StartRecord, start: StartRecord) -> None:
    """What a restart of other nodes left up since the reference start is the very process, and serves by the same."""
    up = {n for n, f in left_up(start).items() if f.value == reference.name}
    for node in sorted(up):
        for name in ("process.pid", "process.argv"):
            old, new = ([f for f in r.named(name) if f.node == node] for r in (reference, start))
            was, now = (
                {(f.evidence.where if name == "process.argv" else str(f.value)) for f in fs} for fs in (old, new)
            )
            if was and now and was != now and all(w.startswith("/proc/") or w.isdecimal() for w in was | now):
                judging.failed(
                    f"node {node} was to be left up, and its engine is another process than on the reference start",
                    common.listed(sorted(was)),
                    sorted(now),
                    [*old, *new],
                    ("something there started it again: a supervisor, a loop in a wrapper script",),
                    "reference",
                )
                break


def _list(fact: Fact) -> list[JSON]:
    return fact.value if isinstance(fact.value, list) else []


def same_as_reference(judging: common.Judging, profile: Profile, reference: StartRecord, start: StartRecord) -> None:
    """Facts, arguments, options, version, ranks and fingerprint are those of the reference start; the pids are not."""
    change = common.changed_on_purpose(common.restart_of(profile, start))
    if not change:
        _same_fingerprint(judging, reference, start)
    for name in (n for n in STABLE if not (change and n in _ARGUED)):
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
    _same_files(judging, reference, start)
    _still_up(judging, reference, start)
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
