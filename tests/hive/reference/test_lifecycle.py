from __future__ import annotations

import pytest
from hive_support import LEASE_CTL, SPEC, STATUS, ManualClock, finish, new_hive, raw_grant

from ticket_agent.hive.reference import RefusalError
from ticket_agent.protocol.lifecycle import LifecycleState

CTL = "/queen/lifecycle/ctl"
EPERM = "ERR ECHO reason=policy detail=denied path={} error=EPERM"
ALL = list(LifecycleState)
S = LifecycleState

LEADS_TO: dict[str, dict[LifecycleState, LifecycleState]] = {
    "cordon": {S.ONLINE: S.DRAINING, S.DEGRADED: S.DRAINING},
    "drain": {S.DRAINING: S.QUIESCED},
    "resume": {state: S.ONLINE for state in ALL if state is not S.ONLINE},
    "quiesce": {S.ONLINE: S.QUIESCED, S.DEGRADED: S.QUIESCED, S.DRAINING: S.QUIESCED},
    "reset": {state: S.BOOTING for state in ALL if state is not S.BOOTING},
}


@pytest.mark.parametrize("word", LEADS_TO)
@pytest.mark.parametrize("state", ALL)
def test_control_words(state: LifecycleState, word: str) -> None:
    hive = new_hive()
    hive.set_lifecycle(state)
    target = LEADS_TO[word].get(state)
    if target is None:
        with pytest.raises(RefusalError, match="invalid-payload"):
            hive.echo(CTL, word)
        assert hive.cat("/proc/lifecycle/state") == [f"state={state}"]
    else:
        hive.echo(CTL, f"  {word.upper()} ")
        assert hive.cat("/proc/lifecycle/state") == [f"state={target}"]
        assert hive.cat("/proc/lifecycle/reason") == [f"reason={word}"]


@pytest.mark.parametrize("word", ["drain", "quiesce", "reset"])
def test_words_that_need_an_empty_hive_are_refused_once_a_worker_was_spawned(word: str) -> None:
    hive = new_hive()
    worker = hive.spawn_worker("worker-gpu")
    hive.tear_down(worker.worker_id)
    hive.set_lifecycle("DRAINING")
    with pytest.raises(RefusalError) as refused:
        hive.echo(CTL, word)
    assert refused.value.line("ECHO", CTL) == f"ERR ECHO reason=policy detail=denied path={CTL} error=EPERM"


@pytest.mark.parametrize("payload", ["", "halt", "cordon now"])
def test_unknown_control_words_are_refused(payload: str) -> None:
    with pytest.raises(RefusalError, match="invalid-payload"):
        new_hive().echo(CTL, payload)


def test_boot_goes_online_and_tells_since_when() -> None:
    clock = ManualClock()
    hive = new_hive(clock=clock)
    assert hive.cat("/proc/lifecycle/state") == ["state=ONLINE"]
    assert hive.cat("/proc/lifecycle/reason") == ["reason=boot-complete"]
    assert hive.cat("/proc/lifecycle/since") == ["since_ms=0"]
    clock.advance(1500)
    hive.echo(CTL, "cordon")
    assert hive.cat("/proc/lifecycle/since") == ["since_ms=1500"]


@pytest.mark.parametrize("state", ALL)
def test_what_each_state_allows(state: LifecycleState) -> None:
    hive = new_hive()
    worker = hive.spawn_worker("worker-gpu")
    hive.submit(raw_grant(hive, worker, "t-1", "lease-1"))
    other = hive.spawn_worker("worker-gpu")
    hive.set_lifecycle(state)
    publishing = state in {S.ONLINE, S.DEGRADED}

    def allowed(path: str, payload: str) -> bool:
        try:
            hive.echo(path, payload)
        except RefusalError as refusal:
            if refusal.line("ECHO", path) != EPERM.format(path):
                raise
            return False
        return True

    assert allowed(SPEC, raw_grant(hive, other, "t-2", "lease-2")) is publishing
    assert allowed("/queen/ctl", '{"spawn":"heartbeat"}') is publishing
    telemetry = f"/worker/{other.worker_id}/telemetry"
    assert allowed(telemetry, "beat\n") is (publishing or state is S.DRAINING)
    # Lease control has no gate: a lease can be granted while its result cannot be published.
    grant = '{"op":"grant","id":"l","subject":"w","resource":"GPU-0","ttl_s":1,"priority":0}'
    assert allowed(LEASE_CTL, grant)
    if publishing:
        finish(hive, "t-1")
    else:
        with pytest.raises(RefusalError, match="EPERM"):
            finish(hive, "t-1")
        assert hive.cat(STATUS) == []
        assert hive.tail("/log/queen.log")[-1] == f"lifecycle denied gate=host-publish state={state}"


def test_a_result_refused_by_the_gate_is_accepted_after_resume() -> None:
    hive = new_hive()
    worker = hive.spawn_worker("worker-gpu")
    hive.submit(raw_grant(hive, worker, "t-1", "lease-1"))
    hive.echo(CTL, "cordon")
    with pytest.raises(RefusalError, match="EPERM"):
        finish(hive, "t-1")
    hive.echo(CTL, "resume")
    finish(hive, "t-1")
    assert len(hive.terminal_lines(("t-1", "key-t-1"))) == 1
