"""How the gate is collected: node ids, selection, order, and what it costs a folder that has tests of its own."""

from __future__ import annotations

import pytest
from helpers_gate import PROFILE, calls, run, use

IDS = [
    f"profile.yaml::{start}::{check}"
    for start in ("reference", "restart-1", "restart-2")
    for check in ("ready", "kv", "throughput")
]


def ids_of(result: pytest.RunResult) -> list[str]:
    return [line.split(" ")[0] for line in result.outlines if "::" in line and " " not in line]


def test_collect_only_lists_every_check_and_starts_nothing(pytester: pytest.Pytester) -> None:
    use(pytester)
    result = run(pytester, "--collect-only", "-q")
    assert ids_of(result) == IDS
    assert result.ret == 0
    assert [c for c in calls(pytester) if c.startswith("start")] == []
    assert "ACCEPTED" not in result.stdout.str()


def test_a_setup_plan_starts_nothing(pytester: pytest.Pytester) -> None:
    use(pytester)
    result = run(pytester, "--setup-plan")
    assert result.ret == 0
    assert calls(pytester) == ["close"]
    assert "ACCEPTED" not in result.stdout.str()


def test_a_folder_without_tests_is_enough(pytester: pytest.Pytester) -> None:
    use(pytester)
    result = run(pytester, "-v")
    result.assert_outcomes(passed=9)
    result.stdout.fnmatch_lines(["profile.yaml::reference::ready PASSED*", "ACCEPTED  9 passed, 0 failed,*"])
    assert calls(pytester) == ["start reference", "start restart-1", "start restart-2", "close"]


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["."],
        ["tests"],
        ["tests/test_own.py"],
        ["tests/test_own.py::test_one"],
        ["--rootdir=."],
        ["-p", "no:cacheprovider"],
        ["-q"],
        ["-s"],
        ["--ff"],
        ["--nf"],
        ["--lf"],
        ["profile.yaml", "tests"],
    ],
    ids=" ".join,
)
def test_gate_first_then_the_folders_own_tests(pytester: pytest.Pytester, args: list[str]) -> None:
    use(pytester)
    pytester.mkdir("tests").joinpath("test_own.py").write_text("def test_one():\n    pass\n")
    result = run(pytester, *args, "-v")
    result.assert_outcomes(passed=10)
    lines = [line.split()[0] for line in result.outlines if "PASSED" in line]
    if "-q" not in args:
        assert lines == [*IDS, "tests/test_own.py::test_one"]


def test_the_marker_selects_the_gate_alone_and_leaves_it_out(pytester: pytest.Pytester) -> None:
    use(pytester)
    pytester.makepyfile("def test_one(): pass")
    run(pytester, "-m", "startup", "--strict-markers").assert_outcomes(passed=9, deselected=1)
    result = run(pytester, "-m", "not startup")
    result.assert_outcomes(passed=1, deselected=9)
    assert result.ret == 0
    result.stdout.fnmatch_lines(["INCOMPLETE  none of its checks was run. *9 not run."])


def test_k_selects_by_check_start_and_file_and_is_never_an_acceptance(pytester: pytest.Pytester) -> None:
    use(pytester)
    for expression, count in (("kv", 3), ("restart-1", 3), ("restart-1 and kv", 1), ("profile.yaml", 9)):
        result = run(pytester, "-k", expression)
        result.assert_outcomes(passed=count, deselected=9 - count)
        assert result.ret == 0
        assert ("ACCEPTED" in result.stdout.str()) == (count == 9)
        assert ("INCOMPLETE" in result.stdout.str()) == (count < 9)


def test_deselect_makes_it_incomplete(pytester: pytest.Pytester) -> None:
    use(pytester)
    result = run(pytester, "--deselect", "profile.yaml::restart-2")
    result.assert_outcomes(passed=6, deselected=3)
    result.stdout.fnmatch_lines(["INCOMPLETE  no acceptance from a part of the gate. 6 passed,* 3 not run."])


@pytest.mark.parametrize(
    ("argument", "count"),
    [("profile.yaml::restart-1::kv", 1), ("profile.yaml::restart-1", 3), ("profile.yaml", 9)],
)
def test_a_node_id_runs_only_what_it_names(pytester: pytest.Pytester, argument: str, count: int) -> None:
    use(pytester)
    pytester.makepyfile("def test_one(): pass")
    result = run(pytester, argument, "-v")
    result.assert_outcomes(passed=count)
    assert "test_one" not in result.stdout.str()


def test_a_node_id_that_does_not_exist_is_a_usage_error(pytester: pytest.Pytester) -> None:
    use(pytester)
    result = run(pytester, "profile.yaml::restart-9::kv")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*not found: *profile.yaml::restart-9::kv*"])


def test_lf_runs_the_failed_check_again_and_accepts_nothing(pytester: pytest.Pytester) -> None:
    use(pytester, {"verdicts": {"restart-1::kv": "failed"}})
    run(pytester).assert_outcomes(passed=8, failed=1)
    pytester.path.joinpath("script.json").write_text("{}")
    result = run(pytester, "--lf", "-v")
    result.assert_outcomes(passed=1, deselected=8)
    result.stdout.fnmatch_lines(["profile.yaml::restart-1::kv PASSED*", "INCOMPLETE*"])


