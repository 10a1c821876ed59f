"""What is wrong with tuning-record files by themselves: damage, edits, foreign origin, records in a wrong place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_startup.ledger.model import LedgerFinding
from pytest_startup.ledger.versions import arches_of, has_generation, key_shape, version_of
from pytest_startup.observe.autotune_keys import CUTLASS_MOE_OPS, Key
from pytest_startup.observe.autotune_records import RecordFile, TuningRecord
from pytest_startup.record import JSON, Evidence

TIER = "autotune"
#: How many records one finding quotes.
QUOTED = 4
PRIME = "delete this file and prime the cache with one complete start of this very engine"


@dataclass(frozen=True)
class WatchedFile:
    """A record file with the cache and node that it was found in."""

    cache: str
    file: RecordFile
    node: str | None = None
    root: str = ""

    def evidence(self, text: str = "") -> Evidence:
        return Evidence("cache", f"{self.cache}/{self.file.path}", text[:400], node=self.node)

    def quote(self, records: Sequence[TuningRecord]) -> tuple[Evidence, ...]:
        """Records as they stand in the file, the first few."""
        return tuple(self.evidence(f"{r.key}: [{r.runner!r}, {r.tactic}]") for r in records[:QUOTED])


def static_findings(found: WatchedFile, gpu: str | None = None, stage: int | None = None) -> Iterator[LedgerFinding]:
    """Findings of one file. ``gpu``: the name that the driver gives; ``stage``: ranks of one pipeline stage."""
    file = found.file
    if file.damage:
        yield _finding(
            found,
            "file-damaged",
            f"tuning records can't be read: {file.path} is {file.damage}",
            "a JSON object of tuning records",
            (file.damage,),
            helps=(PRIME, "some releases die on such a file with a JSONDecodeError"),
        )
        return
    if file.generation == "edited":
        yield _finding(
            found,
            "file-edited",
            f"{file.path} was edited after FlashInfer wrote it",
            "_generation is the hash of the file's content",
            ("_generation does not match the content",),
            helps=(PRIME,),
        )
    if file.marks:
        yield _finding(
            found,
            "file-layout",
            f"{file.path} was not written by FlashInfer as it is",
            "the layout of FlashInfer's own writer",
            tuple(file.marks[:QUOTED]),
            helps=(PRIME,),
        )
    yield from _metadata(found, gpu)
    yield from _keys(found)
    yield from _values(found)
    if stage is not None:
        yield from _sizes(found, stage)


def _metadata(found: WatchedFile, gpu: str | None) -> Iterator[LedgerFinding]:
    file, place = found.file, found.file.place
    said = file.metadata or {}
    wild = sorted(k for k, v in said.items() if v == "*")
    if wild:
        yield _finding(
            found,
            "metadata-wildcard",
            f"{file.path} claims to fit any {', '.join(wild)}",
            "the environment that the records were tuned in",
            tuple(f"{k} is '*'" for k in wild),
            helps=("FlashInfer never writes '*': it switches the environment check off by hand",),
        )
    wrong = []
    library = said.get("flashinfer_version")
    if file.metadata is None:
        wrong.append("no _metadata: FlashInfer loads the file unchecked")
    elif library in (None, "unknown", ""):
        wrong.append(f"flashinfer_version is {library!r}")
    elif place.library and library not in ("*", place.library):
        wrong.append(f"flashinfer_version is {library}, the folder is {place.library}")
    if file.metadata is not None and "gpu" not in said:
        wrong.append("no gpu")
    elif gpu and said.get("gpu") not in (None, "*", gpu):
        wrong.append(f"gpu is {said['gpu']}, this start runs on {gpu}")
    version = version_of(library) if library else None
    if file.format == "v1" and file.generation == "absent" and version and has_generation(version):
        wrong.append(f"no _generation, which FlashInfer {library} always writes")
    if file.format == "v1" and file.generation != "absent" and version and not has_generation(version):
        wrong.append(f"a _generation, which FlashInfer {library} never writes")
    if wrong:
        yield _finding(
            found,
            "metadata-wrong",
            f"the metadata of {file.path} is not that of its place",
            "library and GPU of this engine",
            tuple(wrong),
            helps=(PRIME,),
        )
    arches = arches_of(said.get("gpu", ""))
    if place.arch and arches and place.arch not in arches:
        yield _finding(
            found,
            "foreign-arch",
            f"records of {said['gpu']} lie in the folder of architecture {place.arch}",
            f"a folder of architecture {arches[-1]}",
            (f"{file.path}: gpu {said['gpu']}",),
            helps=("tactics are numbers of one architecture's kernels: copied to another they mean other kernels",),
        )


def _keys(found: WatchedFile) -> Iterator[LedgerFinding]:
    records = found.file.records
    bad = [r for r in records if r.parsed is None or not r.parsed.canonical or r.parsed.bucket is None]
    if bad:
        yield _finding(
            found,
            "key-malformed",
            f"{len(bad)} of {len(records)} keys in {found.file.path} are none that FlashInfer prints",
            "(op, runner, profile, extras) as Python prints it",
            tuple(r.key[:160] for r in bad[:QUOTED]),
            found.quote(bad),
            (PRIME,),
        )
    stated = version_of((found.file.metadata or {}).get("flashinfer_version", "") or found.file.place.library or "")
    if stated is None:
        return
    parts, lengths = key_shape(stated)
    name = ".".join(map(str, stated))
    old = [r for r in records if r.parsed and not _fits(r.parsed, parts, lengths)]
    if old:
        shapes = sorted({_shape(r.parsed) for r in old if r.parsed})
        yield _finding(
            found,
            "older-key-format",
            f"{len(old)} of {len(records)} keys have another form than FlashInfer {name} looks for: never hit",
            f"{parts} parts" + (f", {lengths[0]} extras for MoE" if lengths else ""),
            tuple(shapes),
            found.quote(old),
            (PRIME,),
        )


def _fits(key: Key, parts: int, lengths: tuple[int, ...]) -> bool:
    if key.parts != parts:
        return False
    return key.op not in CUTLASS_MOE_OPS or key.extras is None or len(key.extras) in lengths


def _shape(key: Key) -> str:
    return f"{key.parts} parts" + ("" if key.extras is None else f", {len(key.extras)} extras")


def _values(found: WatchedFile) -> Iterator[LedgerFinding]:
    records = found.file.records
    other = [r for r in records if r.parsed and r.parsed.runner != r.runner]
    if other:
        yield _finding(
            found,
            "runner-mismatch",
            f"{len(other)} records name another runner than their key",
            "the runner of the key",
            tuple(f"{r.parsed.name() if r.parsed else r.key}: {r.runner}" for r in other[:QUOTED]),
            found.quote(other),
            (PRIME,),
        )
    odd = [r for r in records if not _is_tactic(r.tactic)]
    if odd:
        yield _finding(
            found,
            "tactic-malformed",
            f"{len(odd)} records hold no tactic",
            "a number from -1 or a list of numbers",
            tuple(f"{r.parsed.name() if r.parsed else r.key[:80]}: {r.tactic!r}" for r in odd[:QUOTED]),
            found.quote(odd),
            (PRIME,),
        )


def _is_tactic(value: JSON) -> bool:
    if isinstance(value, list):
        return bool(value) and all(_is_inner(v) for v in value)
    return isinstance(value, int) and not isinstance(value, bool) and value >= -1


def _is_inner(value: JSON) -> bool:
    if isinstance(value, list):
        return all(_is_inner(v) for v in value)
    return value is None or isinstance(value, (bool, int, float, str))


def _sizes(found: WatchedFile, stage: int) -> Iterator[LedgerFinding]:
    odd = []
    for record in found.file.records:
        sizes = [s for s in (record.ranks.tp_size, record.ranks.ep_size) if s is not None]
        ranks = ((record.ranks.tp_rank, record.ranks.tp_size), (record.ranks.ep_rank, record.ranks.ep_size))
        outside = any(r is not None and s is not None and not 0 <= r < s for r, s in ranks)
        if sizes and (outside or (max(sizes) != stage and _product(sizes) != stage)):
            odd.append(record)
    if odd:
        first = odd[0].ranks
        yield _finding(
            found,
            "sizes-wrong",
            f"{len(odd)} records are of another parallel layout",
            f"{stage} ranks in a pipeline stage",
            (f"tp_size {first.tp_size}, tp_rank {first.tp_rank}, ep_size {first.ep_size}, ep_rank {first.ep_rank}",),
            found.quote(odd),
            ("records of another layout are never hit: the sizes are part of the key",),
        )


def _product(sizes: Sequence[int]) -> int:
    total = 1
    for size in sizes:
        total *= size
    return total


def _finding(
    found: WatchedFile,
    kind: str,
    summary: str,
    expected: str,
    observed: tuple[str, ...],
    evidence: tuple[Evidence, ...] = (),
    helps: tuple[str, ...] = (),
) -> LedgerFinding:
    shown = evidence or (found.evidence(observed[0] if observed else summary),)
    return LedgerFinding(kind, TIER, summary, expected, observed, None, shown, helps)
