"""A profile to start from: what a ``docker run`` says, sorted into the keys of a profile."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_startup.dockerrun import DockerRun
from pytest_startup.redact import Redactor, names_secret

PLACEHOLDER = "0" * 64
_SERVERS = (
    (("vllm", "serve"), "vllm"),
    (("python", "-m", "vllm.entrypoints.openai.api_server"), "vllm"),
    (("python3", "-m", "vllm.entrypoints.openai.api_server"), "vllm"),
    (("python", "-m", "sglang.launch_server"), "sglang"),
    (("python3", "-m", "sglang.launch_server"), "sglang"),
    (("sglang", "serve"), "sglang"),
)
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))")
#: First words that are a program and no model.
_PROGRAM = re.compile(r"python[\d.]*|env|numactl|taskset|nice|tini|dumb-init|uv|.*\.(py|sh)")
_FILE_NAME = re.compile(r".*\.(py|json|jinja|yaml|yml|toml|txt|so|sh|conf|pth)")


@dataclass
class Draft:
    """``data`` is the profile; ``remarks`` stand above a key (dotted); ``notes`` are told to the user as well."""

    data: dict[str, Any] = field(default_factory=dict)
    remarks: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def from_run(run: DockerRun, environ: Mapping[str, str], folder: Path, name: str | None = None) -> Draft:
    """The profile of a ``docker run``. Relative and ``~`` paths count from ``folder`` and ``$HOME`` of ``environ``."""
    return _Maker(run, environ, folder).make(name)


class _Maker:
    def __init__(self, run: DockerRun, environ: Mapping[str, str], folder: Path) -> None:
        self.run, self.environ, self.folder = run, environ, folder
        self.draft = Draft()
        self.note = self.draft.notes.append

    def make(self, name: str | None) -> Draft:
        run = self.run
        container: dict[str, Any] = {"image": self.image()}
        entrypoint = run.last("entrypoint")
        words = list(run.args)
        if entrypoint is not None:
            container["entrypoint"] = [entrypoint] if entrypoint else []
        words = self.without_shell(words, container)
        kind, command, words = self.server(words, entrypoint)
        if command:
            container["command"] = command
        if not words and kind is None and command in (["sleep", "infinity"], ["sleep", "inf"]):
            self.note("the container idles; give launch.container.exec_command, the words that start the engine in it")
        engine = self.engine(kind or ("sglang" if "sglang" in run.image else "vllm"), words)
        self.options(container)
        launch: dict[str, Any] = {"container": container, **self.address}
        for lost in run.lost:
            self.note(f"{Redactor().text(lost)} is not carried over: a profile has no such option")
        title = (
            name or run.last("name") or re.sub(r"[^A-Za-z0-9._-]+", "-", engine["model"].rpartition("/")[2]) or "engine"
        )
        self.draft.data = {"schema": 1, "name": title.strip("-._") or "engine", "engine": engine, "launch": launch}
        caches = self.caches(engine, container)
        if caches:
            self.draft.data["caches"] = caches
        _expectations(self.draft, ["same-container", "fresh-container"])
        return self.draft

    def image(self) -> str:
        image = self.run.image
        if re.fullmatch(r"(?:[^@\s]+@)?sha256:[0-9a-f]{64}", image):
            return image
        name = image.partition("@")[0]
        if "$" in name or "`" in name:
            self.note(
                f"{name} can't be resolved; write launch.container.image itself, as docker image inspect prints it"
            )
            return f"sha256:{PLACEHOLDER}"
        self.note(
            f"{name} is a tag, and a tag can move; give launch.container.image the id that this prints: "
            f"docker image inspect -f '{{{{.Id}}}}' {name}"
        )
        self.draft.remarks["launch.container.image"] = (
            f"placeholder for {name}: docker image inspect -f '{{{{.Id}}}}' {name}"
        )
        return f"sha256:{PLACEHOLDER}"

    def without_shell(self, words: list[str], container: dict[str, Any]) -> list[str]:
        """``bash -c 'vllm serve …'`` as the words themselves, if the shell has nothing else to do."""
        shell = [*container.get("entrypoint", []), *words]
        if len(shell) != 3 or shell[0].rpartition("/")[2] not in ("sh", "bash") or shell[1] not in ("-c", "-lc"):
            return words
        try:
            inner = shlex.split(shell[2].replace("\\\n", " "))
        except ValueError:
            inner = []
        if not inner or set(inner) & {"&&", "||", ";", "|", "&"} or re.search(r"[;|&<>`]|\$\(", shell[2]):
            self.note(
                "the shell command line can't be taken apart, and nothing goes through a shell here; "
                "give the words themselves in launch.container.command"
            )
            return words
        self.note("taken out of its shell: arguments are passed as they are, nothing is expanded")
        container["entrypoint"] = []
        return inner[1:] if inner[0] == "exec" else inner

    def server(self, words: list[str], entrypoint: str | None) -> tuple[str | None, list[str], list[str]]:
        """Engine kind, the words before the engine's own arguments, and these."""
        whole = [entrypoint, *words] if entrypoint else words
        cut = 1 if entrypoint else 0
        for place in range(len(whole)):  # numactl -N 0 vllm serve …
            names = [whole[place].rpartition("/")[2], *whole[place + 1 :]]
            for start, kind in _SERVERS:
                if tuple(names[: len(start)]) == start:
                    end = place + len(start) - cut
                    return kind, words[:end], words[end:]
        if words and words[0] in ("sleep", "tail", "bash", "sh"):
            return None, words, []
        if words and _PROGRAM.fullmatch(words[0].rpartition("/")[2]):
            end = next((n for n, word in enumerate(words) if n and word.startswith("-")), len(words))
            self.note(
                f"no known server in {' '.join(words[:end])}; see that launch.container.command ends where the "
                "engine's own arguments begin"
            )
            return None, words[:end], words[end:]
        return None, [], words

    def engine(self, kind: str, words: list[str]) -> dict[str, Any]:
        model, args = None, []
        self.address: dict[str, Any] = {}
        rest = list(words)
        if rest and not rest[0].startswith("-"):
            model = rest.pop(0)
        revision = None
        while rest:
            word = rest.pop(0)
            option, equals, value = word.partition("=")
            if option in ("--model", "--model-path", "--port", "--host", "--revision") and (equals or rest):
                value = value if equals else rest.pop(0)
                if option in ("--model", "--model-path"):
                    model = value
                elif option == "--port":
                    self.address["port"] = int(value) if value.isdigit() else "auto"
                elif option == "--host":
                    self.address["host"] = value
                else:
                    revision = value
                    args += ["--revision", value]
            elif (
                option.startswith("--")
                and names_secret(option[2:])
                and (equals or (rest and not rest[0].startswith("--")))
            ):
                value = self.secret(option[2:], value if equals else rest.pop(0), option)
                args += [f"{option}={value}"] if equals else [option, value]
            else:
                args.append(self.text(word, "an argument"))
        if model is None:
            self.note("no model on the command line; give engine.model")
            model = "ORGANISATION/MODEL"
        engine: dict[str, Any] = {"kind": kind, "model": self.text(model, "the model")}
        self.draft.remarks["engine.model"] = "give its version and revision, too: they are compared with what runs"
        if revision:
            engine["revision"] = revision
        if args:
            engine["args"] = args
        env = self.env()
        if env:
            engine["env"] = env
        return engine

    def env(self) -> dict[str, str]:
        out = {}
        for entry in self.run.kept.get("env", ()):
            key, equals, value = entry.partition("=")
            if not equals:
                out[key] = f"${{{key}}}"
                self.note(f"{key} is taken from the environment of pytest, as docker run did")
            elif names_secret(key):
                out[key] = self.secret(key, value, f"-e {key}")
            else:
                out[key] = self.text(value, f"-e {key}")
        return out

    def secret(self, name: str, value: str, where: str) -> str:
        """``${VAR}`` instead of a secret's value."""
        variable = _VARIABLE.fullmatch(value)
        chosen = (variable[1] or variable[2]) if variable else re.sub(r"[^A-Za-z0-9]+", "_", name).upper()
        if not variable:
            self.note(f"the value of {where} is a secret and was left out; set {chosen} in the environment of pytest")
        return f"${{{chosen}}}"

    def text(self, value: str, where: str) -> str:
        """Shell variables as ``${VAR}``; what looks like a secret as one, too."""
        if Redactor().text(value) != value:
            return self.secret("SECRET", value, where)
        out = _VARIABLE.sub(lambda m: f"${{{m[1] or m[2]}}}", value)
        if out != value or _VARIABLE.search(out):
            self.note(f"{out} in {where} is taken from the environment of pytest")
        if "$(" in out or "`" in out:
            self.note(f"{out} in {where} is passed on as it stands: nothing goes through a shell here")
        return out

    def path(self, text: str) -> str:
        """A host path without shell expansions, as the shell of this moment would give it."""
        home, here = self.environ.get("HOME", "~"), str(self.folder)
        out = re.sub(r"\$\(pwd\)|`pwd`|\$\{PWD\}|\$PWD\b", lambda _: here, text)
        out = re.sub(r"^~(?=/|$)|\$\{HOME\}|\$HOME\b", lambda _: home, out)
        if "$" in out or "`" in out:
            self.note(f"{text} can't be resolved; write the path itself")
        elif out != text:
            self.note(f"{text} was resolved to {out}")
        return out.replace("${", "$${")

    def options(self, container: dict[str, Any]) -> None:
        run = self.run
        for entry in run.kept.get("volume", ()):
            self.volume(entry, container)
        for entry in run.kept.get("mount", ()):
            self.mount(entry, container)
        if (gpus := run.last("gpus")) is not None:
            container["gpus"] = self.gpus(gpus)
        limits = dict(entry.partition("=")[::2] for entry in run.kept.get("ulimit", ()))
        if limits:
            container["ulimits"] = {
                k: (v.partition(":")[0] if len(set(v.split(":"))) == 1 else v) for k, v in limits.items()
            }
        for key, target in (("device", "devices"), ("cap_add", "cap_add")):
            if key in run.kept:
                container[target] = [_short_device(v) for v in dict.fromkeys(run.kept[key])]
        for key, target in (
            ("network", "network"),
            ("ipc", "ipc"),
            ("shm_size", "shm_size"),
            ("runtime", "runtime"),
            ("user", "user"),
            ("workdir", "working_dir"),
            ("memory", "memory"),
            ("name", "name"),
        ):
            if (value := run.last(key)) is not None:
                container[target] = value
        if "name" in container:
            self.note(
                f"a container named {container['name']} that is not ours stops the gate; "
                "remove it before, or leave launch.container.name out"
            )
        if run.init:
            container["init"] = True
        if run.docker_host:
            container["docker_host"] = run.docker_host
        elif run.context:
            container["context"] = run.context
        if run.host_config:
            container["engine_options"] = run.host_config
        self.ports()

    def ports(self) -> None:
        published = self.run.kept.get("publish", [])
        for entry in published:
            host_part, _, inside = entry.partition("/")[0].rpartition(":")
            outside = host_part.rpartition(":")[2]
            if len(published) > 1 and inside != str(self.address.get("port", 8000)):
                self.note(f"-p {entry} is not carried over: only the port of the API is published")
                continue
            self.address["port"] = int(outside) if outside.isdigit() else "auto"
            if outside != inside:
                self.note(f"-p {entry}: the API is told to listen on the port of launch.port, which is published")
            if "host" in self.address:
                del self.address["host"]
        if "port" not in self.address:
            self.address["port"] = "auto"

    def volume(self, entry: str, container: dict[str, Any]) -> None:
        parts = entry.split(":")
        if len(parts) < 2:
            self.note(f"-v {entry} is not carried over: an anonymous volume is gone with its container")
            return
        options = set(parts[2].split(",")) if len(parts) > 2 else set()
        for odd in sorted(options - {"ro", "rw"}):
            self.note(f"-v {entry}: the option {odd} is not carried over")
        self.bind(parts[0], parts[1], "ro" in options, container)

    def mount(self, entry: str, container: dict[str, Any]) -> None:
        pairs = {k: v for k, _, v in (p.partition("=") for p in entry.split(","))}
        source = pairs.get("source", pairs.get("src", ""))
        target = pairs.get("target", pairs.get("dst", pairs.get("destination", "")))
        if pairs.get("type", "volume") not in ("bind", "volume") or not source or not target:
            self.note(f"--mount {entry} is not carried over")
            return
        self.bind(source, target, any(pairs.get(k) in ("", "true", "1") for k in ("readonly", "ro")), container)

    def bind(self, source: str, target: str, read_only: bool, container: dict[str, Any]) -> None:
        """A folder or volume becomes a volume, a file is pinned by its hash."""
        host = self.path(source)
        path = Path(self.folder, host)
        if path.is_file() or (not path.exists() and "/" in source and _FILE_NAME.fullmatch(path.name)):
            row: dict[str, Any] = {"host": host if host.startswith("/") else str(path), "path": target}
            if path.is_file():
                row["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
            else:
                self.note(f"{host} is not here, so it could not be pinned; add its sha256")
            if not read_only:
                row["read_only"] = False
            container.setdefault("files", []).append(row)
            return
        if not host.startswith("/") and "/" in host:
            host = str(path)
        if host in container.get("volumes", {}):
            self.note(f"{host} is mounted a second time, at {target}; that is not carried over")
            return
        container.setdefault("volumes", {})[host] = target + (":ro" if read_only else "")

    def gpus(self, value: str) -> Any:
        text = value.strip("\"'")
        if text == "all":
            return "all"
        pairs = re.findall(r"(?:^|,)device=([^=]+?)(?=,[a-z]+=|$)", text)
        if pairs:
            return [int(g) if g.isdigit() else g for g in pairs[0].strip("\"'").split(",")]
        if text.isdigit():
            self.note(f"--gpus {text} leaves the choice to the daemon; the first {text} are named instead")
            return list(range(int(text))) or "all"
        self.note(f"--gpus {value} is not understood; all are given")
        return "all"

    def caches(self, engine: Mapping[str, Any], container: Mapping[str, Any]) -> dict[str, Any]:
        """vLLM's compile cache, if it lies on a volume of the host."""
        root = engine.get("env", {}).get("VLLM_CACHE_ROOT", "/root/.cache/vllm")
        for host, target in container.get("volumes", {}).items():
            inside = target.partition(":")[0].rstrip("/")
            if host.startswith("/") and (root == inside or root.startswith(inside + "/")):
                return {
                    "compile-cache": {
                        "path": f"{host.rstrip('/')}{root[len(inside) :]}/torch_compile_cache",
                        "kind": "compile",
                    }
                }
        if engine["kind"] == "vllm":
            self.note(
                f"no volume holds {root}: a fresh container compiles everything again, "
                "and the check artifacts can see no cache"
            )
        return {}


def _short_device(value: str) -> str:
    host, _, rest = value.partition(":")
    return host if rest in (host, f"{host}:rwm") else value


def _expectations(draft: Draft, kinds: list[str]) -> None:
    draft.data["restarts"] = [{"kind": kind} for kind in kinds]
    draft.data["expect"] = {
        "throughput": {"concurrency": [1, 8], "output_tokens": 64, "tolerance": "5%"},
        "quality": {"prompts": [{"prompt": "The capital of France is", "contains": "Paris"}]},
    }
    draft.remarks["restarts"] = (
        "each is compared with the reference start; times: N repeats one, wipe: […] empties caches"
    )
    draft.remarks["expect"] = (
        "what is left out must be as in the reference start (or in the baseline); see docs/profile.md"
    )
