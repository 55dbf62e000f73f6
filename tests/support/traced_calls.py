"""System calls that strace wrote down, and what in one of them would leave an open directory."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

TRACER = ("strace", "-qq", "-s", "4096", "-e", "trace=%file,getdents64", "-o")

_CALL = re.compile(r"^(?P<call>\w+)\((?P<arguments>.*)\) += ")
_TEXT = re.compile(r'"((?:[^"\\]|\\.)*)"')
_KERNEL = re.compile(r"/proc/(locks|self/mountinfo|self/fdinfo/\d+|\d+/comm)")
_NO_LINK_AT_END = {"unlinkat", "mkdirat", "renameat", "renameat2", "rename", "linkat", "symlinkat"}
"""Calls that act on the entry itself, so that a link is never followed."""


@dataclass(frozen=True)
class Call:
    """One system call with its paths, as strace prints it."""

    name: str
    arguments: str

    @property
    def paths(self) -> list[str]:
        return _TEXT.findall(self.arguments)

    def fault(self) -> str | None:
        """What breaks the law in it, or None."""
        paths = self.paths
        if "AT_EMPTY_PATH" in self.arguments and paths == [""]:
            return None  # the descriptor itself
        if not paths or all(_KERNEL.fullmatch(path) for path in paths):
            return None
        if self.name == "openat" and paths == ["/"] and "O_PATH" in self.arguments:
            return None
        if "AT_FDCWD" in self.arguments or not self.name.endswith(("at", "at2")):
            return "a path from the working directory or from the top"
        if any("/" in path or path in ("", "..") for path in paths):
            return "more than one entry"
        follows = "NOFOLLOW" not in self.arguments and self.name not in _NO_LINK_AT_END
        return "a link would be followed" if follows and paths != ["."] else None


def traced_calls(trace: Path) -> list[Call]:
    """The calls between the two that a run marks its beginning and its end with."""
    text = trace.read_text(encoding="utf-8", errors="replace")
    lines = text.split('access("/begin"')[1].split('access("/end"')[0].splitlines()[1:]
    matches = [match for line in lines if (match := _CALL.match(line))]
    return [Call(match["call"], match["arguments"]) for match in matches]
