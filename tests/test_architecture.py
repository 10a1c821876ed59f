"""The import rules of ``docs/architecture.md`` hold, and what runs on a node is complete there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from pytest_startup.launch.nodes.boot import MODULES

PACKAGE = Path(__file__).resolve().parent.parent / "pytest_startup"


def name_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def imports(body: list[ast.stmt], deep: bool) -> Iterator[str]:
    """Modules imported when this code is loaded (``deep``: or when it is called later); of ours, submodules."""
    for node in body:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            submodules = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in SOURCES else node.module for name in submodules)
        elif deep or not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from imports([n for n in ast.iter_child_nodes(node) if isinstance(n, ast.stmt)], deep)


def ours(path: Path, deep: bool) -> set[str]:
    return set(imports(ast.parse(path.read_text(encoding="utf-8")).body, deep)) & SOURCES.keys() - {"pytest_startup"}


def test_what_runs_on_a_node_imports_only_what_is_there() -> None:
    for module in MODULES:
        missing = ours(SOURCES[module], deep=False) - {*MODULES}
        assert not missing, f"{module} imports {missing}, which is not sent to nodes"


PYTEST_SIDE, ALL, BELOW = "pytest", "all", "below"


def rooms() -> list[tuple[list[str], str]]:
    """The table of rooms: files and folders of each, and what it may import."""
    text = (PACKAGE.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in text.partition("## Rooms")[2].partition("\n## ")[0].splitlines()]
    found = [(re.findall(r"`([\w/.]+)`", row[0]), row[2].strip(" |")) for row in rows if len(row) == 3]
    return found[1:]


def room_of(module: str, table: list[tuple[list[str], str]]) -> int | None:
    path = SOURCES[module].relative_to(PACKAGE).as_posix()
    return next(
        (n for n, (places, _) in enumerate(table) if any(path == p or path.startswith(p) for p in places)), None
    )


def test_every_module_is_in_a_room_and_imports_only_what_its_room_may() -> None:
    table = rooms()
    wrong = []
    for module, path in SOURCES.items():
        if module == "pytest_startup":
            continue
        here = room_of(module, table)
        assert here is not None, f"{module} is in no room of docs/architecture.md"
        may = table[here][1]
        for other in ours(path, deep=True):
            there = room_of(other, table)
            named = there is not None and any(f"`{place}`" in may for place in table[there][0])
            below = BELOW in may and there is not None and there > here
            if there != here and not (named or below or may == ALL):
                wrong.append(f"{module} imports {other}")
    assert not wrong


def test_heavy_packages_are_imported_on_use_and_pytest_only_by_its_own_side() -> None:
    table = rooms()
    loaded_by_others = set().union(*(ours(path, deep=False) for path in SOURCES.values()))
    heavy = {"docker", "requests", "urllib3", "pynvml", "jsonschema", "yaml", "prometheus_client", "xdist", "zstandard"}
    wrong = []
    for module, path in SOURCES.items():
        if module not in loaded_by_others:
            continue  # itself imported on use
        tree = ast.parse(path.read_text(encoding="utf-8"))
        loaded = {name.partition(".")[0] for name in imports(tree.body, deep=False)}
        here = room_of(module, table)
        pytest_side = here is not None and table[here][1].startswith(PYTEST_SIDE)
        wrong += [f"{module}: {n}" for n in loaded & (heavy if pytest_side else {*heavy, "pytest", "_pytest"})]
    assert not wrong
