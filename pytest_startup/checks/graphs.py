"""graphs: CUDA graphs were captured in the expected mode, in the expected sizes and numbers, and not downgraded."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_startup.baseline import Baseline
from pytest_startup.checks import common
from pytest_startup.checks.base import Verdict
from pytest_startup.profile.model import Profile
from pytest_startup.record import Fact, StartRecord

#: Kinds that must be captured under each of vLLM's modes (0.11 and later).
KINDS = {
    "NONE": frozenset[str](),
    "PIECEWISE": frozenset({"PIECEWISE"}),
    "FULL": frozenset({"FULL"}),
    "FULL_DECODE_ONLY": frozenset({"FULL"}),
    "FULL_AND_PIECEWISE": frozenset({"FULL", "PIECEWISE"}),
}

#: Steps of serving below which their table may have been cut between a long prompt and what was decoded after it.
ENOUGH = 16


def check(profile: Profile, reference: StartRecord | None, start: StartRecord, baseline: Baseline | None) -> Verdict:
    """Judges captures against the profile, the baseline and the reference, then the mode, sizes and downgrades."""
    judging = common.Judging("graphs", "a progress bar or line of graph capture in the log")
    wanted, known = profile.expect.graphs, common.population(baseline, start)
    now = captured(start)
    judging.saw(*(f for _, f in now.values()))
    for kind, (done, _) in now.items():
        judging.numbers[f"graphs {kind}"] = done
    for name, counts in (
        ("expect.graphs.captured", wanted.captured),
        ("baseline", _counts(known.values.get("graphs.captured") if known else None)),
        ("reference", {k: done for k, (done, _) in captured(reference).items()} if reference else {}),
    ):
        if counts:
            _as_many(judging, counts, now, name)
    _complete(judging, now)
    _served(judging, start, now)
    mode = _mode(judging, profile, start, now)
    _sizes(judging, profile, reference, start)
    _downgrades(judging, profile, start, mode)
    _seconds(judging, profile, start)
    return judging.verdict()


def captured(record: StartRecord) -> dict[str, tuple[int, Fact]]:
    """Graphs captured per kind as in the bars: of several ranks the smallest last state.

    A bar that another rank's line cuts in two goes on without a name (vLLM): such a rest counts for every rank.
    """
    states: dict[str, dict[str | None, tuple[int, Fact]]] = {}
    for fact in record.named("graphs.captured"):
        done, kind = fact.member("done"), fact.member("kind")
        count = common.number(fact.value if done is None else done)
        if count is None:
            continue
        ranks = states.setdefault("graphs" if kind is None else str(kind), {})
        if fact.rank not in ranks or count > ranks[fact.rank][0]:
            ranks[fact.rank] = (int(count), fact)
    found = {}
    for kind, ranks in states.items():
        rest = ranks.pop(None, None)
        least = min(ranks.values(), key=lambda s: s[0], default=rest)
        found[kind] = rest if least is None or (rest is not None and rest[0] > least[0]) else least
    return {kind: state for kind, state in found.items() if state is not None}


def effective_mode(kinds: Mapping[str, object]) -> str:
    """The mode that the captured kinds amount to; ``decode, FULL`` is of kind FULL."""
    seen = {k.rpartition(",")[2].strip().upper() for k in kinds} & {"FULL", "PIECEWISE"}
    return {2: "FULL_AND_PIECEWISE", 0: "NONE"}.get(len(seen)) or next(iter(seen))


def _counts(value: object) -> dict[str, int]:
    return {str(k): int(v) for k, v in value.items()} if isinstance(value, Mapping) else {}


def _as_many(
    judging: common.Judging, expected: Mapping[str, int], now: Mapping[str, tuple[int, Fact]], source: str
) -> None:
    """Fewer graphs of any kind are a failure; more are not."""
    text = ", ".join(f"{n} {k}" for k, n in expected.items())
    if not now and sum(expected.values()) > 0:
        judging.failed(
            f"no CUDA graph was captured, {text} are expected",
            text,
            ["no graphs"],
            helps=(
                "an eager start is faster to be ready and slower ever after: look for --enforce-eager or mode NONE",
            ),
            source=source,
        )
        return
    less = []
    for kind, count in expected.items():
        done = next((d for k, (d, _) in now.items() if common.same_name(k, kind) or k.endswith(f", {kind}")), 0)
        if done < count:
            less.append(f"{done} of {count} {kind}")
    if less:
        judging.failed(
            f"fewer CUDA graphs were captured: {common.listed(less)}",
            text,
            [f"{k}: {d}" for k, (d, _) in now.items()],
            [f for _, f in now.values()],
            ("batch sizes without a graph run eager and slow: compare capture sizes, max-num-seqs and graph mode",),
            source,
        )


def _complete(judging: common.Judging, now: Mapping[str, tuple[int, Fact]]) -> None:
    for kind, (done, fact) in now.items():
        total = common.number(fact.member("total"))
        if total is not None and done < total:
            judging.failed(
                f"capture of {kind} stopped at {done} of {total:.0f} on {common.who(fact)}",
                f"{total:.0f} graphs",
                [f"{done} graphs"],
                [fact],
                ("out of memory during capture shows so: free memory or fewer sizes",),
            )


def _served(judging: common.Judging, start: StartRecord, now: Mapping[str, tuple[int, Fact]]) -> None:
    """By the engine's own statistics (--cudagraph-metrics): serving replays what was captured. Full graphs are for
    decoding, which every answer does; a prompt longer than the largest size rightly runs without."""
    facts = [f for f in start.named("graphs.served") if common.number(f.member("steps")) is not None]
    steps: dict[str, int] = {}
    for fact in facts:
        kind = str(fact.member("kind"))
        steps[kind] = steps.get(kind, 0) + int(common.number(fact.detail.get("total", fact.member("steps"))) or 0)
    if not facts:
        return
    judging.saw(*facts)
    judging.numbers.update({f"steps {kind}": count for kind, count in steps.items()})
    typed = {k.rpartition(",")[2].strip().upper() for k, (done, _) in now.items() if done} & {"FULL", "PIECEWISE"}
    wanted = "FULL" if "FULL" in typed else "PIECEWISE"
    if typed and not steps.get(wanted) and sum(steps.values()) >= ENOUGH:
        seen = [f"{kind}: {count:,} steps" for kind, count in steps.items()]
        judging.failed(
            f"{wanted} graphs were captured and serving never used them: {common.listed(seen)}",
            f"steps of serving in mode {wanted}",
            seen,
            facts,
            ("graphs that are not replayed give nothing: look for a backend or a feature that falls back to eager",),
        )


def _stated_modes(start: StartRecord) -> list[Fact]:
    facts = [f for f in start.named("graphs.mode") if isinstance(f.value, str)]
    return [f for f in facts if not f.detail.get("requested")]


def _asked_for_none(start: StartRecord) -> list[Fact]:
    """That no graphs were asked for is enough to know that there are none, where none was captured."""
    return [f for f in start.named("graphs.mode") if isinstance(f.value, str) and common.same_name(f.value, "NONE")]


def _mode(
    judging: common.Judging, profile: Profile, start: StartRecord, now: Mapping[str, tuple[int, Fact]]
) -> str | None:
    """The effective mode: captures prove it, a line states it. Returns the expected mode if it was reached."""
    wanted = profile.expect.graphs.mode
    stated = _stated_modes(start) or ([] if now else _asked_for_none(start))
    if wanted is None:
        return None
    mode = wanted.upper()
    expected_kinds = KINDS.get(mode)
    typed = {k.rpartition(",")[2].strip().upper() for k in now}
    if not now and not stated:
        judging.not_observable(
            f"nothing shows the graph mode, {mode} is expected",
            mode,
            "graphs.mode or a capture bar in the log",
            common.nearest(start, "graphs."),
            source="expect.graphs.mode",
        )
        return None
    judging.saw(*stated[-1:])
    real = effective_mode(now) if now else str(stated[-1].value).rpartition(".")[2].upper()
    untyped = bool(now) and not typed & {"FULL", "PIECEWISE"}
    reached = real == mode if expected_kinds is None or not now else expected_kinds == typed & {"FULL", "PIECEWISE"}
    if untyped:
        reached = bool(stated) and common.same_name(str(stated[-1].value).rpartition(".")[2], mode)
    if reached:
        return mode
    judging.failed(
        f"CUDA graphs run in mode {real}, {mode} is expected",
        mode,
        [f"captured {k}: {d}" for k, (d, _) in now.items()] or [f"{f.value}" for f in stated[-1:]],
        [*(f for _, f in now.values()), *stated[-1:]],
        ("a mode is lowered where attention backend or speculative decoding do not support it: read the warnings",),
        "expect.graphs.mode",
    )
    return None


def _size_facts(record: StartRecord) -> list[Fact]:
    facts = [f for f in record.named("graphs.sizes") if isinstance(f.value, list)]
    return [f for f in facts if not f.detail.get("requested")] or facts


def _size_set(facts: list[Fact]) -> set[int]:
    last = facts[-1].value if facts else []
    return {int(n) for v in last if (n := common.number(v)) is not None} if isinstance(last, list) else set()


def _sizes(judging: common.Judging, profile: Profile, reference: StartRecord | None, start: StartRecord) -> None:
    facts = _size_facts(start)
    sizes = _size_set(facts)
    before = _size_set(_size_facts(reference)) if reference else set()
    for source, expected in (("expect.graphs.sizes", set(profile.expect.graphs.sizes or ())), ("reference", before)):
        if not expected:
            continue
        if not facts:
            if source != "reference":
                judging.not_observable(
                    "nothing shows the capture sizes", str(sorted(expected)), "graphs.sizes in the log", source=source
                )
        elif missing := sorted(expected - sizes):
            judging.failed(
                f"no graph for batch sizes {common.listed(map(str, missing))}",
                f"sizes {common.listed(map(str, sorted(expected)), 60)}",
                [f"sizes {common.listed(map(str, sorted(sizes)), 60) or 'none'}"],
                facts[-1:],
                source=source,
            )
    if profile.expect.graphs.sizes and sizes:
        judging.saw(*facts[-1:])


def _downgrades(judging: common.Judging, profile: Profile, start: StartRecord, reached: str | None) -> None:
    """A downgrade is a failure unless the profile's mode is the one that was reached all the same."""
    facts = start.named("graphs.downgraded")
    if facts and reached is None:
        judging.failed(
            f"the engine lowered its CUDA graph mode{common.on(facts[0])}: {common.excerpt(str(facts[0].value))}",
            profile.expect.graphs.mode or "the mode that was asked for",
            dict.fromkeys(f"{common.who(f)}: {common.excerpt(str(f.value), 160)}" for f in facts),
            facts,
            ("if this mode is meant, name it: expect.graphs.mode",),
            "expect.graphs.mode",
        )


def _seconds(judging: common.Judging, profile: Profile, start: StartRecord) -> None:
    limit = profile.expect.graphs.max_seconds
    facts = [f for f in start.named("graphs.seconds") if common.number(f.value) is not None]
    if facts:
        judging.numbers["graph capture s"] = max(common.number(f.value) or 0.0 for f in facts)
    late = [f for f in facts if limit is not None and (common.number(f.value) or 0.0) > limit]
    if late:
        judging.failed(
            f"graph capture took {late[0].value} s on {common.who(late[0])}, the limit is {limit:g} s",
            f"at most {limit:g} s",
            [f"{common.who(f)}: {f.value} s" for f in late],
            late,
            source="expect.graphs.max_seconds",
        )
    elif limit is not None and not facts:
        judging.not_observable(
            "nothing shows how long graph capture took",
            f"{limit:g} s",
            "graphs.seconds",
            source="expect.graphs.max_seconds",
        )
