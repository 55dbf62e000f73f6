"""A day of an agent in minutes: clock, monotonic time and pauses are the test's, the console is real.

A day is a list of things that happen at a virtual second. Whenever the agent pauses, time goes on to
the end of the pause, and what is due by then happens. Nothing else moves time: a day costs what
its passes cost.
"""

from __future__ import annotations

import gc
import io
import itertools
import json
import operator
import os
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from statistics import median_low
from typing import TYPE_CHECKING

from agent_support import BOOT
from hive_support import SNAPSHOT, START_MS, raw_grant

from ticket_agent.agent.events import EventLog
from ticket_agent.agent.keys import V2_FAMILY
from ticket_agent.agent.loop import Agent
from ticket_agent.agent.notify import ServiceNotifier
from ticket_agent.agent.providers import ProviderTable
from ticket_agent.config import AgentConfig, ConsoleSettings, PollSettings
from ticket_agent.gpu.lease import lease_providers
from ticket_agent.hive.console.client import ConsoleConfig, ConsoleNamespace
from ticket_agent.hive.reference import DEFAULT, ConsoleServer, HiveProfile, ReferenceHive, RefusalError
from ticket_agent.journal.gaps import acknowledge_gap
from ticket_agent.journal.store import JournalStore, Limits
from ticket_agent.journal.view import read_archive, read_journal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

DAY_S = 86_400.0
HOUR_S = 3_600.0
WORKERS = 16
OURS = tuple(f"ticket_agent.{part}" for part in ("agent", "journal", "gpu", "hive.console"))
REMEMBERED = "_Write"
"""What an agent remembers on purpose, a thousand at most."""
KEEP_RECORDS = 40
"""Few, so that the archive takes over within the day."""


class VirtualTime(threading.Event):
    """A stop that is asked to wait: it moves time instead, and lets happen what is due.

    Args:
        stretch: how many idle pauses are taken as one, to shorten a day; 1 polls as often as the agent asks.
    """

    def __init__(self, *, stretch: int = 1) -> None:
        super().__init__()
        self.now_s = 0.0
        self.polls = 0
        self._stretch = stretch
        self._due: list[tuple[float, int, Callable[[], None]]] = []

    def clock(self) -> int:
        return START_MS + int(self.now_s * 1000)

    def monotonic(self) -> float:
        return self.now_s

    def at(self, second: float, action: Callable[[], None]) -> None:
        self._due.append((second, len(self._due), action))
        self._due.sort(reverse=True, key=lambda entry: entry[:2])

    def sleep(self, seconds: float) -> None:
        """What a reconnect pauses; the console needs a moment of real time as well."""
        self.now_s += seconds
        time.sleep(min(seconds, 0.002))

    def wait(self, timeout: float | None = None) -> bool:
        self.polls += 1
        pause = timeout or 0.0
        if pause >= 1.0:
            until = self._due[-1][0] if self._due else DAY_S
            pause = max(pause, min(pause * self._stretch, until - self.now_s))
        self.now_s += pause
        while self._due and self._due[-1][0] <= self.now_s:
            self._due.pop()[2]()
        if self.now_s >= DAY_S:
            self.set()
        return self.is_set()


class Events(io.StringIO):
    """A log of which only counts and the last gap are kept: a day's lines would look like a leak."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.epochs: list[str] = []

    def write(self, text: str) -> int:
        event = json.loads(text)
        self.counts[event["event"]] += 1
        if event["event"] == "hive-epoch":
            self.epochs.append(event["evidence"])
        return len(text)


@dataclass(frozen=True)
class Sample:
    hour: float
    rss_kib: int
    descriptors: int
    threads: int
    objects: int
    """Live objects of the agent's own types, without those of the hive."""


def _kinds() -> list[type]:
    """The type of every object that there is.

    In one call into C, during which no other thread runs: where somebody else holds a tuple while a thread is
    still filling it, the interpreter ends its making with a SystemError.
    """
    everything = itertools.chain.from_iterable(map(operator.call, [gc.get_objects]))
    return list(map(type, everything))


def sample(hour: float) -> Sample:
    gc.collect()
    objects = sum(kind.__module__.startswith(OURS) and kind.__name__ != REMEMBERED for kind in _kinds())
    rss = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return Sample(
        hour, rss // 1024, sum(1 for _ in Path("/proc/self/fd").iterdir()), threading.active_count(), objects
    )


@dataclass
class Submitted:
    """One ticket: in which life of the hive it was admitted, with which number."""

    life: int
    sequence: int


