"""The command ``pytest-startup init``: a profile to start from, empty or from what is run with Docker today."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_startup import dockerinspect, dockerrun
from pytest_startup.draft import Draft, from_run
from pytest_startup.draftyaml import render
from pytest_startup.launch.container import pinning

if TYPE_CHECKING:
    from pytest_startup.launch.container.address import Address

STARTER = """\
# yaml-language-server: $schema=profile.schema.json (written by: pytest-startup schema profile)
# Every key: docs/profile.md. Run: pytest --startup-profile THIS-FILE   (look first: add --startup-preflight)
schema: 1
name: my-engine

engine:
  kind: vllm # or sglang
  # version: 0.31.0            # compared with what the engine says
  model: ORGANISATION/MODEL # or a path, relative to this file
  # revision: …                # commit of the checkpoint
  args: [--max-model-len, "4096"]
  # env: {HF_TOKEN: "${HF_TOKEN}", VLLM_CACHE_ROOT: "${profile_dir}/.cache/vllm"}

launch:
  # a local process …
  process:
    command: [vllm, serve]
  # … or a container (exactly one of them):
  # container:
  #   image: sha256:…          # docker image inspect -f '{{.Id}}' IMAGE
  #   gpus: [0]
  #   volumes: {/srv/vllm-cache: /root/.cache/vllm}
  port: auto
  # gpus: [0]                  # locked while the engine runs, and proved released

# caches:                      # watched, and may be wiped
#   compile-cache: {path: .cache/vllm/torch_compile_cache, kind: compile}

# host: {page_size: 4096, driver: 580.*, gpu: "*H200*", gpu_count: 1}

deadlines:
  weights: 20m
  ready: 45m

restarts:
  - {kind: process, times: 2}
  # - {kind: process, drop_page_cache: true}
  # - {kind: process, wipe: [compile-cache]}

# What is left out must be as in the reference start, or in the baseline.
expect:
  # backend: {attention: FLASH_ATTN, moe: FLASHINFER_CUTLASS}
  # graphs: {mode: FULL_AND_PIECEWISE, sizes: [1, 2, 4, 8, 16]}
  # kv: {tokens: {min: 300000}}
  throughput: {concurrency: [1, 8], output_tokens: 64, tolerance: 5%}
  quality:
    prompts:
      - {prompt: "The capital of France is", contains: Paris}
  completion: {prompt: "The capital of France is", contains: Paris}

# waive:
#   - {check: graphs, reason: "eager profile by design", until: 2027-03-01}
"""


def main(argv: Sequence[str]) -> int:
    """Exit codes: 0 written; 2 usage, or nothing to write from. What is to be looked at goes to stderr."""
    parser = argparse.ArgumentParser(
        prog="pytest-startup init",
        description="Write a profile to start from. What is to be looked at goes to standard error, too.",
        epilog="exit codes: 0 written, 2 wrong usage, or nothing to write from",
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--from-docker-run", metavar="COMMAND", help="a 'docker run …' command line, in one argument")
    source.add_argument("--from-container", metavar="NAME", help="a container, running or stopped, by name or id")
    parser.add_argument("--name", help="name of the profile")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="default: standard output")
    given = parser.parse_args(list(argv))
    try:
        draft = _draft(given, os.environ)
    except (dockerrun.NotDockerRun, _NoContainer) as e:
        print(f"pytest-startup init: {e}", file=sys.stderr)
        return 2
    text = STARTER if draft is None else render(draft)
    if given.output is None:
        print(text, end="")
    else:
        try:
            with given.output.open("x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            print(
                f"pytest-startup init: {given.output} exists and is not overwritten; give another -o", file=sys.stderr
            )
            return 2
        except OSError as e:
            print(f"pytest-startup init: {given.output}: {e.strerror}", file=sys.stderr)
            return 2
    notes = [] if draft is None else [*draft.notes, *_still_wrong(text, given.output or Path("profile.yaml"))]
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    return 0


class _NoContainer(Exception):
    """The container can't be inspected; the message says why."""


def _draft(given: argparse.Namespace, environ: Mapping[str, str]) -> Draft | None:
    if given.from_docker_run is not None:
        run = dockerrun.parse(given.from_docker_run)
        return from_run(
            run,
            environ,
            Path.cwd(),
            given.name,
            lambda tag: pinning.look_up(tag, run.docker_host, run.context, environ),
        )
    if given.from_container is not None:
        container, image, address = inspect(given.from_container, environ)
        draft = from_run(dockerinspect.inspected(container, image), environ, Path.cwd(), given.name)
        if address.named:
            draft.notes.append(
                f"read from the container engine at {address}, which the profile does not name: pytest asks the same "
                "one in the same environment; launch.container.context or docker_host pins it"
            )
        return draft
    return None


def inspect(name: str, environ: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, Any], Address]:
    """What the daemon says of a container and of its image, and which daemon it was: the one that a profile which
    names none would use. Raises _NoContainer."""
    from pytest_startup.launch.container import address as docker_address
    from pytest_startup.launch.container import trouble
    from pytest_startup.launch.container.daemon import Daemon, DaemonLost, DaemonRefused, NotThere

    try:
        address = docker_address.find(None, environ)
    except docker_address.AddressError as e:
        raise _NoContainer(str(e)) from None
    daemon = Daemon(address)
    try:
        container = dict(daemon.inspect(name))
        return container, dict(daemon.image(str(container["Image"]))), address
    except NotThere as e:
        raise _NoContainer(f"{address}: {e}; `{address.command()} ps -a` lists what there is") from None
    except DaemonRefused as e:
        raise _NoContainer(f"{daemon.where()} {trouble.refused(str(e))}") from None
    except DaemonLost as e:
        why = trouble.why_lost(address)
        raise _NoContainer(f"{daemon.where()} {why}" if why else str(e)) from None
    finally:
        daemon.close()


def _still_wrong(text: str, path: Path) -> list[str]:
    """What loading the draft would say, every variable taken as set."""
    from pytest_startup.profile.load import load_bytes
    from pytest_startup.profile.problems import ProfileError
    from pytest_startup.profile.resolve import names_in

    try:
        load_bytes(text.encode(), path, dict.fromkeys(names_in(text), "set-by-the-user"))
    except ProfileError as e:
        return e.lines()
    return []
