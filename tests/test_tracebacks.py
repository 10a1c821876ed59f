"""Tracebacks as a stream: frames, chains, who printed, and where one ends."""

from __future__ import annotations

from helpers_diagnosis import bare, frames, raised, record, scheduler
from hypothesis import given
from hypothesis import strategies as st

from pytest_startup.engines.framing import frame
from pytest_startup.engines.tracebacks import OPEN_LIMIT, Chain, TracebackReader, content, raised_alone


def chains(lines: list[str]) -> list[Chain]:
    """All chains of a log, in the order in which they ended."""
    reader = TracebackReader()
    found: list[Chain] = []
    for number, raw in enumerate(lines, 1):
        for line in frame(raw.encode(), number):
            found += reader.feed(line)
    return [*found, *reader.finish()]


def test_a_logged_traceback() -> None:
    (chain,) = chains([*raised("ValueError: no room\nsecond line", ["load_model", "get_model"]), record("next")])
    assert chain.first.name == "ValueError"
    assert chain.first.text == "ValueError: no room\nsecond line"
    assert chain.first.line.number == 7
    assert [f.function for f in chain.first.frames] == ["load_model", "get_model"]
    assert chain.first.frames[0].file == "/opt/lib/vllm/part/load_model.py"
    assert chain.opener.process == "EngineCore"


def test_a_bare_traceback_with_the_process_prefix_keeps_its_indentation() -> None:
    (chain,) = chains([*bare("EOFError", ["recv"], "EngineCore pid=7"), "(EngineCore pid=7) Process EngineCore:"])
    assert (chain.first.name, chain.first.message) == ("EOFError", "")
    assert [f.function for f in chain.first.frames] == ["recv"]


def test_a_chain_is_one_whole_and_its_first_exception_comes_first() -> None:
    lines = [
        *bare("KeyError: 'gemma'", ["__getitem__"]),
        "",
        "During handling of the above exception, another exception occurred:",
        "",
        *bare("ValueError: not recognised", ["from_pretrained"]),
        "",
        "The above exception was the direct cause of the following exception:",
        "",
        *bare("RuntimeError: gave up", ["main"]),
    ]
    (chain,) = chains(lines)
    assert [r.name for r in chain.raised] == ["KeyError", "ValueError", "RuntimeError"]
    assert [f.function for f in chain.frames()] == ["__getitem__", "from_pretrained", "main"]


def test_the_same_traceback_twice_is_two_chains() -> None:
    body = [record(line, level="ERROR") for line in bare("ValueError: x", ["f"])]
    assert len(chains([*body, *body])) == 2


def test_interleaved_tracebacks_belong_to_who_printed_them() -> None:
    one = raised("ValueError: one", ["f"], "Worker_TP0 pid=1")
    two = raised("KeyError: 'two'", ["g"], "Worker_TP1 pid=2")
    found = chains([line for pair in zip(one, two, strict=True) for line in pair])
    assert {c.opener.rank: (c.first.name, c.frames()[0].function) for c in found} == {
        "TP0": ("ValueError", "f"),
        "TP1": ("KeyError", "g"),
    }


def test_bare_lines_belong_to_the_bracketed_record_before_them() -> None:
    found = chains(
        [*scheduler(" TP6", "RuntimeError: x", ["capture"]), *scheduler(" TP7", "KeyError: 'y'", ["capture"])]
    )
    assert [(c.opener.rank, c.first.name) for c in found] == [("TP6", "RuntimeError"), ("TP7", "KeyError")]


def test_a_record_of_another_process_does_not_end_a_traceback() -> None:
    lines = raised("ValueError: x", ["f", "g"])
    lines.insert(4, record("Route: /ping", "APIServer pid=1"))
    (chain,) = chains(lines)
    assert len(chain.first.frames) == 2


def test_text_that_is_no_exception_is_passed_over() -> None:
    lines = ["Traceback (most recent call last):", *frames("f"), "INFO:     127.0.0.1 - x", "ValueError: x"]
    assert [c.first.name for c in chains(lines)] == ["ValueError"] or chains(lines) == []
    noisy = ["Traceback (most recent call last):", *frames("f"), "    ^^^^^", "some progress 10%", "ValueError: x"]
    assert chains(noisy)[0].first.name == "ValueError"


def test_a_traceback_without_indentation() -> None:
    lines = [line.strip() for line in scheduler("", "RuntimeError: NCCL error", ["init_torch_distributed"])]
    (chain,) = chains(lines)
    assert chain.first.text == "RuntimeError: NCCL error"
    assert chain.frames()[-1].function == "init_torch_distributed"


