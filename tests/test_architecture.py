"""The import rules of ``docs/architecture.md`` hold, and what runs on a node is complete there."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from pytest_startup.launch.nodes.boot import MODULES

PACKAGE = Path(__file__).resolve().parent.parent / "pytest_startup"


def name_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def imports(body: list[ast.stmt], deep: bool) -> Iterator[str]:
    """Modules of ours that are imported when this code is loaded (``deep``: or when it is called later)."""
    for node in body:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in SOURCES)
        elif isinstance(node, ast.ImportFrom) and node.module in SOURCES:
            submodules = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in SOURCES else node.module for name in submodules)
        elif deep or not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from imports([n for n in ast.iter_child_nodes(node) if isinstance(n, ast.stmt)], deep)


def test_what_runs_on_a_node_imports_only_what_is_there() -> None:
    for module in MODULES:
        missing = set(imports(ast.parse(SOURCES[module].read_text()).body, deep=False)) - {*MODULES, "pytest_startup"}
        assert not missing, f"{module} imports {missing}, which is not sent to nodes"
