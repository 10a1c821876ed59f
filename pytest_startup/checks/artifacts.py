"""artifacts: a warm restart loads the compiled artifacts of every rank, and compiles and writes nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from pytest_startup.baseline import Baseline, cache_changes
from pytest_startup.checks import common
from pytest_startup.checks.base import Verdict
from pytest_startup.observe import compile_layout
from pytest_startup.profile.model import Profile
from pytest_startup.record import CacheFile, CacheTree, Evidence, Fact, StartRecord

COMPILE_KINDS = frozenset({"compile", "inductor", "triton", "jit"})


def check(profile: Profile, reference: StartRecord | None, start: StartRecord, baseline: Baseline | None) -> Verdict:
    """Judges, apart from each other: missing or refused artifacts, the cache's hash, loads per rank, and writes."""
    judging = common.Judging(
        "artifacts", "a watched compile cache, or a line that a compiled artifact was loaded or saved"
    )
    seen = start.named("compile.cache_dir", "compile.cache_loaded", "compile.cache_written", "compile.range")
    judging.saw(*seen)
    restart = common.restart_of(profile, start)
    warm = reference is not None and not common.wiped_kinds(profile, restart) & COMPILE_KINDS
    _refused(judging, profile, reference, start)
    changes = [c for before in start.caches_before if (c := _changes(profile, start, before))]
    for change in changes:
        judging.numbers[f"{change.name} files written"] = len(change.written)
        judging.numbers[f"{change.name} files touched"] = len(change.touched)
    if reference is not None and warm:
        moved = _hash_changed(judging, reference, start, common.changed_on_purpose(restart))
        if not moved:
            _vanished(judging, profile, reference, start)
            _all_ranks_load(judging, profile, reference, start)
            _written(judging, profile, start, changes)
    elif not seen:
        for tree in start.caches_after:
            if _kind(profile, tree) in COMPILE_KINDS and tree.files:
                judging.saw(_tree_evidence(tree))
    accepted = common.population(baseline, start)
    if accepted is not None and accepted.caches:
        appeared, vanished, changed = cache_changes(accepted, start)
        judging.numbers["artifacts not in the baseline"] = len(appeared)
        judging.numbers["artifacts gone since the baseline"] = len(vanished)
        judging.numbers["artifacts changed since the baseline"] = len(changed)
    return judging.verdict()


def _kind(profile: Profile, tree: CacheTree) -> str:
    return next((c.kind for c in profile.caches if c.name == tree.name), "other")


def _tree_evidence(tree: CacheTree) -> Evidence:
    return Evidence("cache", tree.name, f"{len(tree.files)} files", node=tree.node)


def _refused(judging: common.Judging, profile: Profile, reference: StartRecord | None, start: StartRecord) -> None:
    """``artifact.missing``: never tolerated where the profile says ``missing: none``.

    Without that key a built-in default instead of a tuned config (vLLM: ``Using default MoE config``) is tolerated
    where it stands on the reference start too, since nothing got worse then.
    """
    if profile.expect.artifacts.missing != "none":
        return
    strict = "expect.artifacts.missing" in profile.origin
    known = {_bare(f) for f in reference.named("artifact.missing")} if reference else None
    bad = []
    for fact in start.named("artifact.missing"):
        default = fact.detail.get("kind") == "tuned-config"
        if strict or not default or (known is not None and _bare(fact) not in known):
            bad.append(fact)
    if bad:
        judging.failed(
            f"missing, corrupt or refused artifact on {common.who(bad[0])}: {common.excerpt(str(bad[0].value), 120)}",
            "every artifact is found and accepted",
            [f"{common.who(f)}: {common.excerpt(str(f.value), 200)}" for f in bad[:6]],
            bad,
            ("wipe this compile cache once and prime it again; if refused again, this build cannot reuse its own",),
            "expect.artifacts.missing",
        )


def _bare(fact: Fact) -> str:
    return re.sub(r"\d+", "#", str(fact.value))


def hashes(record: StartRecord) -> dict[str, dict[str, Fact]]:
    """Key hashes by kind: ``compile`` (10 hex digits, cache directory) and ``aot`` (64), each with a line."""
    found: dict[str, dict[str, Fact]] = {"compile": {}, "aot": {}}
    for fact in record.named("compile.cache_dir", "compile.cache_loaded", "compile.cache_written"):
        text = f"{fact.value} {fact.detail.get('path') or ''} {fact.evidence.text}"
        for digits in re.findall(r"/([0-9a-f]{64}|[0-9a-f]{10})(?=/|\s|$)", text):
            found["aot" if len(digits) == 64 else "compile"].setdefault(digits, fact)
    return found


