from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ticket_agent.protocol import (
    CONTROL_KEYS,
    RESERVED_GPU_NAMES,
    GrantControl,
    LeaseError,
    LeaseRecord,
    LeaseSummary,
    PreemptControl,
    PreemptionRecord,
    ProtocolError,
    QuotaControl,
    RecordLineError,
    RenewBoundControl,
    RenewControl,
    check_lease_id,
    check_lease_resource,
    check_lease_subject,
    check_preempt_reason,
    parse_lease_control,
    parse_lease_record,
    parse_lease_summary,
    parse_preemption_record,
    request_tag,
)

TAG = "fb489ba47a1432b9a1a26150cdee94f4"
GRANT = GrantControl(id="lease-1", subject="worker-1", resource="GPU-0", ttl_s=30, priority=0)
LINES = {
    '{"id":"lease-1","op":"grant","priority":0,"resource":"GPU-0","subject":"worker-1","ttl_s":30}': GRANT,
    '{"id":"lease-1","op":"renew","priority":255,"ttl_s":4294967295}': RenewControl(
        id="lease-1", ttl_s=4294967295, priority=255
    ),
    f'{{"id":"lease-1","op":"renew-bound","priority":1,"request":"{TAG}","resource":"GPU-0",'
    '"subject":"worker-1","ttl_s":1}': RenewBoundControl(
        id="lease-1", subject="worker-1", resource="GPU-0", request=TAG, ttl_s=1, priority=1
    ),
    '{"id":"lease-1","op":"preempt","reason":"host-ticket-release"}': PreemptControl(
        id="lease-1", reason="host-ticket-release"
    ),
    '{"max_active":1,"max_preemptions":2,"op":"quota","resource":"GPU-0","subject":"worker-1"}': QuotaControl(
        subject="worker-1", resource="GPU-0", max_active=1, max_preemptions=2
    ),
}

free = st.text().filter(lambda value: value not in CONTROL_KEYS)
ids = st.from_regex(r"[A-Za-z0-9_-]{1,32}", fullmatch=True).filter(lambda value: value not in CONTROL_KEYS)
resources = st.from_regex(r"[A-Za-z0-9._:-]{1,48}", fullmatch=True).filter(
    lambda value: value not in CONTROL_KEYS | {".", ".."}
)
terms = st.integers(1, 2**32 - 1)
priorities = st.integers(0, 255)
u64 = st.integers(1, 2**64 - 1)
tags = st.from_regex(r"[0-9a-f]{32}", fullmatch=True)


@pytest.mark.parametrize("text", LINES)
def test_control_lines_have_their_members_sorted(text: str) -> None:
    control = LINES[text]
    assert control.encode() == text
    assert parse_lease_control(text) == control
    assert parse_lease_control(json.dumps(json.loads(text), indent=2)) == control


@given(
    st.builds(GrantControl, id=ids, subject=ids, resource=resources, ttl_s=terms, priority=priorities)
    | st.builds(RenewControl, id=ids, ttl_s=terms, priority=priorities)
    | st.builds(
        RenewBoundControl,
        id=ids,
        subject=ids,
        resource=resources,
        request=tags,
        ttl_s=terms,
        priority=priorities,
    )
    | st.builds(QuotaControl, subject=ids, resource=resources, max_active=terms, max_preemptions=terms)
)
def test_control_lines_survive(control: Any) -> None:
    assert parse_lease_control(control.encode()) == control
    assert list(json.loads(control.encode())) == sorted(json.loads(control.encode()))


@given(st.text(max_size=200))
def test_arbitrary_text_is_no_control_line(text: str) -> None:
    with pytest.raises(ProtocolError):
        parse_lease_control(text)


def changed(**changes: Any) -> str:
    document = {
        "op": "grant",
        "id": "l",
        "subject": "w",
        "resource": "g",
        "ttl_s": 1,
        "priority": 0,
    } | changes
    return json.dumps({name: value for name, value in document.items() if value is not ...})


