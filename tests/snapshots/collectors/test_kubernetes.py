"""The collector ``k8s``: its projection, its settings, and its talk with a real TLS server, good and bad."""

from __future__ import annotations

import os
import socket
import sys
import threading
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from collector_support import SHORT_S, context, published, refusal, vector_entries
from scripted_console import refused_port
from scripted_peer import ScriptedPeer, chunked, http
from tls_authority import TlsAuthority

from ticket_agent.protocol.collecting import CollectError
from ticket_agent.protocol.snapshot import DEFAULT_BOUNDS, SnapshotBounds, UnavailableReason
from ticket_agent.snapshots.collectors.kubernetes import MAX_BODY, TARGET, Cluster, collect, project

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ticket_agent.protocol.collecting import CollectContext

TOKEN = "eyJ-a-token.of-the-test_0123456789"
SOURCE_FAILED = UnavailableReason.SOURCE_FAILED
READY = {"type": "Ready", "status": "True"}


def node(
    name: str = "edge-1",
    *,
    metadata: dict[str, Any] | None = None,
    spec: Any = None,
    conditions: Any = (READY,),
) -> dict[str, Any]:
    """A node as an API server writes it; what is given replaces what would be there."""
    return {
        "metadata": {
            "name": name,
            "uid": "uid-123",
            "resourceVersion": "opaque-4",
            "labels": {"kubernetes.io/hostname": name},
        }
        | (metadata or {}),
        "spec": {"podCIDR": "10.0.0.0/24"} if spec is None else spec,
        "status": {
            "conditions": list(conditions) if isinstance(conditions, tuple) else conditions,
            "nodeInfo": {"kubeletVersion": "v1.33.1"},
        },
    }


def node_list(items: Any, **metadata: object) -> dict[str, Any]:
    return {
        "kind": "NodeList",
        "apiVersion": "v1",
        "metadata": {"resourceVersion": "4711"} | metadata,
        "items": items,
    }


def nodes(count: int) -> list[dict[str, Any]]:
    return [node(f"edge-{index:03}") for index in range(count)]


def shown(document: dict[str, Any], bounds: SnapshotBounds = DEFAULT_BOUNDS) -> dict[str, Any]:
    return published("k8s", project(document, bounds), bounds)


