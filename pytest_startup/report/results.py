"""What a run came to, as plain data: the one source of every report, the same on an xdist worker and its controller."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

GREEN = ("passed",)

#: Start and check of the one item of a preflight, which accepts nothing.
PREFLIGHT = ("preflight", "host")


@dataclass(frozen=True)
class ItemResult:
    """The result of one check on one start. ``outcome`` is a verdict's value, or ``error`` when it could not be judged.

    ``waived`` holds the reason of the waiver that applies: the outcome stays what it was, so that a waived check never
    looks like evidence. ``summary`` is one line, ``text`` all that a failure prints. ``line`` is for annotations: the
    profile's line that set the expectation.
    """

    start: str
    check: str
    outcome: str
    summary: str = ""
    text: str = ""
    waived: str | None = None
    ranks: tuple[str, ...] = ()
    numbers: Mapping[str, float | int | str] = field(default_factory=dict)
    line: int | None = None
    seconds: float = 0.0

    @property
    def green(self) -> bool:
        """Passed, or waived with a reason."""
        return self.outcome in GREEN or self.waived is not None


@dataclass(frozen=True)
class StartRow:
    """One line of the table. ``phases`` are seconds of the slowest rank; None and absent: nothing stated it.

    ``left_up``: nodes that were not restarted, and since which start they run.
    """

    name: str
    population: str = ""
    ready_seconds: float | None = None
    phases: Mapping[str, float] = field(default_factory=dict)
    kv_tokens: str | None = None
    throughput: Mapping[str, float] = field(default_factory=dict)
    failed: str | None = None
    note: str = ""
    left_up: str = ""


@dataclass
class ProfileResult:
    """One profile of a run. ``expected`` are all (start, check) of the gate, ``selected`` those pytest was to run,
    ``hidden`` those that something took out of the collection without a word. ``left_behind``: at the end of the run,
    behind all checks, something of ours was not released; ``ended``: an engine of the user's own tests ended by itself.
    """

    key: str
    name: str
    identity: Mapping[str, str] = field(default_factory=dict)
    folder: str | None = None
    expected: Sequence[tuple[str, str]] = ()
    selected: Sequence[tuple[str, str]] = ()
    rows: dict[str, StartRow] = field(default_factory=dict)
    results: dict[tuple[str, str], ItemResult] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    hidden: Sequence[tuple[str, str]] = ()
    left_behind: bool = False
    ended: bool = False

    def add(self, data: Mapping[str, Any]) -> ItemResult:
        """Merge what one report carried (``to_wire``); a later report of the same start knows more."""
        result = item_from_json(data["item"])
        self.results[result.start, result.check] = result
        for row in data.get("rows", ()):
            self.rows[row["name"]] = StartRow(**row)
        self.identity = data.get("identity") or self.identity
        self.folder = data.get("folder") or self.folder
        return result

    @property
    def missing(self) -> list[tuple[str, str]]:
        """What was to be judged for an acceptance and was not."""
        return [key for key in self.expected if key not in self.results]

    @property
    def unreported(self) -> list[tuple[str, str]]:
        """What pytest was to run and never reported: skipped or hidden by others, or the run stopped early."""
        return [key for key in (*self.selected, *self.hidden) if key not in self.results]

    @property
    def red(self) -> list[ItemResult]:
        """Those that fail the run, in order."""
        return [r for r in self.ordered() if not r.green]

    @property
    def status(self) -> str:
        """``REJECTED`` as soon as anything is red, ``ACCEPTED`` only when everything was judged; or ``PREFLIGHT``."""
        if list(self.expected) == [PREFLIGHT]:
            return "PREFLIGHT"
        if self.red or self.left_behind or self.ended:
            return "REJECTED"
        return "INCOMPLETE" if self.missing or not self.results else "ACCEPTED"

    def ordered(self) -> list[ItemResult]:
        """All results so far, in the order of the items."""
        return [self.results[key] for key in self.expected if key in self.results]

    def counts(self) -> dict[str, int]:
        """How many passed, failed, not exercised, not observable, waived; error and not run where there are any."""
        out = dict.fromkeys(("passed", "failed", "not exercised", "not observable", "waived"), 0)
        for result in self.results.values():
            name = "waived" if result.waived is not None else result.outcome
            out[name] = out.get(name, 0) + 1
        if self.missing:
            out["not run"] = len(self.missing)
        return out


def to_wire(
    result: ItemResult, rows: Iterable[StartRow], identity: Mapping[str, str], folder: str | None
) -> dict[str, Any]:
    """The form that travels on a test report: builtin types only, as xdist needs."""
    return {
        "item": _plain(asdict(result)),
        "rows": [_plain(asdict(row)) for row in rows],
        "identity": dict(identity),
        "folder": folder,
    }


def item_from_json(data: Mapping[str, Any]) -> ItemResult:
    """Of what a worker sent."""
    return ItemResult(**{**data, "ranks": tuple(data.get("ranks", ()))})


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
