"""The pytest plugin: options, markers, hookspecs. All else is loaded when a profile, a marker or a fixture asks."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from pytest_startup.fixtures import engine, restart, startup_profile

if TYPE_CHECKING:
    from _pytest.nodes import Node

    from pytest_startup.gate import Gate
    from pytest_startup.options import Options
    from pytest_startup.profile.model import Profile

__all__ = ["engine", "restart", "startup_profile"]

if "pytest_startup.asserts" not in sys.modules:
    pytest.register_assert_rewrite("pytest_startup.asserts")


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    from pytest_startup import hookspecs

    pluginmanager.add_hookspecs(hookspecs)


def pytest_addoption(parser: pytest.Parser) -> None:
    add = parser.getgroup("startup", "restart validation of LLM serving engines (pytest-startup)").addoption
    add("--startup-profile", action="append", metavar="YAML", help="run the gate of this profile (repeatable)")
    add("--startup-artifacts", metavar="DIR", help="records and logs go here (.startup/<profile>/<UTC time>)")
    add("--startup-replay", metavar="DIR", help="judge the records saved in DIR again; starts nothing")
    add("--startup-baseline", metavar="MODE", help="check (default) | propose | ignore the baseline file")
    add("--startup-preflight", action="store_true", help="only say whether the host is fit; touches nothing")
    add("--startup-keep", action="store_true", help="leave the last engine running, to look at it")
    add("--startup-report", action="append", metavar="KIND=PATH", help="write json=…, html=… or csv=… (repeatable)")
    parser.addini("startup_profile", "profiles whose gate is run, relative to this file", type="linelist")
    parser.addini("startup_artifacts", "as --startup-artifacts, relative to this file")
    parser.addini("startup_baseline", "as --startup-baseline")
    parser.addini("startup_report", "as --startup-report, one KIND=PATH per line", type="linelist")


#: What the variables that we read begin with.
VARIABLES = "PYTEST_STARTUP_"


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    from pytest_startup.markers import REGISTERED

    for text in REGISTERED:
        config.addinivalue_line("markers", text)
    if config.option.help or config.option.version:
        return
    if any(name.startswith(VARIABLES) for name in os.environ) or any(
        str(arg).startswith("--startup-") for arg in config.invocation_params.args
    ):
        from pytest_startup.unheard import unheard

        ini = config.inipath
        if told := unheard(os.environ, config.invocation_params.args, config.invocation_params.dir, ini):
            raise pytest.UsageError(*told)
    if names_profile(config):
        from pytest_startup.activation import session_of

        if not session_of(config).options.profiles:  # else it would be green without a gate
            raise pytest.UsageError("PYTEST_STARTUP_PROFILE is set and names no profile")
    elif config.option.startup_preflight or config.option.startup_replay:  # else it would be green without a look
        option = "--startup-preflight" if config.option.startup_preflight else "--startup-replay"
        raise pytest.UsageError(
            f"{option}: no profile is named; add --startup-profile YAML (or set PYTEST_STARTUP_PROFILE, or "
            "startup_profile in the ini file)"
        )


def names_profile(config: pytest.Config) -> bool:
    """Is there a profile on the command line, in the environment or in the ini file?"""
    return bool(
        config.option.startup_profile
        or os.environ.get("PYTEST_STARTUP_PROFILE", "").strip()
        or config.getini("startup_profile")
    )


@pytest.hookimpl(trylast=True)
def pytest_startup_gate(profile: Profile, options: Options) -> Gate:
    from pytest_startup.gate import open_gate

    return open_gate(profile, options)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "startup_profile" in metafunc.fixturenames:
        from pytest_startup.own_tests import parametrize

        parametrize(metafunc)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Our markers are checked at collection. Each parent is looked at once: most suites have none of ours."""
    above = {parent for parent in {i.parent for i in items} if parent and any(map(has_ours, parent.listchain()))}
    ours = [i for i in items if (i.own_markers and has_ours(i)) or i.parent in above]
    if ours:
        from pytest_startup.own_tests import MarkedTests

        name = "startup-marked-tests"
        if config.pluginmanager.register(MarkedTests(ours), name) is None:  # they would be green without their markers
            raise pytest.UsageError(f"-p no:{name} would leave the markers of tests unjudged: remove it")


def has_ours(node: Node) -> bool:
    return any(mark.name.startswith("startup_") for mark in node.own_markers)
