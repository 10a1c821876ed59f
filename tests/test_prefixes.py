"""Prefixes that nobody knows are learnt, so that tracebacks behind them are read too."""

from __future__ import annotations

import pytest

from pytest_startup.engines.prefixes import ENOUGH, Prefixes, shape_of
from pytest_startup.engines.reader import Reader, read
from pytest_startup.engines.registry import tables

LOG = """\
(EngineCore pid=9) INFO 11-29 12:00:01 [core.py:1] Initializing a V1 LLM engine (v0.31.0) with config: model='m'
(Worker_TP0 pid=10) INFO 11-29 12:00:02 [w.py:1] world_size=2 rank=0 local_rank=0 distributed_init_method=x backend=nccl
(Worker_TP1 pid=11) INFO 11-29 12:00:02 [w.py:1] world_size=2 rank=1 local_rank=1 distributed_init_method=x backend=nccl
(Worker_TP0 pid=10) INFO 11-29 12:00:03 [m.py:1] Starting to load model m...
(Worker_TP1 pid=11) Traceback (most recent call last):
(Worker_TP1 pid=11)   File "/vllm/v1/worker/gpu_worker.py", line 1, in load_model
(Worker_TP1 pid=11)     self.model_runner.load_model()
(Worker_TP1 pid=11) torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
(EngineCore pid=9) ERROR 11-29 12:00:09 [core.py:2] EngineCore failed to start.
"""


@pytest.mark.parametrize(
    "prefix",
    [
        "",
        "srv-01 :: job={0} >> ",
        "[node7] ",
        "Nov 29 vm-{0} I app/web: ",
        "11/29 12:00:{0} | gpu | ",
        "W1129 {0} x-7f9c{0}: ",
    ],
)
def test_the_cause_is_found_behind_any_prefix(prefix):
    data = "".join(prefix.format(10 + i) + line for i, line in enumerate(LOG.splitlines(keepends=True))).encode()
    _, (start,) = read([data], Reader(tables()))
    assert start.failure is not None
    assert start.failure.cause is not None
    assert (start.failure.kind, start.failure.cause.line) == ("out-of-device-memory", 8)
    assert start.failure.cause.rank == "TP1"


def test_progress_bars_before_a_record_are_no_prefix():
    bar = "Capturing CUDA graphs (PIECEWISE): 100%|██| {0}/{0} [00:05<00:00, 13.1it/s](EngineCore pid=1) "
    lines = [bar.format(n) + f"INFO 11-29 12:00:0{n} [x.py:1] m\n" for n in range(1, 7)]
    facts, _ = read(["".join(lines).encode()], Reader(tables()))
    assert [f.value["done"] for f in facts if f.name == "graphs.captured"] == [1, 2, 3, 4, 5, 6]


def test_a_prefix_of_few_records_is_not_learnt():
    known = Prefixes()
    for text in ["", "", "", "", *["a: "] * ENOUGH]:
        known.learn(text)
    assert known.pattern is None
    known = Prefixes()
    for _ in range(ENOUGH):
        known.learn("a: ")
    assert known.pattern is not None


def test_the_shape_keeps_words_and_frees_numbers():
    import re

    shape = re.compile(shape_of("Nov 29 vm-1 I app: "))
    assert shape.match("Dec 30 vm-22 E app: x")
    assert not shape.match("Dec 30 vm-22 E other: x")
