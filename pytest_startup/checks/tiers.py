"""tiers: cache tiers and speculative decoding that are configured were really used by our own workload."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_startup.baseline import Baseline
from pytest_startup.checks import common, tiers_sessions
from pytest_startup.checks.base import Verdict
from pytest_startup.profile.model import Profile
from pytest_startup.record import Fact, StartRecord
from pytest_startup.workload.window import RETURNS

NEVER_REACHED = (
    "a tier that is never reached gives nothing: the first tier may be large enough for the workload,"
    " or the connector failed quietly; read its lines in the log"
)


@dataclass(frozen=True)
class Tier:
    """``used`` of ``offered`` are counters over our own workload window; ``args`` configure the tier (vLLM, SGLang)."""

    key: str
    name: str
    used: str
    offered: str
    unit: str
    args: tuple[str, ...]
    log_rate: str | None = None


TIERS = (
    Tier("prefix", "prefix cache", "cache.prefix_hits", "cache.prefix_queries", "tokens", (), "cache.prefix_hit_rate"),
    Tier(
        "external",
        "external cache tier",
        "cache.external_hits",
        "cache.external_queries",
        "tokens",
        ("--kv-transfer-config", "--kv-offloading-size", "--enable-hierarchical-cache", "--enable-lmcache"),
        "cache.external_hit_rate",
    ),
    Tier(
        "spec_decode",
        "speculative decoding",
        "spec.accepted",
        "spec.drafted",
        "tokens",
        ("--speculative-config", "--speculative-algorithm", "--spec-model"),
    ),
)


def check(profile: Profile, _reference: StartRecord | None, start: StartRecord, _baseline: Baseline | None) -> Verdict:
    """Judges each tier that the profile expects, or that its arguments or the log configure."""
    judging = common.Judging("tiers", "a configured tier: none is expected, and none is among the engine's arguments")
    came_back = tiers_sessions.judge(judging, profile, start)
    for tier in TIERS:
        least, source = demand(profile, start, tier)
        if least is not None and (came_back or tier.key != "external"):
            _judge(judging, start, tier, least, source)
    return judging.verdict()


def demand(profile: Profile, start: StartRecord | None, tier: Tier) -> tuple[float | None, str]:
    """The least rate (0.0: any use at all) and where it stands; None if nothing asks for this tier."""
    wanted = getattr(profile.expect.tiers, tier.key) if profile.expect.tiers else None
    source = f"expect.tiers.{tier.key}"
    if wanted is False:
        return None, source
    if wanted is not None:
        return (0.0 if wanted is True else float(wanted)), source
    if any(a == t or a.startswith(f"{t}=") for a in profile.engine.args for t in tier.args):
        return 0.0, "engine.args"
    if tier.key == "external" and start is not None and start.named("tier.configured"):
        return 0.0, "engine.args"
    return None, source


def _total(record: StartRecord, tier: Tier, name: str) -> tuple[float | None, list[Fact]]:
    """Sum over engines, None if none gives the counter. What the workload added goes before totals since launch.

    The first turn of long sessions can't hit anything, and their returns are meant to find nothing in the engine's own
    cache: they alone count for ``external``, and not at all for ``prefix``.
    """
    facts = [f for f in record.named(name) if common.number(f.value) is not None and f.evidence.source != "log"]
    if tier.key == "external" and record.named("workload.sessions"):
        facts = [f for f in facts if f.detail.get("window") == RETURNS]
    elif tier.key == "prefix":
        facts = [f for f in facts if "window" not in f.detail]
    facts = [f for f in facts if f.evidence.source == "workload"] or facts
    return (sum(common.number(f.value) or 0.0 for f in facts) if facts else None), facts


def _judge(judging: common.Judging, start: StartRecord, tier: Tier, least: float, source: str) -> None:
    used, used_facts = _total(start, tier, tier.used)
    offered, offered_facts = _total(start, tier, tier.offered)
    facts = [*used_facts, *offered_facts]
    expected = f"at least {common.percent(least)}" if least else "some use by the workload"
    returns = any(f.detail.get("window") == RETURNS for f in facts) and tier.key == "external"
    if used is None or offered is None:
        sessions = tier.key == "external" and start.named("workload.sessions")
        rate = None if sessions else _rate_of_log(start, tier)  # the log's is of all that was ever asked
        if rate is not None and common.number(rate.value):
            judging.saw(rate)
            value = (common.number(rate.value) or 0.0) / 100
            judging.numbers[f"{tier.name} %"] = round(value * 100, 1)
            if value < least:
                _too_low(judging, tier, value, expected, [f"{rate.value} % (log)"], [rate], source)
            return
        judging.not_observable(
            f"nothing shows whether the {tier.name} was used",
            expected,
            f"{tier.used} and {tier.offered} at the metrics endpoint, over the workload",
            [*start.named("tier.configured"), *facts],
            ("metrics must be switched on (SGLang: --enable-metrics)",),
            source,
        )
        return
    judging.saw(*facts)
    seen = [f"{common.shown(used)} of {common.shown(offered, tier.unit)}"]
    helps: tuple[str, ...] = ()
    if tier.key == "external":
        seen += tiers_sessions.own_share(start)
        helps = tiers_sessions.helps(start)
    if offered == 0 or used == 0:
        why = "was never asked" if offered == 0 else "never gave anything"
        when = "when the sessions came back" if returns else "during the workload"
        judging.not_exercised(
            f"the {tier.name} is configured and {why} {when}",
            expected,
            seen,
            [*facts, *start.named("tier.configured")],
            helps or (NEVER_REACHED,),
            source,
        )
        return
    if used > offered:
        judging.failed(
            f"the {tier.name} is said to have given more than it was asked for",
            f"at most {common.shown(offered, tier.unit)}",
            seen,
            facts,
            ("these counters are not what they are called: read them at the metrics endpoint",),
            source,
        )
        return
    judging.numbers[f"{tier.name} %"] = round(used / offered * 100, 1)
    if returns:
        tiers_sessions.each_engine(judging, start, used_facts, offered_facts, source)
    if used / offered < least:
        _too_low(judging, tier, used / offered, expected, seen, facts, source, returns)


def _too_low(
    judging: common.Judging,
    tier: Tier,
    rate: float,
    expected: str,
    seen: list[str],
    facts: list[Fact],
    source: str,
    returns: bool = False,
) -> None:
    what = "the sessions that came back" if returns else "the workload"
    judging.failed(
        f"the {tier.name} served {common.percent(rate)} of {what}, {expected} is asked for",
        expected,
        seen,
        facts,
        source=source,
    )


def _rate_of_log(start: StartRecord, tier: Tier) -> Fact | None:
    """The engine's own percentage, last state, where the metrics give no counters."""
    facts = start.named(tier.log_rate) if tier.log_rate else []
    return facts[-1] if facts else None
