"""Our hookspecs: the example folder runs for real, and mistakes in an extension are told."""

from __future__ import annotations

import json
import re
import shutil

import pytest
from helpers_gate import TESTS, run, use

EXAMPLE = TESTS.parent / "examples" / "own-tests"


def test_the_example_of_the_docs_runs_as_it_stands(pytester: pytest.Pytester) -> None:
    """A launcher, a dialect, a check and a report of one's own, markers and fixtures, on an engine really started."""
    shutil.copytree(
        EXAMPLE, pytester.path, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".startup", "__pycache__")
    )
    result = run(pytester, "-v", profile=None, outside=True)
    assert result.ret == 0, result.stdout.str() + result.stderr.str()
    result.stdout.fnmatch_lines(
        [
            "toy.yaml::reference::boot-time PASSED*",
            "toy.yaml::restart-1::kv PASSED*",
            "test_own.py::test_one_more_restart PASSED*",
            "toy 1.2.0 · one-sentence*",
            "ACCEPTED  *",
        ]
    )
    assert pytester.path.joinpath(".startup/report.txt").read_text() == "toy ACCEPTED\n"
    report = json.loads(pytester.path.joinpath(".startup/report.json").read_text())
    boot = [c for c in report["profiles"][0]["checks"] if c["check"] == "boot-time"]
    assert [c["start"] for c in boot] == ["reference", "restart-1"]
    assert all(c["numbers"]["ready s"] > 0 for c in boot)


def test_a_saved_run_of_the_example_is_judged_again_without_an_engine(pytester: pytest.Pytester) -> None:
    shutil.copytree(
        EXAMPLE, pytester.path, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".startup", "__pycache__")
    )
    args = ("-m", "startup", "-v")
    live = run(pytester, *args, "--startup-artifacts", "saved", profile=None, outside=True)
    (folder,) = {p.parent for p in pytester.path.joinpath("saved").rglob("reference")}
    pytester.path.joinpath("toy_engine.py").unlink()
    replay = run(pytester, *args, "--startup-replay", str(folder), profile=None, outside=True)

    def verdicts(result: pytest.RunResult) -> list[str]:
        lines = [line for line in result.outlines if line.startswith("toy.yaml::") and "[" in line]
        return [re.sub(r"\s*\[.*", "", line) for line in lines]

    assert len(verdicts(live)) == 22
    assert verdicts(replay) == verdicts(live)
    assert replay.ret == live.ret == 0


def test_an_added_report_kind_is_known_and_a_failing_writer_is_a_note(pytester: pytest.Pytester) -> None:
    use(pytester)
    with pytester.path.joinpath("conftest.py").open("a") as file:
        file.write("\ndef pytest_startup_reports():\n    return {'bad': lambda results, path: 1 / 0}\n")
    result = run(pytester, "--startup-report", "bad=x.txt")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["report bad=*x.txt was not written: ZeroDivisionError: division by zero"])
    result = run(pytester, "--startup-report", "bat=x.txt")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --startup-report: 'bat=x.txt' is not KIND=PATH*did you mean 'bad'?"])


def test_the_writer_registered_last_wins(pytester: pytest.Pytester) -> None:
    use(pytester)
    hook = "\ndef pytest_startup_reports():\n    return {'mine': lambda results, path: path.write_text(%r)}\n"
    pytester.makepyfile(first=hook % "first", last=hook % "last")
    pytester.syspathinsert()
    result = run(pytester, "-p", "first", "-p", "last", "--startup-report", "mine=x.txt")
    assert result.ret == 0
    assert pytester.path.joinpath("x.txt").read_text() == "last"


def test_an_unknown_hook_of_ours_is_an_error_of_pytest(pytester: pytest.Pytester) -> None:
    use(pytester)
    with pytester.path.joinpath("conftest.py").open("a") as file:
        file.write("\ndef pytest_startup_cheks():\n    return {}\n")
    result = run(pytester)
    assert "pytest_startup_cheks" in result.stdout.str() + result.stderr.str()
    assert result.ret != 0
