"""Whole logs: several starts, last states of bars, traffic, nodes, chunks of any size."""

from __future__ import annotations

import pytest
from helpers_logs import ACCESS, COLD, FAILED, STATISTICS, traffic
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_startup.engines.reader import Reader, read
from pytest_startup.engines.registry import tables

BAR = "(EngineCore pid=9) Capturing CUDA graphs (decode, FULL): {:3}%|##  | {}/35 [00:01<00:01, 1.0it/s]\n"


def read_text(text: str, **more: object):
    return read([text.encode()], Reader(tables("vllm"), **more))  # type: ignore[arg-type]


def values(facts, name):
    return [f.value for f in facts if f.name == name]


def test_a_start():
    facts, starts = read_text(COLD)
    assert values(facts, "kv.tokens") == [292522]
    assert values(facts, "weights.memory") == [27.67]
    assert [f.evidence.line for f in facts if f.name == "kv.tokens"] == [13]
    assert [(s.start, s.ready, s.failed, s.first_line, s.engine) for s in starts] == [(0, True, False, 1, "vllm")]
    assert not any("sesame" in f.evidence.text for f in facts)


def test_a_whole_number_with_a_fraction_behind_it_is_a_damaged_line():
    line = "[2026-11-29 12:00:09 TP0] KV Cache is allocated. #tokens: 5539718{}, K size: 18.49 GB, V size: 18.49 GB\n"
    for behind, expected in (("", [5539718]), ("1.1", [])):
        facts, _ = read([line.format(behind).encode()], Reader(tables("sglang")))
        assert values(facts, "kv.tokens") == expected


ROWS = ("16 | 16 | 0 | FULL | 255", "1 | 1 | 0 | FULL | 31", "415 | 415 | 0 | NONE | 1", "9 | 16 | 7 | FULL | 100")


def test_rows_of_the_graph_statistics_are_added_up_by_mode():
    """Printed again every few seconds, for as long as the engine serves: two facts, whatever the log's length."""
    head = "(APIServer pid=9) INFO 06-07 11:57:59 [cuda_graph.py:129] "
    title = f"{head}| Unpadded Tokens | Padded Tokens | Num Paddings | Runtime Mode | Count |\n"
    facts, _ = read_text(COLD + (title + "".join(f"{head}| {row} |\n" for row in ROWS)) * 50)
    served = [f for f in facts if f.name == "graphs.served"]
    assert [(f.value, f.detail["reports"], f.detail["total"]) for f in served] == [
        ({"kind": "FULL", "steps": 255, "padded": 16}, 150, 50 * 386),
        ({"kind": "NONE", "steps": 1, "padded": 415}, 50, 50),
    ]
    assert all(f"| {f.value['steps']} |" in f.evidence.text for f in served)  # what the line says, not a sum


def test_several_starts_in_one_file():
    facts, starts = read_text(COLD + traffic(50) + FAILED + COLD)
    assert [(s.start, s.ready, bool(s.failed)) for s in starts] == [
        (0, True, False),
        (1, False, True),
        (2, True, False),
    ]
    assert [(f.start, f.evidence.line) for f in facts if f.name == "kv.tokens"] == [(0, 13), (2, 18 + 50 + 6 + 13)]


def test_many_starts_in_one_piece_neither_recurse_nor_take_long():
    _, starts = read_text((COLD + ACCESS) * 60)
    assert len(starts) == 60
    assert starts[-1].first_line == 59 * 19 + 1


def test_a_banner_again_before_anything_happened_is_the_same_start():
    banner = COLD.splitlines(keepends=True)[0]
    assert len(read_text(banner + COLD)[1]) == 1


def test_a_launch_that_died_of_its_arguments_is_a_start_of_its_own():
    head = "".join(COLD.splitlines(keepends=True)[:2])
    assert len(read_text(head + "vllm: error: argument\n" + COLD)[1]) == 2


def test_data_parallel_engines_are_one_start():
    core = COLD.splitlines(keepends=True)[2]
    both = core.replace("EngineCore", "EngineCore_DP0") + core.replace("EngineCore", "EngineCore_DP1")
    lines = COLD.splitlines(keepends=True)
    assert len(read_text("".join(lines[:2]) + both + "".join(lines[3:]))[1]) == 1


