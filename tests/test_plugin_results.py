"""What a user sees: failures, failed starts, waivers, the end of the run, and the exit status."""

from __future__ import annotations

import pytest
from _pytest._code.code import TracebackEntry
from helpers_gate import PROFILE, calls, run, use

WAIVED = PROFILE + "waive:\n  - {check: throughput, reason: 'no traffic by design'}\n"


def test_a_failing_check_prints_its_finding_and_nothing_else(pytester: pytest.Pytester) -> None:
    use(pytester, {"verdicts": {"restart-1::kv": "failed"}})
    result = run(pytester)
    result.assert_outcomes(passed=8, failed=1)
    assert result.ret == 1
    text = result.stdout.str()
    start = text.index("= FAILURES =")
    end = text.index("= startup: demo =")
    assert text[start:end].splitlines()[1:-1] == [
        "_________________________ profile.yaml::restart-1::kv __________________________",
        "kv is not as it was",
        "  expected  4,096 tokens     profile.yaml:11",
        "  observed  TP0: 4,096 tokens",
        "            TP1: 2,048 tokens",
        "  evidence  restart-1/head/engine.log:52  (rank TP1)  GPU KV cache size: 2,048 tokens",
        "  helps     give it the memory that it had",
    ]
    result.stdout.fnmatch_lines(
        [
            "vllm 0.31.0 · some/model · 1 rank (TP0)",
            "           weights  ready  KV tokens  tok/s c8",
            "reference     4.5s  12.5s      4,096      81.0",
            "restart-2     4.5s  12.5s      4,096      81.0",
            "REJECTED  restart-1: kv (TP1). 8 passed, 1 failed, 0 not exercised, 0 not observable, 0 waived.",
            "evidence in *.startup/demo",
            "FAILED profile.yaml::restart-1::kv - kv is not as it was",
        ]
    )


@pytest.mark.parametrize("style", ["short", "line", "native", "no"])
def test_no_traceback_in_any_style(pytester: pytest.Pytester, style: str) -> None:
    use(pytester, {"verdicts": {"restart-1::kv": "failed"}})
    result = run(pytester, f"--tb={style}", "-rA", "-vv")
    text = result.stdout.str()
    assert "Traceback" not in text
    assert "CheckFailed" not in text
    if style == "line":
        result.stdout.fnmatch_lines(["profile.yaml: kv is not as it was"])


@pytest.mark.parametrize("outcome", ["not exercised", "not observable"])
def test_what_was_not_seen_is_never_green(pytester: pytest.Pytester, outcome: str) -> None:
    use(pytester, {"verdicts": {"restart-2::throughput": outcome}})
    result = run(pytester, "-v")
    result.assert_outcomes(passed=8, failed=1)
    result.stdout.fnmatch_lines(
        [
            f"profile.yaml::restart-2::throughput FAILED ({outcome})*",
            f"{outcome}: throughput is not as it was",
            f"REJECTED  restart-2: throughput (TP1). 8 passed, 0 failed,*1 {outcome},*",
        ]
    )


def test_a_waived_check_is_counted_apart_and_never_looks_passed(pytester: pytest.Pytester) -> None:
    unseen = {f"{s}::throughput": "not exercised" for s in ("reference", "restart-1", "restart-2")}
    use(pytester, {"verdicts": unseen}, WAIVED)
    result = run(pytester, "-v", "-ra")
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        [
            "profile.yaml::reference::throughput WAIVED*",
            "waived    throughput: not exercised (reference, restart-1, restart-2): no traffic by design",
            "ACCEPTED  6 passed, 0 failed, 0 not exercised, 0 not observable, 3 waived.",
            "*6 passed, 3 waived*",
        ]
    )
    assert "skipped" not in result.stdout.lines[-1]


def test_a_waiver_of_what_was_observable_after_all_fails(pytester: pytest.Pytester) -> None:
    use(pytester, {}, WAIVED.replace("check: throughput", "check: kv"))
    result = run(pytester)
    result.assert_outcomes(passed=6, failed=3)
    result.stdout.fnmatch_lines(["kv is waived, but it was observable after all and passed", "*profile.yaml:13*"])


