"""Faults of console and gateway, settable while they run: lost answers, late ones, wrong ones."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Fault", "FaultKind", "FaultSyntaxError", "Faults", "parse_fault"]


class FaultKind(StrEnum):
    """What happens to a matching command."""

    DROP_BEFORE = "drop-before"
    """The connection is closed; the command is not applied."""
    DROP_AFTER = "drop-after"
    """The command is applied, its answer never sent, the connection closed."""
    DELAY = "delay"
    """The command waits, is then applied (even if its client left meanwhile) and answered."""
    DELAY_ANSWER = "delay-answer"
    """The command is applied at once, its answer waits."""
    ERR = "err"
    """The command is refused with a given line instead of being applied."""
    SILENT = "silent"
    """The command is applied and never answered; the connection stays open."""
    SWALLOW = "swallow"
    """The command is neither applied nor answered; the connection stays open."""
    GARBAGE = "garbage"
    """The command is applied and answered with a line that breaks the protocol."""
    STATUS_BEFORE = "status-before"
    """At a gateway: not applied, and answered with the HTTP status in the text, 503 unless given."""
    STATUS_AFTER = "status-after"
    """At a gateway: applied, and answered with the HTTP status in the text, 504 unless given."""
    HUGE = "huge"
    """At a gateway: applied, and answered with a body without end."""


_DEFAULT_TEXT: Final = {
    FaultKind.ERR: "ERR {verb} reason=busy detail=busy path={path} error=busy",
    FaultKind.GARBAGE: "OK LS path=/elsewhere entries=1",
    FaultKind.STATUS_BEFORE: "503",
    FaultKind.STATUS_AFTER: "504",
}


class FaultSyntaxError(ValueError):
    """The text form of a fault cannot be read."""

    code = "fault-syntax"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One rule.

    Attributes:
        kind: what happens.
        prefix: matches paths that begin with it; empty matches commands without a path too.
        verb: matches this verb only, upper case; None matches all.
        predicate: matches only when it returns true for the payload.
        nth: strikes at the nth match alone, counted from 1.
        every: strikes at every k-th match. Without ``nth`` and ``every`` it strikes at each.
        seconds: how long a delay lasts.
        event: a delay ends when it is set; ``seconds`` is then the longest it may last.
        text: line of ERR and GARBAGE; ``{verb}`` and ``{path}`` are filled in.
    """

    kind: FaultKind
    prefix: str = ""
    verb: str | None = None
    predicate: Callable[[str], bool] | None = None
    nth: int | None = None
    every: int | None = None
    seconds: float = 1.0
    event: threading.Event | None = field(default=None, repr=False)
    text: str | None = None

    def matches(self, verb: str, path: str, line: str) -> bool:
        """Whether a command is one of this rule's."""
        if self.verb is not None and verb != self.verb:
            return False
        return path.startswith(self.prefix) and (self.predicate is None or self.predicate(line))

    def strikes(self, match: int) -> bool:
        """Whether the rule strikes at its match with this number, counted from 1."""
        if self.nth is not None:
            return match == self.nth
        return self.every is None or match % self.every == 0

    def line(self, verb: str, path: str) -> str:
        """Return the text to send instead of the true answer."""
        template = self.text if self.text is not None else _DEFAULT_TEXT.get(self.kind, "")
        return template.replace("{verb}", verb).replace("{path}", path)


class Faults:
    """The rules of one console or gateway, in order; the first that strikes decides. Safe for any thread."""

    def __init__(self, *rules: Fault) -> None:
        self._lock = threading.Lock()
        self._rules = list(rules)
        self._matches: Counter[int] = Counter()
        self._struck: Counter[FaultKind] = Counter()
        self._listeners: list[Callable[[str, str], None]] = []

    def add(self, rule: Fault) -> None:
        """Add a rule behind the others."""
        with self._lock:
            self._rules.append(rule)

    def clear(self) -> None:
        """Remove all rules; listeners stay."""
        with self._lock:
            self._rules.clear()
            self._matches.clear()

    def on_applied(self, listener: Callable[[str, str], None]) -> None:
        """Call ``listener(path, line)`` after each applied ECHO, before its answer is sent.

        It runs in the console's thread and must not wait for that console.
        """
        with self._lock:
            self._listeners.append(listener)

    def struck(self, kind: FaultKind) -> int:
        """How often a kind of fault has happened."""
        with self._lock:
            return self._struck[kind]

    def decide(self, verb: str, path: str, line: str) -> Fault | None:
        """Count a command against all rules and return the first one that strikes."""
        with self._lock:
            chosen: Fault | None = None
            for rule in self._rules:
                if not rule.matches(verb, path, line):
                    continue
                self._matches[id(rule)] += 1
                if chosen is None and rule.strikes(self._matches[id(rule)]):
                    chosen = rule
            if chosen is not None:
                self._struck[chosen.kind] += 1
            return chosen

    def applied(self, path: str, line: str) -> None:
        """Tell the listeners of an applied ECHO."""
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            listener(path, line)


def parse_fault(text: str) -> Fault:
    """Read ``<kind>[:<path prefix>[:<option>,…]]`` with options ``verb= nth= every= seconds= text=``.

    ``text=`` takes the rest of the line. Example: ``drop-after:/queen/lease/ctl:every=2``.

    Raises:
        FaultSyntaxError: one line that says what cannot be read.
    """
    kind, _, rest = text.partition(":")
    prefix, _, options = rest.partition(":")
    if kind not in set(FaultKind):
        raise FaultSyntaxError(f"unknown fault {kind!r}; use one of {', '.join(FaultKind)}")
    values = _options(options)
    verb = values.get("verb")
    return Fault(
        kind=FaultKind(kind),
        prefix=prefix,
        verb=None if verb is None else verb.upper(),
        nth=_count(values, "nth"),
        every=_count(values, "every"),
        seconds=_seconds(values.get("seconds", "1")),
        text=values.get("text"),
    )


def _options(text: str) -> dict[str, str]:
    values: dict[str, str] = {}
    rest = text
    while rest:
        name, found, _ = rest.partition("=")
        if not found or name not in {"verb", "nth", "every", "seconds", "text"}:
            raise FaultSyntaxError(
                f"unknown fault option {name!r}; use verb=, nth=, every=, seconds= or text="
            )
        if name == "text":
            values[name] = rest.partition("=")[2]
            break
        option, _, rest = rest.partition(",")
        values[name] = option.partition("=")[2]
    return values


def _count(values: dict[str, str], name: str) -> int | None:
    if name not in values:
        return None
    number = values[name]
    if not (number.isascii() and number.isdigit() and int(number[:9]) > 0):
        raise FaultSyntaxError(f"{name}={number} is not a whole number from 1 up")
    return int(number[:9])


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        raise FaultSyntaxError(f"seconds={text} is not a number") from None
    if not 0 <= seconds <= 3600:  # noqa: PLR2004 - an hour is longer than any test or demo
        raise FaultSyntaxError(f"seconds={text} is outside 0..3600")
    return seconds
