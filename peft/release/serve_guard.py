"""Runs ``transformers serve`` so that only its owner can use it, and only for its one model.

A program: ``python -I -m ticket_agent.peft.release.serve_guard FILE``. The file says the token, the name of
the model and the arguments. Between the socket and the server stands :class:`Guard`. What the server could do
for others (load models, unload them, list a cache) cannot be reached.

Where an adapter is served, the process ends unless every tensor of the adapter's file is found, bit by bit
and switched on, in the model that the server has loaded.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from ticket_agent.peft.release.adapter_proof import LoadedAdapter, find_adapter
from ticket_agent.peft.release.loopback import check_token, same_token
from ticket_agent.peft.release.rules import array, exact, flag, integer, text
from ticket_agent.peft.release.serving import COMPLETIONS_PATH, MODELS_PATH
from ticket_agent.protocol.errors import JsonError
from ticket_agent.protocol.json_strict import dumps, parse_object

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Receive = Callable[[], Awaitable[dict[str, Any]]]
    Send = Callable[[dict[str, Any]], Awaitable[None]]
    App = Callable[[dict[str, Any], Receive, Send], Awaitable[None]]

__all__ = ["Guard", "GuardSettings", "main"]

MAX_SETTINGS_BYTES: Final = 16 * 1024
MAX_BODY_BYTES: Final = 1024 * 1024
"""One question."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardSettings:
    """What the file says.

    Attributes:
        token: that every request must carry.
        name: of the one model; also the relative path that it is loaded from.
        adapter: whether one is served.
        threads: of the CPU.
        arguments: of the ``transformers`` command.
    """

    token: str = field(repr=False)
    name: str
    adapter: bool
    threads: int
    arguments: tuple[str, ...]

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """Read the file.

        Raises:
            JsonError, DocumentError, InstanceRefusedError: it is not what a backend writes.
        """
        document = parse_object(data, what="server.json", max_bytes=MAX_SETTINGS_BYTES)
        exact(document, ("token", "name", "adapter", "threads", "arguments"))
        return cls(
            token=check_token(document["token"]),
            name=text(document["name"], "name", 192),
            adapter=flag(document["adapter"], "adapter"),
            threads=integer(document["threads"], "threads", 1, 64),
            arguments=tuple(
                text(item, "each argument", 1024) for item in array(document["arguments"], "arguments", 1, 64)
            ),
        )


class Guard:
    """An ASGI application in front of another one."""

    def __init__(self, app: App, settings: GuardSettings, loaded: Callable[[], LoadedAdapter | None]) -> None:
        """``loaded`` says what of the adapter is in the model now, None while there is no model."""
        self._app = app
        self._settings = settings
        self._loaded = loaded

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        if not self._authorised(scope):
            await _answer(send, 401, {"error": "a token is required"})
            return
        match scope["method"], scope["path"]:
            case "GET", path if path == MODELS_PATH:
                await _answer(send, 200, self._models())
            case "POST", path if path == COMPLETIONS_PATH:
                await self._completion(scope, receive, send)
            case _:
                await _answer(send, 404, {"error": "not found"})

    def _authorised(self, scope: dict[str, Any]) -> bool:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        scheme, _, token = given[0].decode("latin-1").partition(" ") if len(given) == 1 else ("", "", "")
        return same_token(token, self._settings.token) and scheme.lower() == "bearer"

    def _models(self) -> dict[str, Any]:
        entry: dict[str, Any] = {"id": self._settings.name, "object": "model"}
        if self._settings.adapter:
            found = self._loaded()
            entry["matched_tensors"] = None if found is None else found.matched
        return {"object": "list", "data": [entry]}

    async def _completion(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        body = b""
        more = True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                return
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > MAX_BODY_BYTES:
                await _answer(send, 413, {"error": f"a question has at most {MAX_BODY_BYTES} bytes"})
                return
        try:
            question = parse_object(body, what="question", max_bytes=MAX_BODY_BYTES)
        except JsonError as error:
            await _answer(send, 400, {"error": str(error)})
            return
        if question.get("model") != self._settings.name:
            await _answer(send, 404, {"error": f"this server has {self._settings.name} and no other model"})
            return
        given = False

        async def replay() -> dict[str, Any]:
            nonlocal given
            if given:
                return await receive()
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self._app(scope, replay, send)


async def _answer(send: Send, status: int, value: object) -> None:
    data = dumps(value)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(data)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": data})


def _install(settings: GuardSettings) -> None:
    """Have every application that uvicorn serves in this process stand behind a guard."""
    config_class = import_module("uvicorn.config").Config
    load = config_class.load

    def loaded() -> LoadedAdapter | None:
        return find_adapter(Path(settings.name))

    def guarded_load(config: Any) -> None:
        load(config)
        found = loaded() if settings.adapter else None
        if found is not None and not found.complete:
            sys.exit(
                f"the model has {found.matched} of the {found.tensors} tensors of {settings.name}, and"
                f" {found.foreign} of another adapter or of none; it is not served"
            )
        config.loaded_app = Guard(config.loaded_app, settings, loaded)

    config_class.load = guarded_load


def main() -> None:
    """Run the program."""
    settings = GuardSettings.parse(Path(sys.argv[1]).read_bytes())
    os.environ["HF_HUB_OFFLINE"] = os.environ["TRANSFORMERS_OFFLINE"] = "1"
    _install(settings)
    import_module("torch").set_num_threads(settings.threads)
    (command,) = entry_points(group="console_scripts", name="transformers")
    sys.argv = ["transformers", *settings.arguments]
    sys.exit(command.load()())


if __name__ == "__main__":
    main()
