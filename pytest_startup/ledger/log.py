"""What the log of a start says of each worker's tuning: loaded, hit, tuned, saved, refused, and which files it used."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pytest_startup.ranks import Worker, parse_rank
from pytest_startup.record import JSON, Evidence, Fact, StartRecord

FACTS = (
    "autotune.started",
    "autotune.ended",
    "autotune.loaded",
    "autotune.saved",
    "autotune.hit",
    "autotune.tuned",
    "autotune.refused",
    "autotune.fallback",
    "autotune.discarded",
)
#: Facts that name the file without saying that anything was read from it.
PLACES = ("autotune.file", "autotune.cache")
#: Texts by which a refusal is known where no rule calls it ``autotune.refused``.
REFUSALS = ("was created in a different environment", "legacy cuDNN config", "Ignoring invalid managed cache entry")
_OP = re.compile(r"[\w.]+(?:::\w+)+")
_PATH = re.compile(r"(/[^\s'\",]+\.json)")
_PREFIX = re.compile(r"\(Worker pid=(\d+)\)")
_NEW = re.compile(r"\((\d+) new\b")


@dataclass
class RankLog:
    """One worker's lines, in their order. ``loaded`` is what it read before it tuned or saved: later it is a reload."""

    started: Fact | None = None
    ended: Fact | None = None
    loaded: int | None = None
    hit: dict[str, Fact] = field(default_factory=dict)
    tuned: dict[str, Fact] = field(default_factory=dict)
    saved: int | None = None
    new: int | None = None
    refused: list[Fact] = field(default_factory=list)
    fallback: list[Fact] = field(default_factory=list)
    facts: list[Fact] = field(default_factory=list)

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        return tuple(f.evidence for f in self.facts)

    def text(self) -> str:
        """``42 loaded; gemm1 hit, gemm2 tuned 21/21`` for messages."""
        parts = ["no line" if not self.facts else f"{'nothing' if self.loaded is None else self.loaded} loaded"]
        parts += [f"{short_op(op)} hit" for op in self.hit]
        parts += [f"{short_op(op)} tuned{progress(f)}" for op, f in self.tuned.items()]
        if self.new:
            parts.append(f"{self.new} new records saved")
        if self.refused:
            parts.append("its records refused")
        return "; ".join(parts)


@dataclass(frozen=True)
class TuningLog:
    """All workers' lines by worker name. ``stray``: lines that no worker can be named for."""

    ranks: Mapping[str, RankLog]
    stray: tuple[Fact, ...] = ()
    paths: frozenset[str] = frozenset()

    @property
    def any(self) -> bool:
        """Did anything happen besides an autotuner that opened and closed?"""
        used = any(r.hit or r.tuned or r.loaded or r.new for r in self.ranks.values())
        return used or any(f.name in ("autotune.hit", "autotune.tuned") or _records(f) for f in self.stray)

    @property
    def lines(self) -> tuple[Fact, ...]:
        """Every line, of whichever worker."""
        return (*(f for r in self.ranks.values() for f in r.facts), *self.stray)

    @property
    def refused(self) -> tuple[Fact, ...]:
        """The refusals that no worker can be named for."""
        return tuple(f for f in self.stray if is_refusal(f))


def read(record: StartRecord, workers: Sequence[Worker]) -> TuningLog:
    """Give each tuning line of a record to its worker.

    The only worker of a data-parallel engine has no rank in its prefix (vLLM 0.26.0, dense: ``(Worker pid=4521)``). As
    many nameless processes as there are workers without a line are these workers, in the order of their pids.
    """
    ranks = {w.name: RankLog() for w in workers}
    stray: list[Fact] = []
    paths: set[str] = set()
    for fact in sorted(record.facts, key=_line):
        refusal = is_refusal(fact)
        if fact.evidence.source != "log" or not (fact.name in (*FACTS, *PLACES) or refusal):
            continue
        paths.update(_PATH.findall(f"{fact.value} {fact.detail.get('path', '')} {fact.evidence.text}"))
        if fact.name in PLACES:
            continue
        worker = worker_of(fact, workers)
        if worker is None:
            stray.append(fact)
        else:
            _take(ranks[worker.name], fact, refusal)
    silent = [log for log in ranks.values() if not log.facts]
    pids = sorted({pid for fact in stray if (pid := _pid(fact)) is not None})
    if len(pids) == len(silent) > 1:
        for fact in stray:
            if (pid := _pid(fact)) is not None:
                _take(silent[pids.index(pid)], fact, is_refusal(fact))
        stray = [fact for fact in stray if _pid(fact) is None]
    return TuningLog(ranks, tuple(stray), frozenset(paths))


