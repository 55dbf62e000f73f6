"""Playing one cell of the table on a bench, and holding what there is then against what must be."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import TYPE_CHECKING

from release_bench import Bench, kill
from release_cells import ENDS, FORWARD, JOURNAL, TOUCHING, Cell
from serving_caller import Caller
from serving_support import TRANSFORMERS, answers

from ticket_agent.peft.errors import PeftError
from ticket_agent.peft.release.phases import Phase

if TYPE_CHECKING:
    from pathlib import Path

    from release_cells import Name
    from release_lab import Lab

    from ticket_agent.peft.release.private_root import PrivateRoot

GAP_MS = 30_000.0
"""So long only who hangs lets others wait; how long it was is told at the end of the run."""
POISONED = 1
LIFE_MS = 24 * 3_600_000
LONG_MS = 2 * LIFE_MS
STALE_S = 1200.0
"""An evaluation is too old after an hour, so what is remembered of a release is done anew before that."""
ACCEPTED = "ticket_agent.peft.release.control_files:ControlFiles.promote"


class Client(Caller):
    """Somebody who asks all the time; gaps are counted only while a release is going on."""

    def __init__(self, lab: Lab, root: PrivateRoot) -> None:
        super().__init__(root.pointer, TRANSFORMERS, answers, settle_s=lab.config.settle_s, pause_s=0.01)
        self.lab = lab

    def gap_ms(self, since: float) -> float:
        """The longest time without an answer from ``since`` until now, which is looked at as well."""
        times = [since, *(when for when, _ in list(self.answers) if when >= since), time.monotonic()]
        return max(after - before for before, after in pairwise(times)) * 1000


class Player:
    """Plays cells on one bench; releases are remembered after each of their phases."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.places: dict[tuple[str, Phase | None], Path] = {}
        self.remembered_at = float("-inf")
        self.tickets = {
            "train": bench.ticket("train", 1, life_ms=LIFE_MS),
            "import": bench.ticket("import", 2, life_ms=LIFE_MS),
        }
        self.gaps: dict[str, float] = {}
        self.answers = 0
        self.unanswered: list[str] = []

    # -- getting there -----------------------------------------------------------------------------------

    def before(self, entry: str, phase: Phase) -> None:
        """Go back to the moment before a phase is dispatched, or at least to one that can be remembered."""
        order = [each for each in FORWARD if each is not Phase.TRAIN or entry == "train"]
        wanted = Phase.STAGE if phase in {*TOUCHING, Phase.ROLLBACK} else None
        at = order.index(phase) if wanted is None else order.index(wanted) + 1
        if time.monotonic() > self.remembered_at + STALE_S:
            self.places = {(each, None): self.bench.clean for each in self.tickets}
            self.remembered_at = time.monotonic()
        self.bench.back_to(self._place(entry, order[:at]))

    def _place(self, entry: str, done: list[Phase]) -> Path:
        last = done[-1] if done else None
        if (entry, last) not in self.places:
            assert last is not None
            bench = self.bench
            bench.back_to(self._place(entry, done[:-1]))
            status = bench.run(
                self.tickets[entry], die={"at": f"{JOURNAL}.finish", "phase": last.value, "when": "after"}
            )
            assert status == -9, (status, bench.told(), bench.output())
            place = bench.folder / f"{entry}-{last}"
            bench.keep(place)
            self.places[entry, last] = place
        return self.places[entry, last]

    # -- one cell ----------------------------------------------------------------------------------------

    def play(self, cell: Cell, **wrong: str) -> list[str]:
        """What is wrong; ``wrong`` is so with every agent."""
        bench = self.bench
        self.before(cell.entry, cell.phase)
        bench.wrong = wrong
        try:
            return self._play(cell)
        finally:
            bench.wrong = {}

    def _play(self, cell: Cell) -> list[str]:
        bench = self.bench
        if cell.phase is Phase.ROLLBACK:
            bench.fault(Phase.CANARY, "unobserved", "fails")
        client = Client(bench.lab, bench.root)
        client.thread.start()
        began = time.monotonic()
        try:
            status = self._happen(cell)
            if cell.event.silent:
                found = []
            else:
                gap = client.gap_ms(began)
                self.gaps[cell.label] = gap
                found = [f"nobody answered for {gap:.0f} ms"] if gap > GAP_MS else []
        finally:
            client.stop.set()
            client.thread.join()
        self.answers += len(client.answers)
        if not cell.event.silent:
            self.unanswered += [f"{cell.label}: {failure}" for failure in client.failures]
            self.unanswered += [f"{cell.label}, asked too late: {failure}" for failure in client.late]
        # Only who dies while the pointer names it leaves questions without an answer.
        named = cell.phase is Phase.PROMOTE and cell.event.do == ("server", "candidate")
        found += client.wrong if cell.event.silent or named else client.failures
        return found + self.judge(cell, status)

    def _happen(self, cell: Cell) -> int:
        bench, phase, ticket = self.bench, cell.phase, self.tickets[cell.entry]
        match cell.event.do:
            case ("agent", method, when):
                wrong = {"at": f"{JOURNAL}.{method}", "phase": phase.value, "when": when}
                status = bench.run(ticket, die=wrong)
                assert status == -9, (status, bench.told(), bench.output())
                begun = bench.files(cell.entry).run(phase).exists()
                assert not (begun and method == "dispatch"), "begun before its intent was durable"
            case ("agent-at", place):
                status = bench.run(ticket, die={"at": place})
                assert status == -9, (status, bench.told(), bench.output())
            case ("authority-between",):
                wrong = {"at": f"{JOURNAL}.finish", "phase": phase.value, "when": "after"}
                status = bench.run(ticket, die=wrong)
                assert status == -9, (status, bench.told(), bench.output())
                bench.say("authority", "lost")
            case ("agent-outside",):
                self._hold(cell)
                bench.end_life()
                bench.go(phase)
            case ("fault", at, do):
                bench.fault(phase, at, do)
            case ("supervisor",):
                self._hold(cell)
                kill(bench.process(phase, cell.entry).identity())
            case ("full", at):
                self._hold(cell, at)
                with bench.full_disk():
                    bench.go(phase)
                    held = bench.process(phase, cell.entry)
                    bench.until(lambda: not _runs(held), f"{phase} is over")
                    bench.until(
                        lambda: (
                            "Waits" in str(bench.told())
                            or "No space" in str(bench.told())
                            or bench.life_over()
                        ),
                        "it waits",
                    )
            case ("server" | "server-later" | "server-then-fails", launch):
                # Whatever comes after the work of these two is no business of theirs any more.
                early = {Phase.PROMOTE: ACCEPTED, Phase.ROLLBACK: "begin"}
                self._hold(
                    cell, "unobserved" if "later" in cell.event.do[0] else early.get(phase, "unobserved")
                )
                known = bench.candidate(cell.entry) if launch == "candidate" else bench.server(launch)
                assert known is not None
                known.kill()
                if "fails" in cell.event.do[0]:
                    bench.fault(Phase.CANARY, "unobserved", "fails")
                bench.go(phase)
            case ("authority", told):
                self._hold(cell)
                bench.say("authority", told)
                if told == "unproven":
                    time.sleep(0.05)
                    bench.say("monotonic", "60")
                    held = bench.process(phase, cell.entry)
                    bench.until(lambda: not _runs(held), f"{phase} is stopped")
                    bench.say("authority", "held")
            case ("authority-short",):
                self._hold(cell)
                bench.say("authority", "unproven")
                time.sleep(0.05)
                bench.go(phase)
                bench.say("authority", "held")
            case ("expired",):
                self._hold(cell)
                bench.say("clock", str(LONG_MS))
        if bench.life is not None:
            life = bench.life
            if not life.over(bench.wait_s):
                life.kill()
                raise AssertionError(f"it does not end: {bench.told()}\n{bench.output()}")
            bench.life = None
            if life.status != POISONED:
                assert life.status is not None
                return life.status
        # What manages services starts it again.
        return bench.run(ticket)

    def _hold(self, cell: Cell, at: str = "unobserved") -> None:
        """Have an agent, and the phase at a place, by default the end of its work."""
        self.bench.fault(cell.phase, at, "hold")
        self.bench.start(self.tickets[cell.entry])
        self.bench.held(cell.phase)

    def line(self) -> str:
        """What the client saw, for the end of the run."""
        worst = max(self.gaps, key=lambda label: self.gaps[label])
        return (
            f"releases: {len(self.gaps)} with a client that asks all the time, {self.answers} answers,"
            f" {len(self.unanswered)} questions failed, longest gap {self.gaps[worst]:.0f} ms ({worst})"
            + "".join(f"\n  not answered: {failure}" for failure in self.unanswered)
        )

    # -- judging -----------------------------------------------------------------------------------------

    def judge(self, cell: Cell, status: int) -> list[str]:
        """What is not as the table says."""
        return self._judged(cell, status, cell.expected)

    def judge_any(self, cell: Cell, status: int, names: tuple[Name, ...]) -> list[str]:
        """What is not as one of these ends; the end that fits best speaks."""
        return min((self._judged(cell, status, name) for name in names), key=len)

    def _judged(self, cell: Cell, status: int, name: Name) -> list[str]:
        bench, end = self.bench, ENDS[name]
        found = []
        if status != (3 if end.ticket is None else 0):
            found.append(f"the agent ended with {status}: {bench.output()}")
        if "Traceback" in bench.output():
            found.append(f"an error escaped: {bench.output()}")
        told = next(value for name, value in bench.told().items() if name.startswith("t-"))
        if told["outcome"] != end.ticket:
            found.append(
                f"the ticket is {told['outcome']} ({told['message'] or told['why']}), not {end.ticket}"
            )
        record = bench.end(cell.entry)
        state = None if record is None else record.state.value
        if state != end.state:
            found.append(f"the release is {state}, not {end.state}: {told['message'] or told['why']}")
        found += self._files(cell, name)
        counts = {name: count for name, count in bench.effects().items() if count > 1}
        if counts:
            found.append(f"done more than once: {counts}")
        candidate = bench.candidate(cell.entry)
        if end.gone and candidate is not None and candidate.running() is not False:
            found.append("the candidate's server still runs")
        for observation in () if record is None else record.observations():
            try:
                bench.root.objects.load(observation.sha256)
            except PeftError as error:
                found.append(f"the observation of {observation.phase} is not kept: {error}")
        if record is not None and any(True for _ in record.observations()):
            found += bench.verified(cell.entry)
        return found

    def _files(self, cell: Cell, name: Name) -> list[str]:
        end, found = ENDS[name], self.bench.files_say(cell.entry)
        wanted: dict[str, int] = {"owner": end.owned, "blocked": end.blocked, "answers": True}
        if end.deployed is not None:
            wanted |= dict.fromkeys(("accepted", "pointer", "runtime"), end.deployed)
        if cell.event.silent and (name == "stuck" or cell.name == "candidate-dies-later"):
            del wanted["answers"]
        return [
            f"{what} is {found[what]}, not {value}" for what, value in wanted.items() if found[what] != value
        ]


def _runs(process: object) -> bool:
    from ticket_agent.peft.release.running_phase import Running, RunningPhase  # noqa: PLC0415

    assert isinstance(process, RunningPhase)
    return isinstance(process.poll(), Running)
