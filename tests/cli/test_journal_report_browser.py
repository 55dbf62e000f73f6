"""The report in a real browser: what a person sees of a journal that went through three crashes."""

from __future__ import annotations

import json
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import png
import pytest
from browser import Browser, missing_browser, running_browser
from cli_support import Operator
from journal_support import RESULT, STAGED, Clock
from thrice_crashed import CRASHES, thrice_crashed

from ticket_agent.exits import Exit
from ticket_agent.journal.outcome import Plan
from ticket_agent.journal.report_style import DARK, LIGHT
from ticket_agent.journal.store import JournalStore

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.skipif(missing_browser() is not None, reason=missing_browser() or ""),
    pytest.mark.timeout(600),
]

LANES = 12
WIDE = 4
"""Pixels from which on a bar has at least one of its very own colour."""
Box = dict[str, float]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with running_browser(tmp_path_factory.mktemp("browser")) as running:
        yield running


@pytest.fixture(scope="module")
def page(bytecode: Path) -> Iterator[Path]:
    """The report of a real agent's journal, made by the real command."""
    # On the disk: a state that takes no time has no width to look at.
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        thrice_crashed(home)
        answer = Operator(home, bytecode).run("journal", "report", "--html", "report.html", "--json")
        assert answer.code == Exit.OK
        told = answer.object
        assert (told["operations"], told["crashes"], told["starts"]) == (LANES, CRASHES, CRASHES + 1)
        yield home / "report.html"


def _rgb(colour: str) -> png.Colour:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def _middle(box: Box) -> tuple[float, float]:
    return (box["left"] + box["right"]) / 2, (box["top"] + box["bottom"]) / 2


def _lanes(browser: Browser) -> list[dict[str, Any]]:
    """Each lane's ticket and the boxes of its parts by class, as laid out."""
    return list(
        browser.script(
            "return [...document.querySelectorAll('.lane')].map(g => ({ticket: g.dataset.ticket,"
            " parts: [...g.querySelectorAll(':scope > rect')].map(e => {const b = e.getBoundingClientRect();"
            " return {kind: e.getAttribute('class'), left: b.left, top: b.top, right: b.right,"
            " bottom: b.bottom}})}))"
        )
    )


def test_every_ticket_has_a_lane_beside_its_name(browser: Browser, page: Path) -> None:
    browser.open(page)
    lanes, names = _lanes(browser), browser.boxes(".labels li")
    assert [lane["ticket"] for lane in lanes] == [f"t{number}" for number in range(LANES)]
    assert len(names) == LANES
    for lane, name in zip(lanes, names, strict=True):
        states = [part for part in lane["parts"] if part["kind"].startswith("s-")]
        assert [part["kind"] for part in states] == [
            "s-prepared",
            "s-executing",
            "s-provider-result-persisted",
            "s-result-published",
        ]
        for part in states:
            assert part["right"] - part["left"] >= 2
            assert name["top"] <= part["top"] < part["bottom"] <= name["bottom"]
        assert all(before["left"] <= after["left"] for before, after in pairwise(states))
    assert all(upper["bottom"] <= lower["top"] + 0.5 for upper, lower in pairwise(names))
    assert browser.count(".lane .outcome .o-confirmed") == LANES


def test_crashes_and_restarts_are_marked_in_order(browser: Browser, page: Path) -> None:
    browser.open(page)
    crashes = [box["left"] for box in browser.boxes(".scroll .m-crash .m-line")]
    restarts = [box["left"] for box in browser.boxes("svg .m-restart .m-line")][-CRASHES:]
    starts = browser.boxes(".scroll .m-start .m-line")
    assert (len(crashes), len(restarts), len(starts)) == (CRASHES, CRASHES, 1)
    order = [x for pair in zip(crashes, restarts, strict=True) for x in pair]
    assert order == sorted(order)
    assert all(after - before > 10 for before, after in zip(crashes, restarts, strict=True))
    assert browser.count(".scroll .m-stop") == 1
    words = browser.script("return [...document.querySelectorAll('.scroll .m text')].map(e => e.textContent)")
    assert {"crash 1", "crash 2", "crash 3", "start 1", "start 2", "start 3", "start 4"} <= set(words)
    titles = browser.script(
        "return [...document.querySelectorAll('.scroll .m-crash title')].map(e => e.textContent)"
    )
    assert all("1 operation in flight" in title for title in titles)


def test_uncertain_windows_span_the_crash_and_the_restart(browser: Browser, page: Path) -> None:
    browser.open(page)
    windows = browser.boxes(".lane .window")
    assert len(windows) == CRASHES
    crashes = browser.boxes(".scroll .m-crash .m-line")
    restarts = browser.boxes(".scroll .m-restart .m-line")
    for window, crash, restart in zip(windows, crashes, restarts, strict=True):
        assert window["left"] <= crash["right"]
        assert window["right"] > restart["right"]


