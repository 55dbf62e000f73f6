"""`release report`: what a person sees of a release in a real browser, and what stands on the page."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from browser import Browser, missing_browser, running_browser
from cli_support import Operator
from hypothesis import given
from hypothesis import strategies as st
from release_host import HOW, ReleaseHost, canary
from release_scene import SCENES

from ticket_agent.exits import Exit
from ticket_agent.peft.release.phases import Phase
from ticket_agent.peft.release.release_explain import explain_release
from ticket_agent.peft.release.release_plots import ticks
from ticket_agent.peft.release.release_reader import ReleaseReader
from ticket_agent.peft.release.release_report import ReportFacts, render_release
from ticket_agent.peft.release.request import Entry

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cli_support import Answer

    from ticket_agent.peft.release.deployment import DeploymentState

in_a_browser = pytest.mark.skipif(missing_browser() is not None, reason=missing_browser() or "")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with running_browser(tmp_path_factory.mktemp("browser")) as running:
        yield running


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory, bytecode: Path) -> Path:
    """The report of a release that trained and was promoted, made by the real command."""
    home = tmp_path_factory.mktemp("released")
    host, operator = ReleaseHost(home), Operator(home, bytecode)
    host.end(host.scene(**HOW["trained"]))
    answer = write(operator, host, "release.html", "--json")
    assert answer.code == Exit.OK
    assert (answer.object["kind"], answer.object["stage"]) == ("report", "ended")
    return home / "release.html"


def write(operator: Operator, host: ReleaseHost, target: str, *options: str) -> Answer:
    return operator.run(
        "release", "report", "release-one", "--release-config", str(host.file), "--html", target, *options
    )


@in_a_browser
def test_the_loss_curve_falls_from_left_to_right(browser: Browser, page: Path) -> None:
    browser.open(page)
    points = browser.boxes("#losses .p-point")
    assert len(points) == 3
    assert all(one["right"] < two["left"] for one, two in pairwise(points))
    assert all(one["top"] < two["top"] for one, two in pairwise(points))
    titles = browser.script("return [...document.querySelectorAll('#losses title')].map(e => e.textContent)")
    assert titles == ["step 1: 4.000000", "step 2: 3.500000", "step 3: 3.250000"]


@in_a_browser
def test_every_row_is_drawn_under_both_models(browser: Browser, page: Path) -> None:
    browser.open(page)
    old, new = browser.boxes("#paired .p-baseline"), browser.boxes("#paired .p-candidate")
    lines = browser.boxes("#paired .p-better")
    assert len(old) == len(new) == len(lines) == 16
    assert browser.count("#paired .p-worse") == 0
    for before, after in zip(old, new, strict=True):
        assert before["top"] < after["top"], "a smaller loss is drawn lower"
        middles = [(box["left"] + box["right"]) / 2 for box in (before, after)]
        assert abs(middles[0] - middles[1]) < 1.5
    frame = browser.boxes("#paired")[0]
    for box in (*old, *new):
        assert frame["left"] <= box["left"] < box["right"] <= frame["right"]
        assert frame["top"] <= box["top"] < box["bottom"] <= frame["bottom"]


@in_a_browser
def test_latencies_are_bars_of_their_height(browser: Browser, page: Path) -> None:
    browser.open(page)
    bars = browser.boxes("#latency .bar")
    heights = [bar["bottom"] - bar["top"] for bar in bars]
    assert len(bars) == 8
    for height, wanted in zip(heights, [40, 43, 46, 49] * 2, strict=True):
        assert height / heights[3] == pytest.approx(wanted / 49, abs=0.02)
    assert browser.count("#latency .p-idle") == browser.count("#latency .p-loaded") == 4


@in_a_browser
def test_phases_follow_one_another(browser: Browser, page: Path) -> None:
    browser.open(page)
    bars = browser.boxes("#phases .phase")
    assert len(bars) == 8
    assert all(upper["bottom"] <= lower["top"] for upper, lower in pairwise(bars))
    assert all(one["left"] < two["left"] for one, two in pairwise(bars))
    assert all(bar["right"] - bar["left"] >= 1.5 for bar in bars)


@in_a_browser
def test_the_page_needs_nothing_and_runs_nothing(browser: Browser, page: Path) -> None:
    browser.log()
    browser.open(page)
    assert browser.script("return performance.getEntriesByType('resource').length") == 0
    assert browser.count("script, link, img, iframe, object, embed, form, base") == 0
    assert browser.log() == []


@in_a_browser
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [360, 1280])
def test_it_fits_every_window(browser: Browser, page: Path, width: int, dark: bool) -> None:
    browser.open(page, width=width, dark=dark)
    assert browser.script("return document.documentElement.scrollWidth") <= width
    for box in browser.boxes(".plot"):
        assert box["right"] <= width
    assert len(browser.screenshot()) > 10_000


@pytest.fixture
def host(tmp_path: Path) -> ReleaseHost:
    return ReleaseHost(tmp_path)


@pytest.mark.parametrize("name", ["regression", "canary failed", "rollback failed", "rescued", "bad input"])
def test_what_stopped_it_stands_on_the_page(operator: Operator, host: ReleaseHost, name: str) -> None:
    scene = host.scene(**HOW[name])
    host.end(scene)
    assert write(operator, host, "page.html").code == Exit.OK
    text = (host.home / "page.html").read_text()
    assert f"<b>{scene.state.replace('_', ' ')}</b> release" in text
    assert 'role="alert"' in text
    assert ("p-worse" in text.split("</style>")[1]) is (name == "regression")
    assert ('id="paired"' in text) is ("evaluate" in {e.phase for e in scene.phases if e.result})


def test_a_release_that_runs_can_be_drawn(operator: Operator, host: ReleaseHost) -> None:
    scene = host.scene(entry=Entry.TRAIN, stops_before=Phase.CANARY)
    files = host.play(scene)
    with host.running(files, Phase.CANARY, at=scene.time_of(Phase.CANARY)):
        answer = write(operator, host, "-")
    assert answer.code == Exit.OK
    text = answer.out
    assert "phase p-running" in text
    assert 'id="latency"' not in text


def test_an_allowed_latency_is_a_line_where_it_can_be_seen(operator: Operator, host: ReleaseHost) -> None:
    host.end(host.scene(details={Phase.CANARY: canary(4000)}))
    write(operator, host, "page.html")
    assert '<line class="p-limit"' in (host.home / "page.html").read_text()
    assert write(operator, host, "page.html").code == Exit.USAGE
    assert write(operator, host, "page.html", "--force").code == Exit.OK
    assert write(operator, host, str(host.place / "page.html")).code == Exit.USAGE


def test_text_of_others_stays_text(operator: Operator, host: ReleaseHost) -> None:
    hostile = "<script>alert(1)</script>&\"'"
    scene = host.scene(**HOW["canary failed"] | {"blocker": hostile})
    host.end(scene)
    write(operator, host, "page.html")
    text = (host.home / "page.html").read_text()
    assert "<script" not in text
    card = (host.files(scene).path / "card.md").read_text()
    assert "\\<script\\>alert(1)\\</script\\>" in card


def test_scenes_can_all_be_drawn(host: ReleaseHost) -> None:
    for name in SCENES:
        if SCENES[name].state == "rollback_failed":
            continue
        scene = host.scene(name.replace(" ", "-"), **HOW[name] | {"baseline": _deployed(host)})
        host.end(scene)
        with ReleaseReader(host.place) as reader:
            view, deployment = reader.release(scene.operation_id), reader.deployment()
            facts = ReportFacts(
                view=view,
                deployment=deployment,
                explained=explain_release(view, deployment, now_ms=1),
                losses=reader.losses(scene.operation_id),
                evidence_sha256=None,
                source="here",
                program="test",
                made_unix_ms=1_800_000_000_000,
            )
        page = render_release(facts)
        assert page == render_release(facts)
        assert not re.search(r"\bnan\b|\binf\b", page)


def _deployed(host: ReleaseHost) -> DeploymentState:
    with host.root() as root:
        return root.control.accepted()


@given(
    low=st.floats(-1e6, 1e6),
    room=st.floats(1e-6, 1e6),
    most=st.integers(2, 10),
)
def test_ticks_are_round_ascending_and_within(low: float, room: float, most: int) -> None:
    found = ticks(low, low + room, most)
    assert 1 <= len(found) <= most + 1
    assert found == sorted(set(found))
    slack = room * 1e-6 + abs(low) * 1e-9
    assert all(low - slack <= tick <= low + room + slack for tick in found)
    assert all(math.isfinite(tick) for tick in found)
