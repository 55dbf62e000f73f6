"""The reference gateway without HTTP: requests in, answers out, with cache, queue and deadlines."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs

from ticket_agent.protocol.errors import ProtocolError
from ticket_agent.protocol.json_strict import dumps, parse_object

from .errors import RefusalError
from .faults import Fault, FaultKind, Faults
from .gateway_cache import ReadCache

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .gateway_access import Access
    from .hive import ReferenceHive

__all__ = ["Answer", "Cut", "Gateway", "GatewayTimes", "Hang", "Request"]

MAX_PATH_LEN: Final = 96
MAX_DEPTH: Final = 8
MAX_ECHO_LEN: Final = 2048
MAX_LINE_LEN: Final = 2304
MAX_BATCH: Final = 8
BATCHED: Final = ("/host/tickets/status", "/host/tickets/deadletter")
HUGE_BYTES: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayTimes:
    """Waits of a gateway, in seconds.

    Attributes:
        cache_s: how long CAT is answered from the cache.
        queue_s: longest wait for the console before a request is turned away.
        deadline_s: longest wait for the target's answer.
    """

    cache_s: float = 2.0
    queue_s: float = 5.0
    deadline_s: float = 120.0


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request.

    Attributes:
        method: in upper case.
        path: without its query.
        query: the query, undecoded.
        headers: name in lower case and value of each.
        body: as received.
    """

    method: str
    path: str
    query: str
    headers: Sequence[tuple[str, str]]
    body: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    """One HTTP answer; ``endless`` is a body of so many more bytes."""

    status: int
    body: bytes
    kind: str = "application/json"
    retry_after: int | None = None
    endless: int = 0


class Cut:
    """The connection ends without an answer."""


class Hang:
    """There never is an answer, and the connection stays."""


class _AnsweredError(Exception):
    """The request is answered without being dispatched."""

    code = "gateway-answered"

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.status)
        self.answer = answer


