"""What `snapshots publish` tells: events for a service, lines or NDJSON for whoever waits for a result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ticket_agent.cli.output import emit_json, plain

if TYPE_CHECKING:
    from ticket_agent.agent.events import EventLog
    from ticket_agent.snapshots.publisher import Publication

__all__ = ["OnceNotes", "WatchNotes", "publication_members", "words_of"]

PUBLICATION_SCHEMA = "cohesix-snapshot-publication/v1"
_QUIET = (None, "not_supported", "not_enabled")
"""What is so because the host is as it is."""


def publication_members(publication: Publication) -> dict[str, Any]:
    """A publication for programs: what the protocol's own tools print, and what it cost."""
    return {
        "publication_schema": PUBLICATION_SCHEMA,
        "proof_class": "read_only",
        "authoritative": False,
        "publication": {
            "provider": publication.provider,
            "sequence": publication.sequence,
            "available": publication.reason is None,
            "reason": publication.reason,
            "sha256": publication.sha256,
        },
        "detail": publication.detail or None,
        "entries": publication.entries,
        "bytes": publication.size,
        "ttl_ms": publication.ttl_ms,
        "visible_ms": publication.visible_ms,
    }


def words_of(publication: Publication) -> str:
    """A publication for people, in one line."""
    what = (
        f"{publication.entries} entries, {publication.size} bytes"
        if publication.reason is None
        else f"unavailable, {publication.reason}"
    )
    detail = f" ({plain(publication.detail)})" if publication.detail else ""
    return (
        f"{publication.provider}: sequence {publication.sequence}, {what}{detail};"
        f" visible after {publication.visible_ms} ms"
    )


class WatchNotes:
    """Says what changes: a service that works says little.

    Args:
        events: the log.
        as_json: also print every publication as one JSON line.
    """

    def __init__(self, events: EventLog, *, as_json: bool) -> None:
        self._events = events
        self._as_json = as_json

    def published(self, publication: Publication) -> None:
        """A record is visible."""
        if self._as_json:
            emit_json("snapshots-publication", publication_members(publication))
        provider = publication.provider
        self._events.settled("snapshot-failed", provider)
        self._events.settled("snapshots-held", "hive")
        state = "available" if publication.reason is None else f"{publication.reason}: {publication.detail}"
        self._events.once(
            "info" if publication.reason in _QUIET else "warning",
            "snapshot-published",
            provider,
            state,
            provider=provider,
            sequence=publication.sequence,
        )

    def failed(self, provider: str, error: Exception, retry_s: float) -> None:
        """A provider could not be published."""
        self._events.once(
            "error",
            "snapshot-failed",
            provider,
            str(error),
            provider=provider,
            code=str(getattr(error, "code", "error")),
            retry_s=round(retry_s),
        )

    def held(self, error: Exception, retry_s: float) -> None:
        """Nothing can be published for a while."""
        self._events.once(
            "error",
            "snapshots-held",
            "hive",
            str(error),
            code=str(getattr(error, "code", "error")),
            retry_s=round(retry_s),
        )


class OnceNotes:
    """Tells each provider's end at once, and remembers how all of them ended.

    Attributes:
        ended: by provider, None or the error.
        stopped: what stopped everything, if something did.
    """

    def __init__(self, *, as_json: bool) -> None:
        self.ended: dict[str, Exception | None] = {}
        self.stopped: Exception | None = None
        self._as_json = as_json

    def published(self, publication: Publication) -> None:
        """A record is visible."""
        self.ended[publication.provider] = None
        if self._as_json:
            emit_json("snapshots-publication", publication_members(publication))
        else:
            click.echo(words_of(publication))

    def failed(self, provider: str, error: Exception, retry_s: float) -> None:  # noqa: ARG002 - tried once
        """A provider could not be published."""
        self.ended[provider] = error
        if self._as_json:
            code = str(getattr(error, "code", "error"))
            emit_json("snapshots-failure", {"provider": provider, "code": code, "why": str(error)})
        else:
            why = plain(str(error)).removeprefix(f"{provider}: ")
            click.echo(f"{provider}: not published: {why}")

    def held(self, error: Exception, retry_s: float) -> None:  # noqa: ARG002 - tried once
        """Nothing can be published."""
        self.stopped = self.stopped or error
