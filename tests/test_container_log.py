"""A container's log read once each, over breaks at any place; the ends of a container, told apart. Plain data."""

from __future__ import annotations

import io
import tarfile
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_startup.launch.container.daemon import DaemonLost, DaemonRefused, DaemonSlow, NotThere
from pytest_startup.launch.container.file_log import Earlier, FilePump
from pytest_startup.launch.container.log import LogPump, Position, Reading, split
from pytest_startup.launch.container.watch import Boot, Watcher
from pytest_startup.redact import Redactor


def stamp(moment: float) -> bytes:
    seconds, nanos = divmod(round(moment * 10**9), 10**9)
    hours, rest = divmod(seconds, 3600)
    return b"1970-01-01T%02d:%02d:%02d.%09dZ" % (hours, rest // 60, rest % 60, nanos)


@pytest.mark.parametrize(
    ("record", "moment", "text"),
    [
        (b"2026-11-29T18:20:00.123456789Z a b\n", 1795976400.123456789, b"a b\n"),
        (b"2026-11-29T18:20:00Z \n", 1795976400.0, b"\n"),
        (b"2026-11-29T19:20:00.5+01:00 x\n", 1795976400.5, b"x\n"),
        (b"2026-11-29T17:50:00-00:30 x\n", 1795976400.0, b"x\n"),
        (b"no time here\n", None, b"no time here\n"),
        (b"", None, b""),
    ],
)
def test_a_record_is_its_time_and_the_engine_s_bytes(record, moment, text):
    seen, rest = split(record)
    assert rest == text
    assert seen == (None if moment is None else pytest.approx(moment))


@pytest.mark.parametrize(
    ("now", "taken"),
    [
        (b"old\nnew\n", b"new\n"),
        (b"old\n", b""),
        (b"n\n", b"n\n"),
        (b"new, and longer than the old one\n", b"new, and longer than the old one\n"),
    ],
)
@pytest.mark.parametrize("archive", [False, True])
def test_a_log_file_is_read_behind_what_it_held_before(tmp_path, now, taken, archive):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        member = tarfile.TarInfo("vllm.log")
        member.size = len(now)
        tar.addfile(member, io.BytesIO(now))

    class Files:
        def archive(self, *_):
            class Pieces(Iterator):
                rest = iter([packed.getvalue()])

                def __next__(self):
                    return next(self.rest)

                def close(self):
                    pass

            return Pieces()

    pump = FilePump(Files(), "c", "/vllm.log", 0, tmp_path, Redactor({}), 0.0, Earlier(4, b"old\n"))
    if archive:
        pump._ask()
    else:
        pump._read(io.BytesIO(now), len(now))
    pump._files.close()
    assert (tmp_path / "engine.log").read_bytes() == taken


class Log:
    """A daemon's log: records in the order of the file, given from a second on, breaking off where it is told."""

    def __init__(self, records: list[tuple[float, bytes]]) -> None:
        self.records = records

    def read(self, since: int | None, until: int) -> list[bytes]:
        chosen = [(m, t) for m, t in self.records[:until] if since is None or m >= since]
        return [stamp(m) + b" " + t for m, t in chosen]


@st.composite
def logs(draw: st.DrawFn) -> list[tuple[float, bytes]]:
    """Times that grow, with small steps back, as two writers make them; some lines come in pieces of one time."""
    moment, out = 1000.0, []
    for number in range(draw(st.integers(0, 40))):
        moment = round(moment + draw(st.sampled_from([0.0, 0.001, 0.4, 1.0, 3.0, 9.0])), 3)
        back = draw(st.sampled_from([0.0, 0.0, 0.01]))
        pieces = draw(st.sampled_from([1, 1, 1, 3]))
        for piece in range(pieces):
            end = b"\n" if piece == pieces - 1 else b""
            out.append((round(moment - (back if pieces == 1 else 0.0), 3), b"%d.%d" % (number, piece) + end))
    return out


@settings(max_examples=200, deadline=None)
@given(logs(), st.lists(st.integers(0, 120), max_size=8))
def test_nothing_is_lost_or_doubled_over_any_breaks(records, breaks):
    log, taken = Log(records), []
    reading = Reading(Position(), lambda _, text: taken.append(text))
    for until in sorted(breaks):
        reading.run(iter(log.read(reading.position.since, until)))
    reading.run(iter(log.read(reading.position.since, len(records))))
    reading.rest()
    lines = b"".join(text for _, text in records).splitlines(keepends=True)
    assert sorted(b"".join(taken).splitlines(keepends=True)) == sorted(lines)
    assert len(repr(reading.position)) < 200  # constant in size


def test_the_next_boot_begins_where_this_one_ended():
    log = Log([(1000.0 + n / 10, b"first %d\n" % n) for n in range(100)])
    reading = Reading(Position(), lambda *_: None)
    reading.run(iter(log.read(None, 100)))
    log.records += [(1010.0, b"second\n")]
    taken = []
    after = Reading(reading.position, lambda _, text: taken.append(text))
    after.run(iter(log.read(after.position.since, 101)))
    assert taken == [b"second\n"]
    assert after.position.since is not None
    assert after.position.since > 1000


def test_a_line_of_the_other_stream_does_not_split_a_long_one():
    records = [(1.0, b"a" * 10), (1.1, b"other\n"), (1.0, b"b\n"), (1.2, b"last\n")]
    taken = []
    reading = Reading(Position(), lambda _, text: taken.append(text))
    reading.run(iter(Log(records).read(None, 4)))
    assert taken == [b"a" * 10 + b"b\n", b"other\n", b"last\n"]


class Scripted:
    """A daemon whose log streams break, hang up and end as told."""

    def __init__(self, log: Log, cuts: list[int]) -> None:
        self.log, self.cuts, self.over = log, cuts, False

    def logs(self, container: str, since: int | None, follow: bool):  # noqa: ARG002
        if not follow:
            return Closable(self.log.read(since, len(self.log.records)), None)
        if not self.cuts:
            self.over = True
            return Closable(self.log.read(since, len(self.log.records)), None)
        cut = self.cuts.pop(0)
        if cut < 0:
            raise DaemonLost("the container engine does not run")
        return Closable(self.log.read(since, cut), DaemonLost("broken") if cut % 2 else None)


class Closable:
    def __init__(self, records, error):
        self._records, self._error = iter(records), error

    def __iter__(self):
        return self

    def __next__(self):
        try:
            return next(self._records)
        except StopIteration:
            if self._error is not None:
                raise self._error from None
            raise

    def close(self) -> None:
        pass


def test_the_pump_goes_on_over_breaks(tmp_path):
    lines = [(1000.0 + n / 50, b"line %d hf_%s\n" % (n, b"A1" * 10)) for n in range(200)]
    daemon = Scripted(Log(lines), [20, -1, 20, 51, 50, 150])
    pump = LogPump(daemon, "c", tmp_path, Redactor(), Position(), (1000.0, 0.0), lambda: daemon.over)
    pump.start()
    assert pump.finish(20.0)
    text = (tmp_path / "engine.log").read_text()
    assert text == "".join(f"line {n} [redacted]\n" for n in range(200))
    rows = [row.split("\t") for row in (tmp_path / "lines.tsv").read_text().splitlines()]
    assert [int(n) for n, _ in rows] == list(range(1, 201))
    assert float(rows[0][1]) == 0.0
    assert float(rows[-1][1]) == pytest.approx(199 / 50, abs=0.002)
    assert pump.error is None
    assert daemon.cuts == []  # each of the breaks was met


def test_a_log_that_can_not_be_finished_says_so(tmp_path):
    daemon = Scripted(Log([]), [-1] * 1000)
    pump = LogPump(daemon, "c", tmp_path, Redactor(), Position(), (1000.0, 0.0), lambda: False)
    pump.start()
    assert not pump.finish(0.3)
    assert pump.error == "the log is incomplete: the container engine does not run"


STARTED = "2026-11-29T18:20:00.5Z"


def watcher(daemon=None, **changes) -> Watcher:
    boot = Boot("c" * 64, "engine", STARTED, 0, None)
    return Watcher(daemon, boot, "head", changes.pop("at", 0.0), lambda: None, **changes)


def state(**changes):
    return {"StartedAt": STARTED, "Running": False, "ExitCode": 0, "OOMKilled": False, "Error": "", **changes}


@pytest.mark.parametrize(
    ("seen", "reason", "code", "text"),
    [
        (state(), "exited", 0, "ended with exit code 0"),
        (state(ExitCode=1), "exited", 1, "ended with exit code 1"),
        (state(ExitCode=137), "killed", -9, "was killed by SIGKILL (exit code 137)"),
        (state(ExitCode=139), "killed", -11, "was killed by SIGSEGV (exit code 139)"),
        (state(ExitCode=255), "exited", 255, "ended with exit code 255"),
        (state(ExitCode=137, OOMKilled=True), "oom-killed", -9, "hit its memory limit: OOMKilled, exit code 137"),
        (state(ExitCode=1, OOMKilled=True), "oom-killed", 1, "hit its memory limit: OOMKilled, exit code 1"),
        (state(ExitCode=127, Error="exec failed"), "exited", 127, "ended with exit code 127 (exec failed)"),
        (state(StartedAt="later", Running=True), "exited", None, "was restarted by somebody else at later"),
    ],
)
def test_ends_are_told_apart(seen, reason, code, text):
    end = watcher().judge(seen, False)
    assert (end.reason, end.code, end.node) == (reason, code, "head")
    assert f"container engine (cccccccccccc) {text}, " in end.text


def test_what_runs_has_no_end():
    watch = watcher()
    assert watch.judge(state(Running=True), False) is None
    assert watch.judge(state(Running=True, OOMKilled=True), False) is None
    assert watch.oom_seen  # a child was killed; the engine may not have noticed yet


class Answers:
    """A daemon that gives these answers to inspect, the last one for ever."""

    def __init__(self, *answers):
        self.answers = list(answers)

    def events(self, *_):
        raise DaemonRefused("no events here")

    def inspect(self, *_):
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return {"State": answer}


SLOW = DaemonSlow("the container engine at unix:///x (test) did not answer (inspect) within 0.4 s")
AWAY = DaemonLost("the container engine at unix:///x (test) does not run: connection refused")


@pytest.mark.parametrize(
    ("answers", "reason", "text"),
    [
        (
            [state(Running=True), NotThere("gone")],
            "container-gone",
            "was removed by somebody else while the engine ran",
        ),
        ([AWAY], "daemon-lost", "does not run: connection refused, for 1."),
        ([state(Running=True), AWAY, state(ExitCode=137)], "daemon-lost", "did not survive it (no live-restore)"),
        ([AWAY, state(StartedAt="later", Running=True)], "daemon-lost", "was restarted by somebody else at later"),
        ([state(Running=True), state(), AWAY], "daemon-lost", "the container engine itself was shut down"),
        ([state(Running=True), state(ExitCode=137), SLOW], "killed", "was killed by SIGKILL (exit code 137)"),
        ([AWAY, state(Running=True), state(ExitCode=3)], "exited", "ended with exit code 3"),
    ],
)
def test_the_daemon_s_own_end_is_no_end_of_the_engine(answers, reason, text):
    import time

    watch = watcher(Answers(*answers), at=time.monotonic(), patience=1.0)
    watch.start()
    end = watch.wait(20)
    assert end.reason == reason
    assert text in end.text
    watch.stop()


def test_a_daemon_that_comes_back_is_told():
    import time

    back = threading.Event()
    boot = Boot("c" * 64, "engine", STARTED, 0, None)
    daemon = Answers(state(Running=True), AWAY, AWAY, state(Running=True))
    watch = Watcher(daemon, boot, "head", time.monotonic(), back.set)
    watch.start()
    assert back.wait(10)
    assert watch.exited() is None
    watch.stop()
    ((begin, end),) = watch.absences
    assert 0 <= begin < end < 10


def test_an_absence_begins_with_the_call_that_got_no_answer():
    import time

    back = threading.Event()
    asked = []

    class Hanging:
        """Answers once, then not for a while."""

        def inspect(self, *_):
            asked.append(time.monotonic())
            if len(asked) == 2:
                threading.Event().wait(0.3)
                raise SLOW
            return {"State": state(Running=True)}

        def events(self, *_):
            raise DaemonRefused("no events here")

    launched_at = time.monotonic()
    watch = Watcher(Hanging(), Boot("c" * 64, "engine", STARTED, 0, None), "head", launched_at, back.set)
    watch.start()
    assert back.wait(10)
    watch.stop()
    ((begin, end),) = watch.absences
    assert launched_at + begin <= asked[1]
    assert asked[2] <= launched_at + end


def test_the_place_to_resume_from_moves_on():
    position = Position()
    for second in range(1000, 1100):
        for _ in range(second * 7 % 6):
            position = position.after(second)
    assert position.since is not None
    assert 1085 <= position.since <= 1095
    assert position.ahead < 100