def _near(one: tuple[int, ...], other: tuple[int, ...], by: int) -> bool:
    return all(abs(a - b) <= by for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_screenshot_shows_lanes_marks_and_hatching(
    browser: Browser, page: Path, tmp_path: Path, dark: bool
) -> None:
    browser.open(page, width=1500, height=520, dark=dark)
    browser.script("document.querySelector('.panel').scrollIntoView()")
    shot = browser.screenshot()
    (tmp_path / "report.png").write_bytes(shot)
    picture = png.decode(shot)
    colours = {name: _rgb(colour) for name, colour in (DARK if dark else LIGHT).items()}
    assert picture.width == 1500
    plain_lanes = [
        lane for lane in _lanes(browser) if not any("window" in part["kind"] for part in lane["parts"])
    ]
    assert len(plain_lanes) == LANES - CRASHES
    for lane in plain_lanes:
        for part, after in zip(lane["parts"], [*lane["parts"][1:], None], strict=True):
            if after is not None and after["left"] - part["left"] < 1:
                # It ended in the millisecond in which it began: the next one stands before it.
                continue
            name = {
                "s-prepared": "prepared",
                "s-executing": "executing",
                "s-provider-result-persisted": "persisted",
                "s-result-published": "published",
            }[part["kind"]]
            found = picture.colours(part["left"], part["top"], part["right"], part["bottom"])
            # The edges of a bar are mixed with what is beside it; the narrowest ones are nothing but edges.
            mixed = 0 if part["right"] - part["left"] >= WIDE else 24
            assert any(_near(colour, colours[name], mixed) for colour in found), (part, found)
    for kind in ("crash", "restart"):
        for box in browser.boxes(f".scroll .m-{kind} .m-line"):
            column = picture.colours(box["left"] - 1, box["top"] + 20, box["right"] + 2, box["bottom"])
            assert colours[kind] in column
    for box in browser.boxes(".lane .window"):
        inside = picture.colours(box["left"] + 3, box["top"] + 3, box["right"] - 3, box["bottom"] - 3)
        assert colours["uncertain"] in inside
        # Between the stripes the colour of the state shines through.
        assert len({colour for colour in inside if colour != colours["uncertain"]}) > 3
    silent = [
        picture.at(_middle(box)[0], box["bottom"] - 2) for box in browser.boxes(".silence.crashed")[-3:]
    ]
    assert silent == [colours["silence"]] * CRASHES


def test_the_page_needs_nothing_and_runs_nothing(browser: Browser, page: Path) -> None:
    browser.log()
    browser.open(page)
    assert browser.script("return performance.getEntriesByType('resource').length") == 0
    assert browser.count("script, link, img, iframe, object, embed, form, base") == 0
    assert browser.log() == []
    # The policy is in force: an image that a text smuggled in would not be fetched.
    browser.script("document.body.appendChild(Object.assign(new Image(), {src: 'file:///etc/hostname'}))")
    assert any("Content Security Policy" in text for text in browser.log())


@pytest.mark.parametrize("width", [360, 800, 1280, 2400])
def test_only_the_timeline_and_tables_scroll_sideways(browser: Browser, page: Path, width: int) -> None:
    browser.open(page, width=width)
    assert browser.script("return document.documentElement.scrollWidth") <= width
    (scroll,) = browser.script(
        "return [...document.querySelectorAll('.scroll')].map(e => [e.clientWidth, e.scrollWidth])"
    )
    assert scroll[1] >= 1000
    assert (scroll[0] < scroll[1]) == (width <= 1280)


HOSTILE = (
    "</title></style><script>document.title='owned'</script>",
    '"><img src=x onerror="document.title=\'owned\'">',
    "]]>--><svg onload=document.title='owned'>",
    "&lt;b&gt; &#60;script&#62; \u202egnp.exe \u2066 \x00",
)


@pytest.mark.parametrize("text", HOSTILE)
def test_text_out_of_records_stays_text(
    browser: Browser, operator: Operator, tmp_path: Path, text: str
) -> None:
    name = "".join(char for char in text if char.isprintable())
    request = json.dumps({"id": text, "action": text, "subject_ref": text}).encode()
    blankless = "".join(name.split())[:60]
    store = JournalStore.open(
        operator.state, clock=Clock(), boot_id=blankless, agent_version=name[:60].strip()
    )
    with store:
        store.prepare(key=name, family="f", epoch=1, sequence=1, request=request)
        store.dispatch(name, Plan(before={}, intent={}))
        store.note_uncertain(name, text)
        store.settle(name, RESULT, STAGED)
    answer = operator.run("journal", "report", "--html", "page.html")
    assert answer.code == Exit.OK
    browser.log()
    browser.open(tmp_path / "page.html")
    assert browser.script("return document.title").startswith("Ticket journal, ")
    assert browser.count("script, img, b b, svg svg") == 0
    shown = browser.script("return document.querySelector('tbody tr[id] td:nth-child(3)').textContent")
    assert shown == "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
    assert browser.count(".lane .window") == 1
    assert browser.log() == []
