"""What a confinement holds, judged by what a probe saw inside it and not by what was asked for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from ticket_agent.peft.release.phase_command import OFFLINE

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


def judge(facts: Mapping[str, Any], expected: Expected) -> tuple[Verdict, ...]:
    """One verdict per guarantee, in the order of their definition."""
    environment, namespaces = facts["environment"], facts["namespaces"]
    lines = facts["cgroup"].splitlines()
    in_unit = expected.unit is not None and any(
        re.search(rf"/{re.escape(expected.unit)}(?:/|$)", line) for line in lines
    )
    own = {name: bool(found) and found != expected.namespaces.get(name) for name, found in namespaces.items()}
    leaked = sorted(
        name
        for name, value in environment.items()
        if name not in _HARMLESS and expected.environment.get(name) != value
    )
    missing = sorted(name for name in OFFLINE if environment.get(name) != OFFLINE[name])
    capped = _finite(facts["pids_max"]) or (
        facts["uid"] != 0 and facts["limits"]["RLIMIT_NPROC"] != _UNLIMITED
    )
    found: dict[Guarantee, tuple[bool, str, str]] = {
        Guarantee.NETWORK: (
            own["net"] and facts["interfaces"] == ["lo"],
            "a network of its own with nothing but loopback",
            "reaches the host's network: " + (" ".join(facts["interfaces"]) or "unknown interfaces"),
        ),
        Guarantee.TMP: (
            facts["writes_tmp"] and not facts["sees_canary"],
            "a private /tmp",
            "sees the host's /tmp" if facts["sees_canary"] else "has no /tmp to write to",
        ),
        Guarantee.INPUTS: (
            facts["reads_input"] and facts["writes_output"] and not facts["writes_input"],
            "inputs can be read and not changed",
            "can change its inputs" if facts["writes_input"] else "cannot use the paths that it was given",
        ),
        Guarantee.HIDDEN: (
            not facts["sees_run_dir"],
            "the agent's records of the phase are out of reach",
            "can reach the agent's own files",
        ),
        Guarantee.ENVIRONMENT: (
            not leaked,
            "no variable but those that were given",
            "gets other variables: " + " ".join(leaked[:8]),
        ),
        Guarantee.OFFLINE: (
            not missing,
            "model libraries are told to stay offline before they are loaded",
            "not told to stay offline by " + " ".join(missing),
        ),
        Guarantee.FILE_SIZE: (facts["file_limit_held"], "file size is limited", "file size is not limited"),
        Guarantee.TREE: (
            own["pid"] or in_unit,
            "everything that it starts ends with it",
            "what detaches itself is only looked for when its supervisor is killed",
        ),
        Guarantee.NO_NEW_PRIVILEGES: (
            facts["no_new_privileges"],
            "no program can gain privileges",
            "set-user-id programs gain privileges",
        ),
        Guarantee.CAPABILITIES: (
            facts["capabilities"] == 0,
            "no capability, root or not",
            "has the capabilities of the agent's account",
        ),
        Guarantee.PROCESSES: (
            capped,
            "number of processes is limited",
            "number of processes is not limited: no control group, and root is exempt from the other limit",
        ),
        Guarantee.ADDRESS_SPACE: (
            facts["limits"]["RLIMIT_AS"] != _UNLIMITED,
            "address space can be limited",
            "address space is not limited",
        ),
        Guarantee.MEMORY: (
            _finite(facts["memory_max"]),
            "memory of everything together is limited",
            "memory of everything together is not limited: no control group",
        ),
    }
    return tuple(
        Verdict(guarantee=guarantee, held=held, detail=yes if held else no)
        for guarantee, (held, yes, no) in found.items()
    )


def _finite(control: str) -> bool:
    return control.isdigit()