def _pid(fact: Fact) -> int | None:
    found = _PREFIX.match(fact.evidence.text)
    return int(found[1]) if found else None


def _records(fact: Fact) -> bool:
    """Were records of a file read, or new ones saved?"""
    new = count(fact.member("new"))
    return fact.name == "autotune.loaded" or (fact.name == "autotune.saved" and (new is None or new > 0))


def is_refusal(fact: Fact) -> bool:
    """Does this line say that records were not taken?"""
    return fact.name == "autotune.refused" or any(t in fact.evidence.text for t in REFUSALS)


def _line(fact: Fact) -> tuple[str, int]:
    """Order of a log's lines: a reader gives the last states of progress bars at the end, not where they stand."""
    return fact.evidence.where, fact.evidence.line or 0


def worker_of(fact: Fact, workers: Sequence[Worker]) -> Worker | None:
    """Who printed it: by its rank, else the only worker, else the only worker of its node."""
    if fact.rank:
        exact = [w for w in workers if w.name == fact.rank]
        at = parse_rank(fact.rank)
        near = exact or [w for w in workers if w.at.agrees(at)]
        return near[0] if len(near) == 1 else None
    on_node = [w for w in workers if fact.node is not None and w.node == fact.node]
    candidates = list(workers) if len(workers) == 1 else on_node
    return candidates[0] if len(candidates) == 1 else None


def op_of(fact: Fact) -> str:
    """``trtllm::fused_moe::gemm1``: from the value, the detail or the text; ``an operator`` when none names it."""
    for value in (fact.member("op"), fact.member("kind"), fact.value, fact.evidence.text):
        if isinstance(value, str) and (match := _OP.search(value)):
            return match[0]
    named = fact.member("op") or fact.member("kind") or fact.value
    return named if isinstance(named, str) and named else "an operator"


def short_op(op: str) -> str:
    """An operation without its namespaces: ``gemm`` of ``flashinfer::gemm``."""
    return op.rpartition("::")[2]


def progress(fact: Fact) -> str:
    """`` 21/21`` of a tuning bar, or nothing."""
    done, total = fact.member("done"), fact.member("total")
    return "" if done is None or total is None else f" {done}/{total}"


def count(value: JSON) -> int | None:
    """A number of things out of a fact; None: it holds none."""
    return int(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def ops(logs: Iterable[RankLog]) -> list[str]:
    """Every op that any of these hit or tuned, sorted."""
    return sorted({op for log in logs for op in (*log.hit, *log.tuned)})


def _take(log: RankLog, fact: Fact, refusal: bool) -> None:
    log.facts.append(fact)
    number = count(fact.value)
    if refusal:
        log.refused.append(fact)
    elif fact.name == "autotune.started":
        log.started = log.started or fact
    elif fact.name == "autotune.ended":
        log.ended = fact
    elif fact.name == "autotune.loaded":
        if not log.tuned and log.saved is None and number is not None:
            log.loaded = max(number, log.loaded or 0)
    elif fact.name == "autotune.hit":
        log.hit.setdefault(op_of(fact), fact)
    elif fact.name == "autotune.tuned":
        log.tuned[op_of(fact)] = fact
    elif fact.name == "autotune.saved":
        new = count(fact.member("new"))
        said = _NEW.search(fact.evidence.text)
        log.saved = number
        log.new = (log.new or 0) + (new if new is not None else int(said[1]) if said else number or 0)
    elif fact.name == "autotune.fallback":
        log.fallback.append(fact)
