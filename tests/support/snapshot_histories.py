"""Random histories of a receiver, and the comparison of one with the model."""

from __future__ import annotations

import base64
import hashlib
import json
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from snapshot_model import ModelReceiver

from ticket_agent.hive.reference import RefusalError
from ticket_agent.hive.reference.snapshot_receiver import SnapshotReceiver
from ticket_agent.protocol.snapshot import SnapshotBounds
from ticket_agent.protocol.snapshot_enrolment import SnapshotEnrolment, SnapshotPublisher

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator

EPOCH = 7
SOURCES = {"alpha": ["network", "systemd"], "beta": ["network"]}
LIMITS = {"max_bytes": 400, "max_entries": 2, "max_value_bytes": 8, "max_ttl_ms": 100}
ENROLMENT = SnapshotEnrolment(
    epoch=EPOCH,
    bounds=SnapshotBounds(**LIMITS),
    publishers=tuple(
        SnapshotPublisher(source_id=source, providers=tuple(providers))
        for source, providers in SOURCES.items()
    ),
)
PAIRS = [(provider, source) for source, providers in SOURCES.items() for provider in providers]
ZEROS = "0" * 64

MALFORMED = [
    "",
    " end",
    "end ",
    "END",
    "end\n",
    "\rend",
    "abort",
    "b64:",
    "B64:e30=",
    "b64:é",
    "b64:e30=\n",
    "begin",
    "begin ",
    f"begin bytes=0 sha256={ZEROS}",
    f"begin bytes=401 sha256={ZEROS}",
    f"begin bytes=+5 sha256={ZEROS}",
    f"begin bytes=5 bytes=5 sha256={ZEROS}",
    f"begin bytes=5 sha256={ZEROS} x=1",
    f"begin bytes=5 sha256={'A' * 64}",
    f"begin bytes=5 sha256={ZEROS[1:]}",
    f"Begin bytes=5 sha256={ZEROS}",
    "begin bytes=5",
]


@dataclass(frozen=True, slots=True)
class Sent:
    """A record as it is transferred."""

    data: bytes
    begin: str
    text: str


def _sent(data: bytes) -> Sent:
    digest = hashlib.sha256(data).hexdigest()
    return Sent(data, f"begin bytes={len(data)} sha256={digest}", base64.b64encode(data).decode())


def _variants(provider: str, source: str, sequence: int) -> list[Sent]:
    """Records under one sequence; the first ones are good, each later one breaks a rule."""

    def made(**changes: object) -> bytes:
        record = {
            "schema": "cohesix-host-snapshot/v1",
            "provider": provider,
            "source_id": source,
            "epoch": EPOCH,
            "sequence": sequence,
            "observed_unix_ms": 10 + sequence,
            "ttl_ms": 60,
            "available": "reason" not in changes,
            "reason": None,
            "entries": [],
        }
        return json.dumps(record | changes, ensure_ascii=False, separators=(",", ":")).encode()

    entry = {"path": "a/b", "value": "\u2028é"}
    good = [
        made(),
        made(ttl_ms=100, entries=[entry]),
        made(ttl_ms=5),
        made(reason="timed_out"),
        made(reason="source_failed", ttl_ms=30),
    ]
    other = "systemd" if provider == "network" else "network"
    bad = [
        made(observed_unix_ms=9),
        made(ttl_ms=101),
        made(epoch=EPOCH + 1),
        made(source_id="gamma"),
        made(entries=[entry, entry]),
        made(provider=other),
        made() + b" ",
        made(reason="timed_out", entries=[entry]),
        made(sequence=0),
        b"{}",
    ]
    return [_sent(data) for data in good + bad]


SEQUENCES = range(1, 9)
GOOD = 5
POOL = {(pair, sequence): _variants(*pair, sequence) for pair in PAIRS for sequence in SEQUENCES}

Step = tuple[int, tuple[str, str] | None, str]
"""Moment, pair or None for a mere look, payload."""


