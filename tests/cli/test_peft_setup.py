"""Naming the directories of the PEFT actions: what the agent, `once` and `doctor` make of it."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
from cli_support import contents, now_ms
from hive_support import running_hive
from peft_lab import die, peft_lab
from peft_tickets import raw_peft
from registry_support import add_model, set_control
from tree_faults import DyingTree

from ticket_agent.exits import Exit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from cli_support import Answer, Operator

    from ticket_agent.hive.reference import ConsoleServer, ReferenceHive

ROOTS = {"registry_root": "registry", "export_root": "exports", "adapter_root": "adapters"}


@pytest.fixture
def hive() -> Iterator[tuple[ReferenceHive, ConsoleServer]]:
    with running_hive(clock=now_ms) as (model, server):
        yield model, server


def flags(home: Path, *names: str) -> list[str]:
    return [
        text for name in names or ROOTS for text in (f"--{name.replace('_', '-')}", str(home / ROOTS[name]))
    ]


def make_roots(home: Path) -> Path:
    for name in ROOTS.values():
        (home / name).mkdir()
    for model in ("m1", "m2"):
        add_model(home / "registry", model)
    set_control(home / "registry", "m1", "m1", None)
    return home / "registry"


def doctor(operator: Operator, *more: str) -> tuple[Answer, dict[str, dict[str, str]]]:
    answer = operator.run("doctor", "--offline", "--json", *more)
    return answer, {entry["name"]: entry for entry in answer.objects}


# -- the agent ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["flags", "file"])
def test_an_activation_by_flags_and_by_file(
    operator: Operator, hive: tuple[ReferenceHive, ConsoleServer], way: str
) -> None:
    registry = make_roots(operator.home)
    if way == "file":
        lines = [f'{name} = "{operator.home / folder}"' for name, folder in ROOTS.items()]
        (operator.home / "agent.toml").write_text("\n".join(["[peft]", *lines, ""]))
    model, server = hive
    worker = model.spawn_worker("worker-lora").worker_id
    model.submit(raw_peft(model, worker, "peft.activate", "m2", ticket_id="t1"))
    named = flags(operator.home) if way == "flags" else ["--config", "agent.toml"]
    told = operator.run("once", "--json", *operator.at(server), *named)
    assert (told.code, told.object["by_outcome"]) == (Exit.OK, {"confirmed": 1})
    assert (registry / "active").read_text() == "m2\n"
    assert operator.run("peft", "list", *flags(operator.home, "registry_root")).out.count("active") == 1


def test_without_directories_a_ticket_is_answered_and_says_so(
    operator: Operator, hive: tuple[ReferenceHive, ConsoleServer]
) -> None:
    model, server = hive
    worker = model.spawn_worker("worker-lora").worker_id
    model.submit(raw_peft(model, worker, "peft.activate", "m2", ticket_id="t1"))
    assert operator.run("once", *operator.at(server)).code == Exit.OK
    (line,) = model.terminal_lines(("t1", "key-t1"))
    result = json.loads(line)
    assert result["state"] == "failed"
    assert result["message"] == (
        "peft.activate is not enabled on this agent (its configuration names no directories in [peft])"
    )


@pytest.mark.parametrize("command", ["once", "run"])
def test_a_forgotten_directory_ends_the_start_before_anything_is_made(
    operator: Operator, command: str
) -> None:
    answer = operator.run(command, *flags(operator.home, "registry_root", "adapter_root"))
    assert answer.code == Exit.USAGE
    assert answer.line == (
        "ticket-agent: [peft] names registry_root and adapter_root but not export_root;"
        " name all three or none"
    )
    assert not operator.state.exists()
    assert not (operator.home / "registry").exists()


# -- after a crash ------------------------------------------------------------------------------------------


def test_looking_at_a_half_commit_changes_nothing_and_a_replay_finishes_it(
    operator: Operator, tmp_path: Path
) -> None:
    """The agent died between the state and the pointer."""
    with peft_lab(tmp_path / "lab") as lab:
        for model in ("m1", "m2"):
            add_model(lab.roots.registry, model)
        set_control(lab.roots.registry, "m1", "m1", None)
        lab.submit("activate", "m2")
        with lab.agent() as bench, DyingTree(lab.roots.registry, 6):
            die(bench)
        assert (lab.pointer, lab.state) == ("m1\n", 'current = "m2"\nprevious = "m1"\n')
        before = contents(lab.roots.registry)
        paths = {"registry": lab.roots.registry, "export": lab.roots.export, "adapter": lab.roots.adapter}
        options = [text for name, path in paths.items() for text in (f"--{name}-root", str(path))]
        options += [*operator.at(lab.server), "--state-dir", str(lab.folder / "state")]
        asked = operator.run("journal", "explain", "t1", "--against-hive", *options)
        assert "half done; the agent finishes it" in asked.out
        refused = operator.run("journal", "resolve", "t1", "--as", "done", "--reason", "looks so", *options)
        assert refused.code == Exit.FAILURE
        assert "still under way" in refused.line
        assert contents(lab.roots.registry) == before
        assert operator.run("journal", "replay", "--apply", *options).code == Exit.OK
        assert lab.pointer == "m2\n"
        assert lab.result() == (
            "succeeded",
            "peft.activate model=m2 observed=active (an interrupted commit was finished)",
        )


# -- doctor -------------------------------------------------------------------------------------------------


def test_doctor_is_content_without_directories(operator: Operator) -> None:
    answer, checks = doctor(operator)
    assert answer.code == Exit.OK
    assert checks["peft"]["verdict"] == "ok"
    assert "not enabled" in checks["peft"]["detail"]


def test_doctor_shows_each_directory_and_the_active_model(operator: Operator) -> None:
    registry = make_roots(operator.home)
    before = sorted(registry.rglob("*"))
    answer, checks = doctor(operator, *flags(operator.home))
    assert answer.code == Exit.OK
    assert [checks[f"{role} root"]["verdict"] for role in ("registry", "export", "adapter")] == ["ok"] * 3
    assert checks["registry root"]["detail"] == f"{registry}, active m1"
    assert sorted(registry.rglob("*")) == before


def _open_up(home: Path) -> None:
    (home / "exports").chmod(0o777)


def _link(home: Path) -> None:
    (home / "exports").rmdir()
    (home / "exports").symlink_to(home / "adapters")


def _remove(home: Path) -> None:
    (home / "exports").rmdir()


def _spoil_pointer(home: Path) -> None:
    (home / "registry/active").write_bytes(b"../x\n")


@pytest.mark.parametrize(
    ("spoil", "check", "words"),
    [
        (_open_up, "export root", "can be written by others .* chmod go-w"),
        (_link, "export root", "is a symlink; name the real path"),
        (_remove, "export root", "does not exist; create it or correct the path"),
        (_spoil_pointer, "registry root", "activate a model after removing the file"),
    ],
)
def test_doctor_names_the_directory_that_keeps_tickets_waiting(
    operator: Operator, spoil: Callable[[Path], None], check: str, words: str
) -> None:
    make_roots(operator.home)
    spoil(operator.home)
    answer, checks = doctor(operator, *flags(operator.home))
    assert answer.code == Exit.FAILURE
    assert [name for name, entry in checks.items() if entry["verdict"] == "fail"] == [check]
    assert re.search(words, checks[check]["detail"])


def test_doctor_warns_of_files_that_disagree(operator: Operator) -> None:
    set_control(make_roots(operator.home), "m1", "m2", "m1")
    answer, checks = doctor(operator, *flags(operator.home))
    assert (answer.code, checks["registry root"]["verdict"]) == (Exit.OK, "warn")
    assert "active=m1 current=m2 previous=m1" in checks["registry root"]["detail"]


def test_doctor_names_a_forgotten_directory(operator: Operator) -> None:
    make_roots(operator.home)
    answer, checks = doctor(operator, *flags(operator.home, "registry_root", "adapter_root"))
    assert answer.code == Exit.USAGE
    assert checks["export root"]["verdict"] == "fail"
    assert "export_root is not named" in checks["export root"]["detail"]
    assert checks["registry root"]["verdict"] == "ok"
