"""backend: the kernels that were chosen are the expected ones, on every rank, for the model and for its drafter."""

from __future__ import annotations

import re

from pytest_startup.baseline import Baseline
from pytest_startup.checks import common
from pytest_startup.checks.base import Verdict
from pytest_startup.profile.model import Profile
from pytest_startup.record import JSON, Fact, StartRecord

#: Key of ``expect.backend`` → fact name. ``drafter`` is a role of ``backend.attention``.
NAMES = {
    "attention": "backend.attention",
    "drafter": "backend.attention",
    "moe": "backend.moe",
    "linear": "backend.linear",
    "all2all": "backend.all2all",
    "kv_dtype": "backend.kv_dtype",
}
_ENUM = re.compile(r"^\w*Enum\.")
#: vLLM 0.15 and later print the choice with its candidates, and then the class that implements it: two statements of
#: one thing (``Using FlashInfer CUTLASS … out of potential backends``, then ``Using FlashInferExperts MoE backend``).
_CHOICE = re.compile(r"out of potential|user-requested", re.IGNORECASE)


def check(profile: Profile, reference: StartRecord | None, start: StartRecord, baseline: Baseline | None) -> Verdict:
    """Judges each role against the profile, the ranks against each other, then the reference, then fallbacks."""
    judging = common.Judging("backend", "a line that names an attention, MoE, linear or all2all backend")
    known = common.population(baseline, start)
    for key in NAMES:
        facts = of_role(start, key)
        judging.saw(*(f for f in facts if not common.same_name(str(f.value), "auto")))  # a wish is no choice
        expected = getattr(profile.expect.backend, key)
        if expected:
            _expected(judging, start, key, expected, facts)
        _ranks_agree(judging, key, facts)
        if reference is not None:
            _as_before(judging, key, of_role(reference, key), facts)
        accepted = known.values.get(f"backend.{key}") if known else None
        if accepted and not facts and not expected:
            judging.not_observable(
                f"the baseline has the {key} backend {common.listed(_names_of(accepted))}, this start names none",
                common.listed(_names_of(accepted)),
                f"{NAMES[key]} in the log of this start",
                common.nearest(start, "backend."),
                source="baseline",
            )
        elif (
            accepted
            and facts
            and {*map(common.plain_name, names(facts))} != {*map(common.plain_name, _names_of(accepted))}
        ):
            judging.failed(
                f"the {key} backend is {common.listed(sorted(names(facts)))}, the baseline has {accepted}",
                str(accepted),
                _per_rank(facts),
                facts,
                source="baseline",
            )
    _fallbacks(judging, profile, reference, start)
    return judging.verdict()


def of_role(record: StartRecord, key: str) -> list[Fact]:
    """Statements of one key of ``expect.backend``."""
    facts = [f for f in record.named(NAMES[key]) if isinstance(f.value, str) and not f.detail.get("requested")]
    facts = [
        f for f in facts if f.evidence.source == "log"
    ] or facts  # an endpoint may say "auto" where the log resolves
    if key == "drafter":
        return [f for f in facts if f.detail.get("role") == "drafter"]
    return [f for f in facts if f.detail.get("role", "model") == "model"] if key == "attention" else facts


def names(facts: list[Fact]) -> dict[str, Fact]:
    """Distinct names as printed, each with its first statement. Spelling variants of one name count once.

    vLLM prints a backend that was asked for as ``AttentionBackendEnum.FLASHINFER``, its own choice as ``FLASHINFER``.
    """
    found: dict[str, Fact] = {}
    plain: set[str] = set()
    for fact in facts:
        name = _ENUM.sub("", str(fact.value))
        if common.plain_name(name) not in plain:
            plain.add(common.plain_name(name))
            found[name] = fact
    return found


def choices(facts: list[Fact]) -> list[Fact]:
    """The statements of a choice where there are any, else all."""
    return [f for f in facts if _CHOICE.search(f.evidence.text)] or facts


def _names_of(accepted: JSON) -> list[str]:
    return [str(name) for name in accepted] if isinstance(accepted, list) else [str(accepted)]


def _per_rank(facts: list[Fact]) -> list[str]:
    return [f"{rank}: {common.listed(names(those))}" for rank, those in common.by_rank(facts).items()]


def _expected(judging: common.Judging, start: StartRecord, key: str, expected: str, facts: list[Fact]) -> None:
    """``expected`` is one name, or several with commas for a model whose layers use several."""
    source = f"expect.backend.{key}"
    if not facts:
        judging.not_observable(
            f"no line states the {key} backend, {expected} is expected",
            expected,
            f"{NAMES[key]} in the log",
            common.nearest(start, "backend."),
            ("the line may stand at a log level that is switched off",),
            source,
        )
        return
    allowed = {common.plain_name(n) for n in expected.split(",")}
    for those in common.by_rank(facts).values():
        found = names(choices(those))
        wrong = [n for n in found if common.plain_name(n) not in allowed]
        if wrong:
            judging.failed(
                f"the {key} backend{common.on(found[wrong[0]])} is {wrong[0]}, {expected} is expected",
                expected,
                _per_rank(facts),
                [found[n] for n in wrong],
                ("request the backend explicitly; an engine upgrade, a missing library or another shape changes it",),
                source,
            )
            return


def _ranks_agree(judging: common.Judging, key: str, facts: list[Fact]) -> None:
    per_rank = {r: {common.plain_name(n) for n in names(those)} for r, those in common.by_rank(facts).items()}
    if len({frozenset(v) for v in per_rank.values()}) > 1:
        judging.failed(
            f"ranks use different {key} backends",
            "the same on every rank",
            _per_rank(facts),
            facts,
            ("compare library versions, GPU models and environment of the nodes",),
        )


def _as_before(judging: common.Judging, key: str, before: list[Fact], now: list[Fact]) -> None:
    old, new = names(before), names(now)
    if not old:
        return
    if not new:
        judging.not_observable(
            f"the reference start named its {key} backend ({common.listed(old)}), this start does not",
            common.listed(old),
            f"{NAMES[key]} in the log of this start",
            before,
            source="reference",
        )
    elif {common.plain_name(n) for n in old} != {common.plain_name(n) for n in new}:
        judging.failed(
            f"the {key} backend changed from {common.listed(old)} to {common.listed(new)}",
            f"{common.listed(old)} as on the reference start",
            _per_rank(now),
            [*now, *before],
            ("pin the backend in the profile; speed and results are not those that were validated",),
            "reference",
        )


def _fallbacks(judging: common.Judging, profile: Profile, reference: StartRecord | None, start: StartRecord) -> None:
    """A fallback or emulation line is a failure unless the profile allows it."""
    if profile.expect.backend.fallback != "forbid":
        return
    facts = start.named("backend.fallback")
    if facts:
        known = {str(f.value) for f in reference.named("backend.fallback")} if reference else set()
        new = [f for f in facts if str(f.value) not in known]
        first = (new or facts)[0]
        again = "" if new or reference is None else " (as on the reference start)"
        judging.failed(
            f"{common.who(first)} fell back to another kernel than asked for{again}: "
            f"{common.excerpt(str(first.value))}",
            "no fallback and no emulation",
            [f"{common.who(f)}: {common.excerpt(str(f.value), 160)}" for f in facts[:6]],
            new or facts,
            ("request a backend that this build offers, or allow it: expect.backend.fallback: allow",),
            "expect.backend.fallback",
        )
