"""How a process ended that is no child of ours, by which signal or with which exit code, and whether it is about to."""

from __future__ import annotations

import fcntl
import os
import signal
import struct

from pytest_startup.launch.identity import Identity, parse_stat

#: Signals that a process brings upon itself; all others come from outside.
CRASHES = frozenset({signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGTRAP})

#: Signals by which engines end their own ranks when they shut down: who gets one did not bring the engine down.
ASKED = frozenset({signal.SIGTERM, signal.SIGINT})

#: ``PF_EXITING`` of the kernel's flags of a process, and SIGKILL in its masks of pending signals.
_EXITING = 0x4
_KILL = 1 << (signal.SIGKILL - 1)

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


def status_of(pid: int, handle: int, proc: str | os.PathLike[str] = "/proc") -> int | None:
    """The wait status of a process that has ended; None when nobody tells (any more).

    Asks the corpse first, while its parent has not taken it, then the kernel's memory behind ``handle``. Of one that is
    on its way out it is known unless it is 0.
    """
    try:
        with open(f"{proc}/{pid}/stat", encoding="utf-8", errors="replace") as file:
            rest = file.read().rpartition(")")[2].split()
        if rest[0] in "ZX" and (rest[-1] != "0" or handle < 0):
            return int(rest[-1])
        if int(rest[6]) & _EXITING and rest[-1] != "0":
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


def is_ending(identity: Identity, proc: str | os.PathLike[str] = "/proc") -> bool:
    """Is this process on its way out, though the table still has it: a KILL waits for it, it writes its core, it exits
    (to give its memory back takes a large one a while), or its first thread has gone and others have not? A corpse is
    no longer."""
    try:
        with open(f"{proc}/{identity.pid}/stat", encoding="utf-8", errors="replace") as file:
            text = file.read()
        process, flags = parse_stat(text), int(text.rpartition(")")[2].split()[6])
        if process.identity != identity or not process.runs:
            return False
        if process.state in "ZX" or flags & _EXITING:
            return True
        with open(f"{proc}/{identity.pid}/status", encoding="utf-8", errors="replace") as file:
            shown = dict(line.split(":", 1) for line in file if ":" in line)
        pending = [int(shown.get(name, "0"), 16) for name in ("SigPnd", "ShdPnd")]
    except (OSError, ValueError, IndexError):
        return False
    return shown.get("CoreDumping", "0").strip() == "1" or any(mask & _KILL for mask in pending)


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
