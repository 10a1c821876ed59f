"""Markers, fixtures and assertion functions in a user's own tests."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from helpers_gate import PROFILE, calls, run, start_record, use

from pytest_startup import asserts
from pytest_startup.checks.base import Outcome
from pytest_startup.record import Completion, Evidence, Fact

MARKED = """\
import pytest

@pytest.mark.startup_kv(tokens={tokens})
def test_capacity():
    print("the body ran")
"""


def kv(tokens: int, rank: str | None = None) -> Fact:
    return Fact(
        "kv.tokens", tokens, Evidence("log", "head/engine.log", f"KV {tokens}", line=7, rank=rank), "tokens", rank
    )


def test_a_marker_applies_the_check_to_the_restart_before_the_body(pytester: pytest.Pytester) -> None:
    use(pytester)
    pytester.makepyfile(test_own=MARKED.format(tokens=4096))
    run(pytester, "test_own.py", "-rA").stdout.fnmatch_lines(["the body ran", "PASSED test_own.py::test_capacity"])
    pytester.makepyfile(test_own=MARKED.format(tokens=8192))
    result = run(pytester, "test_own.py", "-v")
    result.assert_outcomes(passed=9, failed=1)
    result.stdout.fnmatch_lines(
        ["test_own.py::test_capacity FAILED*", "*expected  8,192*test_own.py:3", "*observed*4,096*"]
    )
    assert "the body ran" not in result.stdout.str()
    assert "Traceback" not in result.stdout.str()


@pytest.mark.parametrize(
    ("decorator", "message"),
    [
        (
            "startup_kv(token=1)",
            "startup_kv has no argument 'token' (did you mean 'tokens'?); expected startup_kv(tokens=",
        ),
        (
            "startup_kv(tokens='many')",
            "startup_kv: tokens must be a whole number, not 'many'; expected startup_kv(tokens=",
        ),
        ("startup_kv(4096)", "startup_kv takes keyword arguments only; expected startup_kv(tokens=None"),
        ("startup_autotune(hits='al')", "startup_autotune: hits must be 'all' | 'none' | 'any', not 'al'; expected"),
        ("startup_profile()", "startup_profile takes one path; expected startup_profile(path)"),
        ("startup_throughput(tolerance=3)", "startup_throughput: tolerance must be a fraction from 0 to 1"),
        ("startup_bakend(moe='X')", "unknown marker startup_bakend; did you mean startup_backend(attention=None"),
    ],
)
@pytest.mark.parametrize("profile", ["profile.yaml", None])
def test_arguments_are_checked_at_collection(
    pytester: pytest.Pytester, decorator: str, message: str, profile: str | None
) -> None:
    use(pytester)
    pytester.makepyfile(test_own=f"import pytest\n@pytest.mark.{decorator}\ndef test_a(): pass\n")
    result = run(pytester, "--collect-only", "-W", "ignore", profile=profile)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert f"test_own.py::test_a: {message}" in result.stderr.str()
    assert "Traceback" not in result.stderr.str() + result.stdout.str()


def test_markers_of_others_are_left_alone(pytester: pytest.Pytester) -> None:
    use(pytester)
    pytester.makeini("[pytest]\nmarkers = startup_of_my_own: x\n")
    pytester.makepyfile("import pytest\n@pytest.mark.startup_of_my_own(1, 2)\ndef test_a(): pass\n")
    run(pytester, "--strict-markers", profile=None).assert_outcomes(passed=1)


def test_every_marker_is_registered_under_strict_markers(pytester: pytest.Pytester) -> None:
    from pytest_startup.markers import SIGNATURES

    use(pytester)
    marks = "".join(f"@pytest.mark.{name}()\n" for name in SIGNATURES)
    pytester.makepyfile(f"import pytest\n{marks}def test_a(): pass\n")
    result = run(pytester, "--strict-markers", "--collect-only", "-q", "-W", "error")
    assert result.ret == 0


def test_fixtures_give_profile_engine_and_restart(pytester: pytest.Pytester) -> None:
    use(pytester)
    pytester.makepyfile(
        """
        from pytest_startup.asserts import assert_completion, assert_kv

        def test_engine(startup_profile, engine):
            assert startup_profile.name == "demo"
            assert engine.base_url == "http://127.0.0.1:8888"
            assert engine.record.name == "restart-2"
            assert [p.name for p in engine.logs] == ["engine.log"]
            assert_completion(engine.complete("2 + 2 ="), contains="4")

        def test_restart(restart):
            before, after = restart()
            assert (before.name, after.name) == ("restart-2", "extra-1")
            assert_kv(after, before)
        """
    )
    run(pytester).assert_outcomes(passed=11)
    assert calls(pytester)[-2:] == ["start extra-1", "close"]


def test_a_test_that_needs_a_profile_says_so(pytester: pytest.Pytester) -> None:
    use(pytester)
    pytester.makepyfile("import pytest\ndef test_a(engine): pass\n@pytest.mark.startup_graphs\ndef test_b(): pass\n")
    result = run(pytester, "--startup-report", "json=r.json", profile=None)
    result.assert_outcomes(errors=1, failed=1)
    assert "INTERNALERROR" not in result.stdout.str() + result.stderr.str()
    assert result.stdout.str().count("this test needs a profile: --startup-profile, PYTEST_STARTUP_PROFILE,") >= 2


def test_a_profile_of_its_own_that_is_not_there(pytester: pytest.Pytester) -> None:
    use(pytester)
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.startup_profile("nope.yaml")
        def test_a(startup_profile): ...
        """
    )
    out = run(pytester).stdout.str()
    assert "ERROR at setup of test_a[nope]" in out
    assert "\nnope.yaml: no such file; did you mean profile.yaml?\n" in out
    assert "activation.py" not in out


