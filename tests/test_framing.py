"""Bytes → lines: prefixes, colours, carriage returns, JSON records, bad bytes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_startup.engines.framing import LINE_LIMIT, frame
from pytest_startup.engines.stamps import clock, full, newest_first

RECORD = "INFO 11-29 12:00:13 [gpu_worker.py:5405] "
MESSAGE = "Model loading took 27.67 GiB and 3.71 seconds"
FRONTS = {
    "nothing": "",
    "docker logs -t": "2026-11-29T16:47:30.070469198Z ",
    "Kubernetes": "2026-11-29T16:47:30.070469198+00:00 stderr F ",
    "kubectl --prefix": "[pod/vllm-0/vllm] ",
    "compose": "vllm-1  | ",
    "compose with docker's time": "vllm-1  | 2026-11-29T16:47:30.070469198Z ",
    "journald": "Nov 29 16:47:30 gpu-host vllm[812]: ",
    "journald, short-iso": "2026-11-29T16:47:30+0000 gpu-host vllm[812]: ",
    "syslog": "<14>Nov  9 16:47:30 gpu-host vllm: ",
    "mpirun": "[1,0]<stderr>: ",
}


def only(text: str | bytes):
    lines = frame(text if isinstance(text, bytes) else text.encode(), 5)
    assert len(lines) == 1, [line.text for line in lines]
    return lines[0]


@pytest.mark.parametrize("front", FRONTS.values(), ids=FRONTS.keys())
@pytest.mark.parametrize("process", ["", "(Worker_TP1_EP1 pid=12) ", "\x1b[0;36m(Worker_TP1_EP1 pid=12)\x1b[0;0m "])
@pytest.mark.parametrize(
    "header", [RECORD, "PREFIX" + RECORD, "\x1b[32mINFO\x1b[0m \x1b[90m11-29 12:00:13\x1b[0m [x.py:1] "]
)
def test_outer_prefixes_process_and_header_come_off(front, process, header):
    line = only(front + process + header + MESSAGE + "\r")
    assert line.message == MESSAGE
    assert line.level == "INFO"
    assert line.number == 5
    if process:
        assert (line.process, line.rank, line.pid) == ("Worker_TP1_EP1", "TP1_EP1", 12)


@pytest.mark.parametrize(
    ("prefix", "process", "rank", "engine", "node"),
    [
        ("(EngineCore_DP1 pid=3) ", "EngineCore_DP1", "DP1", "EngineCore_DP1", None),
        ("(EngineCore_1 pid=3) (VllmWorker rank=0 pid=4) ", "VllmWorker rank=0", "rank=0", "EngineCore_1", None),
        ("(VllmWorker TP3 pid=4) ", "VllmWorker TP3", "TP3", None, None),
        ("(Worker_DP0_PP1_TP3_EP7 pid=4) ", "Worker_DP0_PP1_TP3_EP7", "DP0_PP1_TP3_EP7", None, None),
        ("(Worker pid=4) ", "Worker", None, None, None),
        ("(EngineCore pid=4) ", "EngineCore", None, None, None),
        ("(APIServer pid=1) ", "APIServer", None, None, None),
        ("(RayWorkerWrapper pid=4, ip=10.0.0.2) ", "RayWorkerWrapper", None, None, "10.0.0.2"),
        ("[36m(RayWorkerWrapper pid=860)[0m ", "RayWorkerWrapper", None, None, None),
        (
            "(EngineCore pid=9) \x1b[36m(RayWorkerProc pid=4)\x1b[0m (Worker_TP0 pid=5) ",
            "Worker_TP0",
            "TP0",
            None,
            None,
        ),
        ("[rank3]: ", None, "rank3", None, None),
    ],
)
def test_who_speaks(prefix, process, rank, engine, node):
    line = only(prefix + RECORD + MESSAGE)
    assert (line.process, line.rank, line.engine, line.node) == (process, rank, engine, node)
    assert line.message == MESSAGE


def test_a_residue_of_colours_without_escape_does_not_eat_a_bracket():
    assert only("INFO 11-29 12:00:13 [monitor.py:34] torch.compile").source == "monitor.py:34"
    assert only("[34mINFO 11-29 12:00:13 [monitor.py:34] x[0m").message == "x"


@pytest.mark.parametrize(
    ("text", "rank"),
    [
        ("[2026-11-29 12:00:00 DP0 TP1 EP1] Load weight end", "DP0 TP1 EP1"),
        ("[2026-11-29 12:00:00.123 TP0] Load weight end", "TP0"),
        ("[2026-11-29 12:00:00] Load weight end", None),
    ],
)
def test_sglang_records(text, rank):
    line = only(text)
    assert (line.message, line.rank) == ("Load weight end", rank)


@pytest.mark.parametrize(
    "text",
    [
        "2026-02-05 00:07:08,089 - INFO - autotuner.py:256 - flashinfer.jit: [Autotuner]: x",
        "2026-02-05 00:07:08,089 INFO worker.py:1654 -- [Autotuner]: x",
        "INFO:vllm.engine:[Autotuner]: x",
        "INFO:     [Autotuner]: x",
        "INFO 07-29 12:00:00 worker.py:123] [Autotuner]: x",
        "INFO 2026-07-29 12:00:00.123 [worker.py:123] [Autotuner]: x",
        "INFO 07-29 12:00:00 [worker.py:123](http://worker.py:123/)] [Autotuner]: x",
    ],
)
def test_other_headers(text):
    line = only(text)
    assert (line.message, line.level) == ("[Autotuner]: x", "INFO")


def test_a_redrawn_bar_is_its_last_state():
    bar = "Capturing CUDA graphs (decode, FULL): {:3}%|##  | {}/35 [00:01<00:01]"
    line = only("(EngineCore pid=9) \r" + "\r".join(bar.format(n * 100 // 35, n) for n in range(36)))
    assert "35/35" in line.message
    assert line.process == "EngineCore"


def test_two_ranks_bars_and_a_record_in_one_physical_line():
    text = (
        "(Worker_TP0 pid=1) Tuning a:  10%|# | 1/10 [..]\r(Worker_TP1 pid=2) Tuning a:  20%|# | 2/10 [..]"
        "(Worker_TP0 pid=1) Tuning a:  30%|# | 3/10 [..]\rTuning a:  40%|# | 4/10 [..]\r" + RECORD + MESSAGE
    )
    lines = frame(text.encode(), 9)
    assert {(line.rank, line.message[-10:-5]) for line in lines if "Tuning" in line.message} >= {("TP1", " 2/10")}
    assert [line.message for line in lines if "Model" in line.message] == [MESSAGE]
    assert {line.number for line in lines} == {9}


@pytest.mark.parametrize("header", [RECORD, "[2026-11-29 12:00:13 TP1] "])
def test_a_record_behind_a_bar_that_had_no_line_break_yet(header):
    bar, said = frame(f"Loading shards: 100%|###| 4/4 [00:03<00:00,  1.30it/s]{header}{MESSAGE}".encode(), 5)
    assert (bar.message.strip(), said.message) == ("Loading shards: 100%|###| 4/4 [00:03<00:00,  1.30it/s]", MESSAGE)


def test_a_header_whose_first_bracket_was_not_copied():
    line = only(f"2026-11-29 12:00:13 TP1] {MESSAGE}")
    assert (line.rank, line.message) == ("TP1", MESSAGE)


def test_records_of_two_ranks_without_a_line_break_between_them():
    lines = frame(b"[2026-11-29 12:00:13 TP0] Memory pool end.[2026-11-29 12:00:13 TP1 EP1] Memory pool end.", 5)
    assert [(line.rank, line.message) for line in lines] == [
        ("TP0", "Memory pool end."),
        ("TP1 EP1", "Memory pool end."),
    ]
    assert only("[2026-11-29 12:00:13 TP0] seen at [2026-11-29 12:00:13 TP1] too").rank == "TP0"


def test_ray_counts_repeats():
    tail = " [repeated 15x across cluster] (Ray deduplicates logs by default.)"
    line = only("(RayWorkerWrapper pid=4) " + RECORD + MESSAGE + tail)
    assert (line.message, line.repeated) == (MESSAGE, 15)


@pytest.mark.parametrize(
    "record",
    [
        {"levelname": "INFO", "message": MESSAGE, "asctime": "2026-11-29 12:00:13,123"},
        {"level": "info", "msg": MESSAGE, "ts": "2026-11-29T12:00:13Z"},
        {"log": "(EngineCore pid=9) " + RECORD + MESSAGE + "\n", "stream": "stderr", "time": "2026-11-29T12:00:13Z"},
        {"MESSAGE": RECORD + MESSAGE, "_HOSTNAME": "gpu-host"},
        {"text": RECORD + MESSAGE, "record": {"level": {"name": "INFO"}}},
        {"record": {"message": MESSAGE, "level": {"name": "INFO"}}},
    ],
)
def test_json_records(record):
    line = only(json.dumps(record))
    assert (line.message, line.level or "INFO") == (MESSAGE, "INFO")


def test_json_records_of_several_lines_keep_one_number():
    lines = frame(json.dumps({"message": "Traceback (most recent call last):\n  File x\nKeyError: 1"}).encode(), 3)
    assert [(line.number, line.message) for line in lines][-1] == (3, "KeyError: 1")


@pytest.mark.parametrize("text", ["{}", "{", "{'a': 1}", '{"a": {"b": 1}}', "[" * 5000, '{"message": 3}'])
def test_what_only_looks_like_json_is_text(text):
    assert only(text).message == text


def test_bad_bytes_and_lines_without_end():
    assert "took 3 s" in only(b"\xff\xfe took 3 s \x00").message
    line = frame(b"x" * (LINE_LIMIT * 2), 1)[0]
    assert len(line.text) <= LINE_LIMIT


@given(st.binary(max_size=300))
def test_any_bytes_give_lines_of_that_number(raw):
    lines = frame(raw.replace(b"\n", b""), 7)
    assert lines
    assert all(line.number == 7 for line in lines)


@given(
    st.sampled_from(list(FRONTS.values())),
    st.text(st.characters(codec="ascii", min_codepoint=33), min_size=1, max_size=60),
)
def test_a_prefix_never_changes_the_message(front, words):
    bare = frame((RECORD + words).encode(), 1)[-1].message
    assert frame((front + RECORD + words).encode(), 1)[-1].message == bare


def test_times():
    assert full("2026-11-29T12:00:00.5Z") == full("2026-11-29T13:00:00.5+01:00")
    assert full("2026-13-29T12:00:00") is None
    assert clock("11-29 12:00:10") - clock("2026-11-29 12:00:00,000") == 10
    assert newest_first([5.0, 4.0, 4.0, 3.0, None, 1.0])
    assert not newest_first([1.0, 2.0, 2.0, 3.0])
    assert not newest_first([])


@pytest.mark.parametrize(
    ("text", "rank"),
    [
        ("app-log> [2026-11-29 12:00:00 DP0 TP1] KV Cache is allocated.", "DP0 TP1"),
        ("app-log> (Worker_TP1 pid=4) KV Cache is allocated.", "TP1"),
        ("app-log> (Worker_TP1 pid=4) INFO 11-29 12:00:13 [x.py:1] KV Cache is allocated.", "TP1"),
    ],
)
def test_a_prefix_that_nobody_knows(text, rank):
    line = only(text)
    assert (line.message, line.rank) == ("KV Cache is allocated.", rank)