class Gateway:
    """Serves a hive to many callers over its one console, as a hive gateway does. Safe for many threads.

    Args:
        hive: the hive behind it.
        access: who may do what.
        faults: rules for reads and appends.
        times: waits.
        clock: unix time in milliseconds.
        monotonic: seconds.
    """

    def __init__(
        self,
        hive: ReferenceHive,
        *,
        access: Access,
        faults: Faults,
        times: GatewayTimes,
        clock: Callable[[], int],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._hive = hive
        self._access = access
        self._faults = faults
        self._times = times
        self._clock = clock
        self._console = threading.Lock()
        self._cache = ReadCache(times.cache_s, monotonic)
        self._stopped = threading.Event()
        self._connects = 0
        self._boots = 0
        self._changed_ms = 0
        self._lost = False
        self._last_error: str | None = None
        self._reconnect()

    def stop(self) -> None:
        """End the waits of delayed requests."""
        self._stopped.set()

    def lose_console(self) -> None:
        """Lose the connection to the hive: the next request fails, then there is a new one."""
        self._lost = True

    def handle(self, request: Request) -> Answer | Cut | Hang:
        """Answer one request."""
        try:
            return self._route(request)
        except _AnsweredError as answered:
            return answered.answer

    def _route(self, request: Request) -> Answer | Cut | Hang:
        match request.method, request.path:
            case "GET", "/v1/meta/bounds":
                return _json(200, self._bounds())
            case "GET", "/v1/meta/status":
                self._admit(request, None)
                return _json(200, self._status())
            case "GET", "/v1/fs/ls" | "/v1/fs/cat" | "/v1/fs/tail":
                return self._read(request.path.rpartition("/")[2].upper(), request)
            case "POST", "/v1/fs/echo":
                body = _body(request, ("path", "line"))
                return self._echo(request, body["path"], [body["line"]])
            case "POST", "/v1/fs/echo-batch":
                body = _body(request, ("path", "lines"))
                return self._echo(request, body["path"], self._batch(body))
            case _, "/v1/fs/ls" | "/v1/fs/cat" | "/v1/fs/tail" | "/v1/fs/echo" | "/v1/fs/echo-batch":
                return Answer(405, b"", "text/plain")
            case _:
                return Answer(404, b"", "text/plain")

    # -- namespace -------------------------------------------------------------------------------------------

    def _read(self, verb: str, request: Request) -> Answer | Cut | Hang:
        query = {name: values[-1] for name, values in parse_qs(request.query).items()}
        path = _path(query.get("path", ""), verb)
        limit = 0 if verb == "LS" else _limit(query.get("max_bytes", ""), verb, path)
        self._admit(request, path)

        def apply() -> Answer:
            try:
                lines = self._lines(verb, path)
            except RefusalError as refusal:
                return _refused(verb, path, refusal)
            size = len("\n".join(lines).encode())
            if verb != "LS" and size > limit:
                return _error(400, verb, path, f"read {path} exceeds max_bytes {limit}")
            extra = {} if verb == "LS" else {"bytes": size}
            return _json(
                200, {"status": "OK", "verb": verb, "path": path, "end": True, "lines": lines} | extra
            )

        return self._dispatch(verb, path, "", apply)

    def _lines(self, verb: str, path: str) -> list[str]:
        match verb:
            case "LS":
                return self._hive.ls(path)
            case "TAIL":
                return self._hive.tail(path)
            case _:
                return self._cache.read(path, lambda: self._hive.cat(path))

    def _echo(self, request: Request, path: object, lines: Sequence[object]) -> Answer | Cut | Hang:
        where = _path(path if isinstance(path, str) else "", "ECHO")
        texts = [_line(line, where) for line in lines]
        for text in texts:
            self._admit(request, where, write=True, size=len(text.encode()))

        def apply() -> Answer:
            for text in texts:
                try:
                    self._hive.echo(where, text)
                except RefusalError as refusal:
                    return _refused("ECHO", where, refusal)
                self._cache.written(where)
                self._faults.applied(where, text)
            size = sum(len(text.encode()) for text in texts)
            answer = {"status": "OK", "verb": "ECHO", "path": where, "end": True, "lines": [], "bytes": size}
            return _json(200, answer)

        return self._dispatch("ECHO", where, texts[0], apply)

    @staticmethod
    def _batch(body: dict[str, Any]) -> list[object]:
        path, lines = body["path"], body["lines"]
        if path not in BATCHED or not isinstance(lines, list) or not 1 <= len(lines) <= MAX_BATCH:
            text = f"echo-batch takes 1 to {MAX_BATCH} lines for status or deadletter"
            raise _AnsweredError(_error(400, "ECHO", str(path), text))
        return lines

    # -- the console and its faults --------------------------------------------------------------------------

    def _dispatch(self, verb: str, path: str, line: str, apply: Callable[[], Answer]) -> Answer | Cut | Hang:
        fault = self._faults.decide(verb, path, line)
        if fault is None:
            return self._on_console(verb, path, apply)
        instead = self._instead(fault, verb, path, apply)
        if instead is not None:
            return instead
        return self._after(fault, verb, path, self._on_console(verb, path, apply))

    def _instead(
        self, fault: Fault, verb: str, path: str, apply: Callable[[], Answer]
    ) -> Answer | Cut | Hang | None:
        """What happens instead of dispatching the command, or before it (None)."""
        match fault.kind:
            case FaultKind.DROP_BEFORE:
                return Cut()
            case FaultKind.SWALLOW:
                return Hang()
            case FaultKind.STATUS_BEFORE:
                return _error(int(fault.line(verb, path)), verb, path, "backend not connected")
            case FaultKind.ERR:
                return _json(200, _erring(verb, path, fault.line(verb, path)))
            case FaultKind.DELAY if fault.seconds > self._times.deadline_s:
                return self._too_late(fault, verb, path, apply)
            case FaultKind.DELAY:
                self._pause(fault)
        return None

    def _after(self, fault: Fault, verb: str, path: str, answer: Answer) -> Answer | Cut | Hang:
        """What the caller gets after the command was applied."""
        match fault.kind:
            case FaultKind.DROP_AFTER:
                return Cut()
            case FaultKind.SILENT:
                return Hang()
            case FaultKind.STATUS_AFTER:
                return _error(int(fault.line(verb, path)), verb, path, "broker response deadline")
            case FaultKind.GARBAGE:
                return Answer(200, fault.line(verb, path).encode())
            case FaultKind.HUGE:
                return Answer(200, b"", endless=HUGE_BYTES)
            case FaultKind.DELAY_ANSWER:
                self._pause(fault)
        return answer

    def _on_console(self, verb: str, path: str, apply: Callable[[], Answer]) -> Answer:
        if not self._console.acquire(timeout=self._times.queue_s):
            return _error(429, verb, path, "gateway backpressure: the console is busy", retry_after=1)
        try:
            if self._lost or self._boots != self._hive.boots:
                lost, self._lost = self._lost, False
                self._reconnect()
                if lost:
                    return _error(503, verb, path, "transport error: the console connection was lost")
            return apply()
        finally:
            self._console.release()

    def _too_late(self, fault: Fault, verb: str, path: str, apply: Callable[[], Answer]) -> Answer:
        """The target is slow: the caller is told so, and the command is applied all the same, later."""

        def later() -> None:
            self._pause(fault)
            if not self._stopped.is_set():
                self._on_console(verb, path, apply)

        threading.Thread(target=later, name="gateway-late", daemon=True).start()
        self._stopped.wait(self._times.deadline_s)
        return _error(504, verb, path, "broker response deadline")

    def _pause(self, fault: Fault) -> None:
        (fault.event or self._stopped).wait(fault.seconds)

    def _reconnect(self) -> None:
        self._connects += 1
        self._boots = self._hive.boots
        self._changed_ms = max(self._clock(), self._changed_ms + 1)

    def _admit(self, request: Request, path: str | None, *, write: bool = False, size: int = 0) -> None:
        refusal = self._access.refusal(request.headers, path=path, write=write, size=size)
        if refusal is not None:
            verb = "ECHO" if write else "CAT"
            raise _AnsweredError(_error(refusal.status, verb, path or "", refusal.text))

    # -- about itself ----------------------------------------------------------------------------------------

    def _status(self) -> dict[str, Any]:
        return {
            "connected": True,
            "target_host": "127.0.0.1",
            "target_port": 0,
            "connects": self._connects,
            "reconnects": self._connects - 1,
            "broker": {},
            "last_change_unix_ms": self._changed_ms,
            "backend_class": "host-model",
        }

    def _bounds(self) -> dict[str, Any]:
        return {
            "manifest_sha256": sha256(self._hive.profile.name.encode()).hexdigest(),
            "secure9p": {"msize": 8192, "walk_depth": MAX_DEPTH},
            "console": {
                "max_line_len": MAX_LINE_LEN,
                "max_path_len": MAX_PATH_LEN,
                "max_json_len": 192,
                "max_id_len": 32,
                "max_echo_len": MAX_ECHO_LEN,
                "max_ticket_len": 224,
            },
        }


def _json(status: int, document: dict[str, Any]) -> Answer:
    return Answer(status, dumps(document))


def _erring(verb: str, path: str, text: str) -> dict[str, Any]:
    return {"status": "ERR", "verb": verb, "path": path, "end": True, "lines": [], "error": text}


def _error(status: int, verb: str, path: str, text: str, *, retry_after: int | None = None) -> Answer:
    return Answer(status, dumps(_erring(verb, path, text)), retry_after=retry_after)


def _refused(verb: str, path: str, refusal: RefusalError) -> Answer:
    return _json(200, _erring(verb, path, refusal.line(verb, path)))


def _path(path: str, verb: str) -> str:
    parts = path[1:].split("/") if path != "/" else []
    bad = any(part in {"", ".", ".."} for part in parts) or "\0" in path
    if not path.startswith("/") or len(path) > MAX_PATH_LEN or len(parts) > MAX_DEPTH or bad:
        raise _AnsweredError(_error(400, verb, path[:MAX_PATH_LEN], "invalid path"))
    return path


def _limit(text: str, verb: str, path: str) -> int:
    limit = int(text[:9]) if text.isascii() and text.isdigit() else 0
    if limit == 0:
        raise _AnsweredError(_error(400, verb, path, "max_bytes must be given and above 0"))
    return limit


def _line(line: object, path: str) -> str:
    if not isinstance(line, str):
        raise _AnsweredError(Answer(422, b"Failed to deserialize the JSON body: line", "text/plain"))
    if "\n" in line or "\r" in line:
        raise _AnsweredError(_error(400, "ECHO", path, "echo payload must be a single line"))
    if len(line.encode()) > MAX_ECHO_LEN or len(f"ECHO {path} {line}".encode()) > MAX_LINE_LEN:
        raise _AnsweredError(_error(400, "ECHO", path, f"echo payload exceeds {MAX_ECHO_LEN} bytes"))
    return line


def _body(request: Request, members: tuple[str, ...]) -> dict[str, Any]:
    kind = next((value for name, value in request.headers if name == "content-type"), "")
    if kind.partition(";")[0].strip() != "application/json":
        text = b"Expected request with `Content-Type: application/json`"
        raise _AnsweredError(Answer(415, text, "text/plain"))
    try:
        document = parse_object(request.body, what="the body", max_bytes=len(request.body))
    except ProtocolError:
        text = b"Failed to parse the request body as JSON"
        raise _AnsweredError(Answer(400, text, "text/plain")) from None
    if any(name not in document for name in members):
        text = b"Failed to deserialize the JSON body into the target type"
        raise _AnsweredError(Answer(422, text, "text/plain"))
    return document
