"""Which launches are starts of their own: services of one log, API servers of one engine, nodes of one engine."""

from __future__ import annotations

import pytest
from helpers_diagnosis import bare, record

from pytest_startup.engines.base import LogSummary
from pytest_startup.engines.reader import Reader, read
from pytest_startup.engines.registry import tables

API = "APIServer pid=1"
CORE = record("Initializing a V1 LLM engine (v0.21.0) with config: model='m'")
LOADING = record("Starting to load model m...")
READY = f"({API}) INFO:     Application startup complete."
ENDED = bare("ValueError: no shard", ["load_model"], "EngineCore pid=7")


def launch(process: str = API) -> list[str]:
    return [
        record("vLLM server version 0.21.0, serving model m", process),
        record("non-default args: {'model': 'm'}", process),
    ]


def service(name: str, *lines: str) -> list[str]:
    return [f"{name}  | {line}" for line in lines]


def starts(lines: list[str]) -> list[LogSummary]:
    return read(["\n".join([*lines, ""]).encode()], Reader(tables()))[1]


def test_two_services_of_a_compose_file_are_two_engines() -> None:
    log = [
        *service("chat", *launch(), CORE, LOADING),
        *service("embed", *launch(), CORE, LOADING),
        *service("chat", *ENDED),
        "chat exited with code 1",
        *service("embed", READY),
    ]
    chat, embed = starts(log)
    assert (chat.failed, chat.ready) == (True, False)
    assert (embed.failed, embed.ready) == (False, True)


def test_a_service_that_is_started_again_beside_another_one() -> None:
    log = [
        *service("chat", *launch(), CORE, LOADING),
        *service("embed", *launch(), CORE, LOADING),
        *service("chat", *ENDED),
        *service("chat", *launch(), CORE, LOADING, READY),
        *service("embed", READY),
    ]
    assert [(one.failed, one.ready) for one in starts(log)] == [(True, False), (False, True), (False, True)]


def test_two_sglang_services_are_told_by_their_number_of_nodes() -> None:
    args = "[2026-11-29 12:00:00] server_args=ServerArgs(model_path='m', nnodes={}, node_rank=0)"
    begin = "[2026-11-29 12:00:01] Load weight begin. avail mem=70.00 GB"
    for nodes, expected in ((1, 2), (2, 1)):
        log = [line for name in ("a", "b") for line in service(name, args.format(nodes), begin)]
        assert len(starts(log)) == expected


def test_a_node_that_only_joins_is_of_the_same_engine() -> None:
    log = [*service("head", *launch(), CORE, LOADING), *service("worker", CORE, LOADING), *service("head", READY)]
    assert len(starts(log)) == 1


def test_nodes_that_are_named_to_the_reader_are_one_engine_whatever_they_print() -> None:
    reader = Reader(tables())
    for node in ("head", "worker"):
        reader.feed("\n".join([*launch(), CORE, LOADING, ""]).encode(), node=node)
    assert len(reader.close()[1]) == 1


@pytest.mark.parametrize("name", ["ApiServer_{}", "APIServer_DP{}"])
def test_each_of_several_api_servers_may_print_the_banner(name: str) -> None:
    attempt = [line for i in (0, 1) for line in launch(f"{name.format(i)} pid={i + 1}")] + [CORE, LOADING]
    assert len(starts([*attempt, READY])) == 1
    assert len(starts([*attempt, *ENDED, *attempt, *ENDED, *attempt, READY])) == 3
