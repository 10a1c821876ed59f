"""Fixtures for the user's own tests: the profile, the running engine, and a call that restarts it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_startup.gate import Gate
    from pytest_startup.launch.base import Running
    from pytest_startup.profile.model import Profile
    from pytest_startup.record import Completion, StartRecord
    from pytest_startup.session import GateRun


class Engine:
    """The running engine of a profile. Every access looks at the engine that runs now, also after a restart; where it
    has ended by itself, the test fails with how it did."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def _running(self) -> Running:
        from pytest_startup.gate import StartFailed
        from pytest_startup.launch.base import LaunchError

        try:
            return self._gate.engine()
        except (StartFailed, LaunchError) as error:
            raise failed_without_traceback(error) from None

    @property
    def base_url(self) -> str:
        """``http://127.0.0.1:8888``, without a trailing slash."""
        return self._running().base_url

    @property
    def record(self) -> StartRecord:
        """The record of the start that is running."""
        self._running()
        return list(self._gate.records().values())[-1]

    @property
    def logs(self) -> Sequence[Path]:
        """The raw log of each node; it is being written."""
        return [log.path for log in self._running().logs]

    def complete(self, prompt: str, max_tokens: int = 32, chat: bool = False) -> Completion:
        """One greedy request to the engine; the answer, or what went wrong, is in the completion."""
        from pytest_startup.profile.expect import Prompt

        self._running()
        return self._gate.complete(Prompt(prompt, max_tokens=max_tokens, chat=chat))


@pytest.fixture(scope="session")
def startup_profile(request: pytest.FixtureRequest) -> Profile:
    """The profile of this test: that of its ``startup_profile`` marker, else that of the options."""
    return _run(request).profile


@pytest.fixture(scope="session")
def engine(request: pytest.FixtureRequest, startup_profile: Profile) -> Engine:
    """The running engine of the profile: started on first use, stopped at the end of the session."""
    engine = Engine(_run(request, startup_profile).gate)
    engine._running()
    return engine


@pytest.fixture(scope="session")
def restart(
    request: pytest.FixtureRequest, startup_profile: Profile
) -> Callable[[str | None], tuple[StartRecord, StartRecord]]:
    """``before, after = restart()``, or ``restart("process")``: restart the engine and give both records."""
    from pytest_startup.gate import StartFailed
    from pytest_startup.launch.base import LaunchError

    gate = _run(request, startup_profile).gate

    def call(kind: str | None = None) -> tuple[StartRecord, StartRecord]:
        try:
            return gate.restart(kind)
        except (StartFailed, LaunchError) as error:
            raise failed_without_traceback(error) from None

    return call


def failed_without_traceback(error: Exception) -> BaseException:
    """A start that failed, or could not be made, is told as the gate tells it."""
    from pytest_startup.gate import StartFailed
    from pytest_startup.report.terminal import start_failure_text

    text = start_failure_text(error.record) if isinstance(error, StartFailed) else str(error)
    return pytest.fail.Exception(text, pytrace=False)


def _run(request: pytest.FixtureRequest, profile: Profile | None = None) -> GateRun:
    from pytest_startup.activation import session_of
    from pytest_startup.own_tests import NO_PROFILE

    session = session_of(request.config)
    if profile is not None:
        return session.run(profile.path)
    path = getattr(request, "param", None) or next(iter(session.options.profiles), None)
    if path is None:
        pytest.fail(NO_PROFILE, pytrace=False)
    try:
        return session.run(path)
    except pytest.UsageError as error:
        raise pytest.fail.Exception("\n".join(map(str, error.args)), pytrace=False) from None
