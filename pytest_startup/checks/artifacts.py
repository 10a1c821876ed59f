"""artifacts: a warm restart loads the compiled artifacts of every rank, and compiles and writes nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from pytest_startup.baseline import Baseline, cache_changes
from pytest_startup.checks import common
from pytest_startup.checks.base import Verdict
from pytest_startup.ledger.book import build as build_ledger
from pytest_startup.ledger.model import Ledger, LedgerFinding
from pytest_startup.ledger.moves import factors
from pytest_startup.profile.model import Profile
from pytest_startup.ranks import called
from pytest_startup.record import CacheTree, Evidence, Fact, StartRecord

COMPILE_KINDS = frozenset({"compile", "inductor", "triton", "jit"})
#: The three failures that are kept apart, each with the ledger's findings that belong to it.
MOVED = ("key-hash-changed", "path-moved")
WRITTEN = ("recompiled", "written-when-warm")
BAD = (
    "artifact-refused",
    "artifact-damaged",
    "artifact-copied",
    "artifact-missing",
    "changed-between-starts",
    "not-loaded",
)
#: ``(Worker_TP1 pid=7) WARNING 11-29 15:36:35 [file.py:322] `` of a vLLM line.
_PREFIX = re.compile(r"^(?:\(\w+[^)]*\)\s+)?(?:[A-Z]+ \d\d-\d\d [\d:]+ \[[^]]*\]\s+)?")
_LINES = ("compile.cache_dir", "compile.cache_loaded", "compile.cache_written", "compile.range")


def check(profile: Profile, reference: StartRecord | None, start: StartRecord, baseline: Baseline | None) -> Verdict:
    """Judges, apart from each other: missing or refused artifacts, the cache's key hash, and what was written."""
    judging = common.Judging("artifacts", "a line that a compiled artifact was loaded or saved, or a compile cache")
    restart = common.restart_of(profile, start)
    warm = reference is not None and not common.wiped_kinds(profile, restart, reference) & COMPILE_KINDS
    book = build_ledger(start, profile.expect.autotune, profile.expect.artifacts, reference, warm)
    findings = [f for f in book.findings if f.tier != "autotune"]
    lines = start.named(*_LINES)
    judging.saw(*lines)
    moves = any(f.kind in MOVED for f in findings)
    if moves and common.changed_on_purpose(restart):  # other arguments have another key: no fault of the cache
        findings = [f for f in findings if f.kind not in (*MOVED, *WRITTEN, "not-loaded")]
        warm = False
    elif moves:  # a key that moved explains by itself why nothing was loaded
        findings = [f for f in findings if f.kind != "not-loaded"]
    findings = [_plain(f, book) for f in findings]
    moved = [f for f in findings if f.kind in MOVED]
    bad = _bad(profile, reference, start, findings)
    if warm and reference is not None and not moved and not any(f.kind == "not-loaded" for f in bad):
        bad += _nothing_loaded(profile, reference, start)
    _tell(judging, "missing, corrupt or refused artifact", bad, _bad_source(profile, bad))
    if moved and reference is not None:
        differs = tuple(f"differs: {d}" for d in factors(reference, start)[:4])
        _tell(judging, "hash changed", moved, "reference", differs)
    written = [f for f in findings if f.kind in WRITTEN]
    if warm and profile.expect.artifacts.recompiled == "none":
        written += _compiled(start, written)
    _tell(judging, "written during a warm start", written, "expect.artifacts.recompiled")
    _trees(judging, profile, start, book, bool(lines))
    if warm and profile.expect.artifacts.writes == "none":
        _unseen(judging, profile, start)
    _against_baseline(judging, start, baseline)
    return judging.verdict()


def _plain(finding: LedgerFinding, book: Ledger) -> LedgerFinding:
    """An engine of one rank needs no rank's name."""
    if len(book.workers) != 1:
        return finding
    return replace(finding, summary=finding.summary.replace(called(book.workers[0].name), "the engine"))


