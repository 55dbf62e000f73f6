"""Version-1 arguments: what they may say, and that no path in them is followed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from peft_tickets import v1_ticket

from ticket_agent.peft.compat_args import CompatArgsError, CompatRequest, translate
from ticket_agent.peft.settings import PeftRoots

ROOTS = PeftRoots(
    registry=Path("/srv/peft/registry"),
    export=Path("/srv/peft/exports"),
    adapter=Path("/srv/peft/adapters"),
    owner_uid=os.geteuid(),
)

IMPORT = {"model_id": "m1", "job_id": "j1", "adapter_dir": "/srv/peft/adapters/a1"}
IMPORTED = {"subject": "m1", "adapter_ref": "a1", "job_id": "j1"}

ACCEPTED: list[tuple[str, Any, dict[str, Any]]] = [
    ("export", {"job_id": "j1"}, {"subject": "j1"}),
    ("export", {"job": " j1 "}, {"subject": "j1"}),
    ("export", {"job": "j1", "out_dir": "/srv/peft/exports"}, {"subject": "j1"}),
    ("export", {"job_id": "j1", "job": None, "out": "/srv/peft/exports/"}, {"subject": "j1"}),
    ("import", IMPORT, IMPORTED),
    ("import", {"model": "m1", "job": "j1", "from": "/srv/peft//adapters/a1"}, IMPORTED),
    (
        "import",
        IMPORT | {"export_root": "/srv/peft/exports", "registry": "/srv/peft/registry", "publish": True},
        IMPORTED,
    ),
    ("activate", {"model_id": "m1"}, {"subject": "m1"}),
    ("activate", {"model": "m1", "registry_root": "/srv/peft/registry"}, {"subject": "m1"}),
    ("rollback", None, {"subject": None}),
    ("rollback", {}, {"subject": None}),
    ("rollback", {"registry": "/srv/peft/registry"}, {"subject": None}),
]


@pytest.mark.parametrize(("verb", "args", "expected"), ACCEPTED)
def test_accepted(verb: str, args: Any, expected: dict[str, Any]) -> None:
    action = f"peft.{verb}"
    assert translate(v1_ticket(action, args), ROOTS) == CompatRequest(action=action, **expected)


REFUSED: list[tuple[str, Any, str]] = [
    ("export", [], "takes its args as an object"),
    ("export", {}, "needs args.job_id"),
    ("export", {"job_id": ""}, "needs args.job_id"),
    ("export", {"job_id": 7}, "args.job_id must be a string"),
    ("export", {"job_id": "j1", "job": "j1"}, "args.job_id and args.job mean the same; give one"),
    ("export", {"job_id": "../j1"}, "args.job_id"),
    ("export", {"job_id": ".."}, "args.job_id"),
    ("export", {"job_id": "j1", "out_dir": "/srv/peft/registry"}, "args.out_dir is not this agent's export"),
    ("export", {"job_id": "j1", "out": "exports"}, "args.out is not this agent's export root"),
    ("export", {"job_id": "j1", "out": ""}, "args.out is not this agent's export root"),
    ("export", {"job_id": "j1", "out_dir": "/srv/peft/x/../exports"}, "args.out_dir is not"),
    ("export", {"job_id": "j1", "out_dir": "/srv/peft/exports", "out": "/"}, "mean the same; give one"),
    ("export", {"job_id": "j1", "model_id": "m1"}, "args.model_id is not known"),
    (
        "import",
        IMPORT | {"adapter_dir": "/srv/peft/adapters"},
        "args.adapter_dir is no directory right below",
    ),
    ("import", IMPORT | {"adapter_dir": "/srv/peft/adapters/"}, "args.adapter_dir is no directory"),
    ("import", IMPORT | {"adapter_dir": "/srv/peft/adapters/a/b"}, "args.adapter_dir is no directory"),
    ("import", IMPORT | {"adapter_dir": "/srv/peft/adapters/.."}, "args.adapter_dir"),
    ("import", IMPORT | {"adapter_dir": "/srv/peft/adapters/a1/."}, "args.adapter_dir is no directory"),
    ("import", IMPORT | {"adapter_dir": "/srv/peft/adapters/-a"}, "args.adapter_dir"),
    ("import", IMPORT | {"adapter_dir": "/etc"}, "args.adapter_dir is no directory right below"),
    ("import", IMPORT | {"adapter_dir": "a1"}, "args.adapter_dir is no directory right below"),
    ("import", IMPORT | {"from": "/srv/peft/adapters/a1"}, "args.adapter_dir and args.from mean the same"),
    ("import", IMPORT | {"registry_root": "/srv/peft/exports"}, "args.registry_root is not this agent's"),
    ("import", IMPORT | {"publish": "yes"}, "args.publish must be true or false"),
    ("import", IMPORT | {"adapter_sha256": "0" * 64}, "args.adapter_sha256 is not known"),
    ("activate", {"registry": "/srv/peft/registry"}, "needs args.model_id"),
    ("activate", {"model": "m1", "registry": "/tmp"}, "args.registry is not this agent's registry root"),
    ("activate", {"model": "a/b"}, "args.model"),
    ("rollback", {"model_id": "m1"}, "args.model_id is not known"),
    ("rollback", {"registry": "/srv/peft"}, "args.registry is not this agent's registry root"),
    ("release", {}, "no PEFT action of version 1"),
]


@pytest.mark.parametrize(("verb", "args", "reason"), REFUSED)
def test_refused_with_one_line(verb: str, args: Any, reason: str) -> None:
    with pytest.raises(CompatArgsError) as refused:
        translate(v1_ticket(f"peft.{verb}", args), ROOTS)
    text = str(refused.value)
    assert reason in text
    assert text.startswith(f"peft.{verb}")
    assert text.isprintable()
    # What the configuration says is nobody's business.
    assert "/srv" not in text


PATHS = st.text("/.ab-", max_size=24).map(lambda tail: f"/srv/peft/adapters/{tail}") | st.text(max_size=40)


@given(PATHS)
def test_whatever_path_is_named_only_a_child_of_the_root_comes_out(path: str) -> None:
    try:
        ref = translate(v1_ticket("peft.import", IMPORT | {"adapter_dir": path}), ROOTS).adapter_ref
    except CompatArgsError:
        return
    assert ref is not None
    assert "/" not in ref
    assert ref not in {".", ".."}
    assert os.path.normpath(path.strip()) == f"/srv/peft/adapters/{ref}"
