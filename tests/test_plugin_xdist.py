"""pytest-xdist: the gate and all that uses its engine stay on one worker; one table, printed by the controller."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers_gate import PROFILE, calls, run, use

from pytest_startup.distribution import KEY, SharedGroups

OWN = """\
import os, pytest

@pytest.mark.parametrize("n", range(8))
def test_own(n):
    pass

def test_engine(engine):
    (__import__("pathlib").Path(__file__).parent / "calls.txt").open("a").write(f"engine {os.getpid()}\\n")
"""
XDIST = ("-p", "xdist")


@pytest.mark.parametrize("dist", ["load", "loadscope", "loadfile", "loadgroup", "worksteal"])
def test_one_worker_in_order_for_every_distribution(pytester: pytest.Pytester, dist: str) -> None:
    use(pytester, {"verdicts": {"restart-1::kv": "failed"}, "progress": ["weights, 20 s"], "notes": ["a note"]})
    pytester.makepyfile(test_own=OWN)
    result = run(pytester, *XDIST, "-n", "2", "--dist", dist, outside=True)
    result.assert_outcomes(passed=17, failed=1)
    seen = [c for c in calls(pytester) if not c.startswith(("engine", "close"))]
    assert seen == ["start reference", "start restart-1", "start restart-2"]
    text = result.stdout.str()
    assert text.count("startup: demo") == 1
    assert text.count("REJECTED  restart-1: kv (TP1). 8 passed, 1 failed") == 1
    assert text.count("a note") == 1
    result.stdout.fnmatch_lines(
        [
            "kv is not as it was",
            "  expected  4,096 tokens     profile.yaml:11",
            "restart-2     4.5s  12.5s      4,096      81.0",
            "FAILED profile.yaml::restart-1::kv* - kv is not as it was",
        ]
    )
    assert "demo restart-1: weights, 20 s" in result.stderr.str()


def test_the_folder_of_the_groups_is_gone_after_a_run_that_never_read_them() -> None:
    worker = SimpleNamespace(workerinput={})
    shared = SharedGroups()
    shared.tell(worker)
    folder = Path(worker.workerinput[KEY]).parent
    assert folder.is_dir()
    shared.remove()
    assert not folder.exists()
    assert shared.read() == {}


def test_two_profiles_may_run_side_by_side(pytester: pytest.Pytester) -> None:
    use(pytester)
    pytester.path.joinpath("second.yaml").write_text(PROFILE.replace("name: demo", "name: second"))
    result = run(pytester, *XDIST, "-n", "2", "--startup-profile", "second.yaml", outside=True)
    result.assert_outcomes(passed=18)
    result.stdout.fnmatch_lines(["*startup: demo*", "ACCEPTED*", "*startup: second*", "ACCEPTED*"])
    assert [c for c in calls(pytester) if c.startswith("start")].count("start reference") == 2


def test_selection_is_incomplete_on_the_controller_too(pytester: pytest.Pytester) -> None:
    use(pytester)
    result = run(pytester, *XDIST, "-n", "2", "-k", "kv", outside=True)
    result.assert_outcomes(passed=3)
    assert result.ret == 0
    result.stdout.fnmatch_lines(["INCOMPLETE*3 passed,* 6 not run."])


def test_a_worker_that_dies_is_no_acceptance(pytester: pytest.Pytester) -> None:
    use(pytester)
    with pytester.path.joinpath("conftest.py").open("a") as file:
        file.write(
            "\ndef pytest_runtest_setup(item):\n    import os\n"
            "    if item.nodeid.endswith('restart-2::throughput'): os._exit(3)\n"
        )
    result = run(pytester, *XDIST, "-n", "2", "--max-worker-restart", "0", outside=True)
    assert result.ret != 0
    assert "ACCEPTED" not in result.stdout.str()


def test_each_is_refused_with_the_reason(pytester: pytest.Pytester) -> None:
    use(pytester)
    result = run(pytester, *XDIST, "-n", "2", "--dist", "each", outside=True)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "--dist each would start every engine once per worker" in result.stderr.str()
    assert calls(pytester) == []


def test_a_broken_profile_is_told_once(pytester: pytest.Pytester) -> None:
    use(pytester, profile="schema: 1\nname: 3\n")
    result = run(pytester, *XDIST, "-n", "2", outside=True)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert (result.stderr.str() + result.stdout.str()).count("profile.yaml:1: engine: ") <= 1
