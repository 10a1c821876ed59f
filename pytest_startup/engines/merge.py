"""Several nodes' logs as one stream, in the order of their printed times."""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterator, Mapping

from pytest_startup.engines.stamps import clock

_TIME = re.compile(rb"(?:\d{4}-)?\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?")
#: Nodes of one start begin within hours; what is further apart has clocks or time zones that cannot be compared.
APART = 6 * 3600.0
_HEAD = 300


def stamp_of(raw: bytes) -> float | None:
    """The first printed time of a line, in the year 2000 (vLLM prints no year); None where there is none."""
    found = _TIME.search(raw, 0, _HEAD)
    if not found:
        return None
    text = found.group(0).decode().replace("T", " ")
    return clock(text if text[4] == "-" else text[:14])


def merged(nodes: Mapping[str, Iterator[bytes]]) -> Iterator[tuple[str, bytes]]:
    """``(node, lines)`` of several streams of bytes, the earlier first. A line without a time goes with the one before
    it; where the clocks cannot be compared, one node follows the other."""
    groups = {node: _groups(chunks) for node, chunks in nodes.items()}
    heads = {node: next(stream, None) for node, stream in groups.items()}
    times = [head[0] for head in heads.values() if head is not None]
    if any(time is None for time in times) or (times and _spread(times) > APART):
        for node, head in heads.items():
            if head is not None:
                yield node, head[1]
            for _, lines in groups[node]:
                yield node, lines
        return
    order = {node: index for index, node in enumerate(nodes)}
    heap = [(head[0] or 0.0, order[node], node, head[1]) for node, head in heads.items() if head is not None]
    heapq.heapify(heap)
    while heap:
        _, place, node, lines = heap[0]
        yield node, lines
        head = next(groups[node], None)
        if head is None:
            heapq.heappop(heap)
        else:
            heapq.heapreplace(heap, (head[0] or 0.0, place, node, head[1]))


def _spread(times: list[float | None]) -> float:
    known = [time for time in times if time is not None]
    return max(known) - min(known)


def _groups(chunks: Iterator[bytes]) -> Iterator[tuple[float | None, bytes]]:
    """Lines of one time, with that time, which never falls; lines before the first time belong to it."""
    time: float | None = None
    lines: list[bytes] = []
    size = 0
    for line in _lines(chunks):
        stamp = stamp_of(line)
        if stamp is not None and (time is None or stamp > time):
            if time is not None:
                yield time, b"".join(lines)
                lines, size = [], 0
            time = stamp
        lines.append(line)
        size += len(line)
        if size > 1 << 20:
            yield time, b"".join(lines)
            lines, size = [], 0
    if lines:
        yield time, b"".join(lines)


def _lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    rest = b""
    for data in chunks:
        whole = _split(rest + data)
        rest = whole.pop()
        yield from whole
        if len(rest) > 1 << 20:
            yield rest
            rest = b""
    if rest:
        yield rest


def _split(data: bytes) -> list[bytes]:
    """Lines with their LF; the last one is unfinished, perhaps empty."""
    parts = data.split(b"\n")
    return [part + b"\n" for part in parts[:-1]] + [parts[-1]]
