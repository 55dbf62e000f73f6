"""The packages, the interpreter and the device of this process, against the profile's pins."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Final

from ticket_agent.peft.release.native.libraries import library
from ticket_agent.peft.release.native.native_errors import EnvironmentMismatchError

if TYPE_CHECKING:
    from ticket_agent.peft.release.profile import Profile

__all__ = ["check_pins", "differing_pins", "installed_version"]

_SHOWN: Final = 8


def installed_version(package: str) -> str | None:
    """The version of an installed package, or None; nothing is imported."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def differing_pins(profile: Profile) -> list[str]:
    """What differs between this process and the profile, one line each; empty when nothing does."""
    platform = profile.stack.platform
    found = [("python", f"{sys.version_info[0]}.{sys.version_info[1]}", platform.python)]
    found += [(name, installed_version(name) or "not installed", pin) for name, pin in profile.versions]
    differing = [f"{name} is {has}, pinned {pin}" for name, has, pin in found if has != pin]
    if platform.cuda is not None and (has := library("torch").version.cuda) != platform.cuda:
        differing.append(f"cuda is {has}, pinned {platform.cuda}")
    return differing


def check_pins(profile: Profile) -> None:
    """Refuse to compute with anything else than what the profile pins.

    Raises:
        EnvironmentMismatchError: with what differs; all of it, as far as it fits a line.
    """
    differing = differing_pins(profile)
    if differing:
        more = f"; and {len(differing) - _SHOWN} more" if len(differing) > _SHOWN else ""
        raise EnvironmentMismatchError(
            f"the installed stack is not the profile's: {'; '.join(differing[:_SHOWN])}{more}"
        )
