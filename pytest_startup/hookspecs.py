"""Our own hooks: add a check, a launcher, a dialect, a report, or answer with another gate.

Implement them in a ``conftest.py`` or a plugin; ``docs/pytest.md`` shows a tested example of each. Each is called once,
when a run with a profile is configured; where two answers hold the same name, the implementation registered last wins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_startup.checks.base import Check
    from pytest_startup.engines.base import Dialect
    from pytest_startup.gate import Gate
    from pytest_startup.launch.base import Launcher
    from pytest_startup.options import Options
    from pytest_startup.profile.model import Profile
    from pytest_startup.report.writers import Writer


@pytest.hookspec
def pytest_startup_checks(config: pytest.Config) -> Mapping[str, Check] | None:
    """Checks to add, by name: each is run on every start of every profile, behind the built-in ones.

    A name that is known already replaces the built-in check. A check is a pure function::

        def pytest_startup_checks(config):
            return {"boot-time": lambda profile, reference, start, baseline: Verdict(...)}
    """


@pytest.hookspec
def pytest_startup_launchers(config: pytest.Config) -> Mapping[str, Callable[[], Launcher]] | None:
    """Launchers to add, by the name that ``launch.custom`` of a profile gives. Called once per profile::

    def pytest_startup_launchers(config):
        return {"slurm": SlurmLauncher}
    """


@pytest.hookspec
def pytest_startup_dialects(config: pytest.Config) -> Mapping[str, Dialect] | None:
    """Dialects to add, by the name that ``engine.kind`` of a profile gives::

    def pytest_startup_dialects(config):
        return {"my-engine": MyDialect()}
    """


@pytest.hookspec
def pytest_startup_reports(config: pytest.Config) -> Mapping[str, Writer] | None:
    """Report writers to add, by the kind that ``--startup-report KIND=PATH`` gives; written at the end of the run::

    def pytest_startup_reports(config):
        return {"txt": lambda results, path: path.write_text("\\n".join(r.status for r in results))}
    """


@pytest.hookspec(firstresult=True)
def pytest_startup_gate(config: pytest.Config, profile: Profile, options: Options) -> Gate | None:
    """The gate of a profile; the first answer that is not None wins, the built-in one (live or replayed) comes last.

    Called while tests are collected, so it must not start anything: ``Gate.record`` does.
    """
