"""Connections: kept alive, found dead in time, over TLS, past proxies; credentials that are read again."""

from __future__ import annotations

import datetime as dt
import socket
import ssl
import threading
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Self

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hive_support import SPEC, running_gateway
from rest_support import LINE, PATH, TICKET, TOKEN, ScriptedGateway, echoed, http, rest, said
from scripted_console import refused_port

from ticket_agent.hive.credentials import CredentialError
from ticket_agent.hive.rest.origin import RestConfig, RestUsageError, parse_origin
from ticket_agent.protocol.namespace import Acked, HiveUnreachableError

if TYPE_CHECKING:
    from pathlib import Path


def test_one_connection_serves_all_requests() -> None:
    with ScriptedGateway(http(200, said("TAIL", PATH, ["a"]))) as gateway, rest(gateway.port) as namespace:
        for _ in range(5):
            assert namespace.tail(PATH) == ["a"]
        assert gateway.connections == 1
        assert namespace.session == 1


def test_a_gateway_that_closes_after_each_answer_does_not_begin_sessions() -> None:
    closing = http(200, said("TAIL", PATH, ["a"]), Connection="close")
    with ScriptedGateway(closing) as gateway, rest(gateway.port) as namespace:
        for _ in range(3):
            assert namespace.tail(PATH) == ["a"]
        assert gateway.connections == 4
        assert namespace.session == 1


@pytest.mark.parametrize("status", [{}, {"connects": 1}, {"connects": True, "last_change_unix_ms": 5}])
def test_without_full_evidence_each_connection_of_ours_is_a_session(status: dict[str, object]) -> None:
    closing = http(200, said("ECHO", PATH, bytes=len(LINE)), Connection="close")
    with ScriptedGateway(closing, status=http(200, status)) as gateway, rest(gateway.port) as namespace:
        namespace.connect()
        assert namespace.session == 1
        answer = namespace.append(PATH, LINE)
        assert not isinstance(answer, Acked), "the session ended with the connection"
        assert namespace.session == 2


def test_nothing_was_sent_where_nobody_listens() -> None:
    namespace = rest(refused_port())
    for act in (lambda: namespace.append(PATH, LINE), lambda: namespace.read(PATH), namespace.connect):
        with pytest.raises(HiveUnreachableError, match="Connection refused"):
            act()


def test_an_idle_connection_that_died_is_replaced_before_anything_is_sent_on_it() -> None:
    with running_gateway() as (hive, server), rest(server.url, auth_token=server.token) as namespace:
        namespace.connect()
        server.drop_connections()
        answer = namespace.append(SPEC, "{}")
        assert not isinstance(answer, Acked)
        assert "invalid-payload" in str(answer), "the hive itself answered"
        assert namespace.session == 1
        assert hive.appended("spec") == 0


def test_a_read_whose_connection_breaks_is_asked_once_more() -> None:
    script = [lambda sock: sock.close(), http(200, said("TAIL", PATH, ["a"]))]
    with ScriptedGateway(*script) as gateway, rest(gateway.port) as namespace:
        assert namespace.tail(PATH) == ["a"]
        assert len(gateway.beside_status) == 2


def test_credentials_are_sent_under_every_name_and_read_again_for_each_request(tmp_path: Path) -> None:
    token, ticket = tmp_path / "token", tmp_path / "ticket"
    token.write_text("first-token\n")
    ticket.write_text(TICKET)
    with (
        ScriptedGateway(http(200, echoed())) as gateway,
        rest(gateway.port, auth_token=f"file:{token}", ticket=f"file:{ticket}") as namespace,
    ):
        namespace.append(PATH, LINE)
        token.write_text("second-token\n")
        namespace.append(PATH, LINE)
        first, second = gateway.posts
        assert first.header("authorization") == ["Bearer first-token"]
        assert first.header("x-cohesix-auth") == ["first-token"]
        assert first.header("x-cohesix-ticket") == [TICKET]
        assert second.header("authorization") == ["Bearer second-token"]
        token.unlink()
        with pytest.raises(CredentialError, match="cannot open credential file"):
            namespace.append(PATH, LINE)
        assert len(gateway.posts) == 2


@pytest.mark.parametrize(
    ("env", "sent"),
    [
        ({}, []),
        ({"COH_REST_AUTH_TOKEN": "c3", "COHSH_REST_AUTH_TOKEN": "b2"}, ["b2"]),
        ({"HIVE_GATEWAY_REQUEST_AUTH_TOKEN": "a1", "COHSH_REST_AUTH_TOKEN": "b2"}, ["a1"]),
        ({"HIVE_GATEWAY_REQUEST_AUTH_TOKEN": " ", "COHSH_REST_AUTH_TOKEN": "b2"}, ["b2"]),
        ({"COH_AUTH_TOKEN": "the-console-s"}, []),
    ],
)
def test_the_token_of_the_environment(env: dict[str, str], sent: list[str]) -> None:
    with ScriptedGateway(http(200, echoed())) as gateway:
        namespace = rest(gateway.port, env=env, auth_token=None)
        namespace.append(PATH, LINE)
        assert gateway.posts[0].header("x-cohesix-auth") == sent
        namespace.close()


@pytest.mark.parametrize(
    "options", [{"auth_token": "changeme"}, {"ticket": "no-ticket"}, {"ticket": TICKET + "0" * 224}]
)
def test_credentials_that_cannot_be_are_never_sent(options: dict[str, Any]) -> None:
    with ScriptedGateway(http(200, echoed())) as gateway, rest(gateway.port, **options) as namespace:
        with pytest.raises(CredentialError):
            namespace.append(PATH, LINE)
        assert not gateway.asked


