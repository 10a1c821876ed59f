"""Why a start failed: the kinds of failure, how the text of an error is told to be one, and its summary in a line."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pytest_startup.engines.tracebacks import Frame

#: Every kind of failure with its meaning in a few words (used in summaries).
KINDS: dict[str, str] = {
    "out-of-device-memory": "out of device memory",
    "out-of-host-memory": "out of host memory",
    "out-of-shared-memory": "out of shared memory (/dev/shm)",
    "memory-in-use": "the device memory that was asked for is not free",
    "kv-too-small": "no room for the KV cache that is needed",
    "disk-full": "no space left on a disk",
    "not-writable": "a file or folder cannot be written or read",
    "unsupported-backend": "a backend or feature does not support this model or configuration",
    "unsupported-device": "the build does not support this device",
    "device-unavailable": "no usable device or driver",
    "unsupported-model": "the engine does not know this model",
    "bad-checkpoint": "the checkpoint is damaged or does not fit the model",
    "model-not-found": "the model, a file of it or access to it is missing",
    "download-failed": "a download failed",
    "bad-arguments": "the arguments are refused",
    "launch-failed": "the engine's process or container could not be started",
    "port-taken": "a port is already in use",
    "collective-failed": "communication between ranks failed",
    "collective-timeout": "ranks waited for each other too long",
    "peer-missing": "a peer rank or node never came",
    "device-fault": "a kernel failed on the device",
    "crashed": "a process crashed in native code",
    "killed": "a process was killed from outside",
    "daemon-lost": "the container engine went away",
    "process-died": "a process died without saying why",
    "corrupted-cache": "a cached artifact is damaged or incomplete",
    "kernel-build": "a kernel could not be compiled",
    "missing-module": "a module or library is missing or does not fit",
    "transfer-failed": "moving KV cache between processes failed",
    "hang": "a part of the engine stopped answering",
    "interrupted": "the start was interrupted",
    "stopped": "the log stops without an error: died silently or still running",
    "unknown": "an error of a kind that is not known here",
}

#: ``root``: explains a failure. ``peer``: usually what others see when a rank fails; a cause where nothing better is
#: found. ``summary``: a consequence; a cause only if nothing else was printed. ``latent``: goes unnoticed until
#: something that depends on it fails.
TIERS = ("root", "peer", "summary", "latent")


@dataclass(frozen=True)
class FailureClass:
    """Wordings of one kind of error. Any of ``patterns`` is searched in ``ExceptionName: message`` (all its lines).

    ``alone``: also a failure where it stands outside a traceback, found by one of ``anchors`` (part of every such
    match). ``functions``: only where one of these functions is in the traceback. ``phase`` overrides what was being
    done. ``fatal`` (``alone`` only): the process that printed it is lost, so it needs no other sign.
    """

    kind: str
    patterns: tuple[str, ...]
    example: str
    counter: str
    tier: str = "root"
    alone: bool = False
    anchors: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()
    phase: str | None = None
    fatal: bool = True
    versions: str = ""


_compiled = functools.cache(re.compile)


class FailureTable:
    """All classes, in the order in which they are tried."""

    def __init__(self, classes: Iterable[FailureClass]) -> None:
        self.classes = tuple(classes)
        self._patterns = {id(c): "|".join(c.patterns) for c in self.classes}
        self.anchors = tuple(dict.fromkeys(a for c in self.classes if c.alone for a in c.anchors))

    def of_error(self, text: str, frames: Sequence[Frame] = ()) -> FailureClass | None:
        """The class of an exception: ``text`` is ``Name: message``."""
        functions = {frame.function for frame in frames}
        for row in self.classes:
            if row.functions and not functions.intersection(row.functions):
                continue
            if self._pattern(row).search(text):
                return row
        return None

    def of_line(self, text: str) -> FailureClass | None:
        """The class of a line outside a traceback that is an error in itself."""
        for row in self.classes:
            if row.alone and any(anchor in text for anchor in row.anchors) and self._pattern(row).search(text):
                return row
        return None

    def _pattern(self, row: FailureClass) -> re.Pattern[str]:
        """Compiled on use: a log without errors needs none of them."""
        return _compiled(self._patterns[id(row)])


_KV = re.compile(
    r"max seq len \((?P<length>[\d,]+)\)[^(]*\(+(?P<needed>[\d.]+) GiB KV cache is needed"
    r".*?available KV cache memory \((?P<available>[\d.]+) GiB\)"
    r"(?:.*?estimated maximum model length is (?P<longest>[\d,]+))?",
    re.S,
)
_OLD_KV = re.compile(
    r"max seq len \((?P<length>[\d,]+)\) is larger than the maximum number of tokens that can be stored in KV cache "
    r"\((?P<longest>[\d,]+)\)"
)
_DEVICE = re.compile(
    r"Tried to allocate (?P<asked>[\d.]+ [KMG]iB)\..*?total capacity of (?P<total>[\d.]+ [KMG]iB) of which "
    r"(?P<free>[\d.]+ [KMG]iB) is free(?:.*?this process has (?P<used>[\d.]+ [KMG]iB) memory in use)?",
    re.S,
)
#: Who died, as vLLM's executor (0.10 to 0.31) and its front end say it.
_WHO = re.compile(
    r"Worker (?:proc )?(?P<who>\S+)(?: pid \d+)? died\b[^(]{0,20}?\(?exit code: (?P<code>-?\d+|None)"
    r"|core proc\(s\): \{'(?P<core>\w+)': (?P<status>-?\d+)"
)
_FREE = re.compile(
    r"\((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\).*?utilization \((?P<share>[\d.]+), (?P<wanted>[\d.]+) GiB\)"
)
_UNITS = {"KiB": 1 / (1 << 20), "MiB": 1 / 1024, "GiB": 1.0}

#: Of a summary: more of the device is held beside the engine than its driver needs.
OTHERS = "other processes hold about"


def summary(kind: str, text: str) -> str:
    """One line on the failure: its kind, and the figures that the error states."""
    said = KINDS[kind]
    if kind == "kv-too-small":
        found = _KV.search(text)
        if found:
            longest = found["longest"]
            said += (
                f": one request of {found['length']} tokens needs {found['needed']} GiB, "
                f"{found['available']} GiB are available"
            )
            return said + (f"; the longest that fits is {longest}" if longest else "")
        old = _OLD_KV.search(text)
        if old:
            return (
                f"{said}: one request of {old['length']} tokens does not fit; the longest that fits is {old['longest']}"
            )
    elif kind == "out-of-device-memory":
        found = _DEVICE.search(text)
        if found:
            said += f": {found['asked']} more were asked for, {found['free']} of {found['total']} were free"
            if found["used"]:
                needed = _gib(found["used"]) + _gib(found["asked"])
                said += f"; this process needs about {needed:.1f} GiB, the device has {_gib(found['total']):.1f} GiB"
                others = _gib(found["total"]) - _gib(found["free"]) - _gib(found["used"])
                if others > 0.05 * _gib(found["total"]):
                    said += f"; {OTHERS} {others:.1f} GiB of it"
    elif kind == "memory-in-use":
        found = _FREE.search(text)
        if found:
            said += f": {found['wanted']} GiB wanted, {found['free']} of {found['total']} GiB free"
    elif kind in ("killed", "crashed", "process-died"):
        found = _WHO.search(text)
        if found:
            said += f": {found['who'] or found['core']} (exit code {found['code'] or found['status']})"
    return said


def _gib(text: str) -> float:
    figure, unit = text.split()
    return float(figure) * _UNITS[unit]
