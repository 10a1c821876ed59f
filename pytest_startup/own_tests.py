"""The user's own tests: which profile each is about, what its markers ask for, and whether it needs the engine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_startup import markers

if TYPE_CHECKING:
    from pytest_startup.session import Session

MARKED = pytest.StashKey[list[markers.Request]]()

NO_PROFILE = (
    "this test needs a profile: --startup-profile, PYTEST_STARTUP_PROFILE, startup_profile in the ini file, "
    "or @pytest.mark.startup_profile(path)"
)


def session_of(config: pytest.Config) -> Session:
    from pytest_startup.activation import session_of

    return session_of(config)


def parametrize(metafunc: pytest.Metafunc) -> None:
    """A test that uses our fixtures runs once per profile: that of its marker, else those of the options."""
    paths = profiles_of(metafunc.definition)
    if len(paths) > 1 or paths != session_of(metafunc.config).options.profiles:
        names = [path.stem for path in paths]
        metafunc.parametrize("startup_profile", paths, indirect=True, ids=names, scope="session")


def profiles_of(item: pytest.Item) -> tuple[Path, ...]:
    """The profiles that a test is about: that of its run, of its marker, or all of the options."""
    chosen = getattr(getattr(item, "callspec", None), "params", {}).get("startup_profile")
    if chosen is not None:
        return (chosen,)
    mark = item.get_closest_marker("startup_profile")
    if mark is not None and mark.args:
        return (Path(os.path.abspath(item.path.parent / mark.args[0])),)
    return session_of(item.config).options.profiles


def needs_engine(item: pytest.Item) -> bool:
    """Does running this test start an engine, or look at the records of one?"""
    return bool({"engine", "restart"} & set(getattr(item, "fixturenames", ()))) or bool(item.stash.get(MARKED, []))


class MarkedTests:
    """The hook that applies markers; registered only where a test has one of ours."""

    def __init__(self, items: Sequence[pytest.Item]) -> None:
        """Check the arguments of all markers. Raises UsageError, which repeats the signatures."""
        problems = [problem for item in items for problem in accept_markers(item)]
        if problems:
            raise pytest.UsageError(*problems)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> None:
        """The checks that a test's markers ask for, before its body."""
        if MARKED in item.stash:
            apply_markers(item)


def accept_markers(item: pytest.Item) -> list[str]:
    """Note what the markers of a test ask for; returns what is wrong with their arguments."""
    requests, problems = [], []
    for mark in item.iter_markers():
        if not mark.name.startswith("startup_"):
            continue
        try:
            request = markers.parse(mark.name, mark.args, mark.kwargs)
        except markers.MarkerError as error:
            problems.append(f"{item.nodeid}: {error}")
        else:
            if request is not None:
                requests.append(request)
    if requests:
        item.stash[MARKED] = requests
    return problems


def apply_markers(item: pytest.Item) -> None:
    """Judge the last start of each profile that the test is about by what its markers ask for."""
    requests = item.stash[MARKED]
    from pytest_startup.asserts import judge_marked
    from pytest_startup.fixtures import failed_without_traceback
    from pytest_startup.gate import StartFailed
    from pytest_startup.launch.base import LaunchError

    paths = profiles_of(item)
    if not paths:
        pytest.fail(NO_PROFILE, pytrace=False)
    line = item.reportinfo()[1]
    for path in paths:
        gate = session_of(item.config).run(path).gate
        for request in requests:
            try:
                judge_marked(gate, request, item.path, None if line is None else line + 1)
            except AssertionError as error:
                raise pytest.fail.Exception(str(error), pytrace=False) from None
            except (StartFailed, LaunchError) as error:
                raise failed_without_traceback(error) from None