def test_a_traceback_whose_head_is_missing() -> None:
    (chain,) = chains(bare("ValueError: x", ["f", "g"])[1:])
    assert [f.function for f in chain.frames()] == ["f", "g"]


def test_a_traceback_whose_end_is_missing_gives_nothing() -> None:
    assert chains(bare("ValueError: x", ["f"])[:-1]) == []


def test_a_stack_dump_is_no_traceback() -> None:
    dump = ["Thread 0x00007f57a77d7640 (most recent call first):", '  File "/usr/lib/threading.py", line 359 in wait']
    assert chains(dump) == []


def test_an_exception_group_line_is_read_behind_its_bars() -> None:
    lines = [
        "  + Exception Group Traceback (most recent call last):",
        '  |   File "/opt/lib/vllm/x.py", line 3, in serve',
        "  |     go()",
        "  | ValueError: inside",
    ]
    assert chains(lines)[0].first.name == "ValueError"


def test_reading_tells_whether_the_next_lines_are_wanted() -> None:
    reader = TracebackReader()
    wanted = []
    for number, raw in enumerate([*bare("ValueError: x", ["f"], "EngineCore pid=7"), record("next")], 1):
        for line in frame(raw.encode(), number):
            reader.feed(line)
            wanted.append(reader.reading)
    assert wanted == [True, True, True, True, False]


def test_a_traceback_that_nobody_goes_on_with_has_ended() -> None:
    lines = [*bare("ValueError: x", ["f"], "APIServer pid=1"), *[record(f"step {i}") for i in range(60)]]
    reader = TracebackReader()
    ended = [n for n, raw in enumerate(lines, 1) for line in frame(raw.encode(), n) if reader.feed(line)]
    assert ended
    assert ended[0] < len(lines)


def test_content_is_behind_prefix_and_header() -> None:
    texts = {
        record("  inside"): "  inside",
        "(EngineCore pid=7)   inside": "  inside",
        "[2026-06-07 11:57:02 TP0] said": "said",
        "   bare": "   bare",
        "[rank0]:     torch": "    torch",
    }
    for raw, want in texts.items():
        assert [content(line) for line in frame(raw.encode(), 1)] == [want], raw


def test_an_exception_alone() -> None:
    (line,) = frame(record("ValueError: x", level="ERROR").encode(), 1)
    found = raised_alone(line)
    assert found is not None
    assert found.text == "ValueError: x"
    for raw in ("INFO: x", "Errors: 3", "model: m", "Traceback (most recent call last):", ""):
        assert all(raised_alone(line) is None for line in frame(raw.encode(), 1)), raw


def test_many_open_tracebacks_do_not_pile_up() -> None:
    reader = TracebackReader()
    for number in range(1, 400):
        for line in frame(f"(Worker_TP{number} pid={number}) Traceback (most recent call last):".encode(), number):
            reader.feed(line)
    assert len(reader.finish()) == 0
    assert OPEN_LIMIT < 400


@given(
    st.lists(
        st.sampled_from([*bare("ValueError: x", ["f"]), *raised("KeyError: 'y'", ["g"]), "", "noise"]), max_size=50
    )
)
def test_any_order_of_lines_is_read(lines: list[str]) -> None:
    for chain in chains(lines):
        assert chain.raised
        assert all(r.line.number <= len(lines) for r in chain.raised)


def test_a_pasted_traceback_without_indentation_and_with_typographic_quotes():
    """What an issue tracker makes of a log: ``self.comm: T = …`` is code, not an exception."""
    from pytest_startup.engines.reader import Reader, read
    from pytest_startup.engines.registry import tables

    text = (
        "[2026-08-08 09:09:05 TP1] Load weight begin. avail mem=78.00 GB\n"
        "[2026-08-08 09:09:08 TP1] Scheduler hit an exception: Traceback (most recent call last):\n"
        "File “/sglang/srt/model_executor/model_runner.py”, line 235, in load_model\n"
        "self.comm: ncclComm_t = self.nccl.ncclCommInitRank(\n"
        "raise RuntimeError(f”NCCL error: {error}”)\n"
        "RuntimeError: NCCL error: unhandled system error\n"
        "[2026-08-08 09:09:09] Received sigquit from a child process. It usually means the child failed.\n"
    )
    _, (start,) = read([text.encode()], Reader(tables()))
    assert start.failure is not None
    assert start.failure.cause is not None
    assert (start.failure.cause.line, start.failure.phase, start.failure.kind) == (6, "weights", "collective-failed")
