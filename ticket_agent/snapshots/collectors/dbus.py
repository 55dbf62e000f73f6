"""Calls to services on a D-Bus bus over its Unix socket: replies typed, bounded, and in before a deadline."""

from __future__ import annotations

import re
import socket
import struct
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from ticket_agent.protocol.collecting import CollectError
from ticket_agent.protocol.snapshot import UnavailableReason

if TYPE_CHECKING:
    from ticket_agent.protocol.collecting import Deadline

__all__ = [
    "MAX_MESSAGE_BYTES",
    "STANDARD_ADDRESS",
    "Bus",
    "ErrorReplyError",
    "Remote",
    "ReplyTypeError",
    "socket_of",
]

STANDARD_ADDRESS: Final = "unix:path=/var/run/dbus/system_bus_socket"
MAX_MESSAGE_BYTES: Final = 64 * 1024
"""Longest message with its header; the bus itself would pass on 128 MiB."""

_PROPERTIES = "org.freedesktop.DBus.Properties"
_FIXED_HEAD = 16
"""Bytes from which a message's length is known."""
_UNREADABLE = (KeyError, IndexError, ValueError, TypeError, AssertionError, RecursionError, struct.error)
"""What jeepney's decoder raises for bytes that are no message."""
_ERROR_NAME = re.compile(r"[A-Za-z0-9_.]{1,255}")


class ErrorReplyError(Exception):
    """The service answered with an error.

    Attributes:
        name: the D-Bus name of the error.
    """

    code = "dbus-error-reply"

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class ReplyTypeError(Exception):
    """A reply has another type than the interface says, or a value that the type does not allow."""

    code = "dbus-reply-type"


def socket_of(address: str) -> str:
    """Return the Unix socket of a bus address; an abstract one begins with a NUL.

    Raises:
        CollectError: ``not_enabled`` when only other transports are named, ``source_failed`` when the text is
            no bus address.
    """
    from jeepney.bus import (  # type: ignore[import-untyped]  # noqa: PLC0415 - start-up time
        get_connectable_addresses,
    )

    try:
        return str(next(get_connectable_addresses(address)))
    except RuntimeError:
        raise CollectError(
            "the bus address names no Unix socket; only unix: addresses can be used",
            UnavailableReason.NOT_ENABLED,
        ) from None
    except ValueError:
        raise CollectError(
            "the bus address cannot be read; write unix:path=/run/dbus/system_bus_socket"
        ) from None


@dataclass(frozen=True, slots=True)
class Remote:
    """One interface of one object of a service."""

    service: str
    path: str
    interface: str


_BUS = Remote("org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus")