@pytest.mark.parametrize(
    ("text", "code", "member"),
    [
        (changed(op=...), "lease-op", "op"),
        (changed(op="steal"), "lease-op", "op"),
        (changed(op=["grant"]), "lease-op", "op"),
        (changed(note=1), "member-unknown", "note"),
        (changed(request=TAG), "member-unknown", "request"),
        *(
            (changed(**{name: ...}), "member-missing", name)
            for name in ("id", "subject", "resource", "ttl_s", "priority")
        ),
        (
            changed(op="preempt", subject=..., resource=..., ttl_s=..., priority=...),
            "member-missing",
            "reason",
        ),
        (changed(op="renew", subject=..., resource=..., priority=...), "member-missing", "priority"),
        (changed(ttl_s=0), "lease-range", "ttl_s"),
        (changed(ttl_s=2**32), "lease-range", "ttl_s"),
        (changed(ttl_s=1.0), "lease-range", "ttl_s"),
        (changed(ttl_s="1"), "lease-range", "ttl_s"),
        (changed(ttl_s=True), "lease-range", "ttl_s"),
        (changed(priority=-1), "lease-range", "priority"),
        (changed(priority=256), "lease-range", "priority"),
        (changed(priority=None), "lease-range", "priority"),
        (changed(id={"id": "l"}), "lease-name", "id"),
        (changed(id=["l"]), "lease-name", "id"),
        (changed(id="a.b"), "lease-name", "id"),
        (changed(id="subject"), "lease-control-key", "id"),
        (changed(resource=".."), "lease-name", "resource"),
        (changed(op="renew-bound", request=TAG.upper()), "lease-name", "request"),
        (changed(op="renew-bound", request=TAG[1:]), "lease-name", "request"),
        (
            changed(op="quota", id=..., ttl_s=..., priority=..., max_active=0, max_preemptions=1),
            "lease-range",
            "max_active",
        ),
        (changed()[:-1] + ',"id":"l"}', "json-repeated", "id"),
        (changed() + "x", "json-syntax", None),
        ("[]", "json-not-object", None),
        ("", "json-syntax", None),
        ("\ud800", "json-not-utf8", None),
    ],
)
def test_control_lines_that_the_root_refuses(text: str, code: str, member: str | None) -> None:
    with pytest.raises(ProtocolError) as refusal:
        parse_lease_control(text)
    assert (refusal.value.code, refusal.value.member) == (code, member)


@pytest.mark.parametrize("change", [{"id": "a.b"}, {"ttl_s": 0}, {"priority": 256}, {"subject": "x" * 33}])
def test_a_bad_control_line_cannot_be_made(change: dict[str, Any]) -> None:
    values: dict[str, Any] = {"id": "l", "subject": "w", "resource": "g", "ttl_s": 1, "priority": 0}
    with pytest.raises(LeaseError):
        GrantControl(**values | change)


CHECKS = {
    check_lease_id: (32, "id"),
    check_lease_subject: (32, "subject"),
    check_lease_resource: (48, "resource"),
    check_preempt_reason: (24, "reason"),
}


@pytest.mark.parametrize("check", CHECKS)
def test_names_keep_the_rules_of_the_root(check: Any) -> None:
    longest, member = CHECKS[check]
    for value in ("a", "-a", "A-b_9", "x" * longest):
        assert check(value) == value
    refused: list[object] = ["", "x" * (longest + 1), "a b", "a\n", "é", "a/b", None, 1, b"a", *CONTROL_KEYS]
    for wrong in refused:
        with pytest.raises(LeaseError) as refusal:
            check(wrong)
        assert refusal.value.member == member


def test_a_resource_is_a_path_component() -> None:
    assert check_lease_resource("...") == "..."
    assert check_preempt_reason("..") == ".."
    for value in (".", ".."):
        with pytest.raises(LeaseError):
            check_lease_resource(value)


@pytest.mark.parametrize(
    ("check", "dots"), [(check_lease_id, False), (check_lease_resource, True), (check_preempt_reason, True)]
)
def test_dots_and_colons_are_for_resources_and_reasons(check: Any, dots: bool) -> None:
    if dots:
        assert check("a.b:c") == "a.b:c"
    else:
        with pytest.raises(LeaseError):
            check("a.b:c")


