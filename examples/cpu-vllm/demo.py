#!/usr/bin/env python3
"""The demonstration: build the engine, accept the restart of the good profile, and see the stock build rejected.

Exit code 0 only if the gate accepted profile.yaml and rejected stock.yaml for its compiled artifacts.
"""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def gate(profile: str) -> tuple[int, set[str]]:
    """Run the gate on a profile; its exit code and the names of the checks that were red."""
    results = ROOT / ".startup" / f"{profile}.junit.xml"
    results.parent.mkdir(exist_ok=True)
    results.unlink(missing_ok=True)
    argv = [sys.executable, "-m", "pytest", "--startup-profile", str(HERE / profile), f"--junitxml={results}"]
    print(f"\n$ pytest --startup-profile examples/cpu-vllm/{profile} examples/cpu-vllm", flush=True)
    code = subprocess.run([*argv, "-p", "no:cacheprovider", str(HERE)], cwd=ROOT, check=False).returncode
    if not results.exists():
        return code, set()
    cases = ElementTree.parse(results).getroot().iter("testcase")  # noqa: S314 - written by the line above
    return code, {c.get("name", "") for c in cases if c.find("failure") is not None or c.find("error") is not None}


def main() -> int:
    built = subprocess.run([sys.executable, str(HERE / "make_engine.py")], check=False).returncode
    if built:
        return built
    shutil.rmtree(ROOT / ".engine" / "cache", ignore_errors=True)  # the first start of each profile is a cold one
    good, red = gate("profile.yaml")
    if good:
        print(f"\nunexpected: profile.yaml was not accepted (exit code {good}; red: {sorted(red) or 'nothing judged'})")
        return 1
    bad, red = gate("stock.yaml")
    wanted = {name for name in red if name.endswith("artifacts")}
    if bad != 1 or not wanted:
        print(f"\nunexpected: stock.yaml was not rejected for its artifacts (exit code {bad}; red: {sorted(red)})")
        return 1
    print(
        "\nAs it should be: profile.yaml was accepted, stock.yaml was rejected: the stock CPU build cannot load its own"
        "\ncompiled artifact and compiles again on every warm restart."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
