"""What is wrong with compiled artifacts: damaged, missing, copied, refused; when warm, not loaded or made again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_startup.ledger.model import LedgerFinding
from pytest_startup.ledger.placed import ALL, QUOTED, Loads, Placed, Written
from pytest_startup.observe.compile_layout import RANK_TIERS, Artifact
from pytest_startup.profile.expect import ExpectArtifacts
from pytest_startup.ranks import Worker, called, of_folder
from pytest_startup.record import CacheTree, Evidence, StartRecord


def always(
    team: Sequence[Worker], before: Sequence[Placed], loads: Loads, expect: ExpectArtifacts
) -> list[LedgerFinding]:
    """Of what lay there before the start, and what the engine refused of it."""
    return [*_damaged(before), *_uneven(team, before), *_copied(team, before), *_refused(loads, expect)]


def when_warm(
    record: StartRecord,
    team: Sequence[Worker],
    before: Sequence[Placed],
    written: Written,
    loads: Loads,
    expect: ExpectArtifacts,
) -> list[LedgerFinding]:
    """Of a start that had to use what lay there."""
    return [*_not_loaded(team, before, loads), *_recompiled(loads, expect), *_written(record, written, expect)]


def _damaged(before: Sequence[Placed]) -> Iterator[LedgerFinding]:
    """An empty artifact: the loader refuses it. Everything else inside is opaque, and is never opened."""
    for item in before:
        if item.at.tier in RANK_TIERS and item.file.size == 0:
            yield LedgerFinding(
                "artifact-damaged",
                item.at.tier,
                f"{item.file.path} is empty",
                "a compiled artifact",
                ("0 bytes",),
                _folder(item.at),
                (item.evidence("0 bytes"),),
                ("delete it: this rank compiles it again on the next start",),
            )


def _folder(at: Artifact) -> str:
    return f"rank_{at.rank}_{at.dp}"


def _uneven(team: Sequence[Worker], before: Sequence[Placed]) -> Iterator[LedgerFinding]:
    """Inside one hash folder every rank has the same artifacts."""
    folders: dict[tuple[str, str | None, str, str | None], dict[Worker, set[str]]] = {}
    for item in before:
        worker = of_folder(team, item.at.rank, item.at.dp or 0) if item.at.rank is not None else None
        if worker is not None and item.at.tier in RANK_TIERS:
            place = (item.tree.name, item.tree.node if len(team) > 1 else None, item.at.tier, item.at.key)
            folders.setdefault(place, {}).setdefault(worker, set()).add(item.at.slot())
    for (cache, node, tier, key), ranks in folders.items():
        every = set().union(*ranks.values())
        for worker in team:
            if node is not None and worker.node not in (None, node):
                continue
            lacking = sorted(every - ranks.get(worker, set()))
            if lacking:
                yield LedgerFinding(
                    "artifact-missing",
                    tier,
                    f"{called(worker.name)} lacks {lacking[0]}"
                    + (f" and {len(lacking) - 1} more" if lacking[1:] else ""),
                    "the same artifacts for every rank",
                    tuple(f"{w.name}: {len(s)} artifacts" for w, s in ranks.items()),
                    worker.name,
                    (Evidence("cache", f"{cache}/{key}", f"without {', '.join(lacking[:QUOTED])}", node=node),),
                    ("a missing artifact prints no warning: this rank compiles again while the others load",),
                )


def _copied(team: Sequence[Worker], before: Sequence[Placed]) -> Iterator[LedgerFinding]:
    """Equal AOT models of two tensor-parallel ranks: each holds its own rank's code, so one is a copy."""
    seen: dict[tuple[str | None, str | None], Placed] = {}
    tp_size = len({w.at.tp for w in team})
    for item in before:
        if item.at.tier != "aot" or item.file.size == 0 or tp_size < 2 or item.file.sha256 is None:
            continue
        first = seen.setdefault((item.at.key, item.file.sha256), item)
        if first.at.rank != item.at.rank and first.at.slot() == item.at.slot():
            yield LedgerFinding(
                "artifact-copied",
                "aot",
                f"the artifact of {_folder(item.at)} is a copy of {_folder(first.at)}'s",
                "an artifact that this rank compiled",
                (f"both sha256 {item.file.sha256[:16]}…",),
                _folder(item.at),
                (first.evidence(f"sha256 {item.file.sha256}"), item.evidence(f"sha256 {item.file.sha256}")),
                ("code of another rank may load and compute for the wrong shard: delete it",),
            )