def test_ff_keeps_the_order_of_the_starts(pytester: pytest.Pytester) -> None:
    use(pytester, {"verdicts": {"restart-2::kv": "failed"}})
    run(pytester).assert_outcomes(passed=8, failed=1)
    result = run(pytester, "--ff", "-v")
    assert [line.split()[0] for line in result.outlines if line.startswith("profile.yaml::")] == IDS


@pytest.mark.parametrize("first", [True, False])
def test_random_order_is_undone(pytester: pytest.Pytester, first: bool) -> None:
    use(pytester)
    pytester.makepyfile(
        shuffler=f"""
        import random, pytest

        @pytest.hookimpl(tryfirst={first}, trylast={not first})
        def pytest_collection_modifyitems(items):
            items.reverse()
            random.Random(3).shuffle(items)
        """,
        test_own="def test_one(): pass",
    )
    pytester.syspathinsert()
    result = run(pytester, "-v", "-p", "shuffler")
    lines = [line.split()[0] for line in result.outlines if "PASSED" in line]
    assert lines == [*IDS, "test_own.py::test_one"]


def test_several_profiles_run_one_after_the_other_each_with_its_table(pytester: pytest.Pytester) -> None:
    use(pytester)
    pytester.mkdir("b").joinpath("other.yaml").write_text(PROFILE.replace("name: demo", "name: second"))
    result = run(pytester, "--startup-profile", "b/other.yaml", "--startup-profile", "./profile.yaml")
    result.assert_outcomes(passed=18)
    result.stdout.fnmatch_lines(["*startup: demo*", "ACCEPTED*", "*startup: second*", "ACCEPTED*"])


def test_a_profile_outside_the_rootdir(pytester: pytest.Pytester) -> None:
    use(pytester)
    pytester.mkdir("repo").joinpath("pytest.ini").write_text("[pytest]\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(pytester.path / "repo")
        conftest = (
            pytester.path.joinpath("conftest.py")
            .read_text()
            .replace("pathlib.Path(__file__).parent", "pathlib.Path(__file__).parent.parent")
        )
        pytester.path.joinpath("repo/conftest.py").write_text(conftest)
        pytester.path.joinpath("conftest.py").unlink()
        result = run(pytester, "-v", profile="../profile.yaml")
    result.assert_outcomes(passed=9)
    result.stdout.fnmatch_lines(["../profile.yaml::reference::ready PASSED*", "ACCEPTED*"])


def test_ini_profile_leaves_a_single_named_test_alone(pytester: pytest.Pytester) -> None:
    use(pytester)
    pytester.makeini("[pytest]\nstartup_profile = profile.yaml\n")
    pytester.makepyfile(test_own="def test_one(): pass\ndef test_two(): pass")
    run(pytester, profile=None).assert_outcomes(passed=11)
    run(pytester, "test_own.py", profile=None).assert_outcomes(passed=11)
    run(pytester, "test_own.py::test_one", profile=None).assert_outcomes(passed=1)
    run(pytester, "profile.yaml::restart-1::kv", profile=None).assert_outcomes(passed=1)
    run(pytester, "test_own.py::test_one").assert_outcomes(passed=10)


def test_without_a_profile_nothing_is_collected_and_nothing_said(pytester: pytest.Pytester) -> None:
    use(pytester)
    pytester.makepyfile("def test_one(): pass")
    result = run(pytester, profile=None)
    result.assert_outcomes(passed=1)
    told = [
        line for line in result.outlines if not line.startswith("plugins: ")
    ]  # pytest's own list of what is installed
    assert [line for line in told if "startup" in line] == []


@pytest.mark.parametrize(("hidden", "outside"), [("kv", False), ("", False), ("kv", True)])
def test_checks_that_a_conftest_hides_are_no_selection_of_the_user(
    pytester: pytest.Pytester, hidden: str, outside: bool
) -> None:
    """A repository's filter of its own tests, which knows nothing of gates, must not make the run green."""
    use(pytester)
    conftest = pytester.path / "conftest.py"
    conftest.write_text(
        f"{conftest.read_text()}\n\n@pytest.hookimpl(trylast=True)\ndef pytest_collection_modifyitems(items):\n"
        f"    items[:] = [i for i in items if 'yaml::' not in i.nodeid or {hidden!r} and i.name != {hidden!r}]\n"
    )
    pytester.makepyfile("def test_of_their_own(): pass")
    xdist = ("-p", "xdist", "-n", "1") if outside else ()
    result = run(pytester, *xdist, outside=outside)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    count = 3 if hidden else 9
    result.stdout.fnmatch_lines(
        [f"INCOMPLETE  * {count} were taken out by another plugin or a conftest without a word.*"]
    )
    assert run(pytester, "-k", "of_their_own", *xdist, outside=outside).ret == pytest.ExitCode.OK
