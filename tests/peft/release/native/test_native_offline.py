"""No token, no proxy, no network; held from the first import on."""

from __future__ import annotations

import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from ticket_agent.peft.release.native.offline import go_offline
from ticket_agent.peft.release.offline_flags import FLAGS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

COMMAND = "ticket_agent.peft.release.native"

_OFFLINE = f"""
import contextlib, io, runpy, sys
sys.argv = ["native", "--help"]
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
    runpy.run_module("{COMMAND}", run_name="__main__")
"""
"""After it, the process is in the state in which the command starts its work."""

_TRY = """
import socket
try:
    {statement}
except OSError as error:
    print(type(error).__name__)
else:
    print("done")
"""


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def python(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PATH": "/usr/bin:/bin"} | environment,
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_tokens_and_proxies_are_dropped_and_flags_set() -> None:
    environment = {
        "HF_TOKEN": "x",
        "HUGGING_FACE_HUB_TOKEN": "x",
        "https_proxy": "x",
        "ALL_PROXY": "x",
        "OPENAI_API_KEY": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "HF_HUB_OFFLINE": "0",
        "PATH": "/bin",
        "OMP_NUM_THREADS": "2",
    }
    go_offline(environment)
    assert environment == {"PATH": "/bin", "OMP_NUM_THREADS": "2", "NO_PROXY": "*", **FLAGS}


@pytest.mark.parametrize(
    "statement",
    [
        "socket.create_connection(('127.0.0.1', {port}), 60)",
        "socket.socket().connect(('127.0.0.1', {port}))",
        "socket.socket().connect_ex(('127.0.0.1', {port}))",
        "socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', {port}))",
        "socket.socket().bind(('127.0.0.1', 0))",
        "socket.getaddrinfo('localhost', {port})",
        "socket.gethostbyname('localhost')",
        "socket.gethostbyaddr('127.0.0.1')",
        "__import__('urllib.request').request.urlopen('http://127.0.0.1:{port}/', timeout=60)",
    ],
)
def test_nothing_is_talked_to(statement: str, listener: socket.socket) -> None:
    code = _TRY.format(statement=statement.format(port=listener.getsockname()[1]))
    assert python(_OFFLINE + code) in {"NetworkRefusedError", "URLError"}
    listener.setblocking(False)
    with pytest.raises(BlockingIOError):
        listener.accept()


def test_the_same_connection_is_made_without_it(listener: socket.socket) -> None:
    statement = f"socket.create_connection(('127.0.0.1', {listener.getsockname()[1]}), 60)"
    assert python(_TRY.format(statement=statement)) == "done"


def test_sockets_of_this_machine_are_left(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        statement = f"socket.socket(socket.AF_UNIX).connect({str(path)!r})"
        assert python(_OFFLINE + _TRY.format(statement=statement)) == "done"


def test_the_command_imports_no_library_before_it_is_offline() -> None:
    heavy = ("torch", "transformers", "peft", "huggingface_hub", "numpy", "safetensors", "socket", "ssl")
    code = f"print([name for name in {heavy} if name in sys.modules])"
    assert python(_OFFLINE + code) == "[]"


@pytest.mark.train
def test_the_libraries_see_the_flags() -> None:
    code = "import huggingface_hub.constants as c; print(c.HF_HUB_OFFLINE)"
    assert python(_OFFLINE + code, HF_HUB_OFFLINE="0") == "True"
