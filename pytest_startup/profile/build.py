"""From the validated tree to the frozen dataclasses of ``profile.model``. Expects data that the schema has accepted."""

from __future__ import annotations

import datetime
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_startup.profile import expect as e
from pytest_startup.profile import model as m
from pytest_startup.profile.names import PHASE_KEYS
from pytest_startup.profile.nodes import Node
from pytest_startup.profile.nodes_build import nodes as build_nodes
from pytest_startup.profile.resolve import PROFILE_DIR, substitute
from pytest_startup.profile.units import duration, fraction, size


class Builder:
    """Builds one profile. ``folder`` is the profile's folder: relative paths count from there."""

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        self.folder = folder
        self.environ = {**environ, PROFILE_DIR: str(folder)}

    def text(self, value: object) -> str:
        """A text, or a number as it was written, with its placeholders resolved."""
        return substitute(str(getattr(value, "source", value)), self.environ)

    def maybe(self, value: object | None) -> str | None:
        return None if value is None else self.text(value)

    def texts(self, values: list[Any] | None) -> tuple[str, ...]:
        return tuple(self.text(v) for v in values or ())

    def env(self, data: Mapping[str, Any] | None) -> dict[str, str]:
        return {k: self.text(v) for k, v in (data or {}).items()}

    def path(self, value: object) -> Path:
        """Absolute, ``..`` removed by spelling only: a link in the path stays a link."""
        return Path(os.path.normpath(self.folder / self.text(value)))

    def profile(self, path: Path, data: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of ``Profile`` that come from the file's data."""
        caches = (data.get("caches") or {}).items()
        return {
            "path": path,
            "name": self.text(data["name"]),
            "engine": self.engine(data["engine"]),
            "launch": self.launch(data["launch"], data["engine"]),
            "caches": tuple(self.cache(k, c) for k, c in caches),
            "host": self.host(data.get("host") or {}),
            "deadlines": self.deadlines(data.get("deadlines") or {}),
            "restarts": self.restarts(data.get("restarts") or []),
            "expect": self.expect(data.get("expect") or {}),
            "waivers": tuple(self.waiver(w) for w in data.get("waive") or ()),
            "settle": duration(data.get("settle", "0s")),
        }

    def nodes(self, data: Mapping[str, Any], launch: m.Launch) -> tuple[Node, ...]:
        return build_nodes(self, data.get("nodes") or {}, launch.checkpoint)

    def cache(self, name: str, data: Mapping[str, Any]) -> m.CacheFolder:
        inside = self.maybe(data.get("container"))
        path = self.path(data["path"]) if inside is None else Path(inside)
        return m.CacheFolder(name, path, data.get("kind", "other"), inside)

    def engine(self, data: Mapping[str, Any]) -> m.Engine:
        model = self.text(data["model"])
        local = self.path(data["model"])
        return m.Engine(
            kind=self.text(data["kind"]),
            model=str(local) if local.exists() else model,
            version=self.maybe(data.get("version")),
            revision=self.maybe(data.get("revision")),
            served_name=self.maybe(data.get("served_name")),
            args=self.texts(data.get("args")),
            env=self.env(data.get("env")),
        )

    def launch(self, data: Mapping[str, Any], engine: Mapping[str, Any]) -> m.Launch:
        container = self.container(data["container"]) if "container" in data else None
        gpus = self.gpus(data.get("gpus"))
        if gpus is None and container is not None:
            gpus = container.gpus
        checkpoint = tuple(self.path(c) for c in data.get("checkpoint", ()))
        if not checkpoint and (model := self.path(engine["model"])).exists():
            checkpoint = (model,)
        port = data.get("port", "auto")
        return m.Launch(
            process=self.process(data["process"]) if "process" in data else None,
            container=container,
            custom=self.maybe(data.get("custom")),
            options=self.options(data.get("options")),
            host=self.text(data.get("host", m.Launch.host)),
            port=None if port == "auto" else int(port),
            gpus=gpus or (),
            checkpoint=checkpoint,
        )

    def options(self, value: Any) -> Any:
        """Free-form members that are passed on: numbers stay numbers, texts have their placeholders resolved."""
        if value is None:
            return {}
        if isinstance(value, dict):
            return {k: self.options(v) if v is not None else None for k, v in value.items()}
        if isinstance(value, list):
            return [self.options(v) if v is not None else None for v in value]
        if isinstance(value, str):
            return self.text(value)
        return value if isinstance(value, bool) else int(value) if isinstance(value, int) else float(value)

    def gpus(self, value: object) -> tuple[str, ...] | None:
        if value is None:
            return None
        return self.texts(value) if isinstance(value, list) else (self.text(value),)

    def process(self, data: Mapping[str, Any]) -> m.ProcessLaunch:
        command = self.texts(data["command"])
        if "/" in command[0]:
            command = (str(self.path(command[0])), *command[1:])
        return m.ProcessLaunch(command, self.path(data.get("cwd", ".")), self.texts(data.get("pass_env")))

    def volume(self, source: str) -> str:
        """A host path made absolute; a volume's name stays."""
        text = self.text(source)
        return str(self.path(text)) if text.startswith((".", "/")) else text

    def files(self, data: Mapping[str, Any]) -> tuple[m.ContainerFile, ...]:
        """Overlay files of a container, of all or of one node."""
        return tuple(
            m.ContainerFile(
                self.path(f["host"]), self.text(f["path"]), self.maybe(f.get("sha256")), f.get("read_only", True)
            )
            for f in data.get("files", ())
        )

    def container(self, data: Mapping[str, Any]) -> m.ContainerLaunch:
        entrypoint = data.get("entrypoint")
        execs = data.get("exec_command")
        return m.ContainerLaunch(
            image=self.text(data["image"]),
            entrypoint=None if entrypoint is None else self.texts(entrypoint),
            command=self.texts(data.get("command")),
            name=self.maybe(data.get("name")),
            volumes={self.volume(k): self.text(v) for k, v in data.get("volumes", {}).items()},
            files=self.files(data),
            gpus=self.gpus(data.get("gpus")),
            network=self.maybe(data.get("network")),
            ipc=self.maybe(data.get("ipc")),
            shm_size=self.maybe(data.get("shm_size")),
            ulimits={k: self.text(v) for k, v in data.get("ulimits", {}).items()},
            devices=self.texts(data.get("devices")),
            cap_add=self.texts(data.get("cap_add")),
            runtime=self.maybe(data.get("runtime")),
            user=self.maybe(data.get("user")),
            working_dir=self.maybe(data.get("working_dir")),
            memory=self.maybe(data.get("memory")),
            init=data.get("init", False),
            docker_host=self.maybe(data.get("docker_host")),
            context=self.maybe(data.get("context")),
            engine_options=self.options(data.get("engine_options")),
            exec_command=None if execs is None else self.texts(execs),
            log_file=self.maybe((data.get("log") or {}).get("file")),
        )

    def host(self, data: Mapping[str, Any]) -> m.Host:
        page = data.get("page_size")
        return m.Host(
            page_size=None if page is None else size(page),
            kernel=self.maybe(data.get("kernel")),
            driver=self.maybe(data.get("driver")),
            gpu=self.maybe(data.get("gpu")),
            gpu_count=data.get("gpu_count"),
        )

    def deadlines(self, data: Mapping[str, Any]) -> m.Deadlines:
        times = {k: duration(v) for k, v in data.items()}
        phases = {PHASE_KEYS[k]: times.pop(k) for k in list(times) if k in PHASE_KEYS}
        return m.Deadlines(**times, phases=phases)

    def restarts(self, rows: list[Any]) -> tuple[m.Restart, ...]:
        out: list[m.Restart] = []
        for row in rows:
            change = row.get("change", {})
            for _ in range(row.get("times", 1)):
                out.append(
                    m.Restart(
                        name=f"restart-{len(out) + 1}",
                        kind=row["kind"],
                        drop_page_cache=row.get("drop_page_cache", False),
                        wipe=self.texts(row.get("wipe")),
                        change=m.Change(self.texts(change.get("args")), self.env(change.get("env"))),
                        nodes=self.texts(row.get("nodes")),
                    )
                )
        return tuple(out)

    def range(self, value: Any) -> e.Range | None:
        if value is None:
            return None
        if value == "baseline":
            return e.Range(baseline=True)
        if isinstance(value, dict):
            low, high = value.get("min"), value.get("max")
            return e.Range(min=None if low is None else float(low), max=None if high is None else float(high))
        return e.Range(exact=float(value))

    def prompt(self, data: Mapping[str, Any]) -> e.Prompt:
        return e.Prompt(
            prompt=self.text(data["prompt"]),
            contains=self.maybe(data.get("contains")),
            max_tokens=data.get("max_tokens", e.Prompt.max_tokens),
            chat=data.get("chat", False),
        )

    def patterns(self, rows: list[Any] | None) -> tuple[e.LogPattern, ...]:
        return tuple(
            e.LogPattern(self.text(r["pattern"]), r.get("every", "start"))
            if isinstance(r, dict)
            else e.LogPattern(self.text(r))
            for r in rows or ()
        )

    def rate(self, value: Any) -> float | bool | None:
        return value if value is None or isinstance(value, bool) else fraction(value)

    def tiers(self, data: Mapping[str, Any]) -> e.ExpectTiers:
        rates = {k: self.rate(v) for k, v in data.items() if k != "sessions"}
        return e.ExpectTiers(**rates, sessions=e.ExpectSessions(**data["sessions"]) if "sessions" in data else None)

    def expect(self, data: Mapping[str, Any]) -> e.Expect:
        backend, artifacts = data.get("backend") or {}, data.get("artifacts") or {}
        tiers, log = data.get("tiers"), data.get("log") or {}
        return e.Expect(
            backend=e.ExpectBackend(**{k: self.text(v) for k, v in backend.items()}),
            autotune=self.autotune(data.get("autotune")),
            artifacts=e.ExpectArtifacts(**artifacts),
            graphs=self.graphs(data.get("graphs") or {}),
            kv=self.kv(data.get("kv") or {}),
            memory=self.memory(data.get("memory") or {}),
            throughput=self.throughput(data.get("throughput")),
            quality=self.quality(data.get("quality")),
            completion=self.prompt(data["completion"]) if "completion" in data else e.Expect().completion,
            tiers=None if tiers is None else self.tiers(tiers),
            log=e.ExpectLog(self.patterns(log.get("forbid")), self.patterns(log.get("require"))),
        )

    def autotune(self, data: Mapping[str, Any] | None) -> e.ExpectAutotune | None:
        return None if data is None else e.ExpectAutotune(**{**data, "ops": self.texts(data.get("ops"))})

    def graphs(self, data: Mapping[str, Any]) -> e.ExpectGraphs:
        seconds = data.get("max_seconds")
        return e.ExpectGraphs(
            mode=self.maybe(data.get("mode")),
            sizes=tuple(data["sizes"]) if "sizes" in data else None,
            captured=dict(data.get("captured", {})),
            max_seconds=None if seconds is None else duration(seconds),
        )

    def kv(self, data: Mapping[str, Any]) -> e.ExpectKv:
        tokens = self.range(data.get("tokens", "baseline")) or e.Range(baseline=True)
        return e.ExpectKv(tokens, self.range(data.get("available_gib")), fraction(data.get("tolerance", 0)))

    def memory(self, data: Mapping[str, Any]) -> e.ExpectMemory:
        limits = {k: self.range(v) for k, v in data.items() if k != "tolerance"}
        return e.ExpectMemory(**limits, tolerance=fraction(data.get("tolerance", e.ExpectMemory.tolerance)))

    def throughput(self, data: Mapping[str, Any] | None) -> e.ExpectThroughput | None:
        if data is None:
            return None
        given = dict(data)
        given["concurrency"] = tuple(data["concurrency"])
        given["tolerance"] = fraction(data.get("tolerance", e.ExpectThroughput.tolerance))
        given["min_tokens_per_second"] = {int(k): float(v) for k, v in data.get("min_tokens_per_second", {}).items()}
        return e.ExpectThroughput(**given)

    def quality(self, data: Mapping[str, Any] | None) -> e.ExpectQuality | None:
        if data is None:
            return None
        return e.ExpectQuality(
            prompts=tuple(self.prompt(p) for p in data["prompts"]),
            tolerance=fraction(data.get("tolerance", 0)),
            logprob=float(data.get("logprob", e.ExpectQuality.logprob)),
            loops=data.get("loops", e.ExpectQuality.loops),
        )

    def waiver(self, data: Mapping[str, Any]) -> m.Waiver:
        until = data.get("until")
        return m.Waiver(data["check"], self.text(data["reason"]), until and datetime.date.fromisoformat(until))