@dataclass
class Story:
    """The making of one history.

    Attributes:
        draw: source of all chance.
        now: the receiver's clock.
        sequence: highest sequence that was sent, by pair.
        last: what was sent last, by pair.
    """

    draw: random.Random
    now: int = 1000
    sequence: dict[tuple[str, str], int] = field(default_factory=dict)
    last: dict[tuple[str, str], Sent] = field(default_factory=dict)

    def steps(self) -> Iterator[Step]:
        # Most histories stay with one pair: only then does something happen to it.
        pairs = [self.draw.choice(PAIRS)] * 4 + PAIRS
        for _ in range(self.draw.randint(3, 6)):
            pair = self.draw.choice(pairs)
            kind = self.draw.random()
            if kind < 0.45:
                yield from self._transfer(pair, self._next(pair))
            elif kind < 0.65:
                yield from self._transfer(pair, self.last.get(pair) or self._next(pair))
            elif kind < 0.80:
                yield self._look()
            elif kind < 0.90:
                yield self._at(pair, self.draw.choice(MALFORMED))
            else:
                yield self._loose(pair)

    def _next(self, pair: tuple[str, str]) -> Sent:
        ahead = self.draw.choice((0, 1, 1, 1, 2, -1))
        sequence = min(max(self.sequence.get(pair, 0) + ahead, 1), SEQUENCES[-1])
        variants = POOL[pair, sequence]
        sent = self.draw.choice(variants[:GOOD] if self.draw.random() < 0.8 else variants[GOOD:])
        self.sequence[pair] = max(sequence, self.sequence.get(pair, 0))
        self.last[pair] = sent
        return sent

    def _transfer(self, pair: tuple[str, str], sent: Sent) -> Iterator[Step]:
        yield self._at(pair, sent.begin)
        cut = self.draw.randint(1, len(sent.text) - 1)
        pieces = [sent.text] if self.draw.random() < 0.5 else [sent.text[:cut], sent.text[cut:]]
        flaw = self.draw.random()
        if flaw < 0.04:
            pieces.pop()
        elif flaw < 0.08:
            pieces.append("A")
        for piece in pieces:
            self._pause()
            yield self._at(pair, f"b64:{piece}")
        if flaw > 0.94:
            yield self._at(pair, self.draw.choice(MALFORMED))
        if flaw > 0.96:
            yield self._at(self.draw.choice(PAIRS), "end")
        self._pause()
        yield self._at(pair, "end")
        if 0.08 < flaw < 0.12:
            yield self._at(pair, "end")

    def _loose(self, pair: tuple[str, str]) -> Step:
        sent = self._next(pair)
        payload = self.draw.choice((sent.begin, f"b64:{sent.text}", "end"))
        return self._at(pair if self.draw.random() < 0.9 else ("network", "gamma"), payload)

    def _look(self) -> Step:
        chance = self.draw.random()
        if chance < 0.25:
            self.now -= self.draw.choice((1, 3, 50))
        elif chance < 0.5:
            # Straight to a moment at which something may just lapse.
            self.now += self.draw.choice((4, 5, 29, 30, 59, 60, 99, 100))
        else:
            self.now += self.draw.randint(0, 120)
        return self.now, None, ""

    def _pause(self) -> None:
        chance = self.draw.random()
        if chance < 0.12:
            self.now += self.draw.choice((1, 5, 29, 60, 99, 100))
        elif chance > 0.985:
            self.now -= self.draw.randint(1, 40)

    def _at(self, pair: tuple[str, str], payload: str) -> Step:
        return self.now, pair, payload


def divergence(steps: list[Step], events: Counter[str]) -> str | None:
    """Play a history to both receivers; say where they differ first. What happened is counted."""
    model = ModelReceiver(SOURCES, EPOCH, LIMITS)
    real = SnapshotReceiver(ENROLMENT)
    try:
        for number, (now, pair, payload) in enumerate(steps):
            model.poll(now)
            real.poll(now)
            if pair is not None:
                expected, answer = model.write(*pair, payload, now), _answer(real, pair, payload, now)
                if answer != expected:
                    return f"step {number} {payload[:40]!r} at {now}: {answer}, not {expected}"
            for one in PAIRS:
                expected_view = model.shows(*one)
                view = (real.snapshot(*one).encode(), real.status(*one))
                if view != expected_view:
                    return f"step {number} {payload[:40]!r} at {now}: {one} {view}, not {expected_view}"
    finally:
        events.update(model.events)
    return None


def _answer(real: SnapshotReceiver, pair: tuple[str, str], payload: str, now: int) -> str:
    try:
        real.write(*pair, payload, now)
    except RefusalError as refusal:
        return refusal.detail
    return "ok"


def first_divergence(seed: int, histories: int, events: Counter[str]) -> str | None:
    """Play so many random histories; say where the first one of them diverges."""
    draw = random.Random(seed)
    for number in range(histories):
        found = divergence(list(Story(draw).steps()), events)
        if found is not None:
            return f"history {number} of seed {seed}: {found}"
    return None
