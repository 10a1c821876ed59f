"""Progress lines while a start takes minutes: through pytest's terminal although output is captured."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import Any


class Progress:
    """Called by a gate with one line of text; also from another thread than the one that waits.

    ``reporter`` and ``capture`` are pytest's plugins, None where there are none. On a terminal the line is updated in
    place, in a log each is a line of its own; a worker of xdist has no terminal, its lines go to standard error.
    """

    def __init__(self, reporter: Any, capture: Any, worker: bool) -> None:
        self.reporter = reporter
        self.capture = capture
        self.worker = worker
        self.in_place = False

    def __call__(self, text: str) -> None:
        with self.capture.global_and_fixture_disabled() if self.capture else nullcontext():
            if self.worker or self.reporter is None:
                if self.worker:
                    sys.stderr.write(f"{text}\n")
                    sys.stderr.flush()
            elif self.reporter._tw.hasmarkup and self.reporter.isatty():
                if not self.in_place:
                    self.new_line()
                self.in_place = True
                self.reporter.rewrite(text[: self.reporter._tw.fullwidth - 1], erase=True)
                self.reporter.flush()
            else:
                self.new_line()
                self.reporter._tw.line(text)
                self.reporter.flush()

    def new_line(self) -> None:
        """Leave the line that pytest is writing, in every verbosity; with -v pytest then names the item again."""
        if self.reporter._tw.width_of_current_line:
            self.reporter._tw.line()
        if self.reporter.verbosity > 0:
            self.reporter.currentfspath = None

    def clear(self) -> None:
        """The start is over: its live line gives way to the result."""
        if self.in_place:
            self.in_place = False
            with self.capture.global_and_fixture_disabled() if self.capture else nullcontext():
                self.reporter.rewrite("", erase=True)
                self.reporter._tw.write("\r")
