"""What the processes of an engine call themselves, and which of them are its ranks and cores: their forks are not."""

from __future__ import annotations

from collections.abc import Callable

from pytest_startup.launch.identity import Identity, Process, command_line
from pytest_startup.ranks import TITLE


class Titles:
    """Tells ranks from their forks, as long as the caller asks about the same processes again and again.

    A fork has its parent's title until it executes something else, and ends when its work is done (seen: vLLM 0.26.0,
    engine core, while it compiles; exit code 0). ``line_of`` reads a command line by pid.
    """

    def __init__(self, line_of: Callable[[int], str] = command_line) -> None:
        self._line_of = line_of
        self._forks: dict[Identity, str] = {}

    def of(self, process: Process, line: str) -> str | None:
        """The title in ``line``, the process's own command line; None if it has none, or only that of its parent."""
        found = TITLE.match(line)
        title = found.group() if found else None
        if title is None or self._forks.get(process.identity) == title:
            return None  # a fork stays one when its parent has gone
        parent = TITLE.match(self._line_of(process.parent))
        if parent is not None and parent.group() == title:
            self._forks[process.identity] = title
            return None
        self._forks.pop(process.identity, None)
        return title

    def forget(self, identity: Identity) -> None:
        """This process has ended."""
        self._forks.pop(identity, None)