@dataclass
class Day:
    """One hive, one agent, and what happens to them.

    Attributes:
        tickets: every admission of the day, by ticket id.
        lost: tickets that were evicted before the agent could see them.
    """

    place: Path
    seed: int
    profile: HiveProfile = DEFAULT
    tickets: dict[str, Submitted] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)
    happened: Counter[str] = field(default_factory=Counter)
    samples: list[Sample] = field(default_factory=list)
    time: VirtualTime = field(default_factory=VirtualTime)
    events: Events = field(default_factory=Events)

    def __post_init__(self) -> None:
        self.place.mkdir()
        self.random = Random(self.seed)
        self.token_file = self.place / "token"
        self.tokens = 0
        self.hive = ReferenceHive(self.profile, clock=self.time.clock)
        self.server = self._listen(0)
        self.write_token()
        self.workers: list[str] = []
        self._staff()

    # -- what happens --------------------------------------------------------------------------------------

    def _listen(self, port: int) -> ConsoleServer:
        token = f"token-{self.seed}-{self.tokens}"
        server = ConsoleServer(self.hive, port=port, token=token, monotonic=self.time.monotonic)
        server.start()
        return server

    def write_token(self) -> None:
        new = self.token_file.with_suffix(".new")
        new.write_text(f"token-{self.seed}-{self.tokens}\n", encoding="ascii")
        new.replace(self.token_file)

    def _staff(self) -> None:
        self.workers = [self.hive.spawn_worker("worker-gpu").worker_id for _ in range(WORKERS)]

    def submit(self, count: int) -> None:
        """Tickets for the Workers that are free."""
        free = self.random.sample(self.workers, len(self.workers))
        for worker in free[:count]:
            name = f"t{len(self.tickets)}"
            expires = self.time.clock() + 600_000 if self.random.random() < 0.3 else None
            line = raw_grant(self.hive, worker, name, f"lease-{name}", ttl_s=60, expires=expires)
            with suppress(RefusalError):
                self.hive.submit(line)
                view = self.hive.admission_of(name)
                self.tickets[name] = Submitted(self.hive.boots, view.sequence)
                self.happened["tickets"] += 1

    def drop(self) -> None:
        self.happened["connections dropped"] += 1
        self.server.kick()

    def reboot_with_news(self) -> None:
        """Tickets that the hive admits and forgets before anybody looks."""
        self.submit(3)
        self.reboot()

    def reboot(self) -> None:
        self.happened["hive reboots"] += 1
        self.hive.reboot()
        self._staff()
        self.server.kick()

    def restart_console(self) -> None:
        """The listener goes away and comes back with the present token."""
        port = self.server.port
        self.server.stop()
        self.server = self._listen(port)

    def rotate(self) -> None:
        """The hive takes the new token first; until the file follows, the agent is refused."""
        self.happened["rotations"] += 1
        self.tokens += 1
        self.restart_console()
        self.time.at(self.time.now_s + 120, self.write_token)

    def lose(self) -> None:
        """While the console is away, more is admitted than the ring keeps."""
        self.happened["losses"] += 1
        port = self.server.port
        self.server.stop()
        before = set(self.tickets)
        self.submit(8)
        new = [name for name in self.tickets if name not in before]
        evicted = new[: len(new) // 2]
        retained = sum(1 for line in self.hive.cat(SNAPSHOT))
        self.hive.slide(SNAPSHOT, retained - (len(new) - len(evicted)))
        self.lost |= set(evicted)
        self.time.at(self.time.now_s + 30, lambda: self._back(port))
        self.time.at(self.time.now_s + 600, self.acknowledge)

    def _back(self, port: int) -> None:
        self.server = self._listen(port)

    def acknowledge(self) -> None:
        """The operator gives up what the agent says is held; nothing is, if it noticed no loss."""
        held = read_journal(self.state_dir).cursor.held
        if held is None:
            return
        self.happened["gaps acknowledged"] += 1
        reason = "known to be lost"
        acknowledge_gap(
            self.state_dir,
            epoch=held.epoch,
            first=held.first,
            through=held.through,
            reason=reason,
            by="operator",
            clock=self.time.clock,
        )

    # -- the agent -----------------------------------------------------------------------------------------

    @property
    def state_dir(self) -> Path:
        return self.place / "state"

    def live(self, *, stop_at: float = DAY_S) -> None:
        """One life of the agent, until the day or a virtual second is over."""
        time_ = self.time
        config = AgentConfig(
            state_dir=self.state_dir,
            console=ConsoleSettings(port=self.server.port, auth_token=f"file:{self.token_file}"),
            poll=PollSettings(),
        )
        limits = Limits(
            retain_ms=int(HOUR_S * 1000),
            retain_records=KEEP_RECORDS,
            retire_batch=KEEP_RECORDS // 2,
            fenced_families=frozenset({V2_FAMILY}),
        )
        console = ConsoleConfig(
            host="127.0.0.1", port=self.server.port, token=config.console.auth_token, use_lock=False
        )
        if stop_at < DAY_S:
            time_.at(stop_at, time_.set)
        agents: list[Agent] = []
        with (
            JournalStore.open(
                self.state_dir, clock=time_.clock, boot_id=BOOT, agent_version="day", limits=limits
            ) as store,
            ConsoleNamespace(console, monotonic=time_.monotonic, sleep=time_.sleep) as namespace,
        ):
            agents.append(
                Agent(
                    config=config,
                    store=store,
                    namespace=namespace,
                    providers=ProviderTable(
                        v1={},
                        v2=lease_providers(namespace, epoch=lambda: agents[0].intake.epoch),
                        allowlist=None,
                    ),
                    events=EventLog(self.events, clock=time_.clock, style="json"),
                    clock=time_.clock,
                    monotonic=time_.monotonic,
                )
            )
            agents[0].run(time_, notifier=ServiceNotifier({}, pid=os.getpid()), reports=[])
        time_.clear()

    def close(self) -> None:
        self.server.stop()

    # -- what came of it -----------------------------------------------------------------------------------

    def ends(self) -> dict[str, str]:
        """How the journal says that each ticket ended, from records and archive."""
        view = read_journal(self.state_dir)
        records = list(view.records.values())
        for segment in read_archive(self.state_dir):
            assert not segment.problems
            records += segment.records
        found: dict[str, str] = {}
        for record in records:
            name = json.loads(record.request)["id"]
            assert name not in found, f"{name} has two records"
            found[name] = record.result.outcome if record.result is not None else record.state.value
        return found

    def effects(self) -> Counter[str]:
        """How often each ticket's lease was granted."""
        found: Counter[str] = Counter()
        for effect, count in self.hive.effects.items():
            found[effect.subject.removeprefix("lease-")] += count
        return found

    def results(self, name: str) -> int:
        return len(set(self.hive.terminal_lines((name, f"key-{name}"))))


def busy_day(place: Path, *, seed: int, tickets: int, stretch: int, profile: HiveProfile = DEFAULT) -> Day:
    """Bursts by day, silence by night, and everything that goes wrong in between, by a seed."""
    day = Day(place, seed, replace(profile), time=VirtualTime(stretch=stretch))
    random = day.random
    bursts = max(1, tickets // 6)
    for _ in range(bursts):
        # Nothing between 0 and 5 o'clock but the polls.
        day.time.at(random.uniform(5 * HOUR_S, DAY_S - HOUR_S), lambda: day.submit(random.randint(1, 11)))
    _spread(day, 24, day.drop)
    for hour in (7.3, 11.2, 19.3):
        day.time.at(hour * HOUR_S, day.reboot)
    day.time.at(15.4 * HOUR_S, day.reboot_with_news)
    for hour in (6.2, 12.6, 18.1, 22.2):
        day.time.at(hour * HOUR_S, day.rotate)
    for hour in (9.7, 16.8):
        day.time.at(hour * HOUR_S, day.lose)
    for hour in range(25):
        day.time.at(min(hour * HOUR_S, DAY_S - 1), lambda hour=hour: day.samples.append(sample(hour)))  # type: ignore[misc]
    return day


def _spread(day: Day, count: int, action: Callable[[], None]) -> None:
    for _ in range(count):
        day.time.at(day.random.uniform(0, DAY_S), action)


def growth(samples: Iterable[Sample]) -> Sample:
    """By how much the least of the last quarter lies above what was usual in the second one, for each member.

    The other day's hive may be away in the moment of a sample, with its thread and its descriptors: less than
    usual is no measure.
    """
    found = list(samples)
    quarter = len(found) // 4
    early, late = found[quarter : 2 * quarter], found[-quarter:]
    grown = {
        name: min(getattr(one, name) for one in late) - median_low(getattr(one, name) for one in early)
        for name in Sample.__dataclass_fields__
    }
    return Sample(**grown)
