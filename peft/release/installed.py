"""What is installed in the interpreter that trains and serves, asked of that interpreter itself.

Nothing heavy is imported there either: versions come from the packages' metadata.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from ticket_agent.peft.errors import PeftError
from ticket_agent.peft.names import shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from ticket_agent.peft.release.profile import Profile

__all__ = ["AGENT", "Installed", "InterpreterError", "ask_interpreter", "differing_versions"]

AGENT: Final = "ticket-agent"
"""The distribution that must be installed there too: native phases are part of it."""

_ANSWER_S: Final = 60.0
_MAX_ANSWER: Final = 64 * 1024
_ENVIRONMENT: Final = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
_QUESTION: Final = """
import importlib.metadata, importlib.util, json, runpy, sys
def version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
def cuda():
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return None
    return runpy.run_path(spec.submodule_search_locations[0] + "/version.py").get("cuda")
print(json.dumps({
    "python": "%d.%d" % sys.version_info[:2],
    "cuda": cuda(),
    "versions": {name: version(name) for name in sys.argv[1:]},
}))
"""


class InterpreterError(PeftError):
    """The interpreter that the configuration names cannot be asked, or lacks what a release needs."""

    code = "release-interpreter"


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """What an interpreter has.

    Attributes:
        python: its version, like ``3.11``.
        cuda: that torch was built for; None on a CPU.
        versions: the packages that were asked for; None for those that are not installed.
    """

    python: str
    cuda: str | None
    versions: Mapping[str, str | None]

    def require(self, packages: Iterable[str], python: Path) -> tuple[tuple[str, str], ...]:
        """The versions of these packages, all of which must be installed, and the agent with them.

        Raises:
            InterpreterError: one is missing; the line says how to install it.
        """
        wanted = sorted(packages)
        missing = [name for name in (*wanted, AGENT) if self.versions.get(name) is None]
        if missing:
            raise InterpreterError(
                f"{python} has no {', '.join(missing)}; run: {python} -m pip install"
                " 'ticket-agent[train,release]', or name another interpreter"
            )
        return tuple((name, found) for name in wanted if (found := self.versions[name]) is not None)


def ask_interpreter(python: Path, packages: Iterable[str]) -> Installed:
    """Ask which versions of ``packages`` an interpreter has; takes about 0.1 s.

    Raises:
        InterpreterError: it cannot be run, or answers something else.
    """
    asked = sorted({*packages, AGENT})
    try:
        done = subprocess.run(  # noqa: S603 - the operator's configuration names it
            [str(python), "-I", "-c", _QUESTION, *asked],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_ANSWER_S,
            check=False,
            env=_ENVIRONMENT,
            cwd="/",
        )
    except OSError as error:
        raise InterpreterError(f"cannot run {python}: {error.strerror or error}") from None
    except subprocess.TimeoutExpired:
        raise InterpreterError(f"{python} does not answer within {_ANSWER_S:.0f} s") from None
    try:
        return _installed(json.loads(done.stdout[:_MAX_ANSWER] if done.returncode == 0 else b""), asked)
    except (ValueError, KeyError, TypeError):
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        said = f": {shown(lines[-1], 160)}" if lines else ""
        raise InterpreterError(
            f"{python} does not answer like an interpreter of Python 3.11 or newer{said}"
        ) from None


def _installed(answer: dict[str, object], asked: list[str]) -> Installed:
    python, cuda, versions = answer["python"], answer["cuda"], answer["versions"]
    if not isinstance(python, str) or not isinstance(cuda, str | None) or not isinstance(versions, dict):
        raise TypeError
    found = {name: versions[name] for name in asked}
    if not all(isinstance(version, str | None) for version in found.values()):
        raise TypeError
    return Installed(python=python, cuda=cuda, versions=MappingProxyType(found))


def differing_versions(profile: Profile, installed: Installed) -> tuple[str, ...]:
    """What differs between an interpreter and a profile's pins, one line each; empty when nothing does."""
    platform = profile.stack.platform
    found = [("python", installed.python, platform.python)]
    found += [(name, installed.versions.get(name) or "not installed", pin) for name, pin in profile.versions]
    if platform.cuda is not None:
        found.append(("cuda", installed.cuda or "none", platform.cuda))
    return tuple(f"{name} is {has}, pinned {pin}" for name, has, pin in found if has != pin)
