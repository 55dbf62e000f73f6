from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from serving_support import TOKEN, TRANSFORMERS, instance

from ticket_agent.peft.release.adapter_proof import LoadedAdapter, plain_name
from ticket_agent.peft.release.document_error import DocumentError
from ticket_agent.peft.release.serve_guard import MAX_BODY_BYTES, Guard, GuardSettings
from ticket_agent.peft.release.serving_errors import InstanceRefusedError
from ticket_agent.protocol.errors import JsonError

NAME = instance().name
FILE = dict(TRANSFORMERS.launch(instance()).files)["server.json"]
SETTINGS = GuardSettings.parse(FILE)
RIGHT = [(b"authorization", f"Bearer {TOKEN}".encode())]
QUESTION = json.dumps({"model": NAME, "messages": []}).encode()
CHAT = "/v1/chat/completions"


class App:
    """Stands behind the guard and keeps what reaches it."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.scopes: list[str] = []

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        self.scopes.append(scope["type"])
        if scope["type"] == "http":
            message = await receive()
            self.bodies.append(message["body"])
            assert (await receive())["type"] == "http.disconnect"
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"answered"})


def ask(
    app: App,
    method: str,
    path: str,
    *parts: bytes,
    headers: list[tuple[bytes, bytes]] | None = None,
    loaded: LoadedAdapter | None = None,
    kind: str = "http",
) -> tuple[int | None, bytes]:
    messages = [
        {"type": "http.request", "body": part, "more_body": number < len(parts)}
        for number, part in enumerate(parts or (b"",), start=1)
    ]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return messages.pop(0) if messages else {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {"type": kind, "method": method, "path": path, "headers": RIGHT if headers is None else headers}
    asyncio.run(Guard(app, SETTINGS, lambda: loaded)(scope, receive, send))
    return (sent[0]["status"] if sent else None, sent[1]["body"] if sent else b"")


def test_a_question_for_the_model_passes_unchanged() -> None:
    app = App()
    assert ask(app, "POST", CHAT, QUESTION[:10], QUESTION[10:]) == (200, b"answered")
    assert app.bodies == [QUESTION]


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"authorization", b"Bearer " + b"x" * 40)],
        [(b"authorization", f"Basic {TOKEN}".encode())],
        [(b"authorization", TOKEN.encode())],
        [(b"authorization", f"Bearer {TOKEN}x".encode())],
        [(b"authorization", b"Bearer \xff\xfe")],
        RIGHT * 2,
    ],
)
@pytest.mark.parametrize("path", [CHAT, "/v1/models", "/health", "/x"])
def test_nothing_is_answered_without_the_token(headers: list[tuple[bytes, bytes]], path: str) -> None:
    app = App()
    assert ask(app, "POST", path, QUESTION, headers=headers)[0] == 401
    assert app.scopes == []


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", CHAT, b"", 404),
        ("POST", "/v1/models", b"", 404),
        ("POST", "/load_model", QUESTION, 404),
        ("POST", "/reset", QUESTION, 404),
        ("POST", CHAT + "/", QUESTION, 404),
        ("POST", "/v1//chat/completions", QUESTION, 404),
        ("POST", CHAT, json.dumps({"model": "other"}).encode(), 404),
        ("POST", CHAT, b"{}", 404),
        ("POST", CHAT, b'{"model":"x","model":"' + NAME.encode() + b'"}', 400),
        ("POST", CHAT, b"[]", 400),
        ("POST", CHAT, b"", 400),
        ("POST", CHAT, b"x" * (MAX_BODY_BYTES + 1), 413),
    ],
)
def test_nothing_else_reaches_the_server(method: str, path: str, body: bytes, status: int) -> None:
    app = App()
    assert ask(app, method, path, body)[0] == status
    assert app.scopes == []


def test_other_kinds_of_connections_are_dropped_and_its_own_start_is_let_through() -> None:
    app = App()
    assert ask(app, "GET", CHAT, kind="websocket") == (None, b"")
    assert app.scopes == []
    ask(app, "GET", CHAT, kind="lifespan")
    assert app.scopes == ["lifespan"]


@pytest.mark.parametrize(
    ("loaded", "matched"), [(None, None), (LoadedAdapter(tensors=8, matched=7, foreign=0), 7)]
)
def test_the_list_says_what_was_found_in_the_model(loaded: LoadedAdapter | None, matched: int | None) -> None:
    status, body = ask(App(), "GET", "/v1/models", loaded=loaded)
    entry = {"id": NAME, "object": "model", "matched_tensors": matched}
    assert (status, json.loads(body)) == (200, {"object": "list", "data": [entry]})


@pytest.mark.parametrize(
    ("tensors", "matched", "foreign", "complete"),
    [(8, 8, 0, True), (8, 7, 0, False), (7, 7, 1, False), (0, 0, 0, False)],
)
def test_an_adapter_is_all_there_or_not(tensors: int, matched: int, foreign: int, complete: bool) -> None:
    assert LoadedAdapter(tensors=tensors, matched=matched, foreign=foreign).complete == complete


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("base_model.model.model.layers.0.q_proj.lora_A.weight", "model.layers.0.q_proj.lora_A.weight"),
        ("model.layers.0.q_proj.lora_A.default.weight", "model.layers.0.q_proj.lora_A.weight"),
        ("base_model.model.x.lora_B.release.weight", "x.lora_B.weight"),
        ("model.layers.0.q_proj.base_layer.weight", "model.layers.0.q_proj.base_layer.weight"),
    ],
)
def test_tensors_are_compared_by_the_names_of_the_file(name: str, plain: str) -> None:
    assert plain_name(name) == plain


@pytest.mark.parametrize(
    "changes",
    [
        {"token": "short"},
        {"name": ""},
        {"adapter": 1},
        {"threads": 0},
        {"arguments": []},
        {"arguments": [1]},
        {"more": 1},
    ],
)
def test_settings_that_no_backend_writes_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises((DocumentError, JsonError, InstanceRefusedError)):
        GuardSettings.parse(json.dumps(json.loads(FILE) | changes).encode())
