"""kv: the capacity of the KV cache equals what was validated; metrics first, log second; the smallest rank decides."""

from __future__ import annotations

from pytest_startup.baseline import Baseline
from pytest_startup.checks import common
from pytest_startup.checks.base import Verdict
from pytest_startup.profile.model import Profile
from pytest_startup.record import Fact, StartRecord

_KEY = "expect.kv.tokens"


def check(profile: Profile, reference: StartRecord | None, start: StartRecord, baseline: Baseline | None) -> Verdict:
    """Judges the sources against each other, the spread over engines, then profile, baseline or reference."""
    judging = common.Judging("kv", "kv.tokens at the metrics endpoint or in the log")
    tokens = capacities(start)
    judging.saw(*tokens)
    _sources_agree(judging, profile, tokens)
    _spread(judging, profile, tokens)
    if reference is not None and not common.changed_on_purpose(common.restart_of(profile, start)):
        _same_engines(judging, capacities(reference), tokens)
    own = smallest(start)
    if own is not None:
        judging.numbers["KV tokens"] = int(own[0])
        _expected(judging, profile, reference, start, baseline, own)
    elif _is_pinned(profile):
        judging.not_observable(
            "nothing shows the capacity of the KV cache",
            common.range_text(profile.expect.kv.tokens, "tokens"),
            "kv.tokens at the metrics endpoint or in the log",
            common.nearest(start, "kv."),
            source=_KEY,
        )
    _available(judging, profile, start)
    return judging.verdict()


def capacities(record: StartRecord) -> list[Fact]:
    """Statements of the target model's capacity; a drafter's own pool is not it.

    A capacity that is only derived (blocks × block size, summed over engines) counts where nothing else states one.
    """
    facts = [f for f in record.named("kv.tokens") if common.number(f.value) is not None]
    facts = [f for f in facts if f.detail.get("role", "model") != "drafter"]
    return [f for f in facts if not f.detail.get("derived")] or facts


def _tokens(fact: Fact) -> float:
    return common.number(fact.value) or 0.0


def smallest(record: StartRecord) -> tuple[float, Fact] | None:
    """The capacity that decides: the smallest of any engine or worker; the metrics' statement of it if there is one."""
    facts = capacities(record)
    if not facts:
        return None
    least = min(facts, key=lambda f: (_tokens(f), f.evidence.source != "endpoint"))
    return _tokens(least), least


def _is_pinned(profile: Profile) -> bool:
    tokens = profile.expect.kv.tokens
    return tokens.exact is not None or tokens.min is not None or tokens.max is not None


def _sources_agree(judging: common.Judging, profile: Profile, facts: list[Fact]) -> None:
    """Each value of the metrics must also stand in the log, where the log states any.

    With several engines vLLM's metric shows one engine's capacity on the series of all, and ``num_gpu_blocks`` is their
    sum (0.24 and later): so a metric value must be *one* of the log's values, and blocks are never multiplied out.
    """
    metrics = [f for f in facts if f.evidence.source == "endpoint"]
    log = [f for f in facts if f.evidence.source == "log"]
    said = {_tokens(f) for f in log}
    allowed = profile.expect.kv.tolerance
    stray = [f for f in metrics if said and not any(abs(_tokens(f) - v) <= allowed * v for v in said)]
    if stray:
        judging.failed(
            f"metrics and log disagree about the KV cache: {common.shown(_tokens(stray[0]))} against "
            f"{common.listed([common.shown(v) for v in sorted(said)])} tokens",
            "one capacity, whoever states it",
            [f"{f.evidence.source}, {common.who(f)}: {common.shown(_tokens(f), 'tokens')}" for f in [*metrics, *log]],
            [*stray, *log],
            ("another engine may answer on this port",),
        )


def _spread(judging: common.Judging, profile: Profile, facts: list[Fact]) -> None:
    """Engines or workers of one start with different capacities are never merged silently."""
    log = [f for f in facts if f.evidence.source == "log"] or facts
    if not log:
        return
    least, most = min(log, key=_tokens), max(log, key=_tokens)
    spread = _tokens(most) - _tokens(least)
    if spread > profile.expect.kv.tolerance * _tokens(most):
        judging.failed(
            f"{common.who(least)} has {common.shown(spread)} KV tokens less than {common.who(most)}; "
            "the smallest decides",
            f"the same capacity everywhere, within {common.percent(profile.expect.kv.tolerance)}",
            [f"{common.who(f)}: {common.shown(_tokens(f), 'tokens')}" for f in log],
            [least, most],
            ("free memory differs between the devices: look for leftovers of other processes on the smaller one",),
            "expect.kv.tolerance",
        )


