"""Bytes of a log → lines as the rules see them: prefixes, colours, progress bars, JSON records, process and rank."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from pytest_startup.engines.lines import Line
from pytest_startup.engines.prefixes import Prefixes
from pytest_startup.engines.stamps import clock, full

#: Longer physical lines are cut in the middle: no statement is that long, and memory stays constant.
LINE_LIMIT = 1 << 19
_KEEP = 1 << 18

_ESCAPE = r"(?:\x1b|␛|\^\[|#033|\\x1b|\\u001b|\\033|�)"
#: Colours with their ESC, in the ways in which log viewers spell it; without one only where a digit follows the
#: bracket (``[36m``), because ``[m`` may begin a word such as ``[monitor.py:34]``.
_COLOUR = re.compile(
    _ESCAPE
    + r"\[[0-9;?]*[A-Za-z]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[()][A-Z0-9]|\x1b[=>78]|\[\d{1,3}(?:;\d{1,3})*m"
)
_MAY_COLOUR = re.compile(_ESCAPE + r"|\[\d")

_ISO = re.compile(r"(?P<stamp>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?)[ \t]+")
_AFTER_ISO = re.compile(r"(?P<host>[A-Za-z0-9][\w.\-]*) [\w.\-/@:]+\[\d+\]: ?")
_OUTER = (
    re.compile(r"(?:stdout|stderr) [FP] "),
    re.compile(r"(?P<node>[A-Za-z0-9][\w.\-]*) +\| ?"),
    re.compile(r"\[pod/(?P<node>[\w.\-]+/[\w.\-]+)\] ?"),
    re.compile(
        r"(?:<\d+>)?[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d (?P<node>[A-Za-z0-9][\w.\-]*) [\w.\-/@:]+(?:\[\d+\])?: ?"
    ),
    re.compile(r"\[(?P<rank>rank\d+|default\d+)\]:? ?(?=\S)"),
    re.compile(r"\[\d+,(?P<rank>\d+)\]<std(?:out|err)>: ?"),
)
_PROCESS = re.compile(
    r"\((?P<name>[A-Za-z][\w.\-]{0,60}(?: (?:rank=\d+|[A-Z][A-Z0-9_]*\d+))?)(?: pid=(?P<pid>\d+))"
    r"(?:, ip=(?P<ip>[\w.:]+))?(?:, actor_id=\w+)?\) ?"
)
_BARE_PID = re.compile(r"\(pid=(?P<pid>\d+)(?:, ip=(?P<ip>[\w.:]+))?\) ?")
_REPEATED = re.compile(r"\s*\[repeated (\d+)x across cluster\].*$", re.DOTALL)

_RECORD = re.compile(
    r"(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL|TRACE|FATAL)\s+"
    r"(?P<time>(?:\d{4}-)?\d\d-\d\d \d\d:\d\d:\d\d)(?:[.,]\d+)? "
    # Notebooks make a link of the file's name: [cuda.py:227](http://cuda.py:227/)]
    r"(?:\[(?P<source>[^\]\s]{1,200}:\d+)\](?:\(http[^)\s]*\)\]?)?|(?P<old>[\w./\-]{1,200}:\d+)\]) ?"
)
_SGLANG = re.compile(
    r"\[?(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?)(?P<ranks>(?: [A-Z][A-Z_]*\d+)*)\] ?"
    r"(?:(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL):? +(?:(?P<source>[\w./\-]+\.py:\d+): )?)?"
)
_FLASHINFER = re.compile(
    r"(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?)(?: - (?P<level>[A-Z]+))?"
    r" - (?P<source>[\w./\-]+:\d+) - [\w.]+: ?"
)
_PYTHON = re.compile(
    r"(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?)"
    r"(?: - [\w.\-]+)?(?: - |\s+)(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL)(?: - |\s+|: ?)"
    r"(?:(?P<source>[\w./\-]+:\d+) (?:-- |- )?)?"
)
_PLAIN = re.compile(r"(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL):(?:[\w.]+:|\s+)")
_BAR = re.compile(r"^(?P<title>.{0,200}?)\s*\d{1,3}%\s*(?:\||Completed)")
_BAR_STATE = re.compile(r"\d{1,3}%\s*(?:\||Completed)")
#: A record behind a bar that had no line break yet.
_BAR_RECORD = re.compile(
    r"(?:it|s|B)(?:/s|/it)[^\]\r]{0,80}\] ?"
    r"(?P<record>(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) +\d\d-\d\d \d\d:\d\d|\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)"
)
#: Where the record of another rank of SGLang stands behind one without a line break.
_GLUED = re.compile(r"(?<=[\w.,)\]])(?=\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?(?: [A-Z][A-Z_]*\d+)+\] )")
_RANK_NAME = re.compile(r"(?:Vllm|Ray)?Worker(?:Proc)?_((?:[A-Z]+\d+)(?:_[A-Z]+\d+)*)$")
_SPOKEN_RANK = re.compile(r"\w+ (rank=\d+|[A-Z]+\d+(?:_[A-Z]+\d+)*)$")
_ENGINE_RANK = re.compile(r"(?:EngineCore|APIServer|ApiServer)_(DP\d+)$")

_MESSAGE_KEYS = ("message", "msg", "log", "MESSAGE", "event", "text", "body", "line", "textPayload")
_LEVEL_KEYS = ("level", "levelname", "severity", "lvl")
_PROCESS_KEYS = ("process_name", "processName", "process", "proc")
_NODE_KEYS = ("_HOSTNAME", "hostname", "node", "pod")
_TIME_KEYS = ("timestamp", "time", "asctime", "ts", "@timestamp")


def plain(text: str) -> str:
    """Without colours and what is left of them."""
    return _COLOUR.sub("", text) if _MAY_COLOUR.search(text) else text


def frame(
    raw: bytes,
    number: int,
    node: str | None = None,
    seconds: float | None = None,
    prefixes: Prefixes | None = None,
) -> list[Line]:
    """The lines that stand on one physical line (without its LF): usually one; more where redrawn progress bars of
    several ranks, or a record behind a bar, share it. All have its number. ``prefixes``: the log's own unknown prefix,
    which is learnt and taken off."""
    if len(raw) > LINE_LIMIT:
        raw = raw[:_KEEP] + b"\r" + raw[-_KEEP:]
    text = plain(raw.decode("utf-8", "replace"))
    unknown = prefixes.pattern.match(text) if prefixes is not None and prefixes.pattern is not None else None
    if unknown:
        text = text[unknown.end() :]
    base = Line(number, raw, text, text, node=node, seconds=seconds)
    lines = _lines(text, base, 0)
    if prefixes is not None and prefixes.pattern is None and (lines[0].level or lines[0].process or lines[0].before):
        prefixes.learn(lines[0].before)
    return lines


def _lines(text: str, base: Line, depth: int) -> list[Line]:
    base, text = _outer(text.strip("\r\n\x00"), base)
    if depth < 3 and text[:1] == "{" and text.rstrip()[-1:] == "}":
        found = _json(text, base, depth)
        if found is not None:
            return found
    base = _inherit(base, text)
    out: list[Line] = []
    for piece in _pieces(text):
        line = _record(piece, base)
        # A later redraw in the same physical line belongs to the process that began it.
        base = base.like(process=line.process, pid=line.pid, rank=line.rank, engine=line.engine, node=line.node)
        out.append(line)
    return [line for line in out if line.message.strip()] or out[:1] or [base.like(text="", message="")]


def _inherit(base: Line, text: str) -> Line:
    repeated = _REPEATED.search(text) if "across cluster]" in text else None
    return base.like(repeated=int(repeated.group(1)[:9])) if repeated else base


def _outer(text: str, base: Line) -> tuple[Line, str]:
    """Take off what docker, Kubernetes, compose, journald, syslog, torchrun and mpirun put in front."""
    stamp, node, rank = base.stamp, base.node, base.rank
    for _ in range(6):
        match = _ISO.match(text)
        if match:
            stamp = full(match.group("stamp")) or stamp
            text = text[match.end() :]
            host = _AFTER_ISO.match(text)
            if host:
                node = base.node or host.group("host")
                text = text[host.end() :]
            continue
        for pattern in _OUTER:
            match = pattern.match(text)
            if match:
                groups = match.groupdict()
                node = base.node or groups.get("node") or node
                rank = groups.get("rank") or rank
                text = text[match.end() :]
                break
        else:
            break
    if (stamp, node, rank) != (base.stamp, base.node, base.rank):
        base = base.like(stamp=stamp, node=node, rank=rank)
    return base, text


def _pieces(text: str) -> list[str]:
    """Split at redraws and at process prefixes that begin in the middle; of a redrawn bar the last state is left."""
    parts: list[str] = []
    for segment in text.split("\r"):
        for part in _by_process(segment):
            found = _BAR_RECORD.search(part) if "/s" in part or "/it" in part else None
            for record in (part[: found.start("record")], part[found.start("record") :]) if found else (part,):
                parts.extend(_GLUED.split(record) if record.find("[20", 1) > 0 else (record,))
    if len(parts) <= 1:
        return [part for part in parts if part.strip()]
    last: dict[str, int] = {}
    keys: list[str | None] = []
    speaker = ""
    for index, part in enumerate(parts):
        prefix = _PROCESS.match(part)
        if prefix:
            speaker = prefix.group(0)
        bar = _BAR.match(part)
        key = speaker + (bar.group("title")[prefix.end() if prefix else 0 :].strip() if bar else "") if bar else None
        keys.append(key)
        if key is not None:
            last[key] = index
    return [p for i, p in enumerate(parts) if p.strip() and (keys[i] is None or last[keys[i] or ""] == i)]


def _by_process(text: str) -> list[str]:
    out: list[str] = []
    begin = 0
    behind = 0
    for match in _PROCESS.finditer(text):
        if text[behind : match.start()].strip() and (begin or behind or _BAR_STATE.search(text, 0, match.start())):
            out.append(text[begin : match.start()])
            begin = match.start()
        behind = match.end()
    out.append(text[begin:])
    return out


def _record(text: str, base: Line) -> Line:
    """One piece → a Line: process prefixes, then the record header, then the message."""
    line = base.like(text=_REPEATED.sub("", text) if base.repeated > 1 else text)
    rest = line.text.lstrip(" ") if line.text[:1] == " " else line.text
    while True:
        match = _PROCESS.match(rest)
        bare = None if match else _BARE_PID.match(rest)
        found = match or bare
        if not found:
            break
        if match:
            _speaker(line, match.group("name"))
        line.pid = int(found.group("pid")[:9])
        line.node = found.group("ip") or line.node
        rest = rest[found.end() :].lstrip(" ") if rest[found.end() :][:1] == " " else rest[found.end() :]
    for pattern in (_RECORD, _SGLANG, _FLASHINFER, _PYTHON, _PLAIN):
        match = pattern.search(rest, 0, 600) if pattern is _RECORD else pattern.match(rest)
        if not match:
            continue
        if match.start():
            line.before = rest[: match.start()]
            for inner in _PROCESS.finditer(rest, 0, match.start()):
                line.before = rest[: min(inner.start(), len(line.before))]
                _speaker(line, inner.group("name"))
        groups = match.groupdict()
        line.level = groups.get("level") or line.level
        line.source = groups.get("source") or groups.get("old") or line.source
        time = groups.get("time")
        if time and line.stamp is None:
            line.stamp = clock(time)
        ranks = (groups.get("ranks") or "").strip()
        if ranks:
            line.rank = ranks
        line.message = rest[match.end() :]
        return line
    line.message = rest
    return _unknown_prefix(line, rest)


def _unknown_prefix(line: Line, rest: str) -> Line:
    """A prefix that nobody knows here, in front of a process or of SGLang's header."""
    if line.process is None and " pid=" in rest[:200]:
        for inner in _PROCESS.finditer(rest, 0, 200):
            line.before = line.before or rest[: inner.start()]
            _speaker(line, inner.group("name"))
            line.message = rest[inner.end() :]
    header = _SGLANG.search(line.message, 0, 200) if "[2" in line.message[:120] else None
    if header:
        line.before = line.before or line.message[: header.start()]
        line.rank = header.group("ranks").strip() or line.rank
        line.message = line.message[header.end() :]
    return line