def _hash_changed(judging: common.Judging, reference: StartRecord, start: StartRecord, change: str) -> bool:
    """Did the cache directory's hash move? That is a failure, unless this restart changes arguments on purpose."""
    before, now = hashes(reference), hashes(start)
    moved = False
    for kind, name in (("compile", "compile cache"), ("aot", "AOT artifact")):
        new = [h for h in now[kind] if h not in before[kind]]
        if not before[kind] or not new:
            continue
        moved = True
        if change:
            continue
        judging.failed(
            f"hash changed: the {name} of this start is {new[0][:10]}…, it was {next(iter(before[kind]))[:10]}…",
            f"the hash of the reference start: {common.listed(before[kind])}",
            [f"{common.who(now[kind][h])}: {h}" for h in new],
            [now[kind][new[0]], next(iter(before[kind].values()))],
            (
                "the old artifacts are never hit again and the directory only grows: look for a value in arguments or"
                " environment that differs at every start",
                *_factors(reference, start),
            ),
            "reference",
        )
    return moved


def _factors(reference: StartRecord, start: StartRecord) -> list[str]:
    """Which factors of the key differ, where the caches keep them (vLLM 0.12 and later)."""
    before = {
        str(f.detail.get("path")).rpartition("/rank_")[2]: f.value for f in reference.named("compile.key_factors")
    }
    for fact in reversed(start.named("compile.key_factors")):
        old = before.get(str(fact.detail.get("path")).rpartition("/rank_")[2])
        if isinstance(old, dict) and isinstance(fact.value, dict) and old != fact.value:
            return [f"differs: {d}" for d in compile_layout.factor_diff(old, fact.value)[:4]]
    return []


@dataclass
class Changes:
    """What a start did to one watched cache. ``touched``: another time of change, content the same or not hashed."""

    name: str
    written: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    touched: list[str] = field(default_factory=list)
    tree: CacheTree | None = None


def _changes(profile: Profile, start: StartRecord, before: CacheTree) -> Changes | None:
    kind = _kind(profile, before)
    after = next((t for t in start.caches_after if (t.name, t.node) == (before.name, before.node)), None)
    if kind not in COMPILE_KINDS or after is None:
        return None
    found, old = Changes(before.name, tree=after), before.by_path()
    for path, new in after.by_path().items():
        if not compile_layout.classify(path, kind).kept:
            continue
        if path not in old:
            found.written.append(f"new {path} ({new.size:,} bytes)")
        elif _differs(old[path], new):
            found.written.append(f"changed {path} ({old[path].size:,} → {new.size:,} bytes)")
        elif old[path].mtime_ns != new.mtime_ns:
            found.touched.append(path)
    found.removed = [p for p in old if p not in after.by_path() and compile_layout.classify(p, kind).kept]
    return found


def _differs(old: CacheFile, new: CacheFile) -> bool:
    if old.size != new.size:
        return True
    return old.sha256 is not None and new.sha256 is not None and old.sha256 != new.sha256


def _vanished(judging: common.Judging, profile: Profile, reference: StartRecord, start: StartRecord) -> None:
    """Artifacts that stood there after the reference start and are gone or empty before this one."""
    for tree in reference.caches_after:
        kind = _kind(profile, tree)
        now = next((t for t in start.caches_before if (t.name, t.node) == (tree.name, tree.node)), None)
        if kind not in COMPILE_KINDS or now is None:
            continue
        have = now.by_path()
        kept = [f for f in tree.files if compile_layout.classify(f.path, kind).kept]
        bad = [f"{f.path}: gone" for f in kept if f.path not in have]
        bad += [f"{f.path}: emptied" for f in kept if f.path in have and f.size and not have[f.path].size]
        if bad:
            judging.failed(
                f"missing artifact: {len(bad)} file{'s' if len(bad) > 1 else ''} of {tree.name} gone or emptied "
                f"since the reference start, first {bad[0]}",
                f"the {len(kept)} files that the reference start left",
                bad[:6],
                [_tree_evidence(now)],
                ("something outside the engine removes files of this cache, or it is not on a lasting volume",),
                "reference",
            )