def test_a_failed_start_is_sticky(pytester: pytest.Pytester) -> None:
    use(pytester, {"fails": "restart-1", "checks": ["ready", "phases", "kv", "cleanup"]})
    result = run(pytester)
    result.assert_outcomes(passed=6, failed=1, errors=5)
    assert calls(pytester) == ["start reference", "start restart-1", "close"]
    text = result.stdout.str()
    cause = "start failed in phase preparation on rank TP0 after 41 s: out of device memory"
    result.stdout.fnmatch_lines(
        [
            "*= ERRORS =*",
            "_* profile.yaml::restart-1::kv _*",
            f"restart-1: {cause}",
            "_* profile.yaml::restart-2::ready _*",
            f"restart-1: {cause}",
            "*= FAILURES =*",
            cause,
            "  cause     restart-1/head/engine.log:209  (rank TP0)  torch.OutOfMemoryError: CUDA out of memory",
            "  helps     another MoE backend, more ranks",
            "  no help   kv.tokens, max-model-len: no KV cache existed yet",
            f"restart-1 *  ({cause})",
            "REJECTED  restart-1: start failed in phase preparation on rank TP0 after 41 s."
            " 6 passed, 1 failed, 0 not exercised, 0 not observable, 0 waived, 5 errors.",
            "ERROR profile.yaml::restart-2::ready - restart-1: start failed in phase *",
        ]
    )
    assert text.count("no KV cache existed yet") == 1


def test_the_first_item_that_meets_a_failed_start_tells_the_whole_cause(pytester: pytest.Pytester) -> None:
    use(pytester, {"fails": "reference"})
    result = run(pytester, "-k", "kv")
    result.assert_outcomes(errors=3, deselected=6)
    assert result.stdout.str().count("no KV cache existed yet") == 1
    assert calls(pytester) == ["start reference", "close"]


def test_a_refused_launch_is_an_error_without_traceback_and_sticky(pytester: pytest.Pytester) -> None:
    use(pytester, {"refuses": "restart-1"})
    result = run(pytester)
    result.assert_outcomes(passed=3, errors=6)
    why = "nothing could be started: port 8888 is taken by pid 4711 (nginx), which is not ours"
    result.stdout.fnmatch_lines([why, f"REJECTED  restart-1: {why}. 3 passed, 0 failed, *, 6 errors."])
    assert "Traceback" not in result.stdout.str()
    assert calls(pytester) == ["start reference", "close"]