class TestProjection:
    def test_it_gives_the_shape_of_the_vector(self) -> None:
        assert project(node_list([node()]), DEFAULT_BOUNDS) == vector_entries("kubernetes_node")

    @pytest.mark.parametrize("items", [[], None])
    def test_a_cluster_without_nodes_is_available(self, items: object) -> None:
        assert shown(node_list(items)) == {"source": "kubernetes-core-v1"}

    @pytest.mark.parametrize(
        ("conditions", "ready"),
        [
            ((READY,), True),
            (({"type": "Ready", "status": "False", "reason": "KubeletNotReady"},), False),
            (({"type": "Ready", "status": "Unknown"},), None),
            ((), None),
            (None, None),
            (({"type": "DiskPressure", "status": "True"},), None),
            (({"type": "DiskPressure", "status": "False"}, READY), True),
            ((*[{"type": f"C{index}", "status": "False"} for index in range(31)], READY), True),
        ],
    )
    def test_ready_is_what_its_condition_says(self, conditions: Any, ready: bool | None) -> None:
        found = shown(node_list([node(conditions=conditions)]))
        assert found["nodes/edge-1"]["ready"] is ready

    def test_a_cordoned_node_of_a_generation(self) -> None:
        item = node(metadata={"generation": 2**64 - 1}, spec={"unschedulable": True})
        found = shown(node_list([item]))["nodes/edge-1"]
        assert list(found) == ["name", "uid", "resource_version", "generation", "unschedulable", "ready"]
        assert (found["generation"], found["unschedulable"]) == (2**64 - 1, True)

    @pytest.mark.parametrize(
        "item",
        [
            node(metadata={"uid": "../escape"}),
            node(metadata={"uid": ""}),
            node(metadata={"uid": None}),
            node(metadata={"uid": "u" * 129}),
            node("../escape"),
            node(""),
            node("Edge"),
            node("edge_1"),
            node("a..b"),
            node("-edge"),
            node("e" * 254),
            node("edge\n"),
            node(metadata={"name": 1}),
            node(metadata={"resourceVersion": ""}),
            node(metadata={"resourceVersion": 4}),
            node(metadata={"resourceVersion": "4 4"}),
            node(metadata={"generation": -1}),
            node(metadata={"generation": True}),
            node(metadata={"generation": 1.0}),
            node(spec={"unschedulable": "true"}),
            node(spec={"unschedulable": 0}),
            node(spec=[]),
            node(conditions={}),
            node(conditions=(READY, READY)),
            node(conditions=(READY, {"type": "Ready", "status": "False"})),
            node(conditions=({"type": "Ready", "status": "true"},)),
            node(conditions=({"type": "Ready"},)),
            node(conditions=({"type": "Other", "status": ["True"]},)),
            node(conditions=("Ready",)),
            node(conditions=(READY,) * 33),
            {"metadata": [], "spec": {}, "status": {}},
            {},
            "edge-1",
            None,
        ],
    )
    def test_what_is_no_node_is_refused_and_not_repeated(self, item: object) -> None:
        with pytest.raises(CollectError, match=r"^node 2 of the list") as caught:
            project(node_list([node(), item]), DEFAULT_BOUNDS)
        assert "escape" not in caught.value.detail

    @pytest.mark.parametrize(
        "document",
        [
            {},
            node_list([]) | {"kind": "PodList"},
            node_list([]) | {"apiVersion": "v1beta1"},
            node_list({}),
            node_list([node(), node()]),
            node_list([]) | {"metadata": []},
            node_list([], **{"continue": 1}),
            node_list([], **{"continue": "more", "remainingItemCount": -1}),
            node_list([], **{"continue": "more", "remainingItemCount": "3"}),
        ],
    )
    def test_what_is_no_list_is_refused(self, document: dict[str, Any]) -> None:
        with pytest.raises(CollectError):
            project(document, DEFAULT_BOUNDS)

    @pytest.mark.parametrize("most", [2, 3, 10, 64])
    @pytest.mark.parametrize("size", [800, 3000, 8192])
    @pytest.mark.parametrize("remaining", [0, 435])
    def test_every_node_is_shown_or_counted(self, most: int, size: int, remaining: int) -> None:
        more = {"continue": "token", "remainingItemCount": remaining} if remaining else {}
        bounds = SnapshotBounds(max_entries=most, max_bytes=size)
        found = shown(node_list(nodes(65), **more), bounds)
        names = [path for path in found if path.startswith("nodes/")]
        assert found["omitted"] == {"nodes": 65 + remaining - len(names)}
        assert names == [f"nodes/edge-{index:03}" for index in range(len(names))]

    def test_nodes_that_the_server_keeps_back_are_counted_even_when_the_others_fit(self) -> None:
        found = shown(node_list(nodes(3), **{"continue": "token", "remainingItemCount": 1}))
        assert found["omitted"] == {"nodes": 1}
        assert len(found) == 5

    @pytest.mark.parametrize("remaining", [{}, {"remainingItemCount": None}, {"remainingItemCount": 0}])
    def test_a_number_that_the_server_does_not_say_is_null(self, remaining: dict[str, Any]) -> None:
        found = shown(node_list(nodes(3), **{"continue": "token"}, **remaining))
        assert found["omitted"] == {"nodes": None}

    def test_a_node_whose_name_is_too_long_for_a_path_is_counted(self) -> None:
        found = shown(node_list([node("e" * 129), node("f" * 128)]))
        assert list(found) == [f"nodes/{'f' * 128}", "omitted", "source"]
        assert found["omitted"] == {"nodes": 1}


