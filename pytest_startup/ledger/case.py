"""What the autotune findings are judged on: the workers, the record files, and which records belong to whom."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pytest_startup import leftup
from pytest_startup.ledger.log import TuningLog
from pytest_startup.ledger.records import WatchedFile
from pytest_startup.ledger.versions import Tuning
from pytest_startup.observe.autotune_records import KEY_HASH, TuningRecord
from pytest_startup.observe.cache_facts import record_files
from pytest_startup.profile.expect import ExpectAutotune
from pytest_startup.ranks import Worker, of_folder, workers
from pytest_startup.record import CacheTree, StartRecord


@dataclass(frozen=True)
class Holding:
    """The records of one worker: ``own`` by key or file name, ``free`` ones that every rank of the layout shares."""

    worker: Worker
    own: tuple[tuple[WatchedFile, TuningRecord], ...] = ()
    free: tuple[tuple[WatchedFile, TuningRecord], ...] = ()

    @property
    def records(self) -> list[TuningRecord]:
        return [r for _, r in (*self.own, *self.free)]


@dataclass(frozen=True)
class Case:
    """All that the autotune findings are judged on."""

    record: StartRecord
    expect: ExpectAutotune
    reference: StartRecord | None
    warm: bool
    asked: bool
    workers: tuple[Worker, ...]
    log: TuningLog
    before_log: TuningLog | None
    tuning: Tuning
    files: tuple[WatchedFile, ...]
    used: tuple[WatchedFile, ...]
    holdings: tuple[Holding, ...]
    watched: bool


def team_of(record: StartRecord, reference: StartRecord | None, expected: int | None) -> tuple[Worker, ...]:
    """The workers of a start: those that its facts name, else those of the reference, else as many as are expected."""
    up = leftup.left_up(record)
    world = expected or world_size(record.argv)
    if up and world is not None:  # nodes that were left up did not start: their ranks show nothing here
        world = None if (held := leftup.ranks_of(record, up)) is None else world - held
    names = [(f.rank, f.node) for f in record.facts if f.rank and f.evidence.source == "log"]
    if reference is not None:
        names += [(f.rank, f.node) for f in reference.facts if f.rank and f.evidence.source == "log"]
    return workers([(rank, node) for rank, node in names if node not in up], world)


def world_size(argv: Sequence[str]) -> int | None:
    """Workers that the arguments ask for (TP × PP × DP; SGLang's DP lies inside TP); None: the arguments don't say."""
    flags = {"tp": 0, "pp": 0, "dp": 0}
    names = {"--tensor-parallel-size": "tp", "-tp": "tp", "--tp-size": "tp", "--tp": "tp"}
    names |= {"--pipeline-parallel-size": "pp", "-pp": "pp", "--pp-size": "pp", "--pp": "pp"}
    names |= {"--data-parallel-size": "dp", "-dp": "dp"}
    for here, following in zip(argv, [*argv[1:], ""], strict=False):
        name, _, value = here.partition("=")
        number = value or following
        if name in names and number.isdecimal():
            flags[names[name]] = int(number)
    if not any(flags.values()):
        return None
    return max(flags["tp"], 1) * max(flags["pp"], 1) * max(flags["dp"], 1)


def stage_size(team: Sequence[Worker]) -> int:
    """Ranks of one pipeline stage, over all data-parallel engines: what the sizes in a MoE key multiply to."""
    return len(team) // (1 + max((w.at.pp or 0 for w in team), default=0))


def files_of(record: StartRecord, trees: Iterable[CacheTree]) -> tuple[WatchedFile, ...]:
    """The parsed record files of these trees."""
    facts = record.named("autotune.records")
    return tuple(WatchedFile(t.name, file, t.node, t.path) for t in trees for file in record_files(facts, t))


def used_files(files: Sequence[WatchedFile], log: TuningLog) -> tuple[WatchedFile, ...]:
    """Those of the files that the log names (a container sees them under another root); all where it names none.

    A named file that is not there yet stands for its folder: the other ranks' files lie beside it.
    """
    if not log.paths:
        return tuple(files)
    named = [f for f in files if any(_same_place(f, p) for p in log.paths)]
    if named:
        folders = {_folder(f) for f in named}
        return tuple(f for f in files if _folder(f) in folders)
    parents = {p.rpartition("/")[0].rpartition("/")[2] for p in log.paths}
    return tuple(f for f in files if f"{f.root}/{f.file.path}".rpartition("/")[0].rpartition("/")[2] in parents)


def _folder(file: WatchedFile) -> tuple[str, str | None, str]:
    return file.cache, file.node, file.file.path.rpartition("/")[0]


def _same_place(file: WatchedFile, path: str) -> bool:
    """Equal in key hash folder and name; where the watched folder lies below that, in the name alone."""
    parts = [p for p in path.split("/") if p][-2:]
    mine = file.file.path.split("/")[-2:]
    return mine == parts[-len(mine) :] and (len(mine) == 2 or not file.root or _may_be(file.root, parts))


def _may_be(root: str, parts: Sequence[str]) -> bool:
    """A folder watched under another name is still the one, unless both names are key hashes and differ."""
    name = root.rstrip("/").rpartition("/")[2]
    return len(parts) < 2 or name == parts[0] or not (KEY_HASH.fullmatch(name) and KEY_HASH.fullmatch(parts[0]))


def hold(worker: Worker, team: Sequence[Worker], files: Sequence[WatchedFile]) -> Holding:
    """What of these files belongs to a worker."""
    own: list[tuple[WatchedFile, TuningRecord]] = []
    free: list[tuple[WatchedFile, TuningRecord]] = []
    for file in files:
        owner = file_owner(file, team)
        if owner is not None and owner != worker:
            continue
        if file.node is not None and worker.node not in (None, file.node):
            continue  # another host's cache
        for record in file.file.records:
            index = key_index(record, stage_size(team))
            if index is not None and index != place_in_stage(worker, team):
                continue
            (own if index is not None or owner is not None else free).append((file, record))
    return Holding(worker, tuple(own), tuple(free))


def file_owner(file: WatchedFile, team: Sequence[Worker]) -> Worker | None:
    """The worker that a file's name says it belongs to; None: a shared file, or a rank that this engine lacks."""
    owner = file.file.place.owner
    if owner.rank is not None:
        return of_folder(team, owner.rank, owner.dp or 0)
    if owner.tp is not None:
        same = [w for w in team if (w.at.tp or 0) == owner.tp and (w.at.pp or 0) == (owner.pp or 0)]
        return same[0] if same else None
    return None


def key_index(record: TuningRecord, stage: int) -> int | None:
    """The number of the rank inside its pipeline stage that a key is for; None: no rank in the key."""
    ranks = record.ranks
    if not ranks:
        return None
    tp, ep = ranks.tp_rank or 0, ranks.ep_rank or 0
    if (ranks.ep_size or 1) > 1:
        # vLLM's expert parallel has a MoE TP of 1; SGLang's splits the stage into EP groups of TP ranks.
        inner = ranks.tp_size or 1
        return ep * inner + tp if (ranks.ep_size or 1) * inner == stage else ep
    return tp


def place_in_stage(worker: Worker, team: Sequence[Worker]) -> int:
    """A worker's number in its pipeline stage, over all data-parallel engines."""
    at = worker.at
    if at.ep is not None:
        return at.ep
    if at.tp is None:
        return worker.index
    tp_size = 1 + max(w.at.tp or 0 for w in team)
    return (at.dp or 0) * tp_size + at.tp