def test_no_traceback_is_formatted_for_what_can_not_be_judged(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be thrown away, and costs a quarter of a second for each item."""
    use(pytester, {"refuses": "reference"})
    read: list[object] = []
    monkeypatch.setattr(TracebackEntry, "getsource", lambda entry, *_: read.append(entry))
    run(pytester).assert_outcomes(errors=9)
    assert read == []


def test_a_defect_of_the_gate_is_an_error_with_its_traceback_and_no_acceptance(pytester: pytest.Pytester) -> None:
    use(pytester, {"verdicts": {"restart-1::kv": "crash"}})
    result = run(pytester)
    result.assert_outcomes(passed=8, errors=1)
    result.stdout.fnmatch_lines(
        ["E *RuntimeError: the gate itself is broken", "REJECTED  restart-1: kv. 8 passed,* 1 errors."]
    )


def test_a_defect_while_starting_is_sticky_too(pytester: pytest.Pytester) -> None:
    use(pytester, {"breaks": "restart-1"})
    result = run(pytester)
    result.assert_outcomes(passed=3, errors=6)
    assert calls(pytester) == ["start reference", "start restart-1", "close"]
    assert len([line for line in result.outlines if line.startswith("E  ")]) == 1
    result.stdout.fnmatch_lines(["restart-1: the start was broken off: RuntimeError: a defect while starting"])


def test_x_stops_and_says_what_was_not_run(pytester: pytest.Pytester) -> None:
    use(pytester, {"verdicts": {"reference::kv": "failed"}})
    result = run(pytester, "-x")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["REJECTED  reference: kv (TP1). 1 passed, 1 failed,* 7 not run."])
    assert calls(pytester) == ["start reference", "close"]


def test_items_that_others_skip_are_no_acceptance_and_no_success(pytester: pytest.Pytester) -> None:
    use(pytester)
    pytester.makepyfile(
        skipper="""
        import pytest
        def pytest_collection_modifyitems(items):
            for item in items:
                if item.name == "kv":
                    item.add_marker(pytest.mark.skip(reason="not today"))
        """
    )
    pytester.syspathinsert()
    result = run(pytester, "-p", "skipper")
    result.assert_outcomes(passed=6, skipped=3)
    assert result.ret == 1
    result.stdout.fnmatch_lines(["INCOMPLETE*3 not run."])


def test_captured_output_of_ours_does_not_clutter_a_failure(pytester: pytest.Pytester) -> None:
    use(pytester, {"verdicts": {"restart-1::kv": "failed"}})
    with pytester.path.joinpath("conftest.py").open("a") as file:
        file.write(
            "\nimport logging\n@pytest.hookimpl(tryfirst=True)\ndef pytest_runtest_setup(item):\n"
            "    print('noise'); logging.getLogger('urllib3').warning('noise')\n"
        )
    assert "noise" not in run(pytester).stdout.str()


@pytest.mark.parametrize("quiet", [[], ["-s"], ["-v"], ["-q"]])
def test_progress_is_seen_although_output_is_captured(pytester: pytest.Pytester, quiet: list[str]) -> None:
    use(pytester, {"progress": ["weights, rank TP0, 20 s (usually 60 s)", "weights, rank TP0, 40 s (usually 60 s)"]})
    result = run(pytester, *quiet)
    result.assert_outcomes(passed=9)
    result.stdout.fnmatch_lines(
        [
            "demo restart-1: weights, rank TP0, 20 s (usually 60 s)",
            "demo restart-1: weights, rank TP0, 40 s (usually 60 s)",
        ]
    )


def test_progress_on_a_terminal_is_one_line_that_is_rewritten(pytester: pytest.Pytester) -> None:
    use(pytester, {"progress": ["weights, 20 s", "weights, 40 s"]})
    with pytester.path.joinpath("conftest.py").open("a") as file:
        file.write(
            "\n@pytest.hookimpl(trylast=True)\ndef pytest_configure(config):\n"
            "    reporter = config.pluginmanager.getplugin('terminalreporter')\n"
            "    reporter.isatty = lambda: True\n    reporter._tw.hasmarkup = True\n"
        )
    text = run(pytester).stdout.str()
    first = text.index("demo reference: weights, 20 s")
    second = text.index("demo reference: weights, 40 s")
    assert text[second - 1] in "\r\n"  # pytester shows a carriage return as the end of a line
    assert "\n\n" not in text[first:second]


def test_quiet_modes_and_no_terminal_at_all(pytester: pytest.Pytester) -> None:
    use(pytester, {"progress": ["weights, 20 s"]})
    assert run(pytester, "-p", "no:terminal").ret == 0
    result = run(pytester, "-qq")
    result.stdout.fnmatch_lines(["ACCEPTED*"])


def test_closing_problems_and_notes_are_printed(pytester: pytest.Pytester) -> None:
    use(pytester, {"notes": ["an engine of a run that was killed was found and stopped: pid 123"]})
    run(pytester).stdout.fnmatch_lines(["an engine of a run that was killed was found and stopped: pid 123"])


def test_a_preflight_runs_no_test_of_ones_own(pytester: pytest.Pytester) -> None:
    use(pytester)
    own = pytester.makepyfile("def test_with_an_engine(engine): pass\n\ndef test_of_their_own(): assert 0")
    for args in ([], [f"{own.name}::test_of_their_own"]):
        result = run(
            pytester, "--startup-preflight", *args, profile=None, env={"PYTEST_STARTUP_PROFILE": "profile.yaml"}
        )
        result.assert_outcomes(passed=1, deselected=2 - len(args))
    assert not [call for call in calls(pytester) if call not in ("preflight", "close")]


def test_preflight_touches_nothing_and_is_no_acceptance(pytester: pytest.Pytester) -> None:
    use(pytester)
    result = run(pytester, "--startup-preflight", "-v")
    result.stdout.fnmatch_lines(["profile.yaml::preflight::host PASSED*", "PREFLIGHT  the host is fit*"])
    assert result.ret == 0
    assert "ACCEPTED" not in result.stdout.str()
    assert calls(pytester) == ["preflight", "close"]
    use(pytester, {"preflight": ["page size is 65536, the profile says 4096", "port 8888 is taken"]})
    result = run(pytester, "--startup-preflight")
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        [
            "nothing should be started on this host",
            "  because   page size is 65536, the profile says 4096",
            "            port 8888 is taken",
            "PREFLIGHT  the host is not fit*",
        ]
    )


def test_ctrl_c_stops_the_engine_and_accepts_nothing(pytester: pytest.Pytester) -> None:
    use(pytester)
    with pytester.path.joinpath("conftest.py").open("a") as file:
        file.write(
            "\n@pytest.hookimpl(trylast=True)\ndef pytest_runtest_setup(item):\n"
            "    if item.nodeid.endswith('restart-1::kv'): raise KeyboardInterrupt\n"
        )
    result = run(pytester, outside=True)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert calls(pytester)[-1] == "close"
    result.stdout.fnmatch_lines(["INCOMPLETE  no acceptance from a part of the gate. 4 passed,* 5 not run."])


def test_what_is_left_behind_after_all_checks_is_not_green(pytester: pytest.Pytester) -> None:
    """An engine that a user's own test started is stopped when no check is left to say so."""
    use(pytester, {"notes": ["not released: pid 4711 vllm"]})
    result = run(pytester)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["not released: pid 4711 vllm", "REJECTED  something was left behind at the end. *"])
