#!/usr/bin/env python3
"""Build the wheel and check what users get: package, py.typed, schemas, entry points, and nothing else."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[1]


def main() -> int:
    with tempfile.TemporaryDirectory() as out:
        argv = [sys.executable, "-m", "build", "--wheel", "--outdir", out, str(ROOT)]
        built = subprocess.run(argv, capture_output=True, text=True, check=False)
        if built.returncode:
            print(built.stdout + built.stderr)
            return 1
        (wheel,) = pathlib.Path(out).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            names = set(archive.namelist())
            (entry,) = [n for n in names if n.endswith("entry_points.txt")]
            entries = archive.read(entry).decode()
    package = {str(p.relative_to(ROOT)) for p in (ROOT / "pytest_startup").rglob("*") if p.suffix in (".py", ".json")}
    problems = [f"not in the wheel: {name}" for name in sorted(package - names)]
    problems += [f"does not belong there: {n}" for n in sorted(names) if not n.startswith("pytest_startup")]
    if "pytest_startup/py.typed" not in names:
        problems.append("not in the wheel: pytest_startup/py.typed")
    for line in ("pytest_startup.plugin = pytest_startup.plugin", "pytest-startup = pytest_startup.cli:main"):
        if line not in entries:
            problems.append(f"no entry point {line!r}")
    print("\n".join(problems) or f"{wheel.name}: {len(names)} files, as it should be")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
