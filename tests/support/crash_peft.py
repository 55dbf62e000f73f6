"""Scenes of the PEFT actions for the crash tests: one ticket, three roots, and what must hold of them."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from adapter_files import PREFIX, RANK, file_with
from cli_support import now_ms
from crash_oracle import Oracle
from crash_scene import Scene, same_twice
from hive_support import running_hive
from peft_actions import JOB, NATIVE, Places
from peft_tickets import raw_peft
from registry_support import add_model, set_control

from ticket_agent.cli.demo_watch import Arrivals
from ticket_agent.hive.reference.exports import sample_job

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from crash_process import Launcher, Life

MODEL = "model-b"
BEFORE, AFTER = ("model-a", "model-a", None), (MODEL, MODEL, "model-a")

LARGE = file_with(
    {
        f"{PREFIX}q_proj.lora_A.weight": ("F32", (RANK, 20_000)),
        f"{PREFIX}q_proj.lora_B.weight": ("F32", (20_000, RANK)),
    }
)
"""An adapter that is copied in more than one piece."""

FILES = {
    "export": frozenset(sample_job()),
    "import": frozenset({*NATIVE, "manifest.toml"}),
}
PEFT_SCENES = ("export", "import", "activate", "rollback")


@dataclass
class PeftOracle(Oracle):
    """The oracle of a ticket whose effect is on this host: there whole, or not at all.

    Attributes:
        kind: the scene.
        places: the roots.
        arrivals: what is renamed into the roots, as the kernel tells.
        dispatched: how often the rename came that only a dispatch makes: of the job, of the model, of the
            state file. An observer may write the pointer once more.
    """

    kind: str = field(kw_only=True)
    places: Places = field(kw_only=True)
    arrivals: Arrivals = field(kw_only=True)
    dispatched: int = 0

    def effects(self, lease: str | None = None) -> int:
        """Whether the effect is there."""
        if self.kind in FILES:
            return int(self._made.exists())
        return int(self._pointer == (MODEL if self.kind == "activate" else "model-a"))

    def after_life(self) -> None:
        """Beside what holds for every ticket: nobody ever sees a part."""
        super().after_life()
        telling = self._made if self.kind in FILES else self.places.registry / "active_state.toml"
        self.dispatched += self.arrivals.take().count(telling)
        if self.dispatched > 1 or self.effects() > self.dispatched:
            self.violations.append(f"{self.effects()} effects of {self.dispatched} dispatches")
        if self.kind in FILES and self._made.exists():
            names = {path.name for path in self._made.iterdir()}
            if names != FILES[self.kind]:
                self.violations.append(f"part of it is visible: {sorted(names)}")
        if self.kind not in FILES and self._pointer not in {MODEL, "model-a"}:
            self.violations.append(f"the pointer names {self._pointer!r}")

    def verdict(self, *, lied_to: bool = False) -> list[str]:
        """Nothing of ours stays behind either, and both control files agree."""
        found = super().verdict(lied_to=lied_to)
        names = [path.name for path in self.places.base.rglob(".*")]
        left = [name for name in names if not name.endswith(".lock")]
        if left:
            found.append(f"left behind: {left}")
        if self.kind not in FILES:
            state = (self.places.registry / "active_state.toml").read_text().split('"')[1]
            if state != self._pointer:
                found.append(f"the state says {state}, the pointer {self._pointer}")
        return found

    @property
    def _made(self) -> Path:
        return self.places.job if self.kind == "export" else self.places.registry / "available" / MODEL

    @property
    def _pointer(self) -> str:
        return (self.places.registry / "active").read_text().strip()


@contextmanager
def peft_scene(kind: str, home: Path, *, clock: Callable[[], int] = now_ms) -> Iterator[Scene]:
    """A fresh hive and three roots with all that one ticket of a kind needs."""
    home.mkdir(parents=True)
    places = Places(home / "roots").make()
    for model in ("model-a",) if kind in FILES else ("model-a", MODEL):
        add_model(places.registry, model)
    set_control(places.registry, *(AFTER if kind == "rollback" else BEFORE))
    places.add_adapter(NATIVE | {"adapter.safetensors": LARGE})
    if kind != "export":
        places.add_job()
    subject = {"export": JOB, "rollback": "model-a"}.get(kind, MODEL)
    args = {"adapter_ref": places.adapter.name, "job_id": JOB} if kind == "import" else {}
    watched = [places.registry, places.registry / "available", places.exports]
    with Arrivals(*watched) as arrivals, running_hive(clock=clock) as (hive, server):
        hive.exports.publish(JOB, sample_job())
        worker = hive.spawn_worker("worker-lora").worker_id
        oracle = PeftOracle(
            hive=hive,
            state_dir=home / "state",
            tickets={"t1": subject},
            kind=kind,
            places=places,
            arrivals=arrivals,
        )
        oracle.watch(server)
        hive.submit(raw_peft(hive, worker, f"peft.{kind}", subject, ticket_id="t1", **args))
        yield Scene(
            hive=hive, server=server, state_dir=home / "state", oracle=oracle, options=_options(places)
        )


def recorded_peft(launcher: Launcher, kind: str, home: Path) -> Life:
    """One undisturbed life of a scene, traced."""

    def record(home: Path) -> Life:
        with peft_scene(kind, home) as stage:
            life = launcher.once(stage.state_dir, stage.server.port, traced=True, options=stage.options)
            assert life.code == 0, life.output
            assert stage.oracle.settled()
            assert stage.oracle.verdict() == []
            assert stage.oracle.effects() == 1
        return life

    return same_twice(record, home)


def _options(places: Places) -> tuple[str, ...]:
    named = {"registry": places.registry, "export": places.exports, "adapter": places.adapters}
    return tuple(text for name, path in named.items() for text in (f"--{name}-root", os.fspath(path)))