def _refused(loads: Loads, expect: ExpectArtifacts) -> Iterator[LedgerFinding]:
    if expect.missing == "any":
        return
    for name, facts in loads.refused.items():
        yield LedgerFinding(
            "artifact-refused",
            "aot",
            f"{'an artifact' if name == ALL else f'an artifact of {called(name)}'} was missing or refused",
            "every artifact found and accepted",
            tuple(f.evidence.text[:200] for f in facts[:QUOTED]),
            None if name == ALL else name,
            tuple(f.evidence for f in facts[:QUOTED]),
            ("wipe this compile cache once and prime it again",),
        )


def _not_loaded(team: Sequence[Worker], before: Sequence[Placed], loads: Loads) -> Iterator[LedgerFinding]:
    """The AOT load line is the one that every rank prints: a rank without it compiled again, silently."""
    loading = {name for tier, name in loads.loaded if tier == "aot"} - {ALL}
    models = [p for p in before if p.at.tier == "aot"]
    if not models and not loading:
        return
    for worker in team:
        if worker.name in loading or (len(team) == 1 and ("aot", ALL) in loads.loaded):
            continue
        others = [f for (t, n), facts in loads.loaded.items() if t == "aot" for f in facts]
        yield LedgerFinding(
            "not-loaded",
            "aot",
            f"{called(worker.name)} loaded no compiled artifact",
            "an AOT artifact loaded on every rank",
            tuple(f"{w.name}: {'loaded' if w.name in loading else 'no load line'}" for w in team),
            worker.name,
            tuple(f.evidence for f in others[:2]) or tuple(p.evidence() for p in models[:2]),
            ("a deleted artifact prints no warning; only the missing load line tells",),
        )


def _recompiled(loads: Loads, expect: ExpectArtifacts) -> Iterator[LedgerFinding]:
    if expect.recompiled == "any" or not loads.written:
        return
    for (tier, name), facts in loads.written.items():
        yield LedgerFinding(
            "recompiled",
            tier,
            f"{'the engine' if name == ALL else f'{called(name)}'} compiled again on a warm start",
            "nothing compiled",
            tuple(f.evidence.text[:200] for f in facts[:QUOTED]),
            None if name == ALL else name,
            tuple(f.evidence for f in facts[:QUOTED]),
        )


#: What Triton measured for a kernel, kept by inductor: no compiled code. vLLM 0.26.0 writes some on the first warm
#: start, into the inductor cache of the AOT artifact (on the cold start that cache lay elsewhere), and none later.
_CHOICE = ".best_config"


def _written(record: StartRecord, paths: Written, expect: ExpectArtifacts) -> Iterator[LedgerFinding]:
    if expect.writes == "any":
        return
    tiers: dict[str, list[tuple[CacheTree, Artifact]]] = {}
    for tree, at in paths:
        if at.tier != "other" and not at.path.endswith(_CHOICE):
            tiers.setdefault(at.tier, []).append((tree, at))
    for tier, written in tiers.items():
        ranks = sorted({_folder(at) for _, at in written if at.rank is not None})
        yield LedgerFinding(
            "written-when-warm",
            tier,
            f"{record.name} wrote {len(written)} files of tier {tier} into a warm cache" + _list(ranks),
            "nothing newly written",
            tuple(at.path for _, at in written[:QUOTED]),
            None,
            tuple(
                Evidence("cache", f"{t.name}/{at.path}", "new or changed", node=t.node) for t, at in written[:QUOTED]
            ),
        )


def _list(ranks: Sequence[str]) -> str:
    return f" ({', '.join(ranks)})" if ranks else ""
