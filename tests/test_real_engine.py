"""The main job, proved on the real engine: a vLLM for CPU, restarted and judged through pytest as a user would."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from helpers_container_vllm import LONG

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = ROOT / "examples" / "cpu-vllm"
sys.path.insert(0, str(ROOT / "tests" / "real_engine"))
import trials  # noqa: E402 - a script of its own, for all trials


@pytest.fixture(scope="session")
def engine() -> Path:
    """The engine, built if need be (minutes, the first time)."""
    folder = ROOT / ".engine"
    built = subprocess.run([sys.executable, str(EXAMPLE / "make_engine.py"), "--into", str(folder)], check=False)
    assert built.returncode == 0, "the engine could not be built; see the output above"
    return folder


def gate(profile: Path, out: Path, *options: str) -> tuple[int, str, set[str]]:
    """Run the gate; exit code, output, red items."""
    argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--junitxml={out / 'junit.xml'}"]
    argv += ["--startup-profile", str(profile), "--startup-artifacts", str(out / "runs"), *options, str(EXAMPLE)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    cases = ElementTree.parse(out / "junit.xml").getroot().iter("testcase")  # noqa: S314 - written by pytest
    red = {trials.item_of(c) for c in cases if c.find("failure") is not None or c.find("error") is not None}
    return done.returncode, done.stdout, red


@pytest.mark.usefixtures("engine")
def test_a_good_restart_is_accepted_and_judged_alike_when_replayed(tmp_path: Path) -> None:
    code, output, red = gate(EXAMPLE / "profile.yaml", tmp_path)
    assert (code, red) == (0, set()), output
    assert "\nACCEPTED  30 passed, 0 failed, 0 not exercised, 0 not observable, 9 waived." in output
    (run,) = (tmp_path / "runs" / "cpu-vllm").iterdir()
    before = json.loads((run / "run.json").read_text())["verdicts"]
    record = json.loads((run / "restart-1" / "record.json").read_text())
    assert record["ready_seconds"] < record["wall_seconds"]
    loaded = [f for f in record["facts"] if f["fact"] == "compile.cache_loaded"]
    assert loaded, "a warm start must have loaded its artifact"
    code, output, red = gate(EXAMPLE / "profile.yaml", tmp_path, "--startup-replay", str(run))
    assert (code, red) == (0, set()), output
    assert json.loads((run / "run.json").read_text())["verdicts"] == before


@pytest.mark.usefixtures("engine")
def test_the_stock_build_is_rejected_because_it_compiles_again(tmp_path: Path) -> None:
    code, output, red = gate(EXAMPLE / "stock.yaml", tmp_path)
    assert (code, red) == (1, {"restart-1::artifacts"}), output
    assert "Compiling model again due to a load failure" in output
    assert "written during a warm start" in output


@pytest.mark.parametrize(
    "name",
    [
        "artifact deleted",
        "killed at weights",
        pytest.param("smaller kv", marks=LONG),
        pytest.param("proxy: empty", marks=LONG),
    ],
)
def test_a_fault_turns_exactly_the_right_check_red(engine: Path, tmp_path: Path, name: str) -> None:
    (case,) = (c for c in trials.CASES if c.name == name)
    # The example's own cache, warm where the tests above have run: a cold compilation is not what these are about.
    trial = trials.Trial(case, engine, engine / "cache" / "profile", tmp_path)
    red, output, _ = trial.run()
    assert red == set(case.red), output
    assert all(text in output for text in case.says), output
