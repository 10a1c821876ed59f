"""What a rule of a profile is given and gives: the file's data, what is known besides it, paths with messages."""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_startup.profile.problems import KeyPath

#: What is wrong, each with its path in the file.
Wrong = Iterator[tuple[KeyPath, str]]


@dataclass(frozen=True)
class Known:
    """What the rules need to know besides the file: names added by hooks, the day, the profile's folder."""

    checks: Collection[str]
    engines: Collection[str]
    launchers: Collection[str]
    today: datetime.date
    folder: Path


def value_at(data: Any, *path: str | int, kind: type | tuple[type, ...] = dict) -> Any:
    """The value at ``path`` if it is of ``kind``, else an empty one (None where ``kind`` is several types)."""
    for part in path:
        if isinstance(data, dict) and isinstance(part, str):
            data = data.get(part)
        elif isinstance(data, list) and isinstance(part, int) and part < len(data):
            data = data[part]
        else:
            data = None
    if isinstance(data, kind) and not (isinstance(data, bool) and kind is not bool):
        return data
    return None if isinstance(kind, tuple) else kind()