def test_reserved_gpu_names_are_legal_resources_but_no_gpus() -> None:
    assert {"bridge", "models", "telemetry"} == RESERVED_GPU_NAMES
    for name in RESERVED_GPU_NAMES:
        assert check_lease_resource(name) == name


def test_request_tag_is_half_a_digest() -> None:
    assert request_tag("idem-v2") == TAG
    assert request_tag("idem-v3") != TAG


ACTIVE = "id=lease-1 subject=worker-1 resource=GPU-0 ttl_s=30 priority=0 state=ACTIVE seq=1"


@given(
    st.builds(
        LeaseRecord,
        id=ids,
        subject=ids,
        resource=resources,
        ttl_s=terms,
        priority=priorities,
        state=st.sampled_from(["ACTIVE", "active"]),
        seq=u64,
        request=st.none() | tags,
    )
)
def test_lease_records_survive(record: LeaseRecord) -> None:
    assert parse_lease_record(record.encode()) == record


@given(st.builds(PreemptionRecord, id=ids, subject=ids, resource=resources, reason=st.just("why"), seq=u64))
def test_preemption_records_survive(record: PreemptionRecord) -> None:
    assert parse_preemption_record(record.encode()) == record


@pytest.mark.parametrize("text", [ACTIVE, ACTIVE.replace("ACTIVE", "active"), f"{ACTIVE} request={TAG}"])
def test_lease_records_to_the_byte(text: str) -> None:
    assert parse_lease_record(text).encode() == text


def test_other_records_to_the_byte() -> None:
    preempted = "id=lease-1 subject=worker-1 resource=GPU-0 reason=why seq=2"
    summary = "active=1 preemptions=2 quotas=0 max_active=256 max_preemptions=256"
    assert parse_preemption_record(preempted).encode() == preempted
    assert parse_lease_summary(summary).encode() == summary
    assert parse_lease_summary(summary) == LeaseSummary(
        active=1, preemptions=2, quotas=0, max_active=256, max_preemptions=256
    )


@pytest.mark.parametrize(
    ("text", "member"),
    [
        ("", None),
        ("id", None),
        (ACTIVE + " ", None),
        (ACTIVE.replace(" seq", "  seq"), None),
        (ACTIVE.replace("subject=worker-1", "subject="), None),
        (ACTIVE + " seq=1", "seq"),
        (ACTIVE + " more=1", "more"),
        (ACTIVE.replace(" seq=1", ""), "seq"),
        (ACTIVE.replace("ACTIVE", "RELEASED"), "state"),
        (ACTIVE.replace("ttl_s=30", "ttl_s=0"), "ttl_s"),
        (ACTIVE.replace("ttl_s=30", "ttl_s=4294967296"), "ttl_s"),
        (ACTIVE.replace("ttl_s=30", "ttl_s=030"), "ttl_s"),
        (ACTIVE.replace("ttl_s=30", "ttl_s=+30"), "ttl_s"),
        (ACTIVE.replace("ttl_s=30", "ttl_s=٣٠"), "ttl_s"),
        (ACTIVE.replace("priority=0", "priority=256"), "priority"),
        (ACTIVE.replace("seq=1", "seq=0"), "seq"),
        (ACTIVE.replace("seq=1", "seq=18446744073709551616"), "seq"),
        (ACTIVE.replace("seq=1", "seq=" + "9" * 5000), "seq"),
        (ACTIVE.replace("lease-1", "lease.1"), "id"),
        (ACTIVE.replace("GPU-0", ".."), "resource"),
        (ACTIVE + " request=xyz", "request"),
        (ACTIVE + "\n" + ACTIVE, "subject"),
    ],
)
def test_malformed_lease_records(text: str, member: str | None) -> None:
    with pytest.raises(ProtocolError) as refusal:
        parse_lease_record(text)
    assert refusal.value.member == member


@given(st.text(max_size=120))
def test_arbitrary_text_is_no_record(text: str) -> None:
    for parse in (parse_lease_record, parse_preemption_record, parse_lease_summary):
        with pytest.raises((RecordLineError, LeaseError)):
            parse(text)
