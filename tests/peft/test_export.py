from __future__ import annotations

import json
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from peft_actions import JOB, Places, Shelf, export_spec, import_spec, sha256, write_tree
from peft_support import Canary, held_elsewhere, no_descriptor_leaks, synced_directories

from ticket_agent.hive.reference.exports import sample_job
from ticket_agent.journal.fs import FreeSpace
from ticket_agent.journal.outcome import (
    Committed,
    Outcome,
    Pending,
    Plan,
    PlanRefusedError,
    PlanWaitsError,
    Rejected,
    Unobserved,
)
from ticket_agent.journal.record import own_plan
from ticket_agent.peft import directory, export
from ticket_agent.peft.errors import PeftIoError
from ticket_agent.peft.export import ExportProvider
from ticket_agent.peft.job import JOB_FILES
from ticket_agent.peft.locks import RootLock
from ticket_agent.protocol.namespace import HiveUnreachableError, Refusal, RefusalKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

DIGEST = "5f1ab66dfc3b098d1e305ca73d3ffdd5de6736eac216deb366da6985670eb488"
PLACE = f"/queen/export/lora_jobs/{JOB}"
ASKED = [f"LS {PLACE}", *(f"CAT {PLACE}/{name}" for name in JOB_FILES)]


@pytest.fixture
def places(tmp_path: Path) -> Iterator[Places]:
    made = Places(tmp_path / "host").make()
    canary = Canary(tmp_path / "outside")
    with no_descriptor_leaks():
        yield made
    canary.check()


@pytest.fixture
def shelf() -> Shelf:
    return Shelf({JOB: sample_job()})


@pytest.fixture
def provider(places: Places, shelf: Shelf) -> ExportProvider:
    return ExportProvider(places.roots, shelf)


def journaled(plan: Plan) -> Plan:
    """The plan as it comes back from a journal."""
    return Plan(**json.loads(json.dumps({"before": own_plan(plan).before, "intent": own_plan(plan).intent})))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def staging(plan: Plan) -> str:
    return str(plan.intent["staging"])


