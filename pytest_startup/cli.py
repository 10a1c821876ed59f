"""The command ``pytest-startup``: a table of subcommands, each imported only when it is called."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

#: name → (module with ``main(argv) -> exit code``, one line of help)
COMMANDS = {
    "explain": ("pytest_startup.explain", "read start-up logs: starts, phases, facts, the cause of a failure"),
    "cache": ("pytest_startup.cachecli", "the rank ledger of cache folders, and the difference of two"),
    "init": ("pytest_startup.init", "write a profile to start from"),
    "schema": ("pytest_startup.schema", "print a JSON schema (profile, record, baseline, explain)"),
    "clean": ("pytest_startup.clean", "find, and with --yes remove, what dead runs of ours left behind"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand. Exit codes: those of the subcommand; 2 for an unknown one."""
    args = list(sys.argv[1:] if argv is None else argv)
    if args[:1] == ["--version"]:
        from pytest_startup import __version__

        print(f"pytest-startup {__version__}")
        return 0
    if not args or args[0] in ("-h", "--help"):
        print("usage: pytest-startup COMMAND [options]\n")
        for name, (_, text) in COMMANDS.items():
            print(f"  {name:<9} {text}")
        print("\nThe gate itself is run by pytest: pytest --startup-profile PROFILE.yaml")
        return 0 if args else 2
    if args[0] not in COMMANDS:
        from pytest_startup.profile.problems import meant

        hint = meant(args[0], COMMANDS)
        print(f"pytest-startup: unknown command {args[0]!r}{hint} (known: {', '.join(COMMANDS)})", file=sys.stderr)
        return 2
    module = importlib.import_module(COMMANDS[args[0]][0])
    try:
        code: int = module.main(args[1:])
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:  # whoever read our output has seen enough (head, a pager)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left is flushed at exit
        return 0
    return code


if __name__ == "__main__":
    sys.exit(main())
