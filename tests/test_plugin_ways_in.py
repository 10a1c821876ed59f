"""Installed, vendored, both at once; global time limits; nothing to pay for a suite without a profile."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers_gate import TESTS, calls, run, use

from pytest_startup import activation
from pytest_startup.profile.load import load

PACKAGE = TESTS.parent / "pytest_startup"


def installed(pytester: pytest.Pytester) -> Path:
    """A folder that looks to importlib as if our wheel were installed."""
    folder = pytester.path / "site" / "pytest_startup-9.9.dist-info"
    folder.mkdir(parents=True)
    folder.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: pytest-startup\nVersion: 9.9\n")
    project = TESTS.parent.joinpath("pyproject.toml").read_text()
    line = next(line for line in project.splitlines() if line.endswith('= "pytest_startup.plugin"'))
    folder.joinpath("entry_points.txt").write_text(f"[pytest11]\n{line.replace(chr(34), '')}\n")
    folder.joinpath("RECORD").write_text("pytest_startup/__init__.py,,\npytest_startup/plugin.py,,\n")
    return folder.parent


def python(
    pytester: pytest.Pytester, path: list[Path], *args: str, autoload: bool = True
) -> subprocess.CompletedProcess[str]:
    env = {"PYTHONPATH": ":".join(map(str, path)), "PATH": "/usr/bin:/bin", "HOME": str(pytester.path)}
    if not autoload:
        env["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    return subprocess.run(
        [sys.executable, "-m", "pytest", *args], cwd=pytester.path, env=env, capture_output=True, text=True, timeout=120
    )


@pytest.mark.parametrize("also", [[], ["-p", "pytest_startup.plugin"]], ids=["installed", "both"])
def test_installed_and_named_again(pytester: pytest.Pytester, also: list[str]) -> None:
    use(pytester)
    path = [installed(pytester), TESTS.parent, TESTS]
    done = python(pytester, path, *also, "--startup-profile", "profile.yaml", "-p", "no:cacheprovider")
    assert "ACCEPTED  9 passed" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0


def test_a_copy_without_its_packages_names_them(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    use(pytester)
    monkeypatch.setitem(activation.NEEDED, "no_such_module_here", "some-package")
    result = run(pytester)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: pytest-startup needs some-package: pip install some-package"])


@pytest.mark.parametrize(
    ("launch", "needs"),
    [
        ("{process: {command: [vllm]}}", []),
        ("{process: {command: [vllm]}, gpus: [0]}", ["nvidia-ml-py"]),
        (f"{{container: {{image: 'sha256:{'0' * 64}', gpus: [0]}}}}", ["docker", "nvidia-ml-py"]),
    ],
)
def test_what_a_profile_needs_besides(tmp_path: Path, launch: str, needs: list[str]) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(f"schema: 1\nname: x\nengine: {{kind: vllm, model: org/m}}\nlaunch: {launch}\n")
    assert list(activation.needed_by(load(path, {})).values()) == needs


def test_vendored_copy_behaves_the_same(pytester: pytest.Pytester) -> None:
    use(pytester, {"verdicts": {"restart-1::kv": "failed"}})
    shutil.copytree(PACKAGE, pytester.path / "pytest_startup", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(TESTS / "helpers_gate.py", pytester.path)
    pytester.makepyfile(
        test_own="""
        import pytest, pytest_startup.asserts
        from pathlib import Path

        def test_it_is_the_copy_and_rewritten():
            assert Path(pytest_startup.asserts.__file__).parent.parent == Path(__file__).parent
            assert type(pytest_startup.asserts.__loader__).__name__ == "AssertionRewritingHook"

        @pytest.mark.startup_kv(tokens=1)
        def test_marked(): pass
        """
    )
    args = ("-p", "pytest_startup.plugin", "--startup-profile", "profile.yaml", "-v")
    done = python(pytester, [pytester.path], *args, autoload=False)
    assert "test_it_is_the_copy_and_rewritten PASSED" in done.stdout, done.stdout + done.stderr
    assert "test_marked FAILED" in done.stdout
    assert "REJECTED  restart-1: kv (TP1). 8 passed, 1 failed" in done.stdout
    assert "PytestAssertRewriteWarning" not in done.stdout + done.stderr


@pytest.mark.parametrize("method", ["signal", "thread"])
def test_a_global_timeout_does_not_kill_a_start_within_its_deadline(pytester: pytest.Pytester, method: str) -> None:
    use(pytester, {"sleep": 1.2})
    pytester.makepyfile(
        test_own="def test_engine(engine): pass\ndef test_restart(restart): restart()\n"
        "def test_slow():\n    import time; time.sleep(30)\n"
    )
    args = ("-p", "pytest_timeout", "--timeout", "1", "--timeout-method", method)
    result = run(pytester, *args, "-v", "--deselect", "test_own.py::test_slow", outside=True)
    result.assert_outcomes(passed=11, deselected=1)
    result = run(pytester, *args, "-k", "test_slow", outside=True)
    assert "Timeout" in result.stdout.str() + result.stderr.str()
    assert result.ret != 0


def test_without_a_global_timeout_no_limit_is_added(pytester: pytest.Pytester) -> None:
    use(pytester)
    with pytester.path.joinpath("conftest.py").open("a") as file:
        file.write("\ndef pytest_runtest_setup(item):\n    assert not item.get_closest_marker('timeout')\n")
    run(pytester, "-p", "pytest_timeout", outside=True).assert_outcomes(passed=9)


def test_a_timeout_of_the_users_own_is_kept(pytester: pytest.Pytester) -> None:
    use(pytester)
    pytester.makepyfile(
        test_own="import pytest\n@pytest.mark.timeout(77)\ndef test_a(engine, request):\n"
        "    assert [m.args for m in request.node.iter_markers('timeout')] == [(77,)]\n"
    )
    run(pytester, "-p", "pytest_timeout", "--timeout", "50", outside=True).assert_outcomes(passed=10)


def test_without_a_profile_nothing_of_weight_is_imported(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys
        HEAVY = {"yaml", "jsonschema", "requests", "docker", "pynvml", "prometheus_client"}

        def test_modules():
            assert not HEAVY & set(sys.modules)
            ours = {m for m in sys.modules if m.startswith("pytest_startup")}
            assert ours <= {"pytest_startup", "pytest_startup.plugin", "pytest_startup.fixtures",
                            "pytest_startup.hookspecs", "pytest_startup.markers"}
        """
    )
    run(pytester, profile=None, outside=True).assert_outcomes(passed=1)
    assert calls(pytester) == []


def test_the_gate_opens_with_our_own_hook_when_nobody_answers(pytester: pytest.Pytester) -> None:
    use(pytester)
    pytester.path.joinpath("conftest.py").unlink()
    result = run(pytester, "--collect-only", "-q", outside=True)
    assert result.ret == 0, result.stdout.str() + result.stderr.str()
    result.stdout.fnmatch_lines(["profile.yaml::reference::ready", "profile.yaml::restart-2::cleanup"])
    assert not pytester.path.joinpath(".startup").exists()