def test_a_job_is_exported(
    places: Places, shelf: Shelf, provider: ExportProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = provider.plan(export_spec())
    assert shelf.asked == ASKED
    synced = synced_directories(monkeypatch)
    outcome = provider.execute(plan)
    assert isinstance(outcome, Committed)
    assert outcome.detail == f"peft.export job={JOB} files=3 bytes=54 digest={DIGEST}"
    assert outcome.evidence["digest"] == DIGEST
    assert shelf.asked == ASKED
    assert contents(places.job) == sample_job()
    assert [path.name for path in places.exports.iterdir() if not path.name.endswith(".lock")] == [JOB]
    names = [path.rsplit("/", 1)[-1] for path in synced]
    for name in JOB_FILES:
        assert any(synced_name.startswith(f".{name}.") for synced_name in names)
    assert names[-1] == "exports"


def test_the_lane_is_the_jobs(provider: ExportProvider) -> None:
    assert provider.lane(export_spec("job-9")) == "peft-export/job-9"


def test_a_complete_job_is_a_success_without_the_hive(places: Places, shelf: Shelf) -> None:
    places.add_job()
    shelf.unreachable_after = 0
    provider = ExportProvider(places.roots, shelf)
    plan = provider.plan(export_spec())
    before = places.snapshot()
    for outcome in (provider.execute(plan), provider.observe(plan)):
        assert isinstance(outcome, Committed)
        assert outcome.detail == f"peft.export job={JOB} observed=complete files=3 bytes=54 digest={DIGEST}"
    assert (shelf.asked, places.snapshot()) == ([], before)


def test_exporting_twice_changes_nothing(places: Places, shelf: Shelf, provider: ExportProvider) -> None:
    provider.execute(provider.plan(export_spec()))
    before = places.snapshot()
    shelf.jobs[JOB]["policy.toml"] = b"another\n"
    outcome = provider.execute(provider.plan(export_spec(ticket="t2")))
    assert isinstance(outcome, Committed)
    assert places.snapshot() == before


def test_a_console_adds_the_newline_at_the_end(
    places: Places, shelf: Shelf, provider: ExportProvider
) -> None:
    shelf.jobs[JOB] = {"telemetry.cbor": b"a\n\nb", "base_model.ref": b"base", "policy.toml": b"\n"}
    provider.execute(provider.plan(export_spec()))
    assert contents(places.job) == {
        "telemetry.cbor": b"a\n\nb\n",
        "base_model.ref": b"base\n",
        "policy.toml": b"\n",
    }


def test_pinned_telemetry(places: Places, shelf: Shelf, provider: ExportProvider) -> None:
    pin = sha256(b"abc\n")
    shelf.jobs[JOB]["policy.toml"] = f'[export]\ntelemetry_sha256 = "{pin}"\n'.encode()
    shelf.jobs[JOB]["telemetry.cbor"] = b"abd\n"
    before = places.snapshot()
    with pytest.raises(PlanRefusedError) as caught:
        provider.plan(export_spec())
    assert str(caught.value) == (
        f"peft.export job={JOB}: telemetry.cbor is not the one that policy.toml pins;"
        " a transport of text lines cannot carry binary telemetry"
    )
    assert places.snapshot() == before
    shelf.jobs[JOB]["telemetry.cbor"] = b"abc\n"
    assert isinstance(provider.execute(provider.plan(export_spec())), Committed)


def _no_job(shelf: Shelf) -> None:
    shelf.jobs.clear()


def _without(name: str) -> Callable[[Shelf], None]:
    def change(shelf: Shelf) -> None:
        del shelf.jobs[JOB][name]

    return change


def _with(name: str, data: bytes = b"x\n") -> Callable[[Shelf], None]:
    return lambda shelf: shelf.jobs[JOB].update({name: data})


def _refusing(path: str, kind: RefusalKind) -> Callable[[Shelf], None]:
    return lambda shelf: shelf.refusals.update({path: Refusal(kind=kind, text=f"ERR {kind.value}")})


REFUSED: list[tuple[Callable[[Shelf], None], str]] = [
    (_no_job, f"export job {JOB} not found on the hive"),
    *((_without(name), f"export job {JOB} on the hive: missing required file {name}") for name in JOB_FILES),
    (_with("extra.txt"), f"export job {JOB} on the hive: unexpected file extra.txt"),
    (_with("../../x"), f"export job {JOB} on the hive: unexpected file ../../x"),
    (_with("a\x1b[2J\n"), f"export job {JOB} on the hive: unexpected file a\\x1b[2J\\n"),
    *((_with(name, b""), f"{name} is empty") for name in JOB_FILES),
    *(
        (_with(name, b"x" * limit), f"{name} has {limit + 1} bytes; at most {limit} are accepted")
        for name, limit in JOB_FILES.items()
    ),
    (
        lambda shelf: shelf.jobs[JOB].update({"f" * 65_600: b""}),
        f"the listing of export job {JOB} has 65643 bytes; that is no job",
    ),
    *(
        (
            _refusing(f"{PLACE}/{name}", RefusalKind.BUFFER_FULL),
            f"{name} cannot be carried by this transport: ERR buffer-full",
        )
        for name in JOB_FILES
    ),
    (
        _refusing(f"{PLACE}/policy.toml", RefusalKind.INVALID_PATH),
        "policy.toml cannot be carried by this transport: ERR invalid-path",
    ),
    (_refusing(PLACE, RefusalKind.BUFFER_FULL), f"export job {JOB} cannot be listed: ERR buffer-full"),
]


@pytest.mark.parametrize(("change", "line"), REFUSED, ids=[line[:50] for _, line in REFUSED])
def test_what_the_hive_offers_is_refused_by_name(
    places: Places, shelf: Shelf, provider: ExportProvider, change: Callable[[Shelf], None], line: str
) -> None:
    before = places.snapshot()
    change(shelf)
    with pytest.raises(PlanRefusedError) as caught:
        provider.plan(export_spec())
    assert str(caught.value) == f"peft.export job={JOB}: {line}"
    assert places.snapshot() == before


@pytest.mark.parametrize("kind", [RefusalKind.BUSY, RefusalKind.DENIED, RefusalKind.LIMIT])
@pytest.mark.parametrize("path", [PLACE, f"{PLACE}/base_model.ref"])
def test_a_hive_that_does_not_show_it_now_is_asked_again(
    shelf: Shelf, provider: ExportProvider, kind: RefusalKind, path: str
) -> None:
    shelf.refusals[path] = Refusal(kind=kind, text=f"ERR {kind.value}")
    with pytest.raises(PlanWaitsError, match=f": ERR {kind.value}$"):
        provider.plan(export_spec())
    shelf.refusals.clear()
    assert isinstance(provider.execute(provider.plan(export_spec())), Committed)


@pytest.mark.parametrize("count", range(4))
def test_a_hive_that_goes_away_leaves_nothing_behind(
    places: Places, shelf: Shelf, provider: ExportProvider, count: int
) -> None:
    before = places.snapshot()
    shelf.unreachable_after = count
    with pytest.raises(HiveUnreachableError):
        provider.plan(export_spec())
    assert len(shelf.asked) == count
    assert places.snapshot() == before


def test_after_the_plan_the_hive_is_not_needed(
    places: Places, shelf: Shelf, provider: ExportProvider
) -> None:
    plan = provider.plan(export_spec())
    shelf.unreachable_after = 0
    assert isinstance(provider.execute(plan), Committed)
    assert contents(places.job) == sample_job()


def test_an_execution_in_another_life_reads_again_and_takes_only_what_was_planned(
    places: Places, shelf: Shelf, provider: ExportProvider
) -> None:
    plan = journaled(provider.plan(export_spec()))
    before = places.snapshot()
    shelf.jobs[JOB]["policy.toml"] = b"another\n"
    outcome = ExportProvider(places.roots, shelf).execute(plan)
    assert isinstance(outcome, Rejected)
    assert outcome.detail == (
        f"peft.export job={JOB} not applied: the hive's policy.toml is not the one that was planned"
    )
    shelf.unreachable_after = 0
    outcome = ExportProvider(places.roots, shelf).execute(plan)
    assert isinstance(outcome, Rejected)
    assert outcome.detail == f"peft.export job={JOB} not applied: the hive is gone"
    assert places.snapshot() == before
    shelf.unreachable_after, shelf.jobs[JOB] = None, sample_job()
    assert isinstance(ExportProvider(places.roots, shelf).execute(plan), Committed)


def test_two_plans_at_a_time(places: Places, shelf: Shelf, provider: ExportProvider) -> None:
    shelf.jobs["job-2"] = sample_job("other-base")
    first, second = provider.plan(export_spec()), provider.plan(export_spec("job-2", ticket="t2"))
    assert isinstance(provider.execute(first), Committed)
    assert isinstance(provider.execute(second), Committed)
    assert contents(places.job) == sample_job()
    assert contents(places.exports / "job-2") == sample_job("other-base")


TAKEN: list[tuple[str, Callable[[Places], object], str]] = [
    ("empty", lambda places: places.add_job(files={}), "is not complete: telemetry.cbor is missing"),
    (
        "two files",
        lambda places: (places.add_job() / "policy.toml").unlink(),
        "is not complete: policy.toml is missing",
    ),
    (
        "an empty file",
        lambda places: places.add_job(files=sample_job() | {"base_model.ref": b""}),
        f"exports/{JOB}/base_model.ref is empty",
    ),
    ("a file", lambda places: places.job.write_bytes(b"x"), f"exports/{JOB} is a regular file"),
    (
        "a link",
        lambda places: places.job.symlink_to("../../outside", target_is_directory=True),
        f"exports/{JOB} is a symlink",
    ),
    (
        "a link as a file",
        lambda places: (places.add_job(files={"telemetry.cbor": b"t"}) / "base_model.ref").symlink_to(
            "../../../outside/secret"
        ),
        f"exports/{JOB}/base_model.ref is a symlink",
    ),
    (
        "a hard link",
        lambda places: (places.exports / "x").hardlink_to(places.add_job() / "telemetry.cbor"),
        f"exports/{JOB}/telemetry.cbor has 2 names",
    ),
]


@pytest.mark.parametrize(("make", "line"), [row[1:] for row in TAKEN], ids=[row[0] for row in TAKEN])
def test_what_another_tool_left_is_refused_by_name_without_the_hive(
    places: Places,
    shelf: Shelf,
    provider: ExportProvider,
    make: Callable[[Places], object],
    line: str,
) -> None:
    make(places)
    before = places.snapshot()
    with pytest.raises(PlanRefusedError) as caught:
        provider.plan(export_spec())
    assert line in str(caught.value)
    assert (shelf.asked, places.snapshot()) == ([], before)


@pytest.mark.parametrize("make", [row[1] for row in TAKEN], ids=[row[0] for row in TAKEN])
def test_what_comes_between_plan_and_execution_stays(
    places: Places, provider: ExportProvider, make: Callable[[Places], object]
) -> None:
    plan = provider.plan(export_spec())
    make(places)
    before = places.snapshot()
    for outcome in (provider.execute(plan), provider.observe(plan)):
        assert isinstance(outcome, Rejected)
        assert outcome.detail.startswith(f"peft.export job={JOB} not applied: ")
    assert places.snapshot() == before


@pytest.mark.parametrize("name", JOB_FILES)
def test_another_job_of_that_name_is_told_by_its_file(
    places: Places, provider: ExportProvider, name: str
) -> None:
    plan = provider.plan(export_spec())
    places.add_job(files=sample_job() | {name: b"other\n"})
    before = places.snapshot()
    outcome = provider.execute(plan)
    assert isinstance(outcome, Rejected)
    assert outcome.detail == (
        f"peft.export job={JOB} not applied: there is another one, whose {name}"
        " is not the one that was planned"
    )
    assert places.snapshot() == before


def test_the_same_job_by_another_tool_is_a_success(places: Places, provider: ExportProvider) -> None:
    plan = provider.plan(export_spec())
    places.add_job()
    assert isinstance(provider.execute(plan), Committed)


def test_a_complete_job_that_is_removed_before_the_execution(
    places: Places, provider: ExportProvider
) -> None:
    places.add_job()
    plan = provider.plan(export_spec())
    shutil.rmtree(places.job)
    outcome = provider.execute(plan)
    assert isinstance(outcome, Rejected)
    assert outcome.detail == f"peft.export job={JOB} not applied: it was removed since it was planned"


def test_what_waits(places: Places, provider: ExportProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    in_use = "exports is in use by process"
    with held_elsewhere(places.exports, RootLock.EXPORT), pytest.raises(PlanWaitsError, match=in_use):
        provider.plan(export_spec())
    places.exports.chmod(0o777)
    with pytest.raises(PlanWaitsError, match="can be written by others"):
        provider.plan(export_spec())
    places.exports.chmod(0o755)
    with monkeypatch.context() as patch:
        patch.setattr(
            directory.TREE_FS, "free_space", lambda _: FreeSpace(bytes=1_000_000, inodes=None), raising=False
        )
        with pytest.raises(PlanWaitsError, match="only 1000000 bytes are free; make room there"):
            provider.plan(export_spec())
    shutil.rmtree(places.exports)
    with pytest.raises(PlanWaitsError, match="does not exist; create it"):
        provider.plan(export_spec())


def test_a_lock_that_is_held_when_it_is_due(
    places: Places, provider: ExportProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "LOCK_WAIT_S", 0.05)
    plan = provider.plan(export_spec())
    with held_elsewhere(places.exports, RootLock.EXPORT) as holder:
        outcome = provider.execute(plan)
    assert isinstance(outcome, Rejected)
    assert f"not applied: exports is in use by process {holder.pid}" in outcome.detail


@pytest.mark.parametrize("subject", ["..", ".", ".cohesix-export.lock", ".Cohesix-x"])
def test_jobs_that_are_no_directory(places: Places, shelf: Shelf, subject: str) -> None:
    with pytest.raises(PlanRefusedError, match=r"^peft.export: the job must not"):
        ExportProvider(places.roots, shelf).plan(export_spec(subject))
    assert shelf.asked == []


def test_another_action_is_refused(provider: ExportProvider) -> None:
    with pytest.raises(PlanRefusedError, match="takes no arguments"):
        provider.plan(import_spec())


def test_a_link_under_the_staging_name_is_removed_and_not_followed(
    places: Places, provider: ExportProvider
) -> None:
    plan = provider.plan(export_spec())
    (places.exports / staging(plan)).symlink_to("../../outside", target_is_directory=True)
    assert isinstance(provider.execute(plan), Committed)
    assert not (places.exports / staging(plan)).is_symlink()


def test_what_comes_at_the_last_moment_stays(
    places: Places, provider: ExportProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = provider.plan(export_spec())
    real = directory.Directory.rename

    def rename(
        self: directory.Directory, name: str, to: directory.Directory, new: str, *, replace: bool
    ) -> None:
        places.job.mkdir()
        real(self, name, to, new, replace=replace)

    monkeypatch.setattr(directory.Directory, "rename", rename)
    assert isinstance(provider.execute(plan), Rejected)
    assert list(places.job.iterdir()) == []
    assert not (places.exports / staging(plan)).exists()


def test_a_complete_job_that_cannot_be_read_now_is_looked_at_again(
    places: Places, provider: ExportProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    places.add_job()
    plan = provider.plan(export_spec())

    def fails(*_: object) -> None:
        raise PeftIoError("reading", OSError("broken"))

    with monkeypatch.context() as patch:
        patch.setattr(export, "read_job", fails)
        assert isinstance(provider.execute(plan), Unobserved)
    assert isinstance(provider.observe(plan), Committed)


# -- observing ----------------------------------------------------------------------------------------------


def _nothing(places: Places, plan: Plan) -> None:
    pass


def _staged_partly(places: Places, plan: Plan) -> None:
    write_tree(places.exports / staging(plan), {".telemetry.cbor.7.0.partial": b"tele"})


def _staged(places: Places, plan: Plan) -> None:
    write_tree(places.exports / staging(plan), sample_job())


def _published(places: Places, plan: Plan) -> None:
    places.add_job()


def _published_by_another(places: Places, plan: Plan) -> None:
    places.add_job()
    _staged_partly(places, plan)


def _other_content(places: Places, plan: Plan) -> None:
    places.add_job(files=sample_job("another-base"))
    _staged(places, plan)


def _half(places: Places, plan: Plan) -> None:
    (places.add_job() / "base_model.ref").unlink()


def _not_a_directory(places: Places, plan: Plan) -> None:
    places.job.symlink_to("../../outside")


OBSERVED: list[tuple[Callable[[Places, Plan], None], type[Outcome], str]] = [
    (_nothing, Rejected, "not applied: nothing was published"),
    (_staged_partly, Rejected, "not applied: nothing was published"),
    (_staged, Rejected, "not applied: nothing was published"),
    (_published, Committed, "observed=complete files=3 bytes=54"),
    (_published_by_another, Committed, "observed=complete files=3 bytes=54"),
    (_other_content, Rejected, "not applied: there is another one, whose base_model.ref is not"),
    (_half, Rejected, f"not applied: export job {JOB} is not complete: base_model.ref is missing"),
    (_not_a_directory, Rejected, f"not applied: exports/{JOB} is a symlink"),
]


@pytest.mark.parametrize(
    ("make", "kind", "clause"), OBSERVED, ids=[make.__name__.strip("_") for make, _, _ in OBSERVED]
)
def test_observing(
    places: Places,
    provider: ExportProvider,
    make: Callable[[Places, Plan], None],
    kind: type[Outcome],
    clause: str,
) -> None:
    plan = journaled(provider.plan(export_spec()))
    make(places, plan)
    job_before = {name: entry for name, entry in places.snapshot().items() if f"/{JOB}" in name}
    observer = ExportProvider(places.roots, Shelf(unreachable_after=0))
    for _ in range(2):
        outcome = observer.observe(plan)
        assert type(outcome) is kind
        assert outcome.detail.startswith(f"peft.export job={JOB} {clause}")
        assert not (places.exports / staging(plan)).exists()
        job_now = {name: entry for name, entry in places.snapshot().items() if f"/{JOB}" in name}
        assert job_now == job_before


def test_what_an_observer_tells_is_durable(
    places: Places, provider: ExportProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = provider.plan(export_spec())
    places.add_job()
    synced = synced_directories(monkeypatch)
    assert isinstance(provider.observe(plan), Committed)
    assert synced == [str(places.exports)]


@pytest.mark.parametrize(
    "make", [row[0] for row in OBSERVED], ids=[row[0].__name__.strip("_") for row in OBSERVED]
)
def test_observing_while_somebody_works(
    places: Places, provider: ExportProvider, make: Callable[[Places, Plan], None]
) -> None:
    plan = provider.plan(export_spec())
    make(places, plan)
    before = places.snapshot()
    with held_elsewhere(places.exports, RootLock.EXPORT) as holder:
        outcome = provider.observe(plan)
    assert isinstance(outcome, Pending)
    assert f"waits: exports is in use by process {holder.pid}" in outcome.detail
    assert places.snapshot() == before


def test_an_observer_that_may_not_look(places: Places, provider: ExportProvider) -> None:
    plan = provider.plan(export_spec())
    places.exports.chmod(0o775)
    outcome = provider.observe(plan)
    assert isinstance(outcome, Unobserved)
    assert "can be written by others" in outcome.detail


def test_another_root_proves_nothing(places: Places, shelf: Shelf, provider: ExportProvider) -> None:
    plan = provider.plan(export_spec())
    elsewhere = replace(places.roots, export=places.registry)
    other = ExportProvider(elsewhere, shelf)
    assert isinstance(other.execute(plan), Rejected)
    outcome = other.observe(plan)
    assert isinstance(outcome, Unobserved)
    assert "another export root" in outcome.detail


DAMAGED: list[tuple[str, Any]] = [
    ("action", "peft.import"),
    ("action", None),
    ("job", "../x"),
    ("job", 7),
    ("staging", JOB),
    ("staging", ".."),
    ("staging", ".cohesix-export-0123456789ABCDEF"),
    ("exports", None),
    ("files", []),
    ("files", {}),
    ("files", {name: {"sha256": "x", "bytes": 1} for name in JOB_FILES}),
    ("files", {name: {"sha256": "0" * 64, "bytes": -1} for name in JOB_FILES}),
    ("files", {name: {"sha256": None, "bytes": 1} for name in JOB_FILES}),
]


@pytest.mark.parametrize(("member", "value"), DAMAGED)
def test_a_plan_that_is_not_ours_does_nothing(
    places: Places, provider: ExportProvider, member: str, value: Any
) -> None:
    places.add_job("job-0")
    plan = provider.plan(export_spec())
    plan = Plan(before=plan.before, intent={**plan.intent, member: value})
    before = places.snapshot()
    assert isinstance(provider.execute(plan), Rejected)
    assert isinstance(provider.observe(plan), Unobserved)
    assert places.snapshot() == before
