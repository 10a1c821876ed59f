"""The hooks that a run with a profile needs; registered by ``plugin`` only then."""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_startup import items as nodes
from pytest_startup import own_tests
from pytest_startup.gate import ENDED, NOT_RELEASED
from pytest_startup.progress import Progress
from pytest_startup.report import terminal
from pytest_startup.report.results import ProfileResult
from pytest_startup.session import Session


class GatePlugin:
    """Collection, reports and the end of the run, for the profiles of the options."""

    def __init__(self, config: pytest.Config, session: Session, progress: Progress) -> None:
        self.config = config
        self.session = session
        self.progress = progress
        self.worker = hasattr(config, "workerinput")
        self.closed = False
        self.red: list[pytest.TestReport] = []
        self.offered: list[nodes.GateItem] = []
        self.deselected: set[int] = set()

    # collection ------------------------------------------------------------------------------------------------------

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self) -> None:
        """Read every profile before anything else happens: a mistake ends the run with exit code 4."""
        if self.config.getoption("dist", "no") == "each":
            raise pytest.UsageError(
                "--dist each would start every engine once per worker; use --dist load (or loadfile, loadgroup …)"
            )
        problems: list[str] = []
        for path in self.session.options.profiles:
            try:
                self.session.run(path)
            except pytest.UsageError as error:
                problems += [str(arg) for arg in error.args]
        problems += self.namesakes()
        if problems:
            raise pytest.UsageError(*problems)

    def namesakes(self) -> list[str]:
        """Profiles beside each other with one name would be judged by one baseline, and propose the same one."""
        first: dict[Path, str] = {}
        problems = []
        for path, run in self.session.runs.items():
            baseline = path.with_name(f"{run.profile.name}.baseline.json")
            other = first.setdefault(baseline, path.name)
            if other != path.name:
                problems.append(
                    f"{run.profile.place('name')}: name: {run.profile.name} is that of {other} beside it, too: "
                    f"they would share {baseline.name}; expected another name"
                )
        return problems

    @pytest.hookimpl(tryfirst=True)
    def pytest_collect_file(self, file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
        """A profile that the command line names, whole or as ``profile.yaml::restart-1::kv``."""
        if file_path not in self.session.options.profiles or not parent.session.isinitpath(file_path):
            return None
        return nodes.GateFile.of(parent, file_path, self.session.run(file_path))

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, session: pytest.Session, items: list[pytest.Item]) -> None:
        """Add the gates that the command line does not name; -k, -m, --deselect and --lf see them as all others.

        A preflight takes everything else out: a test of one's own would start an engine."""
        preflight = self.session.options.preflight
        named = [item for item in items if isinstance(item, nodes.GateItem)]
        if preflight and (others := [item for item in items if item not in named]):
            items[:] = named
            self.config.hook.pytest_deselected(items=others)
        if not named and (preflight or not self.only_node_ids()):
            added: list[pytest.Item] = []
            for path in self.session.options.profiles:
                added += session.genitems(nodes.GateFile.of(session, path, self.session.run(path)))
            items[:0] = added
        self.offered = [item for item in items if isinstance(item, nodes.GateItem)]

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        """Left out by -k, -m, --deselect, --lf or another plugin that says so: pytest counts and shows them."""
        self.deselected.update(id(item) for item in items)

    def only_looks(self) -> bool:
        """``--collect-only`` and ``--setup-plan`` judge nothing."""
        return bool(self.config.getoption("collectonly") or self.config.getoption("setupplan", False))

    def only_node_ids(self) -> bool:
        """``pytest test_x.py::test_y`` in a repo whose ini file names a profile: the user wants that test alone."""
        args = self.config.args
        given = self.config.args_source is pytest.Config.ArgsSource.ARGS
        return self.session.options.profiles_from != "cli" and given and all("::" in arg for arg in args)

    def allow_time(self, item: pytest.Item) -> None:
        """Keep a global pytest-timeout from killing a start within its own deadlines; a test's own marker stays."""
        gate = isinstance(item, nodes.GateItem)
        uses = gate or own_tests.needs_engine(item)
        if not uses or item.get_closest_marker("timeout") or not global_timeout(self.config):
            return
        paths = [item.path] if gate else own_tests.profiles_of(item)
        item.add_marker(pytest.mark.timeout(sum(self.session.seconds_allowed(p) for p in paths)))

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Gates first and in their order, whatever --ff, random order or other plugins made of it."""
        order = {run.result.key: i for i, run in enumerate(self.session.runs.values())}

        def rank(item: pytest.Item) -> tuple[int, int]:
            if not isinstance(item, nodes.GateItem):
                return len(order), 0
            return order[item.run.result.key], item.run.result.expected.index((item.start, item.name))

        session.items.sort(key=rank)
        for item in session.items:
            self.allow_time(item)
        gate_items = [item for item in session.items if isinstance(item, nodes.GateItem)]
        for run in self.session.runs.values():
            run.result.selected = [(i.start, i.name) for i in gate_items if i.run is run]
            silent = [i for i in self.offered if i.run is run and id(i) not in self.deselected]
            run.result.hidden = [pair for i in silent if (pair := (i.start, i.name)) not in run.result.selected]
        if self.worker:
            from pytest_startup.distribution import write_groups

            write_groups(self.config, self.group_of(session.items))

    def group_of(self, items: Sequence[pytest.Item]) -> Mapping[str, str]:
        """Node id → profile, of everything that needs an engine: it has to run where the engine is."""
        groups = {}
        for item in items:
            if isinstance(item, nodes.GateItem):
                groups[item.nodeid] = item.run.result.key
            elif own_tests.needs_engine(item):
                paths = own_tests.profiles_of(item)
                groups[item.nodeid] = self.session.run(paths[0]).result.key if paths else "none"
        return groups

    # reports ---------------------------------------------------------------------------------------------------------

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if isinstance(item, nodes.GateItem):
            self.progress.clear()
            unusable = nodes.why_unusable(call.excinfo.value) if call.excinfo else None
            if unusable is not None:
                report.longrepr = unusable.text  # pytest asks no item how an error of its setup reads
            wire = item.wire(call)
            if wire is not None:
                report.startup = wire  # type: ignore[attr-defined]
                if isinstance(report.longrepr, str):
                    report.sections = []
        return report

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Merge what a report carries; on the controller of xdist this is all that is known."""
        wire = getattr(report, "startup", None)
        if wire is None:
            return
        result = self.session.results()[wire["profile"]].add(wire)
        if report.failed and isinstance(report.longrepr, str):
            report.longrepr = nodes.ResultRepr(report.longrepr, result.summary, wire["profile"])  # type: ignore[assignment]
            self.red.append(report)

    def pytest_report_teststatus(self, report: pytest.CollectReport | pytest.TestReport) -> Any:
        wire = getattr(report, "startup", None)
        if wire is None:
            return None
        if wire["item"]["waived"] is not None:
            return "waived", "w", ("WAIVED", {"yellow": True})
        outcome = wire["item"]["outcome"]
        if report.failed and outcome in ("not exercised", "not observable"):
            return "failed", "F", f"FAILED ({outcome})"
        return None

    # the end ---------------------------------------------------------------------------------------------------------

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        self.close()
        if self.worker:
            self.config.workeroutput["startup"] = {  # type: ignore[attr-defined]
                key: {
                    "notes": list(result.notes),
                    "hidden": [list(pair) for pair in result.hidden],
                    "left_behind": result.left_behind,
                    "ended": result.ended,
                    "folder": result.folder,
                }
                for key, result in self.session.results().items()
            }
            return
        if self.only_looks():
            return
        unjudged = any(r.unreported or r.status == "REJECTED" for r in self.session.results().values())
        if unjudged and exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        for result in self.session.results().values():
            self.suite_properties(result)
        self.write_reports()
        for report in self.red:  # the title of a failure is the whole node id; before, it would be taken for a function
            report.location = (*report.location[:2], report.nodeid)

    def close(self) -> None:
        """Stop all engines; what went wrong or is worth knowing is printed with the table."""
        if self.closed:
            return
        self.closed = True
        problems = self.session.close()
        for run in self.session.runs.values():
            run.result.notes += [note for note in run.gate.notes() if note not in run.result.notes]
            run.result.left_behind |= any(note.startswith(NOT_RELEASED) for note in run.result.notes)
            run.result.ended |= any(note.startswith(ENDED) for note in run.result.notes)
            if run.gate.folder is not None:
                run.result.folder = str(run.gate.folder)
        for result in list(self.session.results().values())[:1]:
            result.notes += problems  # a gate that could not be closed may have left anything behind
            result.left_behind |= bool(problems)

    def pytest_unconfigure(self) -> None:
        self.close()

    def suite_properties(self, result: ProfileResult) -> None:
        """Identity as properties of the JUnit suite; with several profiles each under its own name."""
        prefix = f"startup.{result.name}." if len(self.session.runs) > 1 else "startup."
        for plugin in self.config.pluginmanager.get_plugins():
            add = getattr(plugin, "add_global_property", None)
            if add is not None:
                for name, value in [*result.identity.items(), ("status", result.status)]:
                    add(prefix + name, value)

    def write_reports(self) -> None:
        from pytest_startup.report.writers import write_all

        results, options = list(self.session.results().values()), self.session.options
        if results:  # a test may have asked for an engine in a run that has no profile
            results[0].notes += write_all(results, options.reports, options.extensions.writers, os.environ)

    @pytest.hookimpl(tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self.only_looks():
            return
        for result in self.session.results().values():
            terminalreporter.section(f"startup: {result.name}")
            for line, colour in terminal.summary(result):
                terminalreporter._tw.line(line, **({colour: True} if colour else {}))
        if os.environ.get("GITHUB_ACTIONS") == "true" and not self.worker:
            import pytest_startup.report.annotations as github

            below = github.below_workspace(os.environ, self.config.rootpath)
            for line in github.commands(list(self.session.results().values()), below):
                terminalreporter._tw.line(line)


class Distributed:
    """The hooks of xdist's controller; registered only where xdist is there."""

    def __init__(self, plugin: GatePlugin) -> None:
        from pytest_startup.distribution import SharedGroups

        self.plugin = plugin
        self.groups = SharedGroups()

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        self.groups.tell(node)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        chosen = {i.partition("@")[0] for i in ids}
        for key, result in self.plugin.session.results().items():
            result.selected = [pair for pair in result.expected if "::".join((key, *pair)) in chosen]

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Any:
        from pytest_startup.distribution import make_scheduler

        return make_scheduler(config, log, self.groups)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        for key, data in getattr(node, "workeroutput", {}).get("startup", {}).items():
            known = self.plugin.session.results()
            # A profile that only a marker names is read by the worker alone.
            result = known.get(key) or self.plugin.session.run(self.plugin.config.rootpath / key).result
            result.notes += [note for note in data["notes"] if note not in result.notes]
            result.left_behind |= data["left_behind"]
            result.ended |= data["ended"]
            result.folder = result.folder or data["folder"]
            result.hidden = [(start, check) for start, check in data["hidden"]]

    def pytest_unconfigure(self) -> None:
        self.groups.remove()


def global_timeout(config: pytest.Config) -> bool:
    """Does pytest-timeout apply one limit to all tests?"""
    if getattr(config.option, "timeout", None) or os.environ.get("PYTEST_TIMEOUT"):
        return config.pluginmanager.hasplugin("timeout") or hasattr(config, "_env_timeout")
    try:
        return bool(config.getini("timeout"))
    except (KeyError, ValueError):
        return False
