"""`snapshots publish` as an operator uses it: a hive that takes note, a manifest, collectors of a site."""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cli_support import PATIENCE_S, now_ms
from hive_support import CACHE_S, TOKEN

from ticket_agent.hive.reference import ConsoleServer, GatewayServer, GatewayTimes, ReferenceHive
from ticket_agent.protocol.snapshot import SnapshotBounds
from ticket_agent.protocol.snapshot_enrolment import SnapshotEnrolment, SnapshotPublisher, encode_enrolment
from ticket_agent.protocol.snapshot_status import SnapshotStatus, parse_status
from ticket_agent.snapshots.registry import GROUP

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cli_support import Answer, Operator

SOURCE = "host-a"
EPOCH = 7
PART = f"{SOURCE}-epoch-{EPOCH}"

SITE = '''\
"""Collectors of a site: what they do is what their name says."""

import os
import threading

from ticket_agent.protocol.collecting import CollectError, fact
from ticket_agent.protocol.snapshot import SnapshotEntry, UnavailableReason


def rack(context):
    return [fact("rack", "b4"), fact("units", [1, 2])]


def broken(context):
    raise RuntimeError("no licence: %s" % context.environ.get("SITE_SECRET", ""))


def hangs(context):
    threading.Event().wait()


def changes(context):
    """What a file of the test says; nothing to see without it."""
    try:
        text = open(context.environ["SITE_FILE"], encoding="utf-8").read()
    except OSError:
        raise CollectError("there is no file", UnavailableReason.NOT_ENABLED) from None
    return [fact("file", text)]


def crowded(context):
    return [SnapshotEntry("%02d" % number, "x" * 110) for number in range(55)]


def too_large(context):
    return [SnapshotEntry("%02d" % number, "x" * 200) for number in range(60)]


def too_long(context):
    return [SnapshotEntry("value", "x" * 1025)]


def pairs(context):
    return [("path", "value")]


def numbers(context):
    return [SnapshotEntry(1, 2)]


def number_value(context):
    return [SnapshotEntry("path", 2)]


def surrogates(context):
    return [SnapshotEntry("a", "1"), SnapshotEntry("p\\ud800", "v\\ud800")]


def surrogate_value(context):
    return [SnapshotEntry("a", "v\\ud800")]


def nothing(context):
    return None


def twice(context):
    return [fact("a", 1), fact("a", 2)]


def odd_reason(context):
    raise CollectError("an own reason", "bored")


def odd_detail(context):
    raise CollectError(17)


def exits(context):
    raise SystemExit("done here")


class _Silent(Exception):
    def __str__(self):
        raise RuntimeError("no words")


def wordless(context):
    raise _Silent


def hostile(context):
    return [SnapshotEntry("a", "\\x1b[2J\\u202e"), SnapshotEntry("b", "cohesix-ticket-" + "ab" * 40)]


def told_ticket(context):
    raise CollectError("refused cohesix-ticket-" + "ab" * 40 + "\\x1b[2J")
'''


