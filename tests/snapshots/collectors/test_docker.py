"""The collector ``docker``: its projection, and its talk with servers on a real Unix socket, good and bad."""

from __future__ import annotations

import os
import socket
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from collector_support import SHORT_S, context, published, refusal, vector_entries
from scripted_peer import ScriptedPeer, chunked, http

from ticket_agent.protocol.collecting import CollectError
from ticket_agent.protocol.snapshot import UnavailableReason
from ticket_agent.snapshots.collectors.docker import (
    KNOWN_MINORS,
    MAX_BODY,
    STANDARD_SOCKET,
    collect,
    engine_socket,
    negotiate,
    project,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ticket_agent.protocol.collecting import CollectContext

VERSION = {"ApiVersion": "1.50", "MinAPIVersion": "1.24", "Version": "28.2.2"}
INFO = {
    "ID": "00000000-0000-0000-0000-000000000000",
    "Containers": 10,
    "ContainersRunning": 6,
    "ContainersPaused": 1,
    "ContainersStopped": 3,
    "Images": 25,
    "ServerVersion": "28.2.2",
    "Warnings": None,
}
SOURCE_FAILED = UnavailableReason.SOURCE_FAILED


class TestProjection:
    def test_it_gives_the_shape_of_the_vector(self) -> None:
        assert project(INFO) == vector_entries("docker_engine")

    @pytest.mark.parametrize(
        "version",
        ["20.10.24+dfsg1", "27.1.1~ce", "28.2.2", "dev", "v25.0.3-rc.1", "library-import", "x" * 64],
    )
    def test_the_versions_of_distributions_are_shown(self, version: str) -> None:
        entries = project(INFO | {"ServerVersion": version})
        assert published("docker", entries)["engine"] == {
            "containers": "10",
            "paused": "1",
            "running": "6",
            "stopped": "3",
            "version": version,
        }

    @pytest.mark.parametrize("version", ["", "x" * 65, "27 1", "27\n", "27\x00", "2\u0667", None, 27, ["27"]])
    def test_what_is_no_version_is_refused(self, version: object) -> None:
        with pytest.raises(CollectError, match="ServerVersion"):
            project(INFO | {"ServerVersion": version})

    @pytest.mark.parametrize("count", [-1, 2**32, True, 1.0, "1", None, [1]])
    @pytest.mark.parametrize(
        "member", ["Containers", "ContainersRunning", "ContainersPaused", "ContainersStopped"]
    )
    def test_what_is_no_u32_is_refused(self, member: str, count: object) -> None:
        with pytest.raises(CollectError, match=f"{member}$"):
            project(INFO | {member: count})

    @pytest.mark.parametrize("member", ["Containers", "ServerVersion"])
    def test_a_member_that_is_not_there_is_refused(self, member: str) -> None:
        with pytest.raises(CollectError, match=member):
            project({name: value for name, value in INFO.items() if name != member})

    def test_the_largest_counts_are_shown(self) -> None:
        entries = project(INFO | {"Containers": 2**32 - 1, "ContainersStopped": 0})
        engine: Any = published("docker", entries)["engine"]
        assert (engine["containers"], engine["stopped"]) == ("4294967295", "0")


class TestNegotiation:
    @pytest.mark.parametrize(
        ("low", "high", "used"),
        [
            ("1.24", "1.54", 52),
            ("1.24", "1.40", 40),
            ("1.40", "1.40", 40),
            ("1.41", "1.54", 52),
            ("1.44", "1.47", 47),
            ("1.52", "1.60", 52),
            ("1.0", "1.999", 52),
        ],
    )
    def test_the_highest_common_version_is_used(self, low: str, high: str, used: int) -> None:
        assert negotiate({"MinAPIVersion": low, "ApiVersion": high}) == used
        assert used in KNOWN_MINORS

    @pytest.mark.parametrize(("low", "high"), [("1.24", "1.39"), ("1.53", "1.60")])
    def test_ranges_that_do_not_overlap_are_named(self, low: str, high: str) -> None:
        with pytest.raises(CollectError, match=rf"{low} to {high} of its API, and 1\.40 to 1\.52 are known"):
            negotiate({"MinAPIVersion": low, "ApiVersion": high})

    @pytest.mark.parametrize(
        ("low", "high"),
        [("1.54", "1.40"), ("1.x", "1.50"), ("1.24", "2.0"), ("1.24", None), (None, "1.50"), ("1.24", 1.5),
         ("1.24", "1.050"), ("1.24", " 1.50"), ("1.24", "1.50\n"), ("1.24", "1.99999"), ("", "")],
    )  # fmt: skip
    def test_what_is_no_range_is_refused(self, low: object, high: object) -> None:
        with pytest.raises(CollectError, match="does not say"):
            negotiate({"MinAPIVersion": low, "ApiVersion": high})


class TestWhereTheEngineIs:
    def test_sockets_of_hosts(self) -> None:
        assert engine_socket(None) == engine_socket("") == STANDARD_SOCKET
        assert engine_socket("unix:///run/user/1000/docker.sock") == "/run/user/1000/docker.sock"

    @pytest.mark.parametrize(
        "host", ["tcp://127.0.0.1:2375", "ssh://root@host", "npipe:////./pipe/x", "/run/docker.sock", "unix://",
                 "unix://run/docker.sock", "unix:///a%00b", "fd://"],
    )  # fmt: skip
    def test_an_engine_elsewhere_is_not_observed(self, host: str) -> None:
        error = refusal(collect, context({"DOCKER_HOST": host}))
        assert error.reason is UnavailableReason.NOT_ENABLED
        assert "unix:///absolute/path" in error.detail

    @pytest.mark.parametrize("name", ["absent", "file/below"])
    def test_no_socket_means_not_enabled(self, tmp_path: Path, name: str) -> None:
        (tmp_path / "file").touch()
        assert refusal(collect, at(tmp_path / name)).reason is UnavailableReason.NOT_ENABLED

    def test_an_engine_that_stopped_is_a_failed_source(self, tmp_path: Path) -> None:
        with closing(socket.socket(socket.AF_UNIX)) as bound:
            bound.bind(str(tmp_path / "engine"))
            error = refusal(collect, at(tmp_path / "engine"))
        assert error.reason is SOURCE_FAILED
        assert "start the Docker engine" in error.detail

    def test_a_path_that_no_socket_can_have_is_a_failed_source(self, tmp_path: Path) -> None:
        assert refusal(collect, at(tmp_path / ("x" * 120))).reason is SOURCE_FAILED

    def test_a_socket_that_may_not_be_opened_comes_with_advice(self, tmp_path: Path) -> None:
        path = tmp_path / "engine"
        with ScriptedPeer.at(path, {}) as engine:
            path.chmod(0)
            with as_somebody_else():
                error = refusal(collect, at(path))
        assert error.reason is SOURCE_FAILED
        assert "group docker" in error.detail
        assert not engine.heads


@contextmanager
def as_somebody_else() -> Iterator[None]:
    """Give up root's right to open everything, where there is one to give up."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def at(path: Path, **options: Any) -> CollectContext:
    return context({"DOCKER_HOST": f"unix://{path}"}, **options)


def answers(**changes: object) -> dict[str, object]:
    """An engine's answers by target; ``info`` and ``version`` replace them."""
    whole: dict[str, object] = {"version": http(200, VERSION), "info": http(200, INFO)} | changes
    return {"/version": whole["version"], "/v1.50/info": whole["info"]}


class TestOnASocket:
    @pytest.mark.parametrize(
        "info",
        [
            http(200, INFO),
            http(200, INFO, Content_Encoding="identity"),
            b"HTTP/1.1 103 Early Hints\r\n\r\n" + http(200, INFO),
            http(200, INFO | {"Plugins": ["p" * 1000] * 500}),
        ],
    )
    def test_an_engine_is_observed(self, tmp_path: Path, info: bytes) -> None:
        with ScriptedPeer.at(tmp_path / "engine", answers(info=info)) as engine:
            assert collect(at(tmp_path / "engine")) == vector_entries("docker_engine")
        assert engine.targets == ["/version", "/v1.50/info"]
        for head in engine.heads:
            assert head.startswith("GET ")
            assert "\r\nhost: docker\r\n" in head.lower()
            assert "authorization" not in head.lower()

    def test_a_body_in_chunks_or_up_to_the_end_is_taken(self, tmp_path: Path) -> None:
        body = http(200, INFO).partition(b"\r\n\r\n")[2]
        to_the_end = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + body
        for index, info in enumerate((chunked(body[:50], body[50:]), to_the_end)):
            with ScriptedPeer.at(tmp_path / f"engine{index}", answers(info=info)):
                assert collect(at(tmp_path / f"engine{index}")) == vector_entries("docker_engine")

    @pytest.mark.parametrize("member", ["version", "info"])
    @pytest.mark.parametrize(
        ("answer", "said"),
        [
            (http(500, {"message": "no"}), "status 500"),
            (http(204), "status 204"),
            (http(301, Location="http://elsewhere/"), "status 301"),
            (http(200, b"nothing"), "json-syntax"),
            (http(200, b"[]"), "json-not-object"),
            (http(200, b'{"Containers":1,"Containers":1}'), "json-repeated"),
            (http(200, b'{"Containers":NaN}'), "json-number"),
            (http(200, b'{"x":' + b"[" * 500 + b"]" * 500 + b"}"), "json-depth"),
            (http(200, b"\xef\xbb\xbf{}"), "json-bom"),
            (http(200, {}), "the Docker engine"),
            (http(200, INFO, Content_Encoding="gzip"), "encoded body"),
            (http(200, b" " * (MAX_BODY + 1)), f"more than {MAX_BODY} bytes"),
            (chunked(*[b" " * 65536] * (MAX_BODY // 65536 + 1)), f"more than {MAX_BODY} bytes"),
            (http(200, INFO)[:-1], "not completely"),
            (b"SSH-2.0-OpenSSH\r\n", "did not answer in HTTP"),
            (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 40_000, "did not answer in HTTP"),
            (b"", "not completely"),
            (b"HTTP/1.1 103 Early Hints\r\n\r\n" * 9 + http(200, INFO), "interim answers"),
        ],
    )
    def test_an_answer_that_cannot_be_used_fails_the_source(
        self, tmp_path: Path, member: str, answer: bytes, said: str
    ) -> None:
        with ScriptedPeer.at(tmp_path / "engine", answers(**{member: answer})) as engine:
            error = refusal(collect, at(tmp_path / "engine"))
        assert error.reason is SOURCE_FAILED
        assert said in error.detail
        assert "elsewhere" not in error.detail
        assert engine.targets == ["/version", "/v1.50/info"][: 1 if member == "version" else 2]

    @pytest.mark.parametrize("member", ["version", "info"])
    @pytest.mark.parametrize("how", ["silence", "drip", "head"])
    def test_a_slow_engine_is_left_at_the_deadline(self, tmp_path: Path, member: str, how: str) -> None:
        with ScriptedPeer.at(tmp_path / "engine", {}) as engine:
            slow = {
                "silence": engine.silence,
                "drip": engine.drip(http(200, b" " * 100_000)),
                "head": engine.drip(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 30_000),
            }
            engine.answers.update(answers(**{member: slow[how]}))
            error = refusal(collect, at(tmp_path / "engine", seconds=SHORT_S))
        assert error.reason is UnavailableReason.TIMED_OUT

    def test_a_deadline_that_passed_asks_nothing(self, tmp_path: Path) -> None:
        with ScriptedPeer.at(tmp_path / "engine", answers()) as engine:
            error = refusal(collect, at(tmp_path / "engine", seconds=0))
        assert error.reason is UnavailableReason.TIMED_OUT
        assert not engine.heads
