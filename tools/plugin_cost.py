"""What the plugin costs a suite that does not use it: imports and hooks, as a share of a ``--collect-only``.

Run ``python tools/plugin_cost.py [--tests N] [--repeats N]``. The share is measured inside one process: seconds in our
modules' imports and in our hooks, over the seconds of the whole run; a busy machine slows both alike, so it can tell
one per cent. The plain comparison of runs with and without the plugin, alternating, is printed beside it with its
noise. Exit code 1: a share above one per cent.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

LIMIT = 0.01
ROOT = Path(__file__).resolve().parent.parent
WITH = ("-p", "pytest_startup.plugin")


def environment() -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    return {**env, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": ""}


#: A plugin that times the hooks of ours; its own cost counts against us.
PROBE = """
import time

import pytest_startup.markers  # what a hook of ours imports is counted with the imports

spent, began = 0.0, time.perf_counter() - time.process_time()

def timed(function, argnames):
    def call(*args):
        global spent
        began = time.perf_counter()
        try:
            return function(*args)
        finally:
            spent += time.perf_counter() - began
    return call

def pytest_configure(config):
    plugin = config.pluginmanager.get_plugin("pytest_startup.plugin")
    for caller in config.pluginmanager.get_hookcallers(plugin):
        for impl in caller.get_hookimpls():
            if impl.plugin is plugin:
                impl.function = timed(impl.function, impl.argnames)

def pytest_unconfigure():
    print(f"share {spent:.6f} {time.perf_counter() - began:.6f}")
"""


def hook_share(folder: Path) -> float:
    """Seconds in our hooks over those of the whole process, up to its last hook."""
    folder.joinpath("cost_probe.py").write_text(PROBE)
    argv = [sys.executable, "-m", "pytest", "--collect-only", "-q", *WITH, "-p", "cost_probe"]
    env = environment()
    env["PYTHONPATH"] += os.pathsep + str(folder)
    done = subprocess.run(argv, cwd=folder, env=env, check=True, capture_output=True, text=True)
    own, whole = done.stdout.rpartition("share ")[2].split()
    return float(own) / float(whole)


def cpu_seconds(folder: Path, plugin: Sequence[str]) -> float:
    """CPU seconds of one ``pytest --collect-only``."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    argv = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *plugin]
    subprocess.run(argv, cwd=folder, env=environment(), check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)


def import_share(folder: Path) -> float:
    """Seconds that ``-X importtime`` counts for our own modules over those of the whole process."""
    argv = [sys.executable, "-X", "importtime", "-m", "pytest", "--collect-only", "-q", *WITH]
    began = time.perf_counter()
    done = subprocess.run(argv, cwd=folder, env=environment(), check=True, capture_output=True, text=True)
    whole = time.perf_counter() - began
    found = re.finditer(r"^import time:\s+(\d+) \|\s+\d+ \|\s+pytest_startup", done.stderr, re.MULTILINE)
    return sum(int(match[1]) for match in found) / 1e6 / whole


def suite(folder: Path, tests: int) -> None:
    """``tests`` test functions in files of fifty, one in ten with a marker or a parametrization."""
    for number in range(max(1, tests // 50)):
        lines = ["import pytest"]
        for i in range(50):
            if i % 10 == 0:
                lines.append("@pytest.mark.parametrize('x', [1])")
                lines.append(f"def test_{i}(x, tmp_path): pass")
            else:
                lines.append(f"def test_{i}(): pass")
        folder.joinpath(f"test_{number}.py").write_text("\n".join(lines) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tests", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=15)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        suite(folder, asked.tests)
        for plugin in ((), WITH):  # once for the bytecode
            cpu_seconds(folder, plugin)
        pairs = [(cpu_seconds(folder, ()), cpu_seconds(folder, WITH)) for _ in range(asked.repeats)]
        without, with_plugin = (statistics.median(p[i] for p in pairs) for i in (0, 1))
        noise = statistics.median(abs(p[0] - without) for p in pairs) / without
        imports = statistics.median(import_share(folder) for _ in range(5))
        hooks = statistics.median(hook_share(folder) for _ in range(5))
    share = imports + hooks
    print(f"collect-only of {asked.tests} tests: {share:.2%} (imports {imports:.2%}, hooks {hooks:.2%})")
    print(
        f"with / without the plugin: {with_plugin / without:.4f} of {without:.3f} s CPU"
        f" (medians of {asked.repeats}; one run is off by {noise:.1%})"
    )
    return 0 if share <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
