"""What a confinement holds, judged by what a probe saw inside it and not by what was asked for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from ticket_agent.peft.release.offline_flags import OFFLINE

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["REQUIRED", "Expected", "Guarantee", "Verdict", "judge"]


class Guarantee(StrEnum):
    """One thing that a phase cannot do or that cannot happen to it."""

    NETWORK = "network"
    TMP = "tmp"
    INPUTS = "inputs"
    HIDDEN = "hidden"
    ENVIRONMENT = "environment"
    OFFLINE = "offline"
    FILE_SIZE = "file-size"
    TREE = "tree"
    NO_NEW_PRIVILEGES = "no-new-privileges"
    CAPABILITIES = "capabilities"
    PROCESSES = "processes"
    ADDRESS_SPACE = "address-space"
    MEMORY = "memory"


REQUIRED: Final = frozenset(Guarantee) - {
    Guarantee.PROCESSES,
    Guarantee.ADDRESS_SPACE,
    Guarantee.MEMORY,
}
"""What every confinement must hold to be used; the others depend on the host and the account."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether one guarantee is held, and in a few words what that means."""

    guarantee: Guarantee
    held: bool
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What stands against the facts.

    Attributes:
        environment: what the phase should find, exactly.
        namespaces: those of the host, by name.
        unit: the systemd unit, or None.
    """

    environment: Mapping[str, str]
    namespaces: Mapping[str, str]
    unit: str | None


# Set by what starts a program and by the C library's locale, from nothing of ours.
_HARMLESS: Final = frozenset({"PWD", "LC_CTYPE", "SHLVL", "_", "OLDPWD"})
_UNLIMITED: Final = -1
_MAX_NAMED: Final = 8


_WORDS: Final[Mapping[Guarantee, tuple[str, str]]] = {
    Guarantee.NETWORK: (
        "a network of its own with nothing but loopback (a model server has the host's)",
        "reaches the host's network",
    ),
    Guarantee.TMP: ("a private /tmp", "has no /tmp of its own"),
    Guarantee.INPUTS: (
        "inputs can be read and not changed",
        "can change its inputs, or cannot use its paths",
    ),
    Guarantee.HIDDEN: (
        "the agent's records of the phase are out of reach",
        "can reach the agent's own files",
    ),
    Guarantee.ENVIRONMENT: ("no variable but those that were given", "gets other variables"),
    Guarantee.OFFLINE: (
        "model libraries are told to stay offline before they are loaded",
        "model libraries are not told to stay offline",
    ),
    Guarantee.FILE_SIZE: ("file size is limited", "file size is not limited"),
    Guarantee.TREE: (
        "everything that it starts ends with it",
        "what detaches itself is only looked for when its supervisor is killed",
    ),
    Guarantee.NO_NEW_PRIVILEGES: ("no program can gain privileges", "set-user-id programs gain privileges"),
    Guarantee.CAPABILITIES: (
        "no capability and no kernel setting, even for root",
        "has the capabilities of the agent's account",
    ),
    Guarantee.PROCESSES: (
        "number of processes is limited",
        "number of processes is not limited: no control group, and root is exempt from the other limit",
    ),
    Guarantee.ADDRESS_SPACE: ("address space can be limited", "address space is not limited"),
    Guarantee.MEMORY: (
        "memory of everything together is limited",
        "memory of everything together is not limited: no control group",
    ),
}
"""What is said of each guarantee when it is held, and when it is not."""


def judge(facts: Mapping[str, Any], expected: Expected) -> tuple[Verdict, ...]:
    """One verdict per guarantee, in the order of their definition."""
    own = {
        name: bool(found) and found != expected.namespaces.get(name)
        for name, found in facts["namespaces"].items()
    }
    leaked = _leaked(facts["environment"], expected.environment)
    missing = [name for name in OFFLINE if facts["environment"].get(name) != OFFLINE[name]]
    limits = facts["limits"]
    held = {
        Guarantee.NETWORK: own["net"] and facts["interfaces"] == ["lo"],
        Guarantee.TMP: facts["writes_tmp"] and not facts["sees_canary"],
        Guarantee.INPUTS: facts["reads_input"] and facts["writes_output"] and not facts["writes_input"],
        Guarantee.HIDDEN: not facts["sees_run_dir"],
        Guarantee.ENVIRONMENT: not leaked,
        Guarantee.OFFLINE: not missing,
        Guarantee.FILE_SIZE: facts["file_limit_held"],
        Guarantee.TREE: own["pid"] or _in_unit(facts["cgroup"], expected.unit),
        Guarantee.NO_NEW_PRIVILEGES: facts["no_new_privileges"],
        Guarantee.CAPABILITIES: facts["capabilities"] == 0 and not facts["changes_kernel"],
        Guarantee.PROCESSES: facts["pids_max"].isdigit()
        or (facts["uid"] != 0 and limits["RLIMIT_NPROC"] != _UNLIMITED),
        Guarantee.ADDRESS_SPACE: limits["RLIMIT_AS"] != _UNLIMITED,
        Guarantee.MEMORY: facts["memory_max"].isdigit(),
    }
    named = {
        Guarantee.NETWORK: facts["interfaces"],
        Guarantee.ENVIRONMENT: leaked,
        Guarantee.OFFLINE: missing,
    }
    return tuple(_verdict(guarantee, held[guarantee], named.get(guarantee, [])) for guarantee in Guarantee)


def _verdict(guarantee: Guarantee, held: bool, named: list[str]) -> Verdict:
    yes, no = _WORDS[guarantee]
    if named:
        no = f"{no}: {' '.join(named[:_MAX_NAMED])}"
    return Verdict(guarantee=guarantee, held=held, detail=yes if held else no)


def _leaked(found: Mapping[str, str], given: Mapping[str, str]) -> list[str]:
    return sorted(name for name in found if name not in _HARMLESS and given.get(name) != found[name])


def _in_unit(cgroup: str, unit: str | None) -> bool:
    return unit is not None and any(
        re.search(rf"/{re.escape(unit)}(?:/|$)", line) for line in cgroup.splitlines()
    )
