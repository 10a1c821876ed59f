"""The gate as pytest sees it: ``profile.yaml`` → ``restart-1`` → ``kv``, and what becomes of each result."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_startup.profile.problems import printable
from pytest_startup.report.results import PREFLIGHT, ItemResult
from pytest_startup.session import GateRun, Unusable

if TYPE_CHECKING:
    from _pytest._io import TerminalWriter


class CheckFailed(Exception):
    """A check that is not green; ``result`` holds all that is printed."""

    def __init__(self, result: ItemResult) -> None:
        super().__init__(result.summary)
        self.result = result


class GateFile(pytest.File):
    """A profile. Its node id is its path relative to the rootdir, as of any test file."""

    run: GateRun

    @classmethod
    def of(cls, parent: pytest.Collector, path: Path, run: GateRun) -> GateFile:
        file: GateFile = cls.from_parent(parent, path=path)
        file.run = run
        return file

    def collect(self) -> Iterator[pytest.Collector]:
        starts = dict.fromkeys(start for start, _ in self.run.result.expected)
        for start in starts:
            yield GateStart.from_parent(self, name=start)


class GateStart(pytest.Collector):
    """One start, with one item per check."""

    def collect(self) -> Iterator[pytest.Item]:
        file = self.getparent(GateFile)
        assert file is not None  # noqa: S101  (its only parent)
        for start, check in file.run.result.expected:
            if start == self.name:
                yield GateItem.of(self, check, file.run)


class GateItem(pytest.Item):
    """One check on one start. The start is made on first need, in ``setup``: a failure there is an error, not a
    failure of this check."""

    run: GateRun
    start: str
    result: ItemResult | None

    @classmethod
    def of(cls, parent: GateStart, check: str, run: GateRun) -> GateItem:
        item: GateItem = cls.from_parent(parent, name=check)
        item.run, item.start, item.result = run, parent.name, None
        item.add_marker("startup")
        return item

    def setup(self) -> None:
        if self.config.getoption("setupplan", False):
            return
        preflight = (self.start, self.name) == PREFLIGHT
        try:
            self.result = self.run.preflight() if preflight else self.run.judge(self.start, self.name)
        except Unusable as error:
            # pytest formats the traceback of each error of a setup (a quarter of a second each), if it has one.
            raise pytest.fail.Exception(error.text, pytrace=False) from error
        self.user_properties = [(f"startup.{printable(k)}", v) for k, v in self.result.numbers.items()]

    def runtest(self) -> None:
        result = self.result
        if result is None or result.outcome == "passed":
            return
        if result.waived is not None:
            pytest.skip(f"waived ({result.outcome}): {result.summary}")
        raise CheckFailed(result)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, CheckFailed):
            return excinfo.value.result.text
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        line = self.run.profile.place(f"expect.{self.name}").rpartition(":")[2]
        return self.path, int(line) - 1 if line.isdigit() else 0, f"{self.start}::{self.name}"

    def wire(self, call: pytest.CallInfo[None]) -> dict[str, Any] | None:
        """What the report of this phase carries: the result when it is decided, None otherwise."""
        error = call.excinfo.value if call.excinfo else None
        ours = isinstance(error, (CheckFailed, pytest.skip.Exception)) or error is None
        if call.when == "call" and ours and self.result is not None:
            return self.run.wire(self.result)
        if call.when != "teardown" and error is not None and not isinstance(error, pytest.skip.Exception):
            unusable = why_unusable(error)
            summary = unusable.summary if unusable else f"{type(error).__name__}: {error}"
            return self.run.wire(self.run.error(self.start, self.name, summary))
        return None


def why_unusable(error: BaseException) -> Unusable | None:
    """Why an item can't be judged, where ``error`` of its setup says that."""
    return error.__cause__ if isinstance(error.__cause__, Unusable) else None


class ResultRepr:
    """The printed form of a red item: our text as it stands, and its first line for pytest's short summary."""

    def __init__(self, text: str, summary: str, path: str) -> None:
        self.text = text
        self.reprcrash = Crash(path, summary)

    def toterminal(self, tw: TerminalWriter) -> None:
        for i, line in enumerate(self.text.splitlines()):
            tw.line(line, red=i == 0)

    def __str__(self) -> str:
        return self.text


class Crash:
    """What pytest prints in one line (``-ra``, ``--tb=line``) and what JUnit holds as message."""

    def __init__(self, path: str, message: str) -> None:
        self.path, self.message, self.lineno = path, message, 0

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"