class Bus:
    """An authenticated connection. After a :class:`CollectError`, only ``close`` is left."""

    def __init__(self, sock: socket.socket, deadline: Deadline) -> None:
        self._sock = sock
        self._deadline = deadline
        self._received = bytearray()
        self._serial = 0

    @classmethod
    def open(cls, path: str, deadline: Deadline) -> Bus:
        """Connect, authenticate as this user and say hello, all before the deadline.

        Raises:
            CollectError: ``not_enabled`` when there is no such socket, else what went wrong.
        """
        sock = socket.socket(socket.AF_UNIX)
        bus = cls(sock, deadline)
        try:
            bus._connect(path)
            bus._authenticate()
            bus.call(_BUS, "Hello", returns="s")
        except (ErrorReplyError, ReplyTypeError):
            bus.close()
            raise CollectError("the bus does not greet back; is this the socket of a D-Bus bus?") from None
        except BaseException:
            bus.close()
            raise
        return bus

    def close(self) -> None:
        """Close the connection."""
        self._sock.close()

    def call(
        self,
        remote: Remote,
        member: str,
        *,
        takes: str | None = None,
        arguments: tuple[Any, ...] = (),
        returns: str,
    ) -> Any:
        """Call a method that returns one value of the D-Bus type ``returns``; the service is never started.

        Raises:
            ErrorReplyError: the answer is an error.
            ReplyTypeError: the answer is of another type.
            CollectError: there is no answer that could be used.
        """
        body = self._reply(self._send(remote, member, takes, arguments), (returns,))
        return body[0]

    def get(self, remote: Remote, name: str, *, of_type: str) -> Any:
        """Read a property of the D-Bus type ``of_type``.

        Raises:
            ErrorReplyError: the answer is an error.
            ReplyTypeError: the answer or the property is of another type.
            CollectError: there is no answer that could be used.
        """
        properties = replace(remote, interface=_PROPERTIES)
        serial = self._send(properties, "Get", "ss", (remote.interface, name))
        _, value = self._reply(serial, ("v", of_type))[0]
        return value

    def _connect(self, path: str) -> None:
        try:
            self._sock.settimeout(self._deadline.left_s())
            self._sock.connect(path)
        except (FileNotFoundError, NotADirectoryError):
            raise CollectError("there is no bus socket on this host", UnavailableReason.NOT_ENABLED) from None
        except OSError as error:
            raise _broken(error) from None

    def _authenticate(self) -> None:
        from jeepney.auth import (  # type: ignore[import-untyped]  # noqa: PLC0415 - start-up time
            BEGIN,
            AuthenticationError,
            Authenticator,
        )

        talk = Authenticator()
        try:
            for line in talk:
                self._write(line)
                talk.feed(self._read())
        except AuthenticationError:
            raise CollectError(
                "the bus does not let this user in (EXTERNAL), or is no D-Bus bus; look at its configuration"
            ) from None
        self._write(BEGIN)

    def _send(self, remote: Remote, member: str, takes: str | None, arguments: tuple[Any, ...]) -> int:
        from jeepney import (  # type: ignore[import-untyped]  # noqa: PLC0415 - start-up time
            DBusAddress,
            MessageFlag,
            new_method_call,
        )

        address = DBusAddress(remote.path, remote.service, remote.interface)
        message = new_method_call(address, member, takes, arguments)
        message.header.flags = MessageFlag.no_auto_start
        self._serial += 1
        self._write(message.serialise(serial=self._serial))
        return self._serial

    def _reply(self, serial: int, types: tuple[str, ...]) -> tuple[Any, ...]:
        """Return the body of the answer to a call; ``types`` are its signature and that of its variant."""
        from jeepney import (  # noqa: PLC0415 - start-up time
            Header,
            HeaderFields,
            Message,
            MessageType,
        )

        while True:
            data = self._message()
            try:
                header, body_at = Header.from_buffer(data)
            except _UNREADABLE:
                raise CollectError("the bus sent bytes that are no D-Bus message") from None
            if header.fields.get(HeaderFields.reply_serial) != serial:
                continue
            if header.message_type is MessageType.error:
                name = str(header.fields.get(HeaderFields.error_name))
                raise ErrorReplyError(name if _ERROR_NAME.fullmatch(name) else "unnamed")
            # The decoder is let at a body only when the body is of the one type that is expected.
            found = [header.fields.get(HeaderFields.signature)]
            if len(types) > 1:
                found.append(_variant_type(data, body_at))
            if header.message_type is not MessageType.method_return or found != list(types):
                raise ReplyTypeError("a reply has another type than the interface says")
            try:
                body: tuple[Any, ...] = Message.from_buffer(data).body
            except _UNREADABLE:
                raise ReplyTypeError("a reply does not hold what its type says") from None
            return body

    def _message(self) -> bytes:
        from jeepney.low_level import (  # type: ignore[import-untyped]  # noqa: PLC0415 - start-up time
            calc_msg_size,
        )

        self._fill(_FIXED_HEAD)
        try:
            size = calc_msg_size(bytes(self._received[:_FIXED_HEAD]))
        except KeyError:
            raise CollectError("the bus sent bytes that are no D-Bus message") from None
        if size > MAX_MESSAGE_BYTES:
            raise CollectError(f"a D-Bus reply takes {size} bytes; the limit is {MAX_MESSAGE_BYTES}")
        self._fill(size)
        data = bytes(self._received[:size])
        del self._received[:size]
        (fields,) = struct.unpack_from("<I" if data[:1] == b"l" else ">I", data, 12)
        # D-Bus has no empty structure; the decoder would read an array of them for ever.
        if b"()" in data[_FIXED_HEAD : _FIXED_HEAD + fields]:
            raise CollectError("the bus sent bytes that are no D-Bus message")
        return data

    def _fill(self, size: int) -> None:
        while len(self._received) < size:
            self._received += self._read()

    def _read(self) -> bytes:
        try:
            self._sock.settimeout(self._deadline.left_s())
            data = self._sock.recv(MAX_MESSAGE_BYTES)
        except OSError as error:
            raise _broken(error) from None
        if not data:
            raise CollectError("the bus closed the connection")
        return data

    def _write(self, data: bytes) -> None:
        try:
            self._sock.settimeout(self._deadline.left_s())
            self._sock.sendall(data)
        except OSError as error:
            raise _broken(error) from None


def _variant_type(data: bytes, at: int) -> str | None:
    """The signature of the variant that begins a body; the body itself begins at a multiple of eight."""
    at += -at % 8
    end = at + 1 + data[at] if at < len(data) else at
    return data[at + 1 : end].decode("latin-1")


def _broken(error: OSError) -> CollectError:
    if isinstance(error, TimeoutError):
        return CollectError("the bus gave no answer in time", UnavailableReason.TIMED_OUT)
    return CollectError(f"the bus cannot be used: {error.strerror or error}")
