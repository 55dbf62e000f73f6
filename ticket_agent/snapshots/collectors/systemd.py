"""Collector ``systemd``: the states of the hive's services on this host, asked of the manager over D-Bus.

Entries are ``source`` and one ``units/<unit>`` for each loaded unit that matches :data:`PATTERNS`. A unit
that cannot be read does not spoil the others: its entry holds its name and one word, ``vanished`` (unloaded
since it was listed), ``refused`` (this user may not read it), ``malformed`` (a property of another type or
form than systemd gives) or ``failed`` (any other error).

A record holds fewer entries than a host may have units. Then units are shown in the order of their names as
far as there is room, and ``omitted`` holds ``{"units": n}``, the number of the others. Units whose names are
no path of a record (templates' instances with their ``@``, escaped names) are among these n.
"""

from __future__ import annotations

import re
import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

from ticket_agent.protocol.collecting import CollectError, fact
from ticket_agent.protocol.snapshot import UnavailableReason
from ticket_agent.protocol.snapshot_fitting import fit
from ticket_agent.protocol.snapshot_names import is_identifier
from ticket_agent.snapshots.collectors.dbus import (
    STANDARD_ADDRESS,
    Bus,
    ErrorReplyError,
    Remote,
    ReplyTypeError,
    socket_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ticket_agent.protocol.collecting import CollectContext
    from ticket_agent.protocol.snapshot import SnapshotBounds, SnapshotEntry

__all__ = ["PATTERNS", "collect", "listed", "project", "unit_entry"]

PATTERNS: Final = ("cohesix.service", "cohesix-*.service", "ssh.service", "ticket-agent.service")
"""Which units are looked at; shell patterns of systemd."""
ADDRESS_VARIABLE: Final = "DBUS_SYSTEM_BUS_ADDRESS"

_SERVICE = "org.freedesktop.systemd1"
_MANAGER = Remote(_SERVICE, "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager")
_UNIT = "org.freedesktop.systemd1.Unit"
_UNIT_SERVICE = "org.freedesktop.systemd1.Service"
_LIST_TYPE = "a(ssssssouso)"
_PROPERTIES = (
    (_UNIT, "Id", "s"),
    (_UNIT, "ActiveState", "s"),
    (_UNIT, "SubState", "s"),
    (_UNIT, "InvocationID", "ay"),
    (_UNIT, "Job", "(uo)"),
    (_UNIT_SERVICE, "Result", "s"),
)
_UNIT_PATH = re.compile(r"/org/freedesktop/systemd1/unit/[A-Za-z0-9_]{1,480}")
_INVOCATION_BYTES = 16

_ERRORS = "org.freedesktop.DBus.Error."
_NO_MANAGER = {f"{_ERRORS}{name}" for name in ("ServiceUnknown", "NameHasNoOwner", "NoReply", "Disconnected")}
_UNIT_ERRORS = {
    "org.freedesktop.systemd1.NoSuchUnit": "vanished",
    f"{_ERRORS}UnknownObject": "vanished",
    f"{_ERRORS}AccessDenied": "refused",
    f"{_ERRORS}InteractiveAuthorizationRequired": "refused",
}


def collect(context: CollectContext) -> list[SnapshotEntry]:
    """Ask the manager on the bus of ``DBUS_SYSTEM_BUS_ADDRESS``, or on the standard one.

    Raises:
        CollectError: ``not_supported`` off Linux, ``not_enabled`` without a bus, ``timed_out``, and
            ``source_failed`` for a bus without a manager, and for what is no answer of one.
    """
    if sys.platform != "linux":
        raise CollectError("systemd is there on Linux only", UnavailableReason.NOT_SUPPORTED)
    path = socket_of(context.environ.get(ADDRESS_VARIABLE) or STANDARD_ADDRESS)
    with closing(Bus.open(path, context.deadline)) as bus:
        names = listed(_list(bus))
        usable = [name for name in names if is_identifier(name, publishing=True)]
        # More than these find no room, whatever they say.
        asked = usable[: context.bounds.max_entries]
        return project([_look(bus, name) for name in asked], len(names) - len(asked), context.bounds)


def project(units: Sequence[SnapshotEntry], left_out: int, bounds: SnapshotBounds) -> list[SnapshotEntry]:
    """Return a record's entries for the units that were looked at; ``left_out`` is the number of others.

    Raises:
        CollectError: the bounds leave no room.
    """
    entries, _ = fit(
        [fact("source", "systemd-manager-dbus")],
        sorted(units, key=lambda entry: entry.path),
        bounds,
        omitted=lambda count: fact("omitted", {"units": count}),
        already_out=left_out,
    )
    return sorted(entries, key=lambda entry: entry.path)


def listed(rows: Sequence[tuple[Any, ...]]) -> list[str]:
    """Return the units' names from the manager's list, in order.

    Raises:
        CollectError: a name twice.
    """
    names = sorted(row[0] for row in rows)
    if len(set(names)) != len(names):
        raise CollectError("the manager lists a unit twice; this is not systemd's list")
    return names


def unit_entry(unit: str, values: Mapping[str, Any]) -> SnapshotEntry:
    """Return the entry of one unit from its properties, which have their types already.

    Raises:
        ReplyTypeError: a value that systemd does not give.
    """
    states = [values[name] for name in ("ActiveState", "SubState", "Result")]
    invocation = bytes(values["InvocationID"])
    if values["Id"] != unit or not all(is_identifier(state, publishing=True) for state in states):
        raise ReplyTypeError("a property holds what systemd does not give")
    if len(invocation) not in {0, _INVOCATION_BYTES}:
        raise ReplyTypeError(f"an invocation id has {len(invocation)} bytes, not {_INVOCATION_BYTES}")
    active, sub, result = states
    return fact(
        f"units/{unit}",
        {
            "unit": unit,
            "invocation_id": invocation.hex() or None,
            "active_state": active,
            "sub_state": sub,
            "job_id": values["Job"][0],
            "service_result": result,
        },
    )


def _list(bus: Bus) -> list[tuple[Any, ...]]:
    try:
        rows: list[tuple[Any, ...]] = bus.call(
            _MANAGER,
            "ListUnitsByPatterns",
            takes="asas",
            arguments=([], list(PATTERNS)),
            returns=_LIST_TYPE,
        )
    except ErrorReplyError as error:
        if error.name in _NO_MANAGER:
            raise _gone(error) from None
        raise CollectError(f"the manager does not list its units: {error.name}") from None
    except ReplyTypeError as error:
        raise CollectError(f"the manager's list of units cannot be used: {error}") from None
    return rows


def _look(bus: Bus, unit: str) -> SnapshotEntry:
    try:
        return unit_entry(unit, _values(bus, unit))
    except ErrorReplyError as error:
        if error.name in _NO_MANAGER:
            raise _gone(error) from None
        word = _UNIT_ERRORS.get(error.name, "failed")
    except ReplyTypeError:
        word = "malformed"
    return fact(f"units/{unit}", {"unit": unit, "error": word})


def _values(bus: Bus, unit: str) -> dict[str, Any]:
    path = bus.call(_MANAGER, "LoadUnit", takes="s", arguments=(unit,), returns="o")
    if _UNIT_PATH.fullmatch(path) is None:
        raise ReplyTypeError("a unit's path is none of systemd's")
    return {
        name: bus.get(Remote(_SERVICE, path, interface), name, of_type=of_type)
        for interface, name, of_type in _PROPERTIES
    }


def _gone(error: ErrorReplyError) -> CollectError:
    return CollectError(f"no systemd manager answers on the bus: {error.name}; is this host run by systemd?")
