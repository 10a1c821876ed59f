"""Brings our own part onto a node without installing anything there: its sources travel over the link's stdin.

``command()`` is the program that is run on the node; it reads ``payload()`` from stdin and then runs
``agent.main()``, whose stdin and stdout are the link. Nothing is written on the node but the registry entry and
the locks of what is started there.
"""

from __future__ import annotations

import json
import zlib
from functools import lru_cache
from pathlib import Path

import pytest_startup

#: What runs on a node: modules that need nothing but Python's own library.
MODULES = (
    "pytest_startup.launch",
    "pytest_startup.launch.base",
    "pytest_startup.launch.container",
    "pytest_startup.launch.container.processes",
    "pytest_startup.launch.environment",
    "pytest_startup.launch.exits",
    "pytest_startup.launch.identity",
    "pytest_startup.launch.listeners",
    "pytest_startup.launch.locks",
    "pytest_startup.launch.logfiles",
    "pytest_startup.launch.memory",
    "pytest_startup.launch.nodes",
    "pytest_startup.launch.nodes.agent",
    "pytest_startup.launch.nodes.caches",
    "pytest_startup.launch.nodes.gpus",
    "pytest_startup.launch.nodes.inside",
    "pytest_startup.launch.nodes.inspect",
    "pytest_startup.launch.nodes.keeper",
    "pytest_startup.launch.nodes.nvml",
    "pytest_startup.launch.nodes.peers",
    "pytest_startup.launch.nodes.pipe",
    "pytest_startup.launch.nodes.server",
    "pytest_startup.launch.nodes.steps",
    "pytest_startup.launch.pagecache",
    "pytest_startup.launch.ports",
    "pytest_startup.launch.process",
    "pytest_startup.launch.process.clean",
    "pytest_startup.launch.process.keeper",
    "pytest_startup.launch.process.pump",
    "pytest_startup.launch.process.watch",
    "pytest_startup.launch.registry",
    "pytest_startup.launch.stopping",
    "pytest_startup.launch.titles",
    "pytest_startup.launch.watch_facts",
    "pytest_startup.launch.wiping",
    "pytest_startup.observe",
    "pytest_startup.observe.autotune_keys",
    "pytest_startup.observe.autotune_records",
    "pytest_startup.observe.cache_facts",
    "pytest_startup.observe.caches",
    "pytest_startup.observe.compile_layout",
    "pytest_startup.observe.gpus",
    "pytest_startup.observe.host",
    "pytest_startup.observe.sampler",
    "pytest_startup.observe.sources",
    "pytest_startup.profile",
    "pytest_startup.profile.expect",
    "pytest_startup.profile.model",
    "pytest_startup.profile.nodes",
    "pytest_startup.ranks",
    "pytest_startup.record",
    "pytest_startup.record_json",
    "pytest_startup.redact",
)

#: The whole program on the command line: it must survive any remote shell, so it holds neither quotes of both kinds nor
#: anything that is not in every Python 3.
_LOADER = """\
import os, sys, zlib, json
from importlib.machinery import ModuleSpec
def read(n):
    data = b""
    while len(data) < n:
        more = os.read(0, n - len(data))
        if not more:
            os._exit(3)
        data += more
    return data
if sys.version_info < (3, 10):
    sys.stdout.write(json.dumps({"event": "old", "version": sys.version.split()[0]}) + chr(10))
    sys.stdout.flush()
    os._exit(4)
sources = json.loads(zlib.decompress(read(int(read(10)))))
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name in sources:
            return ModuleSpec(name, self, is_package=sources[name][0])
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        name = module.__name__
        exec(compile(sources[name][1], name.replace(".", "/") + ".py", "exec"), module.__dict__)
sys.meta_path.insert(0, Finder())
from pytest_startup.launch.nodes.agent import main
main()
"""


def command(python: str) -> list[str]:
    """What is run on the node, as an argument list."""
    return [python, "-I", "-S", "-c", _LOADER]


@lru_cache(maxsize=1)
def payload() -> bytes:
    """The sources: ten digits of length, then compressed JSON ``{module: [is package, source]}``."""
    root = Path(pytest_startup.__file__).resolve().parent
    sources: dict[str, tuple[bool, str]] = {"pytest_startup": (True, (root / "__init__.py").read_text("utf-8"))}
    for name in MODULES:
        place = root.joinpath(*name.split(".")[1:])
        package = place.is_dir()
        file = place / "__init__.py" if package else place.with_suffix(".py")
        sources[name] = (package, file.read_text("utf-8"))
    data = zlib.compress(json.dumps(sources).encode(), 6)
    return b"%010d" % len(data) + data
