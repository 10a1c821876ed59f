"""The program that runs between pytest and an engine: parent of the engine, and its end when pytest has ended.

Run as ``python -I -S …/reaper.py`` so that nothing of the caller's environment, folder or site packages changes it. It
loads this package from where it stands, hence it works the same installed and vendored. See ``keeper.Keeper``.
"""

from __future__ import annotations

import importlib.util
import os
import sys


def load_package() -> None:
    """Make ``pytest_startup`` importable from this file's own place, whatever else is installed."""
    root = os.path.abspath(__file__)
    for _ in range(3):  # …/pytest_startup/launch/process/reaper.py
        root = os.path.dirname(root)
    spec = importlib.util.spec_from_file_location(
        "pytest_startup", os.path.join(root, "__init__.py"), submodule_search_locations=[root]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"no package in {root}")
    package = importlib.util.module_from_spec(spec)
    sys.modules["pytest_startup"] = package
    spec.loader.exec_module(package)


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    load_package()
    from pytest_startup.launch.process.keeper import main

    main()
