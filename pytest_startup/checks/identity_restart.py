"""identity, second part: a restart is the engine of the reference start, in new processes."""

from __future__ import annotations

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
)


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


def same_as_reference(judging: common.Judging, profile: Profile, reference: StartRecord, start: StartRecord) -> None:
    """Facts, arguments, options, version, ranks and fingerprint are those of the reference start; the pids are not."""
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