@pytest.fixture
def authority(tmp_path: Path) -> TlsAuthority:
    return TlsAuthority(tmp_path)


def settings(
    authority: TlsAuthority, port: int, *, host: str = "127.0.0.1", **changes: str
) -> dict[str, str]:
    return {
        "COHESIX_K8S_API_URL": f"https://{host}:{port}",
        "COHESIX_K8S_TOKEN_REF": "env:NODE_TOKEN",
        "COHESIX_K8S_CA_FILE": str(authority.ca_file),
        "NODE_TOKEN": TOKEN,
    } | changes


def observed(given: CollectContext) -> CollectError:
    """The refusal, which never shows the token."""
    error = refusal(collect, given)
    assert TOKEN not in error.detail
    assert TOKEN not in repr(error)
    return error


class TestSettings:
    @pytest.mark.parametrize("absent", ["API_URL", "TOKEN_REF", "CA_FILE"])
    @pytest.mark.parametrize("how", ["unset", "empty"])
    def test_each_of_them_switches_it_off(self, authority: TlsAuthority, absent: str, how: str) -> None:
        environ = settings(authority, 1)
        if how == "empty":
            environ[f"COHESIX_K8S_{absent}"] = ""
        else:
            del environ[f"COHESIX_K8S_{absent}"]
        error = observed(context(environ))
        assert error.reason is UnavailableReason.NOT_ENABLED
        assert f"COHESIX_K8S_{absent}" in error.detail

    @pytest.mark.parametrize(
        ("url", "host", "port"),
        [
            ("https://api.cluster.example", "api.cluster.example", 443),
            ("https://API.example:6443/", "api.example", 6443),
            ("https://10.0.0.1:6443", "10.0.0.1", 6443),
            ("https://[fd00::1]:6443", "fd00::1", 6443),
        ],
    )
    def test_origins(self, authority: TlsAuthority, url: str, host: str, port: int) -> None:
        cluster = Cluster.of(settings(authority, 1, COHESIX_K8S_API_URL=url))
        assert (cluster.host, cluster.port) == (host, port)
        assert TOKEN not in repr(cluster)
        assert TOKEN not in repr(cluster.peer)

    @pytest.mark.parametrize(
        "url",
        [
            "http://api.example", "api.example:6443", "https://", "https://user:hunter2@api.example",
            "https://hunter2@api.example", "https://api.example/path", "https://api.example?x=1",
            "https://api.example/?", "https://api.example/#", "https://api.example:0", "https://api.example:x",
            "https://api.example:99999", "https://api example", "https://api.example\n", " https://api.example",
            "https://[::1", "https://[zz]", "https://b\u00fccher.example", "https://api.example:", "https://a%62c",
            "https://api.example//", "https:\\\\api.example", "https://api\t.example",
        ],
    )  # fmt: skip
    def test_what_is_no_origin_is_refused_and_not_repeated(self, authority: TlsAuthority, url: str) -> None:
        error = observed(context(settings(authority, 1, COHESIX_K8S_API_URL=url)))
        assert error.reason is SOURCE_FAILED
        assert "https://host:port" in error.detail
        assert "hunter2" not in error.detail

    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"COHESIX_K8S_TOKEN_REF": TOKEN}, "not the token itself"),
            ({"COHESIX_K8S_TOKEN_REF": "env:"}, "name of an environment variable"),
            ({"COHESIX_K8S_TOKEN_REF": f"env:{TOKEN}"}, "name of an environment variable"),
            ({"COHESIX_K8S_TOKEN_REF": "env:ABSENT"}, "ABSENT, which is not set"),
            ({"COHESIX_K8S_TOKEN_REF": "file:relative"}, "absolute path"),
            ({"COHESIX_K8S_TOKEN_REF": "file:/a/../b"}, "absolute path"),
            ({"COHESIX_K8S_TOKEN_REF": "file:/absent/file"}, "No such file"),
            ({"COHESIX_K8S_TOKEN_REF": "file:/dev/zero"}, "no regular file"),
            ({"COHESIX_K8S_TOKEN_REF": "file:/proc"}, "no regular file"),
            ({"NODE_TOKEN": ""}, "printable ASCII"),
            ({"NODE_TOKEN": f"{TOKEN} {TOKEN}"}, "printable ASCII"),
            ({"NODE_TOKEN": f"{TOKEN}\r\nX: y"}, "printable ASCII"),
            ({"NODE_TOKEN": TOKEN + "\u00e4"}, "printable ASCII"),
            ({"NODE_TOKEN": "t" * 4097}, "printable ASCII"),
            ({"COHESIX_K8S_CA_FILE": "relative.pem"}, "absolute path"),
            ({"COHESIX_K8S_CA_FILE": "/absent/ca.pem"}, "No such file"),
            ({"COHESIX_K8S_CA_FILE": "/dev/zero"}, "no regular file"),
            ({"COHESIX_K8S_CA_FILE": __file__}, "without a PEM certificate"),
        ],
    )
    def test_what_cannot_be_used_is_explained(
        self, authority: TlsAuthority, changes: dict[str, str], said: str
    ) -> None:
        error = observed(context(settings(authority, 1, **changes)))
        assert error.reason is SOURCE_FAILED
        assert said in error.detail

    def test_a_token_s_file_is_read_each_time_as_pods_replace_it(
        self, authority: TlsAuthority, tmp_path: Path
    ) -> None:
        file, link, fifo = tmp_path / "token", tmp_path / "link", tmp_path / "fifo"
        environ = settings(authority, 1, COHESIX_K8S_TOKEN_REF=f"file:{file}")
        for token in (f"{TOKEN}-1", f"{TOKEN}-2\n"):
            file.write_text(token)
            assert Cluster.of(environ).token == token.strip()
        file.write_text("t" * 4098)
        assert "larger than" in observed(context(environ)).detail
        file.write_text(TOKEN)
        link.symlink_to(file)
        environ["COHESIX_K8S_TOKEN_REF"] = f"file:{link}"
        assert Cluster.of(environ).token == TOKEN
        os.mkfifo(fifo)
        environ["COHESIX_K8S_TOKEN_REF"] = f"file:{fifo}"
        assert "no regular file" in observed(context(environ)).detail

    def test_the_authority_s_file_may_be_a_link_and_hold_remarks(
        self, authority: TlsAuthority, tmp_path: Path
    ) -> None:
        bundle, link = tmp_path / "bundle.pem", tmp_path / "ca.crt"
        other = TlsAuthority(tmp_path, name="other")
        remark = "# Z\u00fcrich\n".encode()
        bundle.write_bytes(remark + other.ca_file.read_bytes() + remark + authority.ca_file.read_bytes())
        link.symlink_to(bundle)
        with ScriptedPeer.secured(authority.server(), {TARGET: http(200, node_list([node()]))}) as server:
            environ = settings(authority, server.port, COHESIX_K8S_CA_FILE=str(link))
            assert collect(context(environ)) == vector_entries("kubernetes_node")


