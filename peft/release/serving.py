"""Model servers as data: how an instance is started, under which names it answers, what it is asked.

One instance serves one artifact under one name, on a port of its own, from its start to its end. Nothing is
loaded into it or taken out of it later: what serves another artifact is another instance with another name.
So a name that answers always means the same weights, and there is nothing that a cache could be stale of.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final, Protocol

from ticket_agent.peft.names import check_model_id
from ticket_agent.peft.release.loopback import LOOPBACK, check_port, check_token
from ticket_agent.peft.release.offline_flags import FLAGS
from ticket_agent.peft.release.rules import digest_text, integer
from ticket_agent.peft.release.serving_errors import AnswerRefusedError, InstanceRefusedError
from ticket_agent.peft.release.stack import TRANSFORMERS_SERVE, VLLM, Device
from ticket_agent.protocol.json_strict import dumps
from ticket_agent.protocol.tokens import U64_MAX

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "Backend",
    "Instance",
    "Launch",
    "ServedModel",
    "TransformersServe",
    "Vllm",
    "backend_for",
    "served_models",
    "served_name",
]

COMPLETIONS_PATH: Final = "/v1/chat/completions"
MODELS_PATH: Final = "/v1/models"
GUARD_MODULE: Final = "ticket_agent.peft.release.serve_guard"
GUARD_FILE: Final = "server.json"
MAX_MODELS: Final = 64

_VLLM_FILE: Final = "vllm.json"
_DIGITS: Final = 12
_VERSION = re.compile(r"([0-9]{1,3})\.[0-9]")
_OLD_TRANSFORMERS: Final = 5


def served_name(model_id: str, generation: int, artifact_sha256: str) -> str:
    """The name of one artifact in one generation, like ``assistant-g7-0123456789ab``; never used for another.

    Raises:
        NameRefusedError: no model has this id.
        DocumentError: no artifact has this digest, or no deployment this generation.
    """
    check_model_id(model_id, what="model_id")
    integer(generation, "generation", 0, U64_MAX)
    digest_text(artifact_sha256, "artifact_sha256")
    return f"{model_id}-g{generation}-{artifact_sha256[:_DIGITS]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One server to be started, once.

    Attributes:
        model_id: the model that it is a generation of.
        generation: of the deployment that it would be.
        artifact_sha256: what is served: the adapter's identity, or the base model's.
        bundle: directory of what is served.
        base: directory of the base model; where no adapter is served, the same as ``bundle``.
        rank: of the adapter; None where none is served.
        run_dir: private directory of this instance.
        port: on the loopback interface, in 1024..=65535; nobody else's.
        token: that every request must carry, 32..=128 letters, digits, ``_`` or ``-``.
        device: how the model is computed.

    Raises:
        InstanceRefusedError: a path that is not absolute, a port or token that no server has.
        NameRefusedError, DocumentError: see :func:`served_name`.
    """

    model_id: str
    generation: int
    artifact_sha256: str
    bundle: str
    base: str
    rank: int | None
    run_dir: str
    port: int
    token: str = field(repr=False)
    device: Device

    def __post_init__(self) -> None:
        served_name(self.model_id, self.generation, self.artifact_sha256)
        check_port(self.port)
        check_token(self.token)
        for name in ("bundle", "base", "run_dir"):
            path = PurePosixPath(getattr(self, name))
            if not path.is_absolute() or ".." in path.parts or not str(path).isprintable():
                raise InstanceRefusedError(f"{name} of a server must be an absolute path without ..")
        if (self.rank is None) != (self.base == self.bundle):
            raise InstanceRefusedError("a server has a rank if and only if it serves an adapter")

    @property
    def name(self) -> str:
        """What requests call it."""
        return served_name(self.model_id, self.generation, self.artifact_sha256)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What starting an instance takes.

    Attributes:
        argv: the program and its arguments; no secrets, since other accounts can see them.
        environment: all of it, beside what the launcher sets for every process.
        working_dir: where it starts.
        files: to be written into the instance's directory first, for its owner alone.
        directories: to be made in the instance's directory first: a name, and directories; it gets a link to
            every file of these, where two have a file of one name to the first one's.
    """

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    working_dir: str
    files: tuple[tuple[str, bytes], ...]
    directories: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """One entry of a server's list of models.

    Attributes:
        name: under which it answers.
        matched_tensors: how many of the adapter's tensors the server found in the loaded model, bit by bit;
            None where it cannot tell.
    """

    name: str
    matched_tensors: int | None


class Backend(Protocol):
    """A kind of model server."""

    @property
    def kind(self) -> str:
        """How profiles call it."""

    @property
    def versions(self) -> Mapping[str, str]:
        """Of the packages that its arguments and answers depend on."""

    @property
    def python(self) -> str:
        """The interpreter that it is started with."""

    def launch(self, instance: Instance) -> Launch:
        """How an instance is started."""

    def listed_names(self, instance: Instance) -> frozenset[str]:
        """Names that its list of models must hold, all of them and no other one."""

    def answer_names(self, name: str) -> frozenset[str]:
        """Names that an answer to a question for ``name`` may carry."""

    def base_name(self, instance: Instance) -> str | None:
        """Name under which the same instance answers without the adapter; None where it does not."""

    def question(self, name: str, prompt: str, max_tokens: int) -> dict[str, Any]:
        """The request for a streamed, greedy completion."""


def served_models(answer: Mapping[str, Any]) -> tuple[ServedModel, ...]:
    """Read the answer to ``GET /v1/models``.

    Raises:
        AnswerRefusedError: it is no list of models.
    """
    data = answer.get("data")
    if not isinstance(data, list) or len(data) > MAX_MODELS:
        raise AnswerRefusedError(f"the server's list of models must have at most {MAX_MODELS} entries")
    return tuple(_served_model(entry) for entry in data)


def _served_model(entry: object) -> ServedModel:
    name = entry.get("id") if isinstance(entry, dict) else None
    if not isinstance(entry, dict) or not isinstance(name, str):
        raise AnswerRefusedError("each entry of the server's list of models must have an id")
    matched = entry.get("matched_tensors")
    if matched is not None and (type(matched) is not int or matched < 0):
        raise AnswerRefusedError(f"matched_tensors of {name[:80]} must be a count")
    return ServedModel(name=name, matched_tensors=matched)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformersServe:
    """``transformers serve``, run behind our guard.

    By itself it has no token, lists what is in a cache, and lets everybody load other models. The guard
    (:mod:`ticket_agent.peft.release.serve_guard`) asks for the token, passes completions for the one model
    through and answers everything else itself.

    Attributes:
        version: of transformers; the arguments and the names in answers depend on it.
        python: absolute path of the interpreter that has it.
    """

    version: str
    python: str

    def __post_init__(self) -> None:
        if _VERSION.match(self.version) is None:
            raise InstanceRefusedError(f"transformers {self.version[:40]!r} is no version")
        _check_program(self.python)

    @property
    def kind(self) -> str:
        """How profiles call it."""
        return TRANSFORMERS_SERVE

    @property
    def versions(self) -> Mapping[str, str]:
        """Of the packages that its arguments and answers depend on."""
        return {"transformers": self.version}

    @property
    def _old(self) -> bool:
        return int(self.version.split(".", 1)[0]) < _OLD_TRANSFORMERS

    def launch(self, instance: Instance) -> Launch:
        """How an instance is started.

        The model's path is relative, because this server calls models by their paths: the path is the name.
        What stands there is adapter and base model in one, because newer versions take a directory with a
        configuration for a whole model.
        """
        sources = (instance.bundle,) if instance.rank is None else (instance.bundle, instance.base)
        device = instance.device
        model = ["--force-model", instance.name] if self._old else [instance.name]
        arguments = ["serve", *model, "--host", LOOPBACK, "--port", str(instance.port)]
        arguments += ["--device", device.device, "--dtype", device.dtype]
        arguments += ["--attn-implementation", device.attention]
        document = {
            "token": instance.token,
            "name": instance.name,
            "adapter": instance.rank is not None,
            "threads": device.threads,
            "arguments": arguments,
        }
        return Launch(
            argv=(self.python, "-I", "-m", GUARD_MODULE, f"{instance.run_dir}/{GUARD_FILE}"),
            environment=FLAGS,
            working_dir=instance.run_dir,
            files=((GUARD_FILE, dumps(document)),),
            directories=((instance.name, sources),),
        )

    def listed_names(self, instance: Instance) -> frozenset[str]:
        """Names that its list of models must hold."""
        return frozenset({instance.name})

    def answer_names(self, name: str) -> frozenset[str]:
        """Names that an answer may carry; older versions add a revision, which a path does not have."""
        return frozenset({f"{name}@main" if self._old else name})

    def base_name(self, instance: Instance) -> str | None:  # noqa: ARG002 - the same for every instance
        """None: an instance has one model."""
        return None

    def question(self, name: str, prompt: str, max_tokens: int) -> dict[str, Any]:
        """The request for a streamed, greedy completion."""
        return _question(name, prompt, max_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Vllm:
    """``vllm serve``. It answers for the adapter, and under another name for the base model without it.

    Attributes:
        python: absolute path of the interpreter that has it.
    """

    python: str

    def __post_init__(self) -> None:
        _check_program(self.python)

    @property
    def kind(self) -> str:
        """How profiles call it."""
        return VLLM

    @property
    def versions(self) -> Mapping[str, str]:
        """None: they are the same for all."""
        return {}

    def launch(self, instance: Instance) -> Launch:
        """How an instance is started; adapters cannot be loaded into it later, since nothing allows that."""
        device = instance.device
        argv = [self.python, "-I", "-m", "vllm.entrypoints.cli.main", "serve", instance.base]
        argv += [
            "--config",
            f"{instance.run_dir}/{_VLLM_FILE}",
            "--host",
            LOOPBACK,
            "--port",
            str(instance.port),
        ]
        argv += ["--served-model-name", self.base_name(instance) or instance.name, "--dtype", device.dtype]
        argv += ["--generation-config", "vllm", "--max-logprobs", "1", "--seed", "0"]
        if device.memory_fraction is not None:
            argv += ["--gpu-memory-utilization", str(device.memory_fraction)]
        if instance.rank is not None:
            argv += ["--enable-lora", "--max-loras", "1", "--max-lora-rank", str(_lora_rank(instance.rank))]
            argv += ["--lora-modules", f"{instance.name}={instance.bundle}"]
        environment = dict(FLAGS) | {"VLLM_NO_USAGE_STATS": "1", "VLLM_DO_NOT_TRACK": "1"}
        environment |= {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "0", "VLLM_HOST_IP": LOOPBACK}
        if device.on_gpu:
            environment["CUDA_VISIBLE_DEVICES"] = device.device.partition(":")[2]
        # Its configuration is YAML, which JSON is a part of.
        files = ((_VLLM_FILE, dumps({"api-key": instance.token})),)
        return Launch(argv=tuple(argv), environment=environment, working_dir=instance.run_dir, files=files)

    def listed_names(self, instance: Instance) -> frozenset[str]:
        """Names that its list of models must hold."""
        return frozenset({instance.name} | {base for base in [self.base_name(instance)] if base})

    def answer_names(self, name: str) -> frozenset[str]:
        """Names that an answer may carry."""
        return frozenset({name})

    def base_name(self, instance: Instance) -> str | None:
        """Name under which the same instance answers without the adapter."""
        return None if instance.rank is None else f"{instance.name}-base"

    def question(self, name: str, prompt: str, max_tokens: int) -> dict[str, Any]:
        """The request for a streamed, greedy completion with the probabilities of its tokens."""
        return _question(name, prompt, max_tokens) | {"logprobs": True}


def backend_for(kind: str, versions: Mapping[str, str], *, python: str) -> Backend:
    """The backend that a profile names, with the versions that it pins.

    Raises:
        InstanceRefusedError: there is none.
    """
    if kind == TRANSFORMERS_SERVE:
        return TransformersServe(version=versions.get("transformers", ""), python=python)
    if kind == VLLM:
        return Vllm(python=python)
    raise InstanceRefusedError(f"no model server is called {kind[:80]}")


def _lora_rank(rank: int) -> int:
    # The server knows only some ranks; the next one serves a smaller adapter just as well.
    return max(8, 1 << (rank - 1).bit_length())


def _question(name: str, prompt: str, max_tokens: int) -> dict[str, Any]:
    return {
        "model": name,
        "messages": [{"role": "user", "content": prompt}],
        "stream": True,
        "temperature": 0,
        "max_tokens": max_tokens,
    }


def _check_program(path: str) -> None:
    if not path.startswith("/"):
        raise InstanceRefusedError(f"the interpreter of a server must be an absolute path, not {path[:80]}")