def _same_engines(judging: common.Judging, before: list[Fact], now: list[Fact]) -> None:
    """Each engine that stated its capacity on the reference start states it again, wherever any is stated."""
    for source in ("log", "endpoint"):
        old, new = ({common.who(f): f for f in facts if f.evidence.source == source} for facts in (before, now))
        missing = [name for name in old if name not in new]
        if new and missing:
            judging.not_observable(
                f"nothing shows the capacity of {common.listed(missing)}, which the reference start stated",
                common.listed(old),
                f"kv.tokens of {common.listed(missing)} ({source})",
                [*new.values(), *(old[name] for name in missing)],
                ("an engine of several may be missing: those that are left answer for it",),
                "reference",
            )


def _expected(
    judging: common.Judging,
    profile: Profile,
    reference: StartRecord | None,
    start: StartRecord,
    baseline: Baseline | None,
    own: tuple[float, Fact],
) -> None:
    limits, tolerance = profile.expect.kv.tokens, profile.expect.kv.tolerance
    value, fact = own
    if _is_pinned(profile):
        if not common.within(value, limits, tolerance):
            wanted = (
                limits.exact or (limits.min if limits.min is not None and value < limits.min else limits.max) or 0.0
            )
            _differs(judging, value, wanted, fact, common.range_text(limits, "tokens"), _KEY, "")
        return
    known = common.population(baseline, start)
    accepted = common.number(known.values.get("kv.tokens")) if known else None
    if accepted is not None:
        if abs(value - accepted) > tolerance * accepted:
            text = common.shown(accepted, "tokens") + _plus_minus(tolerance)
            _differs(judging, value, accepted, fact, text, "baseline", "")
        return
    before = smallest(reference) if reference else None
    if before is not None and abs(value - before[0]) > tolerance * before[0] and reference is not None:
        text = common.shown(before[0], "tokens") + _plus_minus(tolerance)
        _differs(judging, value, before[0], fact, text, "reference", _cache_states(reference, start), before[1])


def _plus_minus(tolerance: float) -> str:
    return f" ± {common.percent(tolerance)}" if tolerance else ""


def _differs(
    judging: common.Judging,
    value: float,
    wanted: float,
    fact: Fact,
    expected: str,
    source: str,
    states: str,
    before: Fact | None = None,
) -> None:
    difference = value - wanted
    share = f" ({common.percent(abs(difference) / wanted)})" if wanted else ""
    direction = "less" if difference < 0 else "more"
    against = {"baseline": " than the baseline", "reference": " than the reference start"}.get(source, " than expected")
    helps = ["look at memory in use before the start, at memory flags, and at what else runs on the device"]
    if states:
        helps = [
            "memory is profiled while torch.compile runs cold, so that a first start books its scratch as activations:"
            " take a warm start as reference, or fix the size with --kv-cache-memory-bytes"
        ]
    judging.failed(
        f"the KV cache holds {common.shown(abs(difference))} tokens {direction}{against}{share}{states}",
        expected,
        [f"{common.who(fact)}: {common.shown(value, 'tokens')} ({fact.evidence.source})"],
        [fact, *([before] if before else [])],
        helps,
        source,
    )


def compile_state(record: StartRecord) -> str | None:
    """``cold`` if anything was compiled and saved, ``warm`` if only loaded, None if the log tells neither."""
    if record.named("compile.cache_written", "compile.range"):
        return "cold"
    return "warm" if record.named("compile.cache_loaded") else None


def _cache_states(reference: StartRecord, start: StartRecord) -> str:
    """Names the compile caches' states where they differ: the usual reason of a different capacity."""
    before, now = compile_state(reference), compile_state(start)
    if before and now and before != now:
        return f"; the compile cache was {before} on the reference start and {now} on this one"
    return ""


def _available(judging: common.Judging, profile: Profile, start: StartRecord) -> None:
    limits = profile.expect.kv.available_gib
    facts = [f for f in start.named("kv.available") if common.number(f.value) is not None]
    if limits is None:
        return
    if not facts:
        judging.not_observable(
            "nothing shows the memory available for the KV cache",
            common.range_text(limits, "GiB"),
            "kv.available in the log (not printed when the size is fixed by an argument)",
            common.nearest(start, "kv."),
            source="expect.kv.available_gib",
        )
        return
    judging.saw(*facts)
    wrong = [f for f in facts if not common.within(common.number(f.value) or 0.0, limits, profile.expect.kv.tolerance)]
    if wrong:
        judging.failed(
            f"{wrong[0].value} GiB are available for the KV cache on {common.who(wrong[0])}",
            common.range_text(limits, "GiB"),
            [f"{common.who(f)}: {f.value} GiB" for f in facts],
            wrong,
            source="expect.kv.available_gib",
        )