def _bad(
    profile: Profile, reference: StartRecord | None, start: StartRecord, findings: Sequence[LedgerFinding]
) -> list[LedgerFinding]:
    """Missing, damaged and refused artifacts; a refused one explains by itself why its rank loaded nothing."""
    bad = sorted((f for f in findings if f.kind in BAD), key=lambda f: BAD.index(f.kind))
    refused = {f.rank for f in bad if f.kind == "artifact-refused"}
    bad = [f for f in bad if not (f.kind == "not-loaded" and (f.rank in refused or None in refused))]
    bad = [replace(f, helps=(*f.helps, _AGAIN)) if f.kind == "artifact-refused" else f for f in bad]
    if profile.expect.artifacts.missing == "none":
        bad += _defaults(profile, reference, start)
    for fact in start.named("compile.artifacts"):
        if fact.member("artifacts") == 0:
            text = f"the artifact{common.on(fact)} holds nothing: the model runs eagerly"
            helps = ("wipe this compile cache once and prime it again",)
            bad.append(_finding("artifact-damaged", text, "artifacts inside", [fact], helps))
    return bad


def _defaults(profile: Profile, reference: StartRecord | None, start: StartRecord) -> list[LedgerFinding]:
    """A built-in default instead of a tuned kernel config (vLLM: ``Using default MoE config``).

    Never tolerated where the profile itself says ``missing: none``; else it is where it stands on the reference start
    too, or on the reference start itself: nothing got worse then.
    """
    facts = [f for f in start.named("artifact.missing") if f.detail.get("kind") == "tuned-config"]
    if "expect.artifacts.missing" not in profile.origin:
        known = {_bare(f) for f in reference.named("artifact.missing")} if reference else None
        facts = [f for f in facts if known is not None and _bare(f) not in known]
    if not facts:
        return []
    text = f"a default stands in for a tuned kernel config{common.on(facts[0])}"
    return [_finding("artifact-missing", text, "every tuned config found", facts, ("tune this shape for this GPU",))]


def _bare(fact: Fact) -> str:
    return re.sub(r"\d+", "#", str(fact.value))


def _finding(
    kind: str,
    summary: str,
    expected: str,
    facts: Sequence[Fact],
    helps: tuple[str, ...] = (),
    observed: tuple[str, ...] = (),
) -> LedgerFinding:
    """A finding of our own in the ledger's form; observed are the lines themselves where nothing else is given."""
    evidence = tuple(f.evidence for f in facts[:4])
    return LedgerFinding(
        kind, "compile", summary, expected, observed or tuple(e.text for e in evidence), None, evidence, helps
    )


def _nothing_loaded(profile: Profile, reference: StartRecord, start: StartRecord) -> list[LedgerFinding]:
    """The reference start compiled or loaded, and this one says nothing of the kind: an eager start looks so."""
    before = reference.named("compile.cache_written", "compile.cache_loaded", "compile.range")
    now = start.named("compile.cache_loaded", "compile.cache_written")
    if not before or now or profile.expect.artifacts.recompiled != "none":
        return []
    helps = ("an eager start looks like this: no graph was compiled and none was loaded",)
    text = "nothing says that a compiled artifact was loaded; the reference start saved or loaded one"
    return [_finding("not-loaded", text, "a load line", before[:2], helps, ("no load line in this start",))]


def _compiled(start: StartRecord, told: Sequence[LedgerFinding]) -> list[LedgerFinding]:
    """``Compiling a graph … takes``: time spent on compilation, where no saved artifact tells of it already."""
    facts = start.named("compile.range")
    if not facts or any(f.kind == "recompiled" for f in told):
        return []
    return [_finding("recompiled", f"a graph was compiled{common.on(facts[0])}", "nothing compiled", facts)]


def _bad_source(profile: Profile, bad: Sequence[LedgerFinding]) -> str:
    if any(f.kind == "not-loaded" for f in bad) and profile.expect.artifacts.ranks is not None:
        return "expect.artifacts.ranks"
    return "expect.artifacts.missing"


