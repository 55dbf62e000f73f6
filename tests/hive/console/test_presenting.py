from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from capability_support import ISSUED_MS, lab_ticket

from ticket_agent.hive.console.presenting import Credentials, read_credentials
from ticket_agent.hive.credentials import PLACEHOLDERS, CredentialError, Secret
from ticket_agent.protocol.capability import Role

if TYPE_CHECKING:
    from pathlib import Path

TOKEN = "tok-4711"


def read(**changes: Any) -> Credentials:
    return read_credentials(
        **{
            "token": "env:TOKEN",
            "ticket": None,
            "role": "queen",
            "host": "127.0.0.1",
            "allow_placeholder": False,
            "env": {"TOKEN": TOKEN},
            "now_ms": ISSUED_MS,
            **changes,
        }
    )


def test_a_rotated_file_counts_at_the_next_connect(tmp_path: Path) -> None:
    path = tmp_path / "token"
    for value in ("first", "second"):
        path.write_text(value)
        assert read(token=f"file:{path}") == Credentials(token=Secret(value), ticket=None)


@pytest.mark.parametrize("what", ["token", "ticket"])
@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("localhost", True),
        ("10.0.0.5", False),
        ("hive.example", False),
        ("localhost.example", False),
        ("0.0.0.0", False),
    ],
)
def test_a_secret_itself_is_taken_for_a_console_of_this_host_only(
    what: str, host: str, allowed: bool
) -> None:
    literal = TOKEN if what == "token" else lab_ticket()
    if allowed:
        assert getattr(read(host=host, **{what: literal}), what) == Secret(literal)
        return
    with pytest.raises(CredentialError, match=f"the {what} .* must be a reference") as caught:
        read(host=host, **{what: literal})
    assert literal not in str(caught.value)
    assert getattr(read(host=host, env={"TOKEN": TOKEN, "X": literal}, **{what: "env:X"}), what) == Secret(
        literal
    )


@pytest.mark.parametrize("word", sorted(PLACEHOLDERS))
def test_placeholders_are_refused_whatever_their_source(word: str, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(word.upper())
    for changes in ({"token": word}, {"token": "env:P", "env": {"P": word}}, {"token": f"file:{path}"}):
        with pytest.raises(CredentialError, match="well-known placeholder"):
            read(**changes)
    assert read(token=word, allow_placeholder=True).token == Secret(word)


@pytest.mark.parametrize(
    ("ticket", "role", "now_ms", "words"),
    [
        (lab_ticket(), "queen", ISSUED_MS, None),
        (lab_ticket(ttl_s=1), "queen", ISSUED_MS + 999, None),
        (lab_ticket(role=Role.HEARTBEAT, subject="w"), "worker", ISSUED_MS, None),
        (lab_ticket(ttl_s=1), "queen", ISSUED_MS + 1000, "expired"),
        (lab_ticket(), "worker-gpu", ISSUED_MS, "for role queen, not for worker-gpu"),
        (lab_ticket()[:-1], "queen", ISSUED_MS, "no ticket"),
        ("x" * 225, "queen", ISSUED_MS, "longer than 224"),
    ],
)
def test_a_ticket_is_judged_before_it_is_presented(
    ticket: str, role: str, now_ms: int, words: str | None
) -> None:
    how = {"ticket": "env:T", "env": {"TOKEN": TOKEN, "T": ticket}, "role": role, "now_ms": now_ms}
    if words is None:
        assert read(**how).ticket == Secret(ticket)
        return
    with pytest.raises(CredentialError, match=words) as caught:
        read(**how)
    assert ticket not in str(caught.value)
