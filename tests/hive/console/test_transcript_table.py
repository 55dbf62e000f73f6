"""What our client concludes from every recording of a real console.

``pytest -s tests/hive/console/test_transcript_table.py`` prints the table.
"""

from __future__ import annotations

import pytest
from console_transcripts import TRANSCRIPTS, replayable
from transcript_replay import conclusions, replay

CONCLUSIONS = {
    "01_basic": (
        "attached as queen; done (12); refused: buffer-full; refused: invalid-path (2); refused: "
        "grammar ERR PARSE; orderly end"
    ),
    "02_no_attach": (
        "done; refused: other unauthenticated (4); attach refused (2); attach throttled (2); orderly end"
    ),
    "03_bad_token": ("end before OK AUTH: refused credential, busy console, or too late"),
    "04_bad_token_len": ("end before OK AUTH: refused credential, busy console, or too late"),
    "05_not_auth": ("end before OK AUTH: refused credential, busy console, or too late"),
    "05b_not_auth_samelen": ("end before OK AUTH: refused credential, busy console, or too late"),
    "06_big_preauth": ("end before OK AUTH: refused credential, busy console, or too late"),
    "07_auth_timeout": ("end before OK AUTH: refused credential, busy console, or too late"),
    "08_bounds": (
        "attached as queen; done (8); refused: grammar ERR PARSE (6); refused: other without a "
        "detail; refused: grammar ERR FRAME (2); refused: invalid-path (6)"
    ),
    "09_bigframe_after_auth": ("attached as queen; refused: grammar ERR FRAME"),
    "09b_oversize_declared": ("attached as queen; refused: grammar ERR FRAME"),
    "09c_len3": ("attached as queen; lost: the connection was closed by the console"),
    "10_fragment_pipeline": (
        "lossy pipelining: of 12 and 20 commands in one segment 8 and 8 were answered; with one in "
        "flight: done, then unasked line and close"
    ),
    "11_two_clients": (
        "second client: no byte (no-answer: another client holds the console), then silent-close; "
        "after a reset attached at try 2"
    ),
    "12_pipelined_handshake_reconnect": (
        "reconnected in 1 to 2 attempts; an AUTH 0.05 s after connect is answered by an end: end "
        "before OK AUTH: refused credential, busy console, or too late"
    ),
    "13_explore": ("attached as queen; done (30); refused: invalid-path (15)"),
    "14_host_nodes": ("attached as queen; done (14); refused: invalid-path"),
    "15_telemetry_ingest": ("attached as queen; done (9); refused: invalid-path (2)"),
    "16_worker_spawn": (
        "attached as queen; done (9); refused: invalid-path (2); refused: invalid-payload (2)"
    ),
    "17a_ticket_queen": ("attached as queen; done; orderly end"),
    "17b_ticket_worker": ("attached as worker-heartbeat; done (6); refused: denied (4); orderly end"),
    "17c_ticket_badmac": ("attach refused; refused: other unauthenticated; orderly end"),
    "17d_ticket_wrongrole": ("attach refused; refused: other unauthenticated; orderly end"),
    "17e_ticket_garbage": (
        "attach refused; refused: other unauthenticated; attach throttled (2); attached as queen; "
        "done; orderly end"
    ),
    "18_ring_and_segments": ("full segment: refused: buffer-full; 65 lines: refused: buffer-full"),
    "19_quirks": (
        "done (13); violation: a data line looks like an acknowledgement to CAT "
        "/queen/telemetry/q-1/seg/seg-000001; violation: an END came before the answer to ECHO "
        "/queen/telemetry/q-2/ctl; refused: buffer-full; refused: invalid-path; violation: a data "
        "line came before the answer to QUIT; non-ASCII came back corrupted"
    ),
    "20_cohsh_official_client": (
        "another tool's log; acknowledgements in it: OK ATTACH (1), OK AUTH (1), OK TAIL (1)"
    ),
    "21_pypi_tcpbackend": (
        "where the published client hung (2): refused: grammar ERR PARSE; refused: grammar ERR FRAME"
    ),
    "22_coh_official_client": (
        "another tool's log; acknowledgements in it: OK CAT (3), OK ECHO (1), OK LS (3)"
    ),
    "23_coh_mount": ("no console traffic: a mounted namespace"),
    "23b_coh_mount_same_fd": ("no console traffic: a mounted namespace"),
    "24_after_mount": ("attached as queen; done (2); orderly end"),
    "24b_after_mount": ("attached as queen; done (3); orderly end"),
    "25_tail_cursor": ("done (13); refused: invalid-path; orderly end; of 12 pipelined LS 8 were answered"),
    "27_other_official_clients": (
        "another tool's log; acknowledgements in it: OK ATTACH (1), OK AUTH (1), OK TAIL (1)"
    ),
    "28_ticket_vectors": ("ticket: role queen, subject gp-daemon, MAC good"),
    "29a_scoped_ticket": ("attached as queen; done (3); refused: denied (2); orderly end"),
    "29b_scoped_ro": ("attached as queen; done (2); refused: limit (2); refused: denied (2); orderly end"),
    "30_lifecycle_gate": ("attached as queen; done (11); refused: denied (3); orderly end"),
    "31_after_idle_reconnect": ("attached as queen; done; orderly end"),
}


def test_the_table() -> None:
    found = conclusions()
    width = max(len(stem) for stem in found)
    print("\n".join(["", *(f"{stem.ljust(width)}  {text}" for stem, text in found.items())]))
    assert found == CONCLUSIONS


def test_no_recording_is_left_out() -> None:
    assert {path.stem for path in TRANSCRIPTS.glob("*.txt")} == set(CONCLUSIONS)


OTHER_BYTES = {
    "05_not_auth": "PING instead of AUTH",
    "05b_not_auth_samelen": "HELO instead of AUTH",
    "06_big_preauth": "bytes that are no command",
    "07_auth_timeout": "nothing sent",
}
"""Recordings of clients that did something ours never does, from the first frame on."""


@pytest.mark.parametrize("path", replayable(), ids=lambda path: path.stem)
def test_our_client_sends_what_the_recorded_one_sent(path: object) -> None:
    """Handshakes above all: the recorded console accepted exactly these bytes."""
    name = str(getattr(path, "stem", ""))
    replayed = replay(TRANSCRIPTS / f"{name}.txt")
    assert (replayed.same_bytes == 0) == (name in OTHER_BYTES)
