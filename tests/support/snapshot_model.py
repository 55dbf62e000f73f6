"""A second receiver of host snapshots, written from the rules alone; it shares no code with the real one.

It is a dictionary and a few long functions on purpose, so that rules can be read off it one by one.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections import Counter
from functools import lru_cache
from typing import Any

ORDER = [
    "schema",
    "provider",
    "source_id",
    "epoch",
    "sequence",
    "observed_unix_ms",
    "ttl_ms",
    "available",
    "reason",
    "entries",
]
REASONS = {"not_supported", "not_enabled", "source_failed", "timed_out"}
PART = re.compile(r"[A-Za-z0-9._][A-Za-z0-9._-]{0,127}")
U64 = 2**64


class NotTakenError(Exception):
    """Refused."""


class ModelReceiver:
    """What a receiver has to do, told once more.

    Args:
        sources: source -> providers enrolled for it.
        epoch: writer epoch.
        limits: max_bytes, max_entries, max_value_bytes, max_ttl_ms.
    """

    def __init__(self, sources: dict[str, list[str]], epoch: int, limits: dict[str, int]) -> None:
        self.sources = sources
        self.epoch = epoch
        self.limits = limits
        self._bounds = (
            limits["max_bytes"],
            limits["max_entries"],
            limits["max_value_bytes"],
            limits["max_ttl_ms"],
        )
        self.events: Counter[str] = Counter()
        self.table: dict[tuple[str, str], dict[str, Any]] = {}
        for source, providers in sources.items():
            for provider in providers:
                self.table[provider, source] = {
                    "upload": None,
                    "clock": 0,
                    "last": None,
                    "shown": None,
                    "until": None,
                    "body": b"",
                    "line": f"{_head(source, provider, False)} sequence=0 reason=unobserved",
                }

    def poll(self, now: int) -> None:
        for (provider, source), pair in self.table.items():
            if pair["upload"] is not None and now >= pair["upload"]["deadline"]:
                pair["upload"] = None
                self.events["upload lapsed"] += 1
            if now < pair["clock"]:
                pair["upload"] = None
                pair["shown"] = pair["until"] = None
                if pair["last"] is not None:
                    self._withdrawn(provider, source, "clock_regressed")
                continue
            pair["clock"] = now
            if pair["shown"] is not None and pair["until"] is not None and now >= pair["until"]:
                pair["shown"] = pair["until"] = None
                self._withdrawn(provider, source, "expired")

    def write(self, provider: str, source: str, payload: str, now: int) -> str:
        pair = self.table.get((provider, source))
        if pair is None:
            return "invalid-path"
        try:
            self._command(provider, source, pair, payload, now)
        except NotTakenError:
            return "invalid-payload"
        return "ok"

    def shows(self, provider: str, source: str) -> tuple[bytes, str]:
        pair = self.table[provider, source]
        return pair["body"], pair["line"]

    def _command(self, provider: str, source: str, pair: dict[str, Any], payload: str, now: int) -> None:
        upload = pair["upload"]
        if payload.startswith("begin "):
            size, digest = _announced(payload[6:])
            if not 1 <= size <= self.limits["max_bytes"]:
                raise NotTakenError
            deadline = now + self.limits["max_ttl_ms"]
            pair["upload"] = {"size": size, "digest": digest, "text": "", "at": now, "deadline": deadline}
        elif payload.startswith("b64:") and "\n" not in payload and "\r" not in payload:
            piece = payload[4:]
            if upload is None or now >= upload["deadline"] or not piece:
                raise NotTakenError
            if len((upload["text"] + piece).encode()) > -(-upload["size"] // 3) * 4:
                raise NotTakenError
            upload["text"] += piece
        elif payload == "end":
            pair["upload"] = None
            if upload is None or now >= upload["deadline"]:
                raise NotTakenError
            self._apply(provider, source, upload, now)
        else:
            raise NotTakenError

    def _apply(self, provider: str, source: str, upload: dict[str, Any], now: int) -> None:
        pair, data, began = self.table[provider, source], _body(upload), upload["at"]
        if now < pair["clock"] or began > now:
            self.events["refused by the clock"] += 1
            raise NotTakenError
        record = _record(data, source, tuple(self.sources[source]), self.epoch, self._bounds)
        digest = hashlib.sha256(data).hexdigest()
        last = pair["last"]
        if record["provider"] != provider:
            self.events["of another provider"] += 1
            raise NotTakenError
        if last is not None:
            if record["observed_unix_ms"] < last["observed"]:
                self.events["observed earlier"] += 1
                raise NotTakenError
            if (record["sequence"], digest) == (last["sequence"], last["digest"]):
                self.events["duplicate"] += 1
                self.poll(now)
                if pair["shown"] is None:
                    self.events["duplicate of nothing visible"] += 1
                    self._withdrawn(provider, source, "expired")
                else:
                    pair["line"] = _visible_line(pair["shown"], digest)
                return
            if record["sequence"] <= last["sequence"]:
                self.events["replayed"] += 1
                raise NotTakenError
        if now >= began + record["ttl_ms"]:
            self.events["too late"] += 1
            raise NotTakenError
        self.events["applied" if record["available"] else "withdrawal applied"] += 1
        pair["last"] = {
            "sequence": record["sequence"],
            "observed": record["observed_unix_ms"],
            "digest": digest,
        }
        pair["clock"] = now
        pair["until"] = began + record["ttl_ms"] if record["available"] else None
        pair["shown"] = record
        pair["body"] = data
        pair["line"] = _visible_line(record, digest)

    def _withdrawn(self, provider: str, source: str, reason: str) -> None:
        self.events[reason] += 1
        pair = self.table[provider, source]
        pair["body"] = b""
        pair["line"] = f"{_head(source, provider, False)} sequence={pair['last']['sequence']} reason={reason}"


def _head(source: str, provider: str, available: bool) -> str:
    state = "available" if available else "unavailable"
    return f"schema=host-snapshot-status/v1 state={state} source={source} provider={provider}"


def _visible_line(record: dict[str, Any], digest: str) -> str:
    head = _head(record["source_id"], record["provider"], record["available"])
    numbers = " ".join(
        f"{name}={record[name]}" for name in ("epoch", "sequence", "observed_unix_ms", "ttl_ms")
    )
    return f"{head} {numbers} sha256={digest}"


def _announced(rest: str) -> tuple[int, str]:
    words = rest.split()
    pairs = dict(word.split("=", 1) for word in words if "=" in word)
    if len(words) != 2 or set(pairs) != {"bytes", "sha256"} or "\n" in rest or "\r" in rest:
        raise NotTakenError
    if not re.fullmatch("[0-9]+", pairs["bytes"]) or not re.fullmatch("[0-9a-f]{64}", pairs["sha256"]):
        raise NotTakenError
    return int(pairs["bytes"]), pairs["sha256"]


def _body(upload: dict[str, Any]) -> bytes:
    try:
        data = binascii.a2b_base64(upload["text"].encode("ascii"), strict_mode=True)
    except (ValueError, UnicodeError):
        raise NotTakenError from None
    if base64.standard_b64encode(data).decode() != upload["text"]:
        raise NotTakenError
    if len(data) != upload["size"] or hashlib.sha256(data).hexdigest() != upload["digest"]:
        raise NotTakenError
    return data


@lru_cache(maxsize=4096)
def _record(
    data: bytes,
    source: str,
    providers: tuple[str, ...],
    epoch: int,
    limits: tuple[int, int, int, int],
) -> dict[str, Any]:
    max_bytes, max_entries, max_value, max_ttl = limits
    try:
        record: Any = json.loads(data.decode("utf-8"))
    except ValueError:
        raise NotTakenError from None
    if not isinstance(record, dict) or list(record) != ORDER or len(data) > max_bytes:
        raise NotTakenError
    numbers = [record[name] for name in ("epoch", "sequence", "observed_unix_ms", "ttl_ms")]
    if any(type(number) is not int or not 0 < number < U64 for number in numbers):
        raise NotTakenError
    if record["schema"] != "cohesix-host-snapshot/v1" or record["epoch"] != epoch:
        raise NotTakenError
    if record["source_id"] != source or record["provider"] not in providers or record["ttl_ms"] > max_ttl:
        raise NotTakenError
    reason, entries = record["reason"], record["entries"]
    if record["available"] is not (reason is None) or (reason is not None and reason not in REASONS):
        raise NotTakenError
    if len(entries) > max_entries or (entries and reason is not None):
        raise NotTakenError
    paths = [entry["path"].encode() for entry in entries if list(entry) == ["path", "value"]]
    if len(paths) != len(entries) or sorted(set(paths)) != paths:
        raise NotTakenError
    for entry in entries:
        parts = entry["path"].split("/")
        good = all(PART.fullmatch(part) and ".." not in part and part != "." for part in parts)
        value = entry["value"]
        if not good or len(parts) > 6 or len(value.encode()) > max_value or "\0" in value:
            raise NotTakenError
    if json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode() != data:
        raise NotTakenError
    return dict(record)