@pytest.mark.parametrize("workers", [(), ("-n", "1", "-p", "xdist")], ids=["alone", "xdist"])
def test_a_profile_of_its_own_by_marker(pytester: pytest.Pytester, workers: tuple[str, ...]) -> None:
    use(pytester)
    pytester.path.joinpath("second.yaml").write_text(PROFILE.replace("name: demo", "name: second"))
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.startup_profile("second.yaml")
        def test_a(startup_profile):
            assert startup_profile.name == "second"

        def test_b(startup_profile):
            assert startup_profile.name == "demo"
        """
    )
    result = run(pytester, "-v", *workers, outside=bool(workers))
    result.assert_outcomes(passed=11)
    out = result.stdout.str()
    assert "INTERNALERROR" not in out
    assert all(f"test_a_profile_of_its_own_by_marker.py::{name}" in out for name in ("test_a[second]", "test_b"))


def test_several_profiles_run_a_test_once_each(pytester: pytest.Pytester) -> None:
    use(pytester)
    pytester.path.joinpath("second.yaml").write_text(PROFILE.replace("name: demo", "name: second"))
    pytester.makepyfile("def test_a(startup_profile): print('for', startup_profile.name)")
    result = run(pytester, "--startup-profile", "second.yaml", "-rA", "-k", "test_a")
    result.assert_outcomes(passed=2, deselected=18)
    result.stdout.fnmatch_lines_random(["for demo", "for second"])


def test_a_failed_start_is_told_in_a_fixture_as_in_the_gate(pytester: pytest.Pytester) -> None:
    use(pytester, {"fails": "reference"})
    pytester.makepyfile("def test_a(engine): pass")
    result = run(pytester, "-k", "test_a")
    result.assert_outcomes(errors=1, deselected=9)
    result.stdout.fnmatch_lines(["*start failed in phase preparation on rank TP0 after 41 s: out of device memory"])
    assert "site-packages" not in result.stdout.str()


def test_assertion_functions_say_what_the_gate_says() -> None:
    before, after = start_record("reference", facts=(kv(4096),)), start_record("restart-1", facts=(kv(2048, "TP1"),))
    with pytest.raises(AssertionError) as caught:
        asserts.assert_kv(after, before)
    text = str(caught.value)
    assert "  expected  " in text
    assert "4,096" in text
    assert "2,048" in text
    assert "restart-1/head/engine.log:7" in text
    assert asserts.assert_kv(before, tokens=4096).outcome is Outcome.PASSED
    engine: Any = SimpleNamespace(record=before)
    assert asserts.assert_kv(engine, tokens=4096).outcome is Outcome.PASSED
    wrong: Any = "restart-1"
    with pytest.raises(TypeError, match=r"expected the record of a start \(engine.record\), found str"):
        asserts.assert_kv(wrong, tokens=4096)


def test_what_was_not_seen_is_no_pass_for_an_assertion_either() -> None:
    with pytest.raises(AssertionError, match="not observable"):
        asserts.assert_kv(start_record("restart-1", facts=()), tokens=4096)


def test_an_assertion_with_a_wrong_argument_repeats_its_signature() -> None:
    with pytest.raises(
        TypeError, match=r"assert_kv has no argument 'token' \(did you mean 'tokens'\?\); expected assert_kv"
    ):
        asserts.assert_kv(start_record("restart-1"), token=3)


@pytest.mark.parametrize(
    ("completion", "message"),
    [
        (Completion("ready", "2+2", 200, text="", finish_reason="stop", completion_tokens=0), "."),
        (Completion("ready", "2+2", 500, error="HTTP 500"), "."),
        (
            Completion("ready", "2+2", 200, text="5", finish_reason="stop", prompt_tokens=1, completion_tokens=1),
            "does not contain '4'",
        ),
    ],
)
def test_a_completion_that_is_not_real_fails(completion: Completion, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        asserts.assert_completion(completion, contains="4")
