"""A real message bus, and a stand-in for systemd's manager that owns its name there and can misbehave."""

from __future__ import annotations

import fnmatch
import shutil
import subprocess
import threading
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pytest
from jeepney import (  # type: ignore[import-untyped]
    DBusAddress,
    HeaderFields,
    MessageType,
    new_error,
    new_method_call,
    new_method_return,
)
from jeepney.io.blocking import open_dbus_connection  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DAEMON: Final = shutil.which("dbus-daemon")
UNIT_ROOT: Final = "/org/freedesktop/systemd1/unit/"
INVOCATION: Final = bytes(range(16))
PATIENCE_S = 60.0

_CONFIG = """<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <type>session</type>
  <listen>unix:path={socket}</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow send_destination="*" eavesdrop="true"/>
    <allow eavesdrop="true"/>
    <allow own="*"/>
  </policy>
</busconfig>
"""

needs_bus = pytest.mark.skipif(DAEMON is None, reason="dbus-daemon is not installed")


@contextmanager
def bus(folder: Path) -> Iterator[str]:
    """The address of a message bus of its own."""
    config = folder / "bus.conf"
    config.write_text(_CONFIG.format(socket=folder / "bus"))
    command = [str(DAEMON), f"--config-file={config}", "--nofork", "--print-address=1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        try:
            yield address
        finally:
            process.terminate()


Typed = tuple[str, Any]
"""A D-Bus signature and a value of it."""


def unit_properties(name: str, **changes: Typed) -> dict[str, Typed]:
    """What a running service shows; ``changes`` replace properties."""
    return {
        "Id": ("s", name),
        "ActiveState": ("s", "active"),
        "SubState": ("s", "running"),
        "InvocationID": ("ay", INVOCATION),
        "Job": ("(uo)", (0, "/")),
        "Result": ("s", "success"),
    } | changes


@dataclass(slots=True, kw_only=True)
class Manager:
    """What the stand-in knows and how it fails.

    Attributes:
        units: by name, properties by name. A unit without properties is listed, but no longer there.
        errors: names of errors, by method, by unit, or by ``unit property``.
        silent: a method that is never answered.
        replies: other answers, by method.
        description: of every unit.
        asked: how often each method was called.
    """

    units: dict[str, dict[str, Typed]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    silent: str = ""
    replies: dict[str, Typed] = field(default_factory=dict)
    description: str = "a unit"
    asked: Counter[str] = field(default_factory=Counter)

    @contextmanager
    def running(self, address: str) -> Iterator[None]:
        """Own systemd's name on a bus; ends with the bus."""
        with _connected(address) as connection:
            broker = DBusAddress("/org/freedesktop/DBus", "org.freedesktop.DBus", "org.freedesktop.DBus")
            request = new_method_call(broker, "RequestName", "su", ("org.freedesktop.systemd1", 4))
            assert connection.send_and_get_reply(request, timeout=PATIENCE_S).body == (1,)
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            thread.start()
            try:
                yield
            finally:
                # A call that is answered by nobody else ends the thread, which then no longer reads.
                with _connected(address) as other:
                    leave = DBusAddress("/", connection.unique_name, "lab.Standin")
                    other.send(new_method_call(leave, "Leave"))
                    thread.join(PATIENCE_S)
                assert not thread.is_alive()

    def _serve(self, connection: Any) -> None:
        while True:
            # A host may ask nothing for as long as it likes.
            message = connection.receive(timeout=None)
            if message.header.message_type is not MessageType.method_call:
                continue
            member = message.header.fields[HeaderFields.member]
            if member == "Leave":
                return
            self.asked[member] += 1
            if member != self.silent:
                connection.send(self._answer(message, member))

    def _answer(self, message: Any, member: str) -> Any:
        path = message.header.fields[HeaderFields.path]
        unit = message.body[0] if member == "LoadUnit" else _unit_of(path)
        detail = message.body[1] if member == "Get" else ""
        error = self.errors.get(member) or self.errors.get(f"{unit} {detail}".rstrip())
        if not error and member == "LoadUnit" and not self.units.get(unit):
            error = "org.freedesktop.systemd1.NoSuchUnit"
        if error:
            return new_error(message, error, "s", ("a text that nobody repeats",))
        if member in self.replies:
            signature, value = self.replies[member]
            return new_method_return(message, signature, (value,))
        if member == "ListUnitsByPatterns":
            return new_method_return(message, "a(ssssssouso)", (self._rows(message.body[1]),))
        if member == "LoadUnit":
            return new_method_return(message, "o", (_path_of(unit),))
        interface, name = message.body
        assert interface == f"org.freedesktop.systemd1.{'Service' if name == 'Result' else 'Unit'}"
        return new_method_return(message, "v", (self.units[unit][name],))

    def _rows(self, patterns: list[str]) -> list[tuple[Any, ...]]:
        return [
            (unit, self.description, "loaded", "active", "running", "", _path_of(unit), 0, "", "/")
            for unit in self.units
            if any(fnmatch.fnmatchcase(unit, pattern) for pattern in patterns)
        ]


def _connected(address: str) -> Any:
    return open_dbus_connection(address, auth_timeout=PATIENCE_S)


def _path_of(unit: str) -> str:
    return UNIT_ROOT + "".join(char if char.isalnum() else f"_{ord(char):02x}" for char in unit)


def _unit_of(path: str) -> str:
    name, *escaped = path.removeprefix(UNIT_ROOT).split("_")
    return name + "".join(chr(int(piece[:2], 16)) + piece[2:] for piece in escaped)