@pytest.mark.parametrize(
    "url",
    ["", "gateway:8080", "ftp://h", "http://", "http://u:p@h", "http://h?x=1", "http://h/#a", "http://h:0",
     "http://h:99999", "http://h h", "http://[::1", "http://h\n"],
)  # fmt: skip
def test_urls_that_cannot_be(url: str) -> None:
    with pytest.raises(RestUsageError):
        RestConfig(url=url)


@pytest.mark.parametrize(
    ("url", "authority", "exposed"),
    [
        ("http://127.0.0.1:8080/", "127.0.0.1:8080", False),
        ("http://localhost", "localhost", False),
        ("http://[::1]:8080", "[::1]:8080", False),
        ("http://10.0.0.1", "10.0.0.1", True),
        ("http://gateway.example:80", "gateway.example", True),
        ("https://gateway.example:8443/hive/", "gateway.example:8443", False),
    ],
)
def test_urls(url: str, authority: str, exposed: bool) -> None:
    origin = parse_origin(url)
    assert origin.authority == authority
    assert origin.exposes_credentials is exposed
    assert not origin.prefix.endswith("/")


def test_a_prefix_is_kept_and_paths_are_quoted() -> None:
    path = "/host/a%b&c=d+e"
    with ScriptedGateway(http(200, said("LS", path, ["x"]))) as gateway:
        namespace = rest(f"http://127.0.0.1:{gateway.port}/hive")
        gateway._step = lambda asked: http(404) if "status" in asked.target else http(200, said("LS", path))  # type: ignore[method-assign]
        with pytest.raises(Exception, match="is the URL that of a hive gateway"):
            namespace.ls(path)
        assert gateway.asked[0].target == "/hive/v1/meta/status"
        namespace.close()


def test_no_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{refused_port()}")
    with ScriptedGateway(http(200, echoed())) as gateway, rest(gateway.port) as namespace:
        assert isinstance(namespace.append(PATH, LINE), Acked)


def test_a_configured_proxy_is_asked_for_http_in_absolute_form() -> None:
    with ScriptedGateway(http(502)) as proxy:
        namespace = rest("http://gateway.example/hive", proxy=f"http://127.0.0.1:{proxy.port}")
        with namespace, pytest.raises(HiveUnreachableError):
            namespace.append(PATH, LINE)
        assert proxy.asked[0].target == "http://gateway.example/hive/v1/meta/status"
        assert proxy.asked[0].header("host") == ["gateway.example"]


class Authority:
    """A certificate authority and a server certificate of its own making."""

    def __init__(self, tmp_path: Path, *, name: str = "127.0.0.1") -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "lab")])
        now = dt.datetime.now(dt.UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=1))
            .not_valid_after(now + dt.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address(name))]), critical=False)
            .sign(key, hashes.SHA256())
        )
        self.ca_file = tmp_path / f"{name}.pem"
        self.ca_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        key_file = tmp_path / f"{name}.key"
        key_file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        self.server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.server.load_cert_chain(self.ca_file, key_file)


def test_tls_with_a_ca_of_one_s_own(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    with running_gateway(tls=authority.server) as (_, server):
        assert server.url.startswith("https://")
        with rest(server.url, auth_token=server.token, ca_file=authority.ca_file) as namespace:
            assert "host" in namespace.ls("/")
            assert namespace.read("/proc/lifecycle/state") == ["state=ONLINE"]
            assert "invalid-payload" in str(namespace.append(SPEC, "{}"))


def test_a_certificate_that_is_not_trusted_or_of_another_name_gets_no_token(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, name="127.0.0.9")
    with running_gateway(tls=authority.server) as (_, server):
        choices: list[dict[str, Any]] = [{}, {"ca_file": other.ca_file}]
        for options in choices:
            with pytest.raises(HiveUnreachableError, match="certificate is not trusted"):
                rest(server.url, auth_token=server.token, **options).append(SPEC, "{}")
    with (
        running_gateway(tls=other.server) as (_, server),
        pytest.raises(HiveUnreachableError, match="certificate is not trusted"),
    ):
        rest(server.url, auth_token=server.token, ca_file=other.ca_file).append(SPEC, "{}")


def test_https_goes_through_a_proxy_end_to_end(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    with running_gateway(tls=authority.server) as (_, server), Tunnel() as tunnel:
        options: dict[str, Any] = {"auth_token": server.token, "ca_file": authority.ca_file}
        with rest(server.url, proxy=f"http://127.0.0.1:{tunnel.port}", **options) as namespace:
            assert "host" in namespace.ls("/")
        assert tunnel.asked == f"CONNECT 127.0.0.1:{server.port} HTTP/1.1"
        assert TOKEN.encode() not in tunnel.seen
    with (
        ScriptedGateway(http(403)) as refusing,
        pytest.raises(HiveUnreachableError, match="refused by the proxy"),
    ):
        rest("https://gateway.example", proxy=f"http://127.0.0.1:{refusing.port}").connect()


class Tunnel:
    """A proxy that opens one tunnel."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.asked, self.seen = "", b""
        self._threads = [threading.Thread(target=self._serve, daemon=True)]

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, *error: object) -> None:
        self._listener.close()
        for thread in self._threads:
            thread.join(60)

    def _serve(self) -> None:
        client, _ = self._listener.accept()
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += client.recv(1)
        self.asked = head.split(b"\r\n")[0].decode()
        host, _, port = self.asked.split(" ")[1].partition(":")
        with socket.create_connection((host, int(port))) as server, client:
            client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            back = threading.Thread(target=self._pump, args=(server, client), daemon=True)
            back.start()
            self._pump(client, server)
            back.join(60)

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                self.seen += data
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            return
