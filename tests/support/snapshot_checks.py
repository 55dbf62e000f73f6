"""Sweeps over everything that may happen to a publisher, each judged by the numbers that were seen."""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from itertools import count, pairwise
from typing import TYPE_CHECKING

from snapshot_deaths import CUTS, PART, MortalFs, Scene, Steps

from ticket_agent.snapshots.publish_errors import PublishError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Check = Callable[["Path"], list[str]]
RUNS: dict[str, int] = {}
"""How many lives each check had in the last sweep."""
MOST_STEPS = 60
"""A later life has fewer."""


def _scenes(folder: Path) -> Iterator[Scene]:
    for number in count():
        root = folder / str(number)
        root.mkdir(mode=0o700)
        yield Scene(root)


def _deaths(folder: Path, cuts: tuple[str, ...], name: str) -> list[str]:
    """Death at every step; the hive remembers, or was restarted meanwhile too."""
    found: list[str] = []
    scenes = _scenes(folder)
    RUNS[name] = 0
    for used in (False, True):
        for at in count():
            dead = False
            for cut in cuts:
                for reboots in (False, True):
                    scene, steps = next(scenes), Steps(at=at)
                    if used:
                        scene.live(Steps())
                    fs = scene.live(steps)
                    dead = steps.dead
                    if not dead:
                        break
                    fs.cut(cut)
                    if reboots:
                        scene.hive.reboot()
                    wrong = scene.restart() + scene.repeated()
                    found += [f"{cut} at step {at}, {'again' if used else 'first'}: {text}" for text in wrong]
                    RUNS[name] += 1
            if not dead:
                break
    return found


def deaths(folder: Path) -> list[str]:
    """SIGKILL at every step."""
    return _deaths(folder, CUTS[:1], "deaths")


def power_cuts(folder: Path) -> list[str]:
    """A power cut at every step."""
    return _deaths(folder, CUTS[1:], "power cuts")


def failures(folder: Path) -> list[str]:
    """Every operation on the file system fails once, or from then on, and the process lives on."""
    found: list[str] = []
    scenes = _scenes(folder)
    RUNS["failures"] = 0
    for error in (errno.EIO, errno.ENOSPC):
        for lasting in (False, True):
            for fails in range(MOST_STEPS):
                scene = next(scenes)
                scene.live(Steps())
                steps = Steps(fails=fails, error=error, lasting=lasting)
                with suppress(PublishError):
                    written = scene.live(steps).numbers
                    if any(before >= after for before, after in pairwise(written)):
                        found.append(f"step {fails}: reserved again in the same life: {written}")
                scene.hive.reboot()
                wrong = scene.restart() + scene.repeated()
                found += [f"{errno.errorcode[error]} at step {fails}: {text}" for text in wrong]
                RUNS["failures"] += 1
    return found


def damage(folder: Path) -> list[str]:
    """Somebody damages or removes the cursor: publishing stops, or its numbers go on."""
    found: list[str] = []
    scenes = _scenes(folder)
    RUNS["damage"] = 0
    for content in (None, b"", b"{}", b"\0" * 64):
        scene = next(scenes)
        scene.live(Steps())
        cursor = scene.root / PART / "cursor.json"
        cursor.unlink()
        if content is not None:
            cursor.write_bytes(content)
            cursor.chmod(0o600)
        scene.hive.reboot()
        before = len(scene.seen)
        refused = scene.restart()
        found += scene.repeated()
        if not refused and len(scene.seen) > before:
            found.append(f"it went on without a word after the cursor was {content!r}")
        RUNS["damage"] += 1
    return found


def company(folder: Path) -> list[str]:
    """A second publisher starts beside the first, at each moment of its life."""
    found: list[str] = []
    scenes = _scenes(folder)
    RUNS["company"] = 0
    for rounds in range(3):
        scene = next(scenes)
        steps = Steps()
        with scene.open(MortalFs(scene.root, steps)) as state:
            first = scene.publisher(state, steps)
            for _ in range(rounds):
                scene.publish(first)
            if not scene.restart():
                found.append("a second one published beside the first")
            scene.hive.reboot()
            with suppress(PublishError):
                scene.publish(first)
        found += scene.repeated()
        RUNS["company"] += 1
    return found


CHECKS: dict[str, Check] = {
    "deaths": deaths,
    "power cuts": power_cuts,
    "failures": failures,
    "damage": damage,
    "company": company,
}