def _speaker(line: Line, name: str) -> None:
    line.process = name
    if name.startswith("EngineCore") and name != "EngineCore":
        line.engine = name
    for pattern in (_RANK_NAME, _SPOKEN_RANK, _ENGINE_RANK):
        match = pattern.match(name)
        if match:
            line.rank = match.group(1)
            return


def _text(data: Mapping[str, Any], keys: tuple[str, ...]) -> str | None:
    for key in keys:
        value = data.get(key)
        if isinstance(value, str) and value:
            return value
        if isinstance(value, Mapping):
            inner = _text(value, ("name", "full_name", "repr", "message"))
            if inner:
                return inner
    return None


def _json(text: str, base: Line, depth: int) -> list[Line] | None:
    """A JSON log record (logging to JSON, docker's json-file, journalctl -o json) → the lines of its message."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(data, dict):
        return None
    message = _text(data, _MESSAGE_KEYS)
    if message is None and isinstance(data.get("record"), dict):
        data = data["record"]
        message = _text(data, _MESSAGE_KEYS)
    if message is None:
        return None
    time = _text(data, _TIME_KEYS)
    rank = data.get("rank", data.get("local_rank"))
    level = _text(data, _LEVEL_KEYS)
    start = base.like(
        level=level.upper() if level else base.level,
        node=base.node or _text(data, _NODE_KEYS),
        stamp=(full(time) or base.stamp) if time else base.stamp,
        rank=f"rank={rank}" if isinstance(rank, int) and not isinstance(rank, bool) else base.rank,
    )
    process = _text(data, _PROCESS_KEYS)
    if process and process != "MainProcess":
        _speaker(start, process)
    out: list[Line] = []
    for part in plain(message).split("\n"):
        if part.strip():
            out.extend(_lines(part, start, depth + 1))
    return out or None
