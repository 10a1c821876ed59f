"""What a profile expects of a restart (``expect``), typed and frozen: one class for each check that has keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Range:
    """A number, or bounds: ``{min: …, max: …}``. ``baseline`` True: compare with the baseline, else the reference."""

    exact: float | None = None
    min: float | None = None
    max: float | None = None
    baseline: bool = False


@dataclass(frozen=True)
class ExpectBackend:
    """Expected names as the engine prints them, compared without regard to case; None: only equal to the reference.

    ``attention`` and ``drafter`` are the roles of ``backend.attention``.
    """

    attention: str | None = None
    drafter: str | None = None
    moe: str | None = None
    linear: str | None = None
    all2all: str | None = None
    kv_dtype: str | None = None
    fallback: str = "forbid"


@dataclass(frozen=True)
class ExpectAutotune:
    """``ranks`` ranks with ``records_per_rank`` own records; ``hits`` all | none (tunes at every start) | any."""

    ranks: int | None = None
    records_per_rank: int | None = None
    hits: str = "all"
    ops: tuple[str, ...] = ()


@dataclass(frozen=True)
class ExpectArtifacts:
    """``missing``/``recompiled``: none | any. ``ranks``: that many distinct ranks must load their artifact when warm.

    ``writes``: none | any: may a warm start write into a watched compile cache?
    """

    missing: str = "none"
    recompiled: str = "none"
    writes: str = "none"
    ranks: int | None = None


@dataclass(frozen=True)
class ExpectGraphs:
    """``mode`` effective (``FULL_AND_PIECEWISE``), ``sizes`` captured, ``captured`` graphs per kind as in the bars."""

    mode: str | None = None
    sizes: tuple[int, ...] | None = None
    captured: Mapping[str, int] = field(default_factory=dict)
    max_seconds: float | None = None


@dataclass(frozen=True)
class ExpectKv:
    """``tokens``: capacity of one engine (smallest rank decides); ``tolerance`` is a fraction (0.01 = 1 %)."""

    tokens: Range = Range(baseline=True)
    available_gib: Range | None = None
    tolerance: float = 0.0


@dataclass(frozen=True)
class ExpectMemory:
    """Limits in GiB. ``tolerance`` is the fraction by which weights per rank may differ from the reference."""

    weights_gib_per_rank: Range | None = None
    gpu_peak_gib: Range | None = None
    host_peak_gib: Range | None = None
    tolerance: float = 0.02


@dataclass(frozen=True)
class ExpectThroughput:
    """The fixed workload: ``requests`` per batch at each concurrency, ``output_tokens`` each, ``repeats`` batches.

    ``tolerance`` is the allowed drop as a fraction; ``min_tokens_per_second`` maps concurrency → absolute floor. Seven
    repeats are the fewest with which one disturbed batch does not spoil the comparison (see ``workload.statistics``).
    """

    concurrency: tuple[int, ...]
    output_tokens: int = 64
    prompt_tokens: int = 64
    requests: int | None = None
    repeats: int = 7
    warmup: int = 1
    tolerance: float = 0.05
    seed: int = 0
    min_tokens_per_second: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Prompt:
    """A greedy prompt; ``contains`` must stand in the answer (without regard to case), if given."""

    prompt: str
    contains: str | None = None
    max_tokens: int = 32
    chat: bool = False


@dataclass(frozen=True)
class ExpectQuality:
    """Greedy prompts answered before and after. ``tolerance``: fraction of prompts that may differ. ``logprob``: the
    largest difference of a token's log-probability that is not a change. ``loops``: forbid | allow."""

    prompts: tuple[Prompt, ...]
    tolerance: float = 0.0
    logprob: float = 0.1
    loops: str = "forbid"


@dataclass(frozen=True)
class ExpectSessions:
    """``count`` sessions of ``prompt_tokens`` that come back, ``concurrency`` at once, until each was sent ``turns``
    times; every return appends ``output_tokens`` new tokens, and every answer has so many."""

    count: int
    prompt_tokens: int
    output_tokens: int = 16
    turns: int = 2
    concurrency: int = 8


@dataclass(frozen=True)
class ExpectTiers:
    """Which tiers must have been used in our workload's window: prefix, external, spec-decode → least rate or True.

    With ``sessions``, ``external`` is judged by their returns alone.
    """

    prefix: float | bool | None = None
    external: float | bool | None = None
    spec_decode: float | bool | None = None
    sessions: ExpectSessions | None = None


@dataclass(frozen=True)
class LogPattern:
    """A regular expression over log lines; ``every`` rank | node | start: in each of these it must (not) stand."""

    pattern: str
    every: str = "start"


@dataclass(frozen=True)
class ExpectLog:
    """Lines that must not, and that must, stand in the log of every start."""

    forbid: tuple[LogPattern, ...] = ()
    require: tuple[LogPattern, ...] = ()


@dataclass(frozen=True)
class Expect:
    """What a restart must show. None: the check runs with its defaults (equal to the reference, own consistency)."""

    backend: ExpectBackend = ExpectBackend()
    autotune: ExpectAutotune | None = None
    artifacts: ExpectArtifacts = ExpectArtifacts()
    graphs: ExpectGraphs = ExpectGraphs()
    kv: ExpectKv = ExpectKv()
    memory: ExpectMemory = ExpectMemory()
    throughput: ExpectThroughput | None = None
    quality: ExpectQuality | None = None
    completion: Prompt = Prompt("The capital of France is")
    tiers: ExpectTiers | None = None
    log: ExpectLog = ExpectLog()