def loads(record: StartRecord) -> dict[str, Fact]:
    """``rank_0_0`` → line, for every rank that says it loaded its AOT artifact (vLLM 0.11.1 on: each rank does)."""
    found: dict[str, Fact] = {}
    for fact in record.named("compile.cache_loaded"):
        text = f"{fact.value} {fact.detail.get('path') or ''} {fact.evidence.text}"
        for rank in re.findall(r"/(rank_\d+_\d+)/", text):
            found.setdefault(rank, fact)
    return found


def _expected_ranks(profile: Profile, reference: StartRecord) -> set[str]:
    """Ranks with an artifact of their own: from the lines and the cache that the reference start left."""
    text = [
        f"{f.value} {f.detail.get('path') or ''} {f.evidence.text}" for f in reference.named("compile.cache_written")
    ]
    ranks = set(loads(reference)) | {r for t in text for r in re.findall(r"/(rank_\d+_\d+)/", t)}
    current = set(hashes(reference)["aot"])
    for tree in reference.caches_after:
        for path in tree.by_path():
            place = compile_layout.classify(path, _kind(profile, tree))
            if place.tier == "aot" and place.kept and (not current or place.key in current):
                ranks.add(f"rank_{place.rank}_{place.dp}")
    return ranks


def _all_ranks_load(judging: common.Judging, profile: Profile, reference: StartRecord, start: StartRecord) -> None:
    expected, loaded = _expected_ranks(profile, reference), loads(start)
    wanted = profile.expect.artifacts.ranks
    missing = sorted(expected - set(loaded), key=common.natural)
    generic = start.named("compile.cache_loaded")
    reused = reference.named("compile.cache_written", "compile.cache_loaded", "compile.range")
    if loaded and (missing or (wanted is not None and len(loaded) < wanted)):
        judging.failed(
            f"{common.listed(missing) or f'{len(loaded)} of {wanted} ranks'}: no line says that an artifact was loaded",
            f"a load line of {wanted or len(expected)} ranks",
            [f"{r}: loaded" for r in loaded] + [f"{r}: no load line" for r in missing],
            list(loaded.values()),
            ("a deleted artifact gives no warning: that rank compiled again in silence; prime the cache again",),
            "expect.artifacts.ranks" if wanted is not None else "reference",
        )
    elif not generic and reused and profile.expect.artifacts.recompiled == "none":
        judging.failed(
            "nothing says that a compiled artifact was loaded; the reference start saved or loaded one",
            "a load line per rank",
            ["no load line"],
            [*start.named("compile.cache_dir", "compile.cache_written"), *reused],
            ("an eager start, or a silent recompilation, looks like this",),
            "reference",
        )
    elif not generic and not reused:
        trees = [t for t in start.caches_before if _kind(profile, t) in COMPILE_KINDS and t.files]
        if trees and not start.named("compile.cache_written", "compile.range"):
            judging.not_exercised(
                f"{trees[0].name} holds {len(trees[0].files)} files, and nothing shows that any was used",
                "a line that an artifact was loaded",
                [f"{t.name}: {len(t.files)} files" for t in trees],
                [_tree_evidence(t) for t in trees],
                ("compilation may be off (eager), or a log level above INFO hides its lines",),
            )


def _written(judging: common.Judging, profile: Profile, start: StartRecord, changes: list[Changes]) -> None:
    lines = start.named("compile.cache_written", "compile.range")
    wanted = profile.expect.artifacts
    files = [(c, text) for c in changes for text in [*c.written, *(f"removed {p}" for p in c.removed)]]
    lines = lines if wanted.recompiled == "none" else []
    files = files if wanted.writes == "none" else []
    if not lines and not files:
        for change in changes:
            if change.tree and change.tree.files and loads(start):
                text = f"{len(change.tree.files)} files, none written by this start"
                judging.saw(Evidence("cache", change.name, text, node=change.tree.node))
        return
    what = f"{common.who(lines[0])} compiled or saved again" if lines else f"{len(files)} files were written or removed"
    judging.failed(
        f"written during a warm start: {what}",
        "nothing compiled and nothing written",
        [f"{common.who(f)}: {common.excerpt(str(f.value), 120)}" for f in lines[:4]] + [t for _, t in files[:4]],
        [*lines, *(Evidence("cache", f"{c.name}", t, node=c.tree.node if c.tree else None) for c, t in files)],
        (
            "this start paid for compilation: look above for a refused or missing artifact; if there is none,"
            " the engine does not reuse its own cache",
        ),
        "expect.artifacts.recompiled" if lines else "expect.artifacts.writes",
    )