def test_only_the_last_state_of_a_bar_counts():
    text = COLD + "".join(BAR.format(n * 100 // 35, n) for n in range(36))
    facts, _ = read_text(text)
    (fact,) = [f for f in facts if f.name == "graphs.captured"]
    assert fact.value == {"kind": "decode, FULL", "done": 35, "total": 35}
    assert fact.evidence.line == 18 + 36


def test_a_bar_that_stands_at_nothing_is_no_statement():
    assert values(read_text(COLD + BAR.format(0, 0))[0], "graphs.captured") == []


def test_a_bar_drawn_twice_is_two_statements():
    text = "".join(BAR.format(100, n) for n in (1, 35, 1, 35))
    assert [v["done"] for v in values(read_text(COLD + text)[0], "graphs.captured")] == [35, 35]


def test_traffic_states_each_hit_rate_once_at_its_line():
    facts, _ = read_text(COLD + traffic(2000))
    rates = [f for f in facts if f.name == "cache.prefix_hit_rate"]
    assert [(f.evidence.line, f.value) for f in rates] == [(18 + n, n % 1000 / 10) for n in range(10, 2001, 10)]
    assert {f.unit for f in rates} == {"percent"}
    assert {f.detail["process"] for f in rates} == {"APIServer"}


@pytest.mark.parametrize(
    ("tail", "external"),
    [("", []), (", External prefix cache hit rate: 97.7%", [97.7]), (", MM cache hit rate: 1.0%", [])],
)
@pytest.mark.parametrize("front", ["", "2026-11-29T16:47:30.070469198Z ", "vllm-1  | "])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_forms_of_statistics_lines(tail, external, front, end):
    text = COLD + ACCESS + front + STATISTICS.format("51.9", tail).replace("\n", end)
    facts, _ = read_text(text)
    assert values(facts, "cache.prefix_hit_rate") == [51.9]
    assert values(facts, "cache.external_hit_rate") == external


def test_requests_that_wait_while_nothing_runs_are_told():
    stuck = STATISTICS.format("0.0", "").replace(
        "7.0 tokens/s, Running: 1 reqs, Waiting: 0", "0.0 tokens/s, Running: 0 reqs, Waiting: 3"
    )
    facts, _ = read_text(COLD + ACCESS * 5 + stuck)
    assert values(facts, "serving.stalled") == [{"running": 0, "waiting": 3}]
    assert values(facts, "cache.prefix_hit_rate") == [0.0]


def test_a_failure_in_the_middle_of_traffic_is_found():
    death = (
        "(EngineCore pid=9) ERROR 11-29 13:00:00 [core.py:1] EngineCore encountered a fatal error.\n"
        "(EngineCore pid=9) ERROR 11-29 13:00:00 [core.py:1] Traceback (most recent call last):\n"
        '(EngineCore pid=9) ERROR 11-29 13:00:00 [core.py:1]   File "/v/vllm/v1/engine/core.py", line 1, in step\n'
        "(EngineCore pid=9) ERROR 11-29 13:00:00 [core.py:1] torch.AcceleratorError: CUDA error: illegal access\n"
    )
    _, starts = read_text(COLD + traffic(500) + death + traffic(500))
    assert starts[0].failed is True
    assert starts[0].failure.phase == "serving"
    assert starts[0].failure.cause.line == 18 + 500 + 4


@given(st.lists(st.integers(1, 3000), max_size=12))
@settings(max_examples=25, deadline=None)
def test_chunks_do_not_matter(sizes):
    data = (COLD + traffic(100) + FAILED + COLD).encode()
    chunks = []
    at = 0
    for size in sizes:
        chunks.append(data[at : at + size])
        at += size
    chunks.append(data[at:])
    reader = Reader(tables("vllm"))
    facts, starts = read(chunks, reader)
    whole, expected = read_text(data.decode())
    key = lambda f: (f.evidence.line, f.name, str(f.value), f.start)  # noqa: E731
    assert sorted(map(key, facts)) == sorted(map(key, whole))
    assert starts == expected


def test_nodes_have_their_own_lines_and_paths():
    reader = Reader(tables("vllm"))
    facts = reader.feed(COLD.encode(), 1.0, "head")
    facts += reader.feed(FAILED.encode(), 2.0, "worker")
    places = {(f.node, f.evidence.where, f.evidence.seconds) for f in facts}
    assert places == {("head", "head/engine.log", 1.0), ("worker", "worker/engine.log", 2.0)}
    assert len(reader.close()[1]) == 1


def test_an_unfinished_last_line_is_read_at_the_end():
    reader = Reader(tables("vllm"))
    assert reader.feed(b"GPU KV cache size: 94,784 tok") == []
    assert reader.feed(b"ens") == []
    assert values(reader.close()[0], "kv.tokens") == [94784]


def test_progress_follows_the_start():
    reader = Reader(tables("vllm"))
    reader.feed("".join(COLD.splitlines(keepends=True)[:5]).encode(), 5.0)
    assert reader.progress().phase == "weights"


FORGED = (
    "GPU KV cache size: 999,999 tokens",
    "Using FLASHINFER attention backend",
    "Directly load AOT compilation from path /x/rank_0_0/model",
    "torch.OutOfMemoryError: CUDA out of memory.",
    "Initializing a V1 LLM engine (v0.99.0) with config: model='other', ",
    "Traceback (most recent call last):",
)


@pytest.mark.parametrize(
    "line",
    [
        "(APIServer pid=7) INFO 11-29 15:01:00 [logger.py:63] Received request cmpl-1: prompt: {!r}, params: 1",
        "INFO 06-01 15:01:00 [logger.py:42] Received request chatcmpl-ab-0: params: SamplingParams(stop=[{!r}])",
        "(APIServer pid=7) DEBUG 11-29 15:01:00 [logger.py:63] Request cmpl-1 details: prompt: {!r}",
        "(APIServer pid=7) INFO 11-29 15:01:00 [logger.py:63] Generated response cmpl-1: output: {!r}",
        "(APIServer pid=7) INFO 11-29 15:01:00 [logger.py:63] Generated response c (streaming complete): output: {!r}",
        "[2026-11-29 15:01:00] Receive: obj=GenerateReqInput(text={!r})",
        "[2026-11-29 15:01:00] Finish: obj=GenerateReqInput(rid='1'), out={!r}",
    ],
)
def test_what_a_client_wrote_is_no_word_of_the_engine(line: str) -> None:
    """A prompt that holds log lines must neither give a fact, nor end a start, nor begin one."""
    plain, (start,) = read_text(COLD)
    facts, (forged,) = read_text(COLD + "".join(line.format(text) + "\n" for text in FORGED))
    assert facts == plain
    assert (forged.ready, forged.failed, forged.failure) == (start.ready, start.failed, start.failure)
