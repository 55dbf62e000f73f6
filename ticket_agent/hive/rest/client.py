"""The REST gateway as a namespace: appends dispatched at most once, reads no older than our writes."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Final, Self, TypeVar
from urllib.parse import quote

from ticket_agent.hive.console.checks import check_line, check_path
from ticket_agent.hive.rest.answers import READ_BACK, Judge, Throttled, Verb, retry_after
from ticket_agent.hive.rest.connection import Connection, LostError
from ticket_agent.hive.rest.freshness import Freshness
from ticket_agent.hive.rest.logs import LogReader
from ticket_agent.hive.rest.origin import Credentials, RestConfig, parse_origin, read_credentials
from ticket_agent.hive.rest.sessions import Sessions, read_evidence
from ticket_agent.protocol.json_strict import dumps
from ticket_agent.protocol.namespace import (
    Acked,
    AppendAnswer,
    HiveError,
    HiveRefusedError,
    HiveUnreachableError,
    Refusal,
    RefusalKind,
    Refused,
    Unknown,
)
from ticket_agent.protocol.paths import LEASE_BY_ID

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from ticket_agent.protocol.http_exchange import Reply

__all__ = ["RestConfig", "RestNamespace"]

T = TypeVar("T")

STATUS: Final = "/v1/meta/status"
BOUNDS: Final = "/v1/meta/bounds"

MAX_READ_BYTES: Final = 65536
"""What a read may hold; 64 wire frames stay far below it."""

FORBIDDEN: Final = 403

ATTEMPTS: Final = 3
"""Attempts of one call: of an append only while it is certain that nothing was dispatched."""

BACKOFF_S: Final = 0.2
MAX_PAUSE_S: Final = 2.0
MAX_LEFT_ALONE_S: Final = 60.0


class RestNamespace:
    """A namespace over a hive gateway. For one thread.

    1. An append is posted again only if the gateway, or the connection, proves that it was not dispatched.
    2. After every operation the gateway is asked which connection to the hive it stands for; a change is a
       new session. A read that ran across it is repeated; an acknowledgement across it is Unknown.
    3. A read that the gateway may answer from its cache waits until it cannot be older than our last write,
       or than the session; ticket logs are read past the cache.
    4. Credentials are read for each request and appear in no message. Nothing is redirected, and no proxy is
       used but a configured one.
    """

    def __init__(
        self,
        config: RestConfig,
        *,
        env: Mapping[str, str] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.config = config
        self._peer = config.peer
        self._origin = config.origin
        self._proxy = None if config.proxy is None else parse_origin(config.proxy, what="the proxy's URL")
        self._env = os.environ if env is None else env
        self._monotonic = monotonic
        self._sleep = sleep
        self._connection: Connection | None = None
        self._links = 0
        self._sessions = Sessions()
        self._freshness = Freshness(config.cache_s)
        self._logs = LogReader(cat=self._cat, tail=self._tail, doubt=self._doubt)
        self._left_alone_until = float("-inf")

    @property
    def session(self) -> int:
        """Number of the hive's current session behind the gateway; 0 before the first."""
        return self._sessions.current

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def connect(self) -> None:
        """Ask the gateway for its state; every other method does this by itself.

        Raises:
            HiveError: it cannot be reached, or refuses us.
        """
        self._notice()

    def ls(self, path: str) -> list[str]:
        """Names below a directory.

        Raises:
            HiveError: one of its subclasses, as :class:`Namespace` documents.
        """
        check_path(path)
        return self._in_one_session(lambda: self._get(Verb.LS, path))

    def read(self, path: str) -> list[str]:
        """All logical lines of a node, no older than our last write.

        Raises:
            HiveError: one of its subclasses, as :class:`Namespace` documents.
        """
        check_path(path)
        if path.startswith(f"{LEASE_BY_ID}/"):
            return self._in_one_session(lambda: self._lease(path))
        return self._in_one_session(lambda: self._logs.read(path))

    def tail(self, path: str) -> list[str]:
        """The newest retained lines of a log-like node, oldest first; never from the cache.

        Raises:
            HiveError: one of its subclasses, as :class:`Namespace` documents.
        """
        check_path(path)
        return self._in_one_session(lambda: self._tail(path))

    def append(self, path: str, line: str, *, session: int | None = None) -> AppendAnswer:
        """Append one line in one request; with ``session``, only while that lasts.

        The gateway is asked for its session right before and right after. What the answer does not say for
        certain is :class:`Unknown`, and may still be dispatched later, even if a read does not show it.

        Raises:
            HiveError: nothing was dispatched. Whatever happens later is an answer.
        """
        check_path(path)
        check_line(line)
        for attempt in range(ATTEMPTS):
            self._require(session)
            before = self.session
            try:
                answer = self._post(path, line)
            except LostError as error:
                if not error.sent:
                    continue
                answer = Unknown(f"{self._peer}: the connection {error}; {READ_BACK}")
            if isinstance(answer, Throttled):
                if self._paused(answer, attempt):
                    continue
                answer = Refused(answer.refusal)
            return self._of_session(answer, before)
        raise HiveUnreachableError(f"{self._peer}: no connection holds; nothing was sent, check the gateway")

    def status(self) -> dict[str, Any]:
        """The gateway's own state; empty if it does not show it to us.

        Raises:
            HiveError: it cannot be reached, or refuses the request token.
        """
        judge, reply = self._fetch(STATUS)
        if reply.status == FORBIDDEN:
            return {}
        try:
            return judge.document(reply, STATUS)
        except HiveRefusedError as error:
            # Not the hive's refusal: nothing that was asked of the hive may take it for one.
            raise HiveUnreachableError(
                f"{self._peer} does not tell its state: {error.refusal.text}"
            ) from error

    def bounds(self) -> dict[str, Any]:
        """What the gateway was compiled for; no proof about the target, and an absent member is unknown.

        Raises:
            HiveError: one of its subclasses, as :class:`Namespace` documents.
        """
        judge, reply = self._fetch(BOUNDS)
        return judge.document(reply, BOUNDS)

    def close(self) -> None:
        """Close the connection; never raises."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    # -- sessions --------------------------------------------------------------------------------------------

    def _notice(self) -> bool:
        """Ask which session this is; True if it is a new one."""
        status = self.status()
        began = self._sessions.see(read_evidence(status, link=self._links))
        if began:
            self._logs.session_began()
            self._freshness.session_began(self._monotonic())
        return began

    def _require(self, session: int | None) -> None:
        began = self._notice()
        if session is not None and (began or session != self.session):
            raise HiveUnreachableError(f"{self._peer}: session {session} is over; nothing was sent")

    def _in_one_session(self, read: Callable[[], T]) -> T:
        """Repeat a read until the session did not change while it ran."""
        if self.session == 0:
            self._notice()
        for _ in range(ATTEMPTS):
            try:
                value = read()
            except HiveRefusedError:
                # That something is absent is an answer, too, and belongs to a session.
                if not self._notice():
                    raise
            else:
                if not self._notice():
                    return value
        raise HiveUnreachableError(
            f"{self._peer}: its connection to the hive changed during each of {ATTEMPTS} readings"
        )

    def _of_session(self, answer: AppendAnswer, before: int) -> AppendAnswer:
        if not isinstance(answer, Acked):
            return answer
        try:
            self._notice()
        except HiveError as error:
            return Unknown(
                f"acknowledged, but by which of the hive's sessions is not known: {error}; {READ_BACK}"
            )
        if self.session != before:
            return Unknown(
                f"{self._peer}: acknowledged while its connection to the hive changed; {READ_BACK}"
            )
        return answer

    # -- reads -----------------------------------------------------------------------------------------------

    def _lease(self, path: str) -> list[str]:
        """A lease that is not listed is absent: the list is never cached, and asking leaves no trace."""
        try:
            listed = path.rpartition("/")[2] in self._get(Verb.LS, LEASE_BY_ID)
        except HiveRefusedError:
            listed = True
        if not listed:
            text = f"not listed below {LEASE_BY_ID}"
            raise HiveRefusedError(Verb.CAT, path, Refusal(kind=RefusalKind.INVALID_PATH, text=text))
        return self._cat(path)

    def _cat(self, path: str) -> list[str]:
        wait_s = self._freshness.wait(path, self._monotonic())
        if wait_s > 0:
            self._sleep(wait_s)
        try:
            return self._get(Verb.CAT, path)
        finally:
            self._freshness.read(path, self._monotonic())

    def _doubt(self, path: str) -> None:
        self._freshness.doubted(path, self._monotonic())

    def _tail(self, path: str) -> list[str]:
        return self._get(Verb.TAIL, path)

    def _get(self, verb: Verb, path: str) -> list[str]:
        limit = "" if verb is Verb.LS else f"&max_bytes={MAX_READ_BYTES}"
        target = f"/v1/fs/{verb.lower()}?path={quote(path, safe='/')}{limit}"
        for attempt in range(ATTEMPTS):
            judge, reply = self._fetch(target, self.config.data_s)
            answer = judge.read(reply, verb=verb, path=path)
            if not isinstance(answer, Throttled):
                return answer
            if not self._paused(answer, attempt):
                raise HiveRefusedError(verb, path, answer.refusal)
        raise AssertionError("unreachable: the last attempt never pauses")

    # -- requests --------------------------------------------------------------------------------------------

    def _fetch(self, target: str, timeout_s: float | None = None) -> tuple[Judge, Reply]:
        """GET, once more over a new connection if an old one broke; deadline of metadata unless given."""
        deadline = self._monotonic() + (self.config.metadata_s if timeout_s is None else timeout_s)
        credentials = read_credentials(self.config, self._env)
        reused = self._connection is not None
        try:
            reply = self._ask("GET", target, credentials, deadline=deadline)
        except LostError as error:
            if not reused or error.timed_out:
                raise self._unreachable(error) from error
            try:
                reply = self._ask("GET", target, credentials, deadline=deadline)
            except LostError as again:
                raise self._unreachable(again) from again
        self._heed(reply)
        return Judge(self._peer, credentials.scrub), reply

    def _post(self, path: str, line: str) -> AppendAnswer | Throttled:
        credentials = read_credentials(self.config, self._env)
        body = dumps({"path": path, "line": line})
        deadline = self._monotonic() + self.config.data_s
        try:
            reply = self._ask("POST", "/v1/fs/echo", credentials, body, deadline=deadline)
            self._heed(reply)
            return Judge(self._peer, credentials.scrub).append(reply, path=path, line=line)
        finally:
            self._freshness.wrote(path, line, self._monotonic())
            self._logs.forget()

    def _ask(
        self, method: str, target: str, credentials: Credentials, body: bytes = b"", *, deadline: float
    ) -> Reply:
        self._refuse_while_left_alone()
        connection = self._connected()
        headers = [("Host", self._origin.authority), ("Accept", "application/json"), *credentials.headers()]
        if body:
            headers += [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        orderly = False
        try:
            reply = connection.ask(method, self._target(target), headers, body, deadline=deadline)
            orderly = connection.reusable
        finally:
            if not orderly:
                self.close()
        return reply

    def _connected(self) -> Connection:
        if self._connection is not None and not self._connection.silent():
            self.close()
        if self._connection is None:
            config = self.config
            self._connection = Connection.open(
                self._origin,
                proxy=self._proxy,
                ca_file=config.ca_file,
                timeout_s=config.metadata_s,
                monotonic=self._monotonic,
            )
            self._links += 1
        return self._connection

    def _target(self, target: str) -> str:
        below = f"{self._origin.prefix}{target}"
        through_proxy = self._proxy is not None and not self._origin.tls
        return f"http://{self._origin.authority}{below}" if through_proxy else below

    # -- patience --------------------------------------------------------------------------------------------

    def _paused(self, throttled: Throttled, attempt: int) -> bool:
        """Wait as the gateway asks, if there is an attempt left and it asks for little."""
        delay_s = throttled.delay_s
        if throttled.refusal.kind is RefusalKind.LIMIT and delay_s is None:
            return False
        wanted_s = BACKOFF_S * 2.0**attempt if delay_s is None else delay_s
        if attempt + 1 == ATTEMPTS or wanted_s > MAX_PAUSE_S:
            return False
        self._sleep(wanted_s)
        return True

    def _heed(self, reply: Reply) -> None:
        """Leave a gateway alone that asks for more than a short pause."""
        if reply.status not in {429, 503}:
            return
        delay_s = retry_after(reply.headers)
        if delay_s is not None and delay_s > MAX_PAUSE_S:
            self._left_alone_until = self._monotonic() + min(delay_s, MAX_LEFT_ALONE_S)

    def _refuse_while_left_alone(self) -> None:
        left_s = self._left_alone_until - self._monotonic()
        if left_s > 0:
            raise HiveUnreachableError(
                f"{self._peer} asked to be left alone for {left_s:.0f} s more; nothing was sent"
            )

    def _unreachable(self, error: LostError) -> HiveUnreachableError:
        return HiveUnreachableError(f"{self._peer}: the connection {error}; reading again is safe")
