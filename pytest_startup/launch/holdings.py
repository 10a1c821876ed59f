"""What a launcher holds from start to start: locks of GPUs and port; and the proof between two that all is gone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pytest_startup.launch import locks
from pytest_startup.launch.base import LaunchError, Running, StartPlan

#: (kind, name): ``gpu`` and a UUID, ``port`` and a number.
Wanted = Sequence[tuple[str, str]]


class Holdings:
    """The locks of one launcher. What others have is waited for ``wait`` seconds; ``notice`` hears of it."""

    def __init__(self, wait: float, notice: Callable[[str], None] | None) -> None:
        self._wait, self._notice = wait, notice
        self._locks: dict[tuple[str, str], locks.Lock] = {}

    @property
    def handles(self) -> list[int]:
        """Open lock files: whoever inherits them holds the locks, too."""
        return [lock.handle for lock in self._locks.values()]

    def why_not(self, used: Wanted) -> list[str]:
        """One reason for each lock in use; none where they are waited for."""
        if self._wait > 0:
            return []
        return [f"{kind} {name} is in use by {locks.holder(locks.lock_path(kind, name))}" for kind, name in used]

    def take(self, wanted: Wanted, plan: StartPlan) -> None:
        """Hold exactly these. Raises LockTaken, LockUnusable; what was held and is wanted still stays held."""
        for key in [key for key in self._locks if key not in wanted]:  # the port of the start before
            self._locks.pop(key).release()
        missing = [key for key in wanted if key not in self._locks]
        owner = f"run {plan.run_id} of {plan.profile.name}"
        for lock in locks.take(missing, owner, self._wait, self._notice):
            self._locks[(lock.kind, lock.name)] = lock

    def forget(self) -> None:
        """They stay with those that inherited them."""
        self._locks = {}

    def release(self) -> None:
        """Give all back. Idempotent."""
        for lock in self._locks.values():
            lock.release()
        self._locks = {}


def in_use(wanted: Wanted) -> list[tuple[str, str]]:
    """Those that another run has now. Creates and keeps nothing. Raises LockUnusable."""
    return [key for key in wanted if not locks.is_free(*key)]


def wanted(gpus: Sequence[str], port: int | None) -> list[tuple[str, str]]:
    """The locks of an engine on these GPUs (by the names that all runs use) and this port."""
    return [*(("gpu", gpu) for gpu in gpus), *(() if port is None else (("port", str(port)),))]


def refuse_unless_released(running: Running) -> None:
    """The next start waits for the proof that the one before is gone. Raises LaunchError with what is left of it."""
    left = [one for one in running.stop() if not one.released]
    if left:
        what = "; ".join(f"{one.kind} {one.what}" for one in left)
        raise LaunchError(f"nothing is started: the start before has not released {what}")