class TestOverTls:
    def test_nodes_are_observed_with_the_token_and_one_request(self, authority: TlsAuthority) -> None:
        answers: dict[str, object] = {TARGET: http(200, node_list([node()]))}
        with ScriptedPeer.secured(authority.server(), answers) as server:
            assert collect(context(settings(authority, server.port))) == vector_entries("kubernetes_node")
        (head,) = server.heads
        lines = head.lower().split("\r\n")
        assert lines[0] == "get /api/v1/nodes?limit=65 http/1.1"
        assert f"host: 127.0.0.1:{server.port}" in lines
        assert f"authorization: bearer {TOKEN}".lower() in lines
        assert "accept: application/json" in lines

    def test_a_name_is_looked_up_and_checked(self, authority: TlsAuthority) -> None:
        answers: dict[str, object] = {TARGET: http(200, node_list([node()]))}
        with ScriptedPeer.secured(authority.server("localhost"), answers) as server:
            environ = settings(authority, server.port, host="localhost")
            assert collect(context(environ)) == vector_entries("kubernetes_node")

    def test_sixty_five_real_sized_nodes_fit_the_answer(self, authority: TlsAuthority) -> None:
        images = [{"names": [f"registry.example/{'i' * 200}:{index}"], "sizeBytes": 1} for index in range(50)]
        items = nodes(65)
        for item in items:
            item["status"]["images"] = images
        body = http(200, node_list(items, **{"continue": "x", "remainingItemCount": 35}))
        assert 1024 * 1024 > len(body) > 64 * 10 * 1024
        with ScriptedPeer.secured(authority.server(), {TARGET: body}) as server:
            found = published("k8s", collect(context(settings(authority, server.port))))
        count = len([path for path in found if path.startswith("nodes/")])
        assert count > 20
        assert found["omitted"] == {"nodes": 100 - count}

    def test_neither_the_environment_s_proxy_nor_its_key_log_is_used(
        self, authority: TlsAuthority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, "http://127.0.0.1:1")
        monkeypatch.setenv("SSLKEYLOGFILE", str(tmp_path / "keys"))
        answers: dict[str, object] = {TARGET: http(200, node_list([node()]))}
        with ScriptedPeer.secured(authority.server(), answers) as server:
            assert collect(context(settings(authority, server.port)))
        assert not (tmp_path / "keys").exists()

    @pytest.mark.parametrize("wrong", ["authority", "host", "name", "expired", "not yet", "system store"])
    def test_a_server_that_is_not_trusted_gets_no_token(
        self, authority: TlsAuthority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str
    ) -> None:
        other = TlsAuthority(tmp_path, name="other")
        if wrong == "system store":
            monkeypatch.setenv("SSL_CERT_FILE", str(other.ca_file))
        contexts = {
            "authority": other.server(),
            "system store": other.server(),
            "host": authority.server("127.0.0.9"),
            "name": authority.server("api.example"),
            "expired": authority.server(days=(-9, -2)),
            "not yet": authority.server(days=(2, 9)),
        }
        with ScriptedPeer.secured(contexts[wrong], {"*": http(200, node_list([]))}) as server:
            error = observed(context(settings(authority, server.port)))
        assert error.reason is SOURCE_FAILED
        assert "is not trusted" in error.detail
        assert not server.heads

    def test_a_server_without_tls_gets_no_token(self, authority: TlsAuthority) -> None:
        plain = ScriptedPeer(socket.create_server(("127.0.0.1", 0)), {})
        with plain as server:
            error = observed(context(settings(authority, server.port), seconds=SHORT_S))
        assert error.reason is UnavailableReason.TIMED_OUT
        assert not server.heads

    @pytest.mark.parametrize(
        ("answer", "said"),
        [
            (http(301, Location="https://elsewhere.example/"), "redirects (301)"),
            (http(302, Location="/api/v1/nodes"), "redirects (302)"),
            (http(401, {"kind": "Status", "message": TOKEN}), "COHESIX_K8S_TOKEN_REF"),
            (http(403, {"kind": "Status", "message": TOKEN}), "verb list on nodes"),
            (http(500, TOKEN.encode()), "status 500"),
            (http(200, TOKEN.encode()), "json-syntax"),
            (http(200, b'{"%b":1,"%b":1}' % (TOKEN.encode(), TOKEN.encode())), "json-repeated"),
            (http(200, node_list([node(metadata={"uid": f"../{TOKEN}"})])), "node 1 of the list"),
            (http(200, node_list([node(TOKEN.lower(), conditions=(READY, READY))])), "node 1 of the list"),
            (f"HTTP/1.1 2x0 {TOKEN}\r\n\r\n".encode(), "did not answer in HTTP"),
            (f"Authorization: Bearer {TOKEN}\r\n\r\n".encode(), "did not answer in HTTP"),
            (http(200, node_list([]), Content_Encoding="gzip"), "encoded body"),
            (http(200, b" " * (MAX_BODY + 1)), f"more than {MAX_BODY} bytes"),
            (chunked(*[b" " * 65536] * (MAX_BODY // 65536 + 1)), f"more than {MAX_BODY} bytes"),
            (http(200, node_list([node()]))[:-2], "not completely"),
            (b"", "not completely"),
        ],
    )
    def test_an_answer_that_cannot_be_used_fails_the_source(
        self, authority: TlsAuthority, answer: bytes, said: str
    ) -> None:
        with ScriptedPeer.secured(authority.server(), {TARGET: answer}) as server:
            error = observed(context(settings(authority, server.port)))
        assert error.reason is SOURCE_FAILED
        assert said in error.detail
        assert "elsewhere" not in error.detail
        assert len(server.heads) == 1

    def test_nobody_listens(self, authority: TlsAuthority) -> None:
        error = observed(context(settings(authority, refused_port())))
        assert error.reason is SOURCE_FAILED
        assert "Connection refused" in error.detail

    @pytest.mark.parametrize("how", ["silence", "drip", "head"])
    def test_a_slow_server_is_left_at_the_deadline(self, authority: TlsAuthority, how: str) -> None:
        with ScriptedPeer.secured(authority.server(), {}) as server:
            slow = {
                "silence": server.silence,
                "drip": server.drip(http(200, b" " * 100_000)),
                "head": server.drip(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 30_000),
            }
            server.answers[TARGET] = slow[how]
            error = observed(context(settings(authority, server.port), seconds=SHORT_S))
        assert error.reason is UnavailableReason.TIMED_OUT

    def test_a_handshake_that_gets_no_answer_is_left_at_the_deadline(self, authority: TlsAuthority) -> None:
        # Nobody accepts, but the kernel connects.
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            error = observed(context(settings(authority, port), seconds=SHORT_S))
        assert error.reason is UnavailableReason.TIMED_OUT

    def test_a_resolver_that_hangs_is_left_at_the_deadline(
        self, authority: TlsAuthority, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        over = threading.Event()

        def hang(*_: object, **__: object) -> list[Any]:
            over.wait(30)
            return []

        monkeypatch.setattr(socket, "getaddrinfo", hang)
        given = settings(authority, 1, host="hanging.example")
        earlier = set(threading.enumerate())
        for _ in range(3):
            assert observed(context(given, seconds=SHORT_S)).reason is UnavailableReason.TIMED_OUT
        asking = [thread for thread in set(threading.enumerate()) - earlier if thread.name == "resolve"]
        over.set()
        assert len(asking) == 1, "one resolver is asked at a time"

    @pytest.mark.skipif(sys.platform != "linux", reason="a full backlog refuses elsewhere")
    def test_an_address_that_is_silent_leaves_time_for_the_next(
        self, authority: TlsAuthority, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        answers: dict[str, object] = {TARGET: http(200, node_list([node()]))}
        with (
            full_backlog() as silent,
            ScriptedPeer.secured(authority.server("api.example"), answers) as server,
        ):
            given = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
            addresses = [(*given, ("127.0.0.1", port)) for port in (silent, server.port)]
            monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: addresses)
            environ = settings(authority, server.port, host="api.example")
            assert collect(context(environ, seconds=4)) == vector_entries("kubernetes_node")


@contextmanager
def full_backlog() -> Iterator[int]:
    """A port that answers no further attempt to connect, neither with yes nor with no."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        port = listener.getsockname()[1]
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(("127.0.0.1", port))
        yield port