def _tell(
    judging: common.Judging, heading: str, findings: Sequence[LedgerFinding], source: str, more: tuple[str, ...] = ()
) -> None:
    """One failure per heading: the first finding says what, all of them say where."""
    if not findings:
        return
    first = findings[0].summary.removeprefix("key hash changed: ")
    rest = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
    lines = [e for f in findings for e in f.evidence]
    observed = [*findings[0].observed, *(text for f in findings[1:] for text in (f.summary, *f.observed[:2]))]
    judging.failed(
        f"{heading}: {first}{rest}",
        "; ".join(common.unique(f.expected for f in findings)),
        common.unique([*(_short(text, lines) for text in observed), *more]),
        lines,
        common.unique(h for f in findings for h in f.helps) or _WHY.get(heading, ()),
        source,
    )


def _short(text: str, lines: Iterable[Evidence]) -> str:
    """A log line that stands among the evidence is observed without its prefix and the path down to its rank."""
    whole = next((e.text for e in lines if e.line is not None and e.text.startswith(text.rstrip("…"))), None)
    if whole is None:
        return text
    message = _PREFIX.sub("", whole)
    return re.sub(r"/\S*?/(rank_\d+_\d+/)", r"…/\1", message)


_AGAIN = "if it is refused again after that, this build cannot reuse its own artifacts"
_WHY = {
    "written during a warm start": (
        "this start paid for compilation: look for a refused or missing artifact; if there is none,"
        " the engine does not reuse its own cache",
    )
}


def _trees(judging: common.Judging, profile: Profile, start: StartRecord, book: Ledger, lines: bool) -> None:
    """What the watched compile caches hold; files that nothing shows to be used are not a pass."""
    kinds = {c.name: c.kind for c in profile.caches}
    trees = [t for t in start.caches_before if kinds.get(t.name) in COMPILE_KINDS and t.files]
    used = start.named("compile.cache_loaded", "compile.cache_written")
    absent = [t for t in start.caches_after if kinds.get(t.name) == "compile" and not t.exists]
    for tree in absent if used else ():
        judging.failed(
            f"cache {tree.name} is not where the engine keeps its artifacts: there is no {tree.path}",
            "a watched compile cache is the folder that the engine uses",
            [f.evidence.text for f in used[:2]],
            used[:2],
            (f"compare caches.{tree.name}.path with the folder in the log; nothing was watched or wiped there",),
            f"caches.{tree.name}.path",
        )
    if lines:
        judging.saw(*(_tree(t) for t in start.caches_after if kinds.get(t.name) in COMPILE_KINDS and t.files))
    elif trees and not any(book.exercised.values()):
        judging.not_exercised(
            f"{trees[0].name} holds {len(trees[0].files)} files, and nothing shows that any was used",
            "a line that an artifact was loaded",
            [f"{t.name}: {len(t.files)} files" for t in trees],
            [_tree(t) for t in trees],
            ("compilation may be off (eager), or a log level above INFO hides its lines",),
        )


def _unseen(judging: common.Judging, profile: Profile, start: StartRecord) -> None:
    """Folders of watched compile caches that nobody looked into: what was written there is not seen."""
    kinds = {c.name: c.kind for c in (*profile.caches, *(c for n in profile.nodes for c in n.caches))}
    facts = [
        f
        for f in start.named("cache.unreadable")
        if f.detail.get("folder") and kinds.get(str(f.detail.get("cache")).rpartition("/")[2]) in COMPILE_KINDS
    ]
    if facts:
        judging.not_observable(
            f"{facts[0].evidence.where} is not looked into, so that nothing shows what was written there",
            "nothing written during a warm start",
            "the files of the whole cache",
            facts,
            ("name the folder itself in caches, beside or instead of this one, and let this user read it",),
            "caches",
        )


def _tree(tree: CacheTree) -> Evidence:
    return Evidence("cache", tree.name, f"{len(tree.files)} files", node=tree.node)


def _against_baseline(judging: common.Judging, start: StartRecord, baseline: Baseline | None) -> None:
    """Files of the accepted caches that appeared, vanished or changed: told, not judged (a new prime changes all)."""
    accepted = common.population(baseline, start)
    if accepted is None or not accepted.caches:
        return
    for name, paths in zip(("new", "gone", "changed"), cache_changes(accepted, start), strict=True):
        judging.numbers[f"artifacts {name} since the baseline"] = len(paths)
        if paths:
            judging.saw(Evidence("cache", "baseline", f"{name} since the baseline: {common.listed(paths, 4)}"))
