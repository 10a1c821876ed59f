"""How a process ended that is no child of ours: by which signal, or with which exit code."""

from __future__ import annotations

import fcntl
import os
import signal
import struct

#: Signals that a process brings upon itself; all others come from outside.
CRASHES = frozenset({signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGTRAP})

#: Signals by which engines end their own ranks when they shut down: who gets one did not bring the engine down.
ASKED = frozenset({signal.SIGTERM, signal.SIGINT})

#: ``PIDFD_GET_INFO`` (Linux 6.13) with ``struct pidfd_info`` in its first size, and the bit that asks for the exit
#: status (Linux 6.15: kept for a pidfd's holder after the parent has taken the corpse).
_SIZE = 64
_GET_INFO = 0xC000FF0B | _SIZE << 16
_EXIT = 1 << 3


def handle_of(pid: int) -> int:
    """A file descriptor of the process, to be closed by the caller; -1 where the kernel has none to give."""
    try:
        return os.pidfd_open(pid)
    except (OSError, AttributeError):
        return -1


def status_of(pid: int, handle: int) -> int | None:
    """The wait status of a process that has ended; None when nobody tells (any more).

    Asks the corpse first, while its parent has not taken it, then the kernel's memory behind ``handle``.
    """
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            rest = file.read().rpartition(")")[2].split()
        if rest[0] in "ZX" and (rest[-1] != "0" or handle < 0):
            return int(rest[-1])
    except (OSError, ValueError, IndexError):
        pass
    if handle < 0:
        return None
    answer = bytearray(_SIZE)
    struct.pack_into("=Q", answer, 0, _EXIT)
    try:
        fcntl.ioctl(handle, _GET_INFO, answer)
    except OSError:
        return None
    (mask,) = struct.unpack_from("=Q", answer, 0)
    (status,) = struct.unpack_from("=i", answer, _SIZE - 4)
    return int(status) if mask & _EXIT else None


def told(status: int | None) -> str:
    """``was killed by SIGKILL``, ``ended with exit code 1``, or ``died`` where nobody tells how."""
    if status is None:
        return "died"
    code = os.waitstatus_to_exitcode(status)
    return f"was killed by {signal_name(-code)}" if code < 0 else f"ended with exit code {code}"


def signal_name(number: int) -> str:
    """``SIGKILL``; of one without a name its number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