@dataclass
class Lab:
    """One hive and one publisher's host."""

    operator: Operator
    hive: ReferenceHive
    server: ConsoleServer | GatewayServer
    enrolment: SnapshotEnrolment
    site: Path
    taken: list[tuple[int, str]] = field(default_factory=list)
    """Number and provider of every record that the hive took."""
    sent: list[str] = field(default_factory=list)
    """Every line that was appended to anything."""
    _more: threading.Condition = field(default_factory=threading.Condition, repr=False)

    @property
    def manifest(self) -> Path:
        return self.operator.home / "manifest.json"

    @property
    def at(self) -> list[str]:
        """Options that lead to the hive."""
        if isinstance(self.server, GatewayServer):
            return ["--rest-url", self.server.url, "--rest-auth-token", "env:LAB_TOKEN"]
        return ["--tcp-port", str(self.server.port), "--auth-token", "env:LAB_TOKEN"]

    @property
    def ours(self) -> list[str]:
        """Options that say who we are."""
        return ["--manifest", str(self.manifest), "--source-id", SOURCE]

    @property
    def env(self) -> dict[str, str]:
        path = os.pathsep.join((self.operator.env["PYTHONPATH"], str(self.site)))
        return {"PYTHONPATH": path, "SITE_FILE": str(self.site / "told")}

    @property
    def part(self) -> Path:
        return self.operator.state / PART

    def command(self, name: str, *more: str, **options: Any) -> Answer:
        env = self.env | options.pop("env", {})
        return self.operator.run("snapshots", name, *self.ours, *self.at, *more, env=env, **options)

    def publish(self, *more: str, **options: Any) -> Answer:
        return self.command("publish", *more, **options)

    def watch(self, *more: str, env: dict[str, str] | None = None) -> Any:
        arguments = ["snapshots", "publish", "--watch", *self.ours, *self.at, "--log-format", "json", *more]
        return self.operator.spawn(*arguments, env=self.env | (env or {}))

    def status(self, provider: str) -> SnapshotStatus:
        return parse_status(self.hive.cat(self.enrolment.paths(provider, SOURCE).status)[0])

    def shown(self, provider: str) -> str:
        return "".join(self.hive.cat(self.enrolment.paths(provider, SOURCE).snapshot))

    def until_taken(self, provider: str, more: int) -> None:
        """Wait until the hive took ``more`` further records of a provider."""
        with self._more:
            wanted = self._count(provider) + more
            assert self._more.wait_for(lambda: self._count(provider) >= wanted, PATIENCE_S), self.taken

    def until_each(self, count: int, *providers: str) -> None:
        """Wait until the hive has taken ``count`` records of each of these providers in all."""
        with self._more:
            assert self._more.wait_for(
                lambda: all(self._count(provider) >= count for provider in providers), PATIENCE_S
            ), self.taken

    def _count(self, provider: str) -> int:
        return sum(name == provider for _, name in self.taken)

    def restart_hive(self) -> None:
        """End the hive and start it again where it was; it has forgotten everything."""
        assert isinstance(self.server, ConsoleServer)
        port = self.server.port
        self.server.stop()
        self.hive.reboot()
        self.server = ConsoleServer(self.hive, port=port, token=TOKEN)
        self.server.start()

    def take_note(self) -> None:
        """Note down everything that the hive takes from now on."""
        echo = self.hive.echo

        def noted(path: str, payload: str, *, role: str = "queen") -> int:
            self.sent.append(payload)
            size = echo(path, payload, role=role)
            if path.endswith("/ctl") and payload == "end" and path.startswith(self.enrolment.root):
                provider = path.split("/")[-3]
                with self._more:
                    self.taken.append((self.status(provider).sequence, provider))
                    self._more.notify_all()
            return size

        self.hive.echo = noted  # type: ignore[method-assign]


def enrolling(*providers: str, **bounds: int) -> SnapshotEnrolment:
    """One source with these providers."""
    return SnapshotEnrolment(
        epoch=EPOCH,
        bounds=SnapshotBounds(**bounds),
        publishers=(SnapshotPublisher(source_id=SOURCE, providers=providers),),
    )


def install_site(folder: Path) -> Path:
    """A folder of installed packages, as pip leaves them: each collector under its own name."""
    folder.mkdir()
    (folder / "site_collectors.py").write_text(SITE)
    info = folder / "site_collectors-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: site_collectors\nVersion: 1.0\n")
    names = [line[4:].partition("(")[0] for line in SITE.splitlines() if line.startswith("def ")]
    points = [f"{name} = site_collectors:{name}" for name in names]
    (info / "entry_points.txt").write_text("\n".join([f"[{GROUP}]", *points, ""]))
    return folder


@contextmanager
def publish_lab(
    operator: Operator,
    *providers: str,
    rest: bool = False,
    of_hive: SnapshotEnrolment | None = None,
    **bounds: int,
) -> Iterator[Lab]:
    """A hive behind a console or gateway, a state directory, and these providers enrolled.

    Args:
        operator: whose host it is.
        providers: of the publisher's manifest.
        rest: behind a gateway.
        of_hive: what the hive enrols, where that is not what the manifest says.
        bounds: of the manifest.
    """
    enrolment = enrolling(*providers, **bounds)
    hive = ReferenceHive(clock=now_ms, snapshots=of_hive or enrolment)
    operator.state.mkdir(mode=0o700)
    server: ConsoleServer | GatewayServer
    if rest:
        times = GatewayTimes(cache_s=CACHE_S, queue_s=0.2, deadline_s=120.0)
        server = GatewayServer(hive, clock=now_ms, token=TOKEN, times=times)
    else:
        server = ConsoleServer(hive, token=TOKEN)
    with server:
        lab = Lab(operator, hive, server, enrolment, install_site(operator.home / "site"))
        lab.manifest.write_bytes(encode_enrolment(enrolment))
        lab.take_note()
        try:
            yield lab
        finally:
            if isinstance(lab.server, ConsoleServer):
                lab.server.stop()
