"""A profile to start from: what a ``docker run`` says, sorted into the keys of a profile."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_startup import dockerrun
from pytest_startup.dockerrun import DockerRun
from pytest_startup.draftoptions import Options
from pytest_startup.launch.container.pinning import Named
from pytest_startup.profile.launch_rules import movable
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
_PROGRAM = re.compile(
    r"python[\d.]*|env|numactl|taskset|nice|tini|dumb-init|uv|ray|torchrun|mpirun|accelerate|trtllm-serve|tritonserver"
    r"|.*\.(py|sh)"
)


@dataclass
class Draft:
    """``data`` is the profile; ``remarks`` stand above a key (dotted); ``notes`` are told to the user as well."""

    data: dict[str, Any] = field(default_factory=dict)
    remarks: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def from_run(
    run: DockerRun,
    environ: Mapping[str, str],
    folder: Path,
    name: str | None = None,
    look_up: Callable[[str], Named | None] | None = None,
) -> Draft:
    """The profile of a ``docker run``. Relative and ``~`` paths count from ``folder`` and ``$HOME`` of ``environ``.
    ``look_up``: which image a tag names now."""
    return _Maker(run, environ, folder, look_up or (lambda _: None)).make(name)


class _Maker:
    def __init__(
        self, run: DockerRun, environ: Mapping[str, str], folder: Path, look_up: Callable[[str], Named | None]
    ) -> None:
        self.run, self.environ, self.folder, self.look_up = run, environ, folder, look_up
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
        Options(run, self.folder, self.note, self.text, self.path).into(container, self.address)
        self.visible(engine.get("env", {}), container)
        launch: dict[str, Any] = {"container": container, **self.address}
        for lost in run.lost:
            self.note(f"{Redactor().text(lost)} is not carried over: {dockerrun.why_lost(lost)}")
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
        found = self.look_up(name)
        if found is not None and found.id is not None:
            pinned = next(iter(found.digests), found.id)
            self.note(f"{movable(name)}; what it names now is pinned: {pinned}")
            self.draft.remarks["launch.container.image"] = f"{name} of the day on which this was written"
            return pinned
        if found is not None:
            self.note(f"{name} is not there: {found.docker} pull {name}")
        self.note(
            f"{movable(name)}; give launch.container.image the id that this prints: "
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
        out: dict[str, str] = {}
        for name in self.run.kept.get("env_file", ()):
            out |= self.env_file(name)
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

    def env_file(self, name: str) -> dict[str, str]:
        """What ``--env-file`` reads: lines as they stand, nothing is expanded in them."""
        path = Path(self.folder, self.path(name))
        try:
            lines = path.read_text(encoding="utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "no UTF-8 text"
            self.note(f"--env-file {name} can't be read ({why}); give its variables in engine.env")
            return {}
        out = {}
        for line in (one.lstrip() for one in lines):
            key, equals, value = line.partition("=")
            if not line or line.startswith("#"):
                continue
            if not equals and key in self.environ:
                out[key] = f"${{{key}}}"
                self.note(f"{key} is taken from the environment of pytest, as docker run did")
            elif equals and (names_secret(key) or Redactor().text(value) != value):
                out[key] = self.secret(key, value, f"{key} in {name}")
            elif equals:
                out[key] = value.replace("${", "$${")
        return out

    def visible(self, env: Mapping[str, str], container: Mapping[str, Any]) -> None:
        """GPUs that a variable gives to the container instead of ``--gpus``: they are to be locked."""
        given = env.get("NVIDIA_VISIBLE_DEVICES", "")
        if "gpus" in container or not re.fullmatch(r"all|\d+(,\d+)*|(GPU|MIG)-[^,$]+(,(GPU|MIG)-[^,$]+)*", given):
            return
        self.address["gpus"] = given if given == "all" else [int(g) if g.isdigit() else g for g in given.split(",")]
        self.note(f"NVIDIA_VISIBLE_DEVICES={given} gives these GPUs to the container; launch.gpus names them, too")

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
        out = _VARIABLE.sub(lambda m: self.environ.get(m[1] or m[2], m[0]), out)
        if "$" in out or "`" in out:
            self.note(f"{text} can't be resolved; write the path itself")
        elif out != text:
            self.note(f"{text} was resolved to {out}")
        return out.replace("${", "$${")

    def caches(self, engine: Mapping[str, Any], container: Mapping[str, Any]) -> dict[str, Any]:
        """vLLM's compile cache, if it lies on a volume."""
        root = engine.get("env", {}).get("VLLM_CACHE_ROOT", "/root/.cache/vllm")
        for host, target in container.get("volumes", {}).items():
            inside = target.partition(":")[0].rstrip("/")
            if root != inside and not root.startswith(inside + "/"):
                continue
            place = {"container": f"{root}/torch_compile_cache"}
            if host.startswith("/"):
                place = {"path": f"{host.rstrip('/')}{root[len(inside) :]}/torch_compile_cache"}
            return {"compile-cache": {**place, "kind": "compile"}}
        if engine["kind"] == "vllm":
            self.note(
                f"no volume holds {root}: a fresh container compiles everything again, "
                "and the check artifacts can see no cache"
            )
        return {}


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
