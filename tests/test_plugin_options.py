"""Options: command line over environment over ini; what can't be meant is a usage error that names its origin."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from helpers_gate import PROFILE, calls, run, use

from pytest_startup.options import OptionError, Source, from_environment, resolve
from pytest_startup.unheard import unheard

BROKEN = "schema: 1\nname: x\nengine: {kind: vlm, model: m}\nlaunch: {process: {command: [vllm]}}\nexpekt: 3\n"


def test_cli_over_environment_over_ini(tmp_path: Path) -> None:
    cli = Source("cli", tmp_path / "here", {"baseline": ["ignore"]})
    env = from_environment(
        {"PYTEST_STARTUP_BASELINE": "propose", "PYTEST_STARTUP_PROFILE": "a.yaml:b.yaml"}, tmp_path / "here"
    )
    ini = Source("ini", tmp_path / "repo", {"profile": ["c.yaml"], "artifacts": ["out"], "report": ["json=r.json"]})
    options = resolve([cli, env, ini], tmp_path)
    assert options.baseline == "ignore"
    assert options.profiles == (tmp_path / "here/a.yaml", tmp_path / "here/b.yaml")
    assert options.profiles_from == "env"
    assert options.artifacts == tmp_path / "repo/out"
    assert options.reports == (("json", tmp_path / "repo/r.json"),)


@pytest.mark.parametrize(
    ("label", "values", "message"),
    [
        (
            "cli",
            {"baseline": ["chek"]},
            "--startup-baseline: 'chek' is not a baseline mode (expected check | propose | "
            "ignore); did you mean 'check'?",
        ),
        ("env", {"baseline": ["x"]}, "PYTEST_STARTUP_BASELINE: 'x' is not a baseline mode (expected check | propose |"),
        (
            "ini",
            {"report": ["htm=x"]},
            "ini option startup_report: 'htm=x' is not KIND=PATH with KIND one of json, html,"
            " csv; did you mean 'html'?",
        ),
        (
            "cli",
            {"report": ["json"]},
            "--startup-report: 'json' is not KIND=PATH with KIND one of json, html, csv; write json=PATH",
        ),
        ("cli", {"replay": ["nowhere"]}, "--startup-replay: no such folder: "),
        ("cli", {"profile": [""]}, "--startup-profile: the value is empty; expected a profile (YAML)"),
    ],
)
def test_mistakes_name_their_origin(tmp_path: Path, label: str, values: dict[str, list[str]], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        resolve([Source(label, tmp_path, values)], tmp_path)
    assert caught.value.problems[0].startswith(message)


def test_a_home_folder_that_nobody_has_is_a_name_like_any_other(tmp_path: Path) -> None:
    options = resolve([Source("cli", tmp_path, {"artifacts": ["~nobody-has-this-name/x"]})], tmp_path)
    assert options.artifacts == tmp_path / "~nobody-has-this-name/x"


def test_all_mistakes_at_once(tmp_path: Path) -> None:
    source = Source("cli", tmp_path, {"baseline": ["x"], "report": ["a=b", "c"], "replay": ["nowhere"]})
    with pytest.raises(OptionError) as caught:
        resolve([source], tmp_path)
    assert len(caught.value.problems) == 4


def test_profile_from_environment_and_ini_and_the_command_line_wins(pytester: pytest.Pytester) -> None:
    use(pytester)
    for name in ("env", "ini"):
        pytester.path.joinpath(f"{name}.yaml").write_text(PROFILE.replace("name: demo", f"name: by-{name}"))
    pytester.makeini("[pytest]\nstartup_profile = ini.yaml\n")
    run(pytester, profile=None).stdout.fnmatch_lines(["*startup: by-ini*"])
    env = {"PYTEST_STARTUP_PROFILE": "env.yaml"}
    text = run(pytester, profile=None, env=env).stdout.str()
    assert "startup: by-env" in text
    assert "by-ini" not in text
    text = run(pytester, env=env).stdout.str()
    assert "startup: demo" in text
    assert "by-env" not in text


def test_ini_paths_are_relative_to_the_ini_file(pytester: pytest.Pytester) -> None:
    use(pytester)
    pytester.makeini("[pytest]\nstartup_profile = profile.yaml\nstartup_report = json=out/report.json\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(pytester.mkdir("sub"))
        run(pytester, profile=None, env={}).assert_outcomes(passed=9)
    assert pytester.path.joinpath("out/report.json").exists()


@pytest.mark.parametrize("args", [[], ["--collect-only"], ["-q"], ["-k", "nothing"]], ids=" ".join)
def test_a_broken_profile_is_a_usage_error_with_all_messages(pytester: pytest.Pytester, args: list[str]) -> None:
    use(pytester, profile=BROKEN)
    pytester.path.joinpath("second.yaml").write_text("schema: 2\n")
    result = run(pytester, "--startup-profile", "second.yaml", *args)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    text = result.stderr.str() + result.stdout.str()
    result.stderr.fnmatch_lines(
        ["ERROR: profile.yaml:3: engine.kind: *vllm*", "ERROR: profile.yaml:5: expekt: *expect*"]
    )
    assert "ERROR: second.yaml:1: " in text
    assert "Traceback" not in text
    assert calls(pytester) == []


def test_a_missing_profile_is_a_usage_error(pytester: pytest.Pytester) -> None:
    use(pytester)
    result = run(pytester, profile="profil.yaml")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: profil.yaml*did you mean profile.yaml?"])


@pytest.mark.parametrize("option", ["--help", "--version", "--markers"])
def test_help_works_under_a_broken_profile(pytester: pytest.Pytester, option: str) -> None:
    use(pytester, profile=BROKEN)
    pytester.makeini("[pytest]\nstartup_profile = profile.yaml\n")
    result = run(pytester, option, profile=None)
    assert result.ret == 0
    if option == "--help":
        result.stdout.fnmatch_lines(["*--startup-profile=YAML*", "*startup_profile (linelist):*"])
    if option == "--markers":
        result.stdout.fnmatch_lines(["@pytest.mark.startup_kv(tokens=None, min=None, max=None, tolerance=0.0): *"])


def test_a_wrong_baseline_mode_is_a_usage_error(pytester: pytest.Pytester) -> None:
    use(pytester)
    result = run(pytester, "--startup-baseline", "proposed")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --startup-baseline: 'proposed' is not*did you mean 'propose'?"])


@pytest.mark.parametrize("option", [("--startup-preflight",), ("--startup-replay", ".")])
def test_an_option_that_needs_a_profile_is_not_green_without_one(
    pytester: pytest.Pytester, option: tuple[str, ...]
) -> None:
    pytester.makepyfile("def test_of_their_own(): pass")
    result = run(pytester, *option, profile=None)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {option[0]}: no profile is named; add --startup-profile YAML (or set *"])


def test_options_reach_the_gate(pytester: pytest.Pytester) -> None:
    use(pytester)
    with pytester.path.joinpath("conftest.py").open("a") as file:
        file.write(
            "\n@pytest.hookimpl(tryfirst=True, specname='pytest_startup_gate')\ndef look(options):\n"
            "    assert options.artifacts.name == 'out' and options.keep and options.baseline == 'ignore'\n"
        )
    args = ("--startup-artifacts", "out", "--startup-keep", "--startup-baseline", "ignore")
    run(pytester, *args).assert_outcomes(passed=9)


def test_a_gate_that_is_switched_off_by_name_is_a_usage_error(pytester: pytest.Pytester) -> None:
    """Else a run with tests of its own would pass, and nobody would have judged the engine."""
    use(pytester)
    pytester.makepyfile("def test_of_their_own(): pass")
    result = run(pytester, "-p", "no:startup-gate")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "would leave the gate of a profile out of the run" in result.stderr.str() + result.stdout.str()


def test_two_profiles_of_one_name_beside_each_other(pytester: pytest.Pytester) -> None:
    """They would be judged by one baseline."""
    use(pytester)
    other = pytester.path / "other.yaml"
    other.write_text((pytester.path / "profile.yaml").read_text())
    told = run(pytester, "--startup-profile", "other.yaml")
    assert told.ret == pytest.ExitCode.USAGE_ERROR
    text = "other.yaml:2: name: demo is that of profile.yaml beside it, too: they would share demo.baseline.json"
    assert text in told.stderr.str() + told.stdout.str()
    folder = pytester.mkdir("elsewhere")
    other.rename(folder / "other.yaml")
    assert run(pytester, "--startup-profile", "elsewhere/other.yaml").ret == 0


def test_a_variable_that_names_no_profile_is_an_error(pytester: pytest.Pytester) -> None:
    """Else a list that a script put together from nothing would be green without a gate."""
    pytester.makepyfile("def test_of_their_own(): pass")
    result = run(pytester, profile=None, env={"PYTEST_STARTUP_PROFILE": os.pathsep})
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "PYTEST_STARTUP_PROFILE is set and names no profile" in result.stderr.str() + result.stdout.str()


@pytest.mark.parametrize(("ci", "refused"), [("true", True), ("0", False)])
def test_nothing_is_started_in_ci_for_a_baseline_that_it_must_not_propose(
    pytester: pytest.Pytester, ci: str, refused: bool
) -> None:
    use(pytester)
    result = run(pytester, "--startup-baseline", "propose", env={"CI": ci})
    assert (result.ret == pytest.ExitCode.USAGE_ERROR) == refused
    said = result.stderr.str() + result.stdout.str()
    assert ("--startup-baseline propose: this is CI (CI is set in the environment)" in said) == refused


def test_a_misspelt_variable_is_an_error(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_of_their_own(): pass")
    result = run(pytester, profile=None, env={"PYTEST_STARTUP_PROFIL": "x.yaml"})
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    said = result.stderr.str() + result.stdout.str()
    assert "PYTEST_STARTUP_PROFIL: there is no such variable; did you mean 'PYTEST_STARTUP_PROFILE'?" in said


@pytest.mark.parametrize(
    ("args", "ini", "lost"),
    [
        (["--startup-artifacts", "{out}"], None, True),
        (["--startup-artifacts={out}"], None, False),
        (["--startup-artifacts", "{out}/new"], None, False),  # not there yet: pytest takes it for nothing
        (["--startup-artifacts", "{out}"], "pytest.ini", False),
        (["-c", "other.ini", "--startup-artifacts", "{out}"], None, False),
    ],
)
def test_an_ini_file_that_pytest_has_lost(tmp_path: Path, args: list[str], ini: str | None, lost: bool) -> None:
    here, out = tmp_path / "repo", tmp_path / "out"
    here.mkdir()
    out.mkdir()
    (here / "pytest.ini").write_text("[pytest]\nstartup_profile = x.yaml\n")
    told = unheard((), [a.format(out=out) for a in args], here, here / ini if ini else None)
    words = f"--startup-artifacts {out}: pytest takes {out} for a test path and does not read {here / 'pytest.ini'}"
    assert told == ([f"{words}; write --startup-artifacts={out}"] if lost else [])


def test_markers_of_tests_can_not_be_left_out_either(pytester: pytest.Pytester) -> None:
    use(pytester)
    pytester.makepyfile("import pytest\n@pytest.mark.startup_kv(tokens=1)\ndef test_of_their_own(): pass")
    result = run(pytester, "-p", "no:startup-marked-tests")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "would leave the markers of tests unjudged" in result.stderr.str() + result.stdout.str()


def test_a_replay_says_that_nothing_was_started(pytester: pytest.Pytester) -> None:
    use(pytester)
    folder = pytester.mkdir("saved")
    text = run(pytester, env={"PYTEST_STARTUP_REPLAY": str(folder)}).stdout.str()
    assert f"replayed: the run in {folder} was judged again, nothing was started" in text
