"""Compiled artifacts: where they lie before and after a start, and what its log says of them, by rank."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pytest_startup.ledger.log import worker_of
from pytest_startup.observe.autotune_records import is_record_file
from pytest_startup.observe.cache_diff import diff
from pytest_startup.observe.compile_layout import Artifact, classify, loaded_place
from pytest_startup.ranks import Worker, of_folder
from pytest_startup.record import CacheFile, CacheTree, Evidence, Fact, StartRecord

#: Where a worker's name would stand: of no rank in particular.
ALL = "all"
#: Pieces of evidence that are shown of many.
QUOTED = 4


@dataclass(frozen=True)
class Placed:
    """One artifact file of a tree, with what its path says."""

    tree: CacheTree
    file: CacheFile
    at: Artifact

    def evidence(self, text: str = "") -> Evidence:
        return Evidence("cache", f"{self.tree.name}/{self.file.path}", text, node=self.tree.node)


@dataclass(frozen=True)
class Loads:
    """What the log says of artifacts: loads and writes per (tier, worker name), refusals per worker name."""

    loaded: dict[tuple[str, str], list[Fact]]
    written: dict[tuple[str, str], list[Fact]]
    refused: dict[str, list[Fact]]


#: New or changed artifacts with their trees.
Written = list[tuple[CacheTree, Artifact]]


def placed(trees: Iterable[CacheTree]) -> list[Placed]:
    """All artifact files of these trees; locks, logs and temporary files are left out."""
    found = []
    for tree in trees:
        for file in tree.files:
            at = classify(file.path)
            if at.kept and at.tier != "autotune" and not is_record_file(file.path):
                found.append(Placed(tree, file, at))
    return found


def read_loads(record: StartRecord, team: Sequence[Worker]) -> Loads:
    """Give the artifact lines of a record to workers: by the ``rank_<r>_<d>`` folder they name, else by who printed."""
    loads = Loads({}, {}, {})
    for fact in record.named("compile.cache_loaded", "compile.cache_written", "artifact.missing"):
        place = loaded_place(f"{fact.detail.get('path', '')} {fact.value} {fact.evidence.text}")
        worker = of_folder(team, place.rank or 0, place.dp or 0) if place and place.rank is not None else None
        worker = worker or worker_of(fact, team)
        name = worker.name if worker else ALL
        tier = place.tier if place else "aot" if "AOT" in fact.evidence.text else "compile"
        if fact.name == "artifact.missing":
            if place or "ompil" in fact.evidence.text or "artifact" in fact.evidence.text.lower():
                loads.refused.setdefault(name, []).append(fact)
        else:
            into = loads.loaded if fact.name == "compile.cache_loaded" else loads.written
            into.setdefault((tier, name), []).append(fact)
    return loads


def written_paths(record: StartRecord) -> Written | None:
    """Artifacts that are new or changed after this start; None: no tree of both moments."""
    old = {(t.name, t.node): t for t in record.caches_before}
    pairs = [(t, old[t.name, t.node]) for t in record.caches_after if (t.name, t.node) in old]
    if not pairs:
        return None
    found: Written = []
    for tree, before in pairs:
        change = diff(before, tree)
        for path in (*change.new, *change.changed):
            at = classify(path)
            if at.kept and at.tier != "autotune" and not is_record_file(path):
                found.append((tree, at))
    return found
