"""The shape of the source: who may import whom, how large things get, what stands where."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from functools import cache
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = "ticket_agent"
LINKED = ("gpu", "journal", "peft")
SOURCE_FOLDERS = ("ticket_agent", *LINKED)

MAY_IMPORT: dict[str, frozenset[str]] = {
    "protocol": frozenset(),
    "journal": frozenset(),
    "hive": frozenset({"protocol"}),
    "gpu": frozenset({"protocol", "journal"}),
    "peft": frozenset({"protocol", "journal"}),
    "snapshots": frozenset({"protocol", "journal"}),
    "exits": frozenset(),
    "config": frozenset({"config_relay"}),
    "config_relay": frozenset(),
    "agent": frozenset({"protocol", "journal", "gpu", "peft", "config", "exits"}),
    "cli": frozenset(
        {
            "protocol",
            "journal",
            "gpu",
            "peft",
            "snapshots",
            "agent",
            "hive",
            "config",
            "config_relay",
            "exits",
        }
    ),
}
"""Which part of the package may use which other ones; everybody may use the package's version."""

MAX_MODULE_LINES = 500
MAX_FUNCTION_LINES = 60

HEAVY = (
    "h11",
    "pydantic",
    "portalocker",
    "prometheus_client",
    "pynvml",
    "jeepney",
    "huggingface_hub",
    "safetensors",
    "tomli_w",
    "cryptography",
    "blake3",
)


@cache
def _modules() -> dict[str, Path]:
    """Every module of the package by its dotted name; the linked folders are read where they are."""
    found = {}
    for folder in SOURCE_FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            if folder == PACKAGE and len(parts) > 1 and parts[1] in LINKED:
                continue
            name = ".".join(parts if folder == PACKAGE else (PACKAGE, *parts))
            found[name.removesuffix(".__init__")] = path
    return found


def _imports(name: str, path: Path) -> set[str]:
    """Dotted names of everything a module imports, under ``TYPE_CHECKING`` and inside functions too."""
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module or "") if part)
            # `from ticket_agent import journal` names a part only together with what it imports.
            found.update(f"{module}.{alias.name}" for alias in node.names)
    return found


def _part(name: str) -> str | None:
    parts = name.split(".")
    return parts[1] if parts[0] == PACKAGE and len(parts) > 1 else None


def _uses(part: str) -> dict[str, set[str]]:
    """For each other part that ``part`` uses: the modules that do."""
    found: dict[str, set[str]] = {}
    for name, path in _modules().items():
        if _part(name) != part:
            continue
        for imported in _imports(name, path):
            other = _part(imported)
            if other not in {None, part, "__version__"}:
                found.setdefault(str(other), set()).add(name)
    return found


def test_every_module_belongs_to_a_known_part() -> None:
    parts = {_part(name) for name in _modules()}
    assert parts - set(MAY_IMPORT) == {None, "__main__"}
    assert set(MAY_IMPORT) - parts <= {"peft"}


@pytest.mark.parametrize("part", sorted(MAY_IMPORT))
def test_imports_run_one_way(part: str) -> None:
    forbidden = {other: by for other, by in _uses(part).items() if other not in MAY_IMPORT[part]}
    assert not forbidden


def test_the_import_reader_sees_what_it_must(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(
        "import ticket_agent.gpu.lease\n"
        "from typing import TYPE_CHECKING\n"
        "from .sibling import one\n"
        "from ..cli import run\n"
        "from ticket_agent import journal\n"
        "if TYPE_CHECKING:\n    from ticket_agent.hive.console import client\n"
        "def late():\n    from ticket_agent.config import AgentConfig\n"
    )
    found = {_part(name) for name in _imports("ticket_agent.agent.module", path)}
    assert found == {"gpu", None, "agent", "cli", "journal", "hive", "config"}


TALKS_TO_SERVERS = "ticket_agent.peft.release.loopback"
"""The one module of the cores that opens sockets: HTTP to a model server on this machine."""


@pytest.mark.parametrize("part", ["protocol", "journal", "gpu", "peft"])
def test_cores_use_no_console_library(part: str) -> None:
    roots = {
        name.split(".")[0]
        for module, path in _modules().items()
        if _part(module) == part and module != TALKS_TO_SERVERS
        for name in _imports(module, path)
    }
    assert not roots & {"click", "socket", "asyncio", "http", "requests"}


def test_nobody_imports_a_folder_by_its_bare_name() -> None:
    tests = {f"tests.{path.stem}": path for path in (ROOT / "tests").rglob("*.py")}
    for name, path in chain(_modules().items(), tests.items()):
        roots = {imported.split(".")[0] for imported in _imports(name, path)}
        assert not roots & set(LINKED), f"{path} imports {roots & set(LINKED)} from the checkout's root"


@pytest.mark.parametrize("folder", LINKED)
def test_folders_are_linked_and_no_packages(folder: str) -> None:
    link = ROOT / PACKAGE / folder
    assert link.is_symlink()
    assert os.readlink(link) == f"../{folder}"  # noqa: PTH115 - the text of the link, not its target
    assert (ROOT / folder).is_dir()
    assert not (ROOT / folder / "__init__.py").exists()


def test_the_package_is_marked_as_typed() -> None:
    assert (ROOT / PACKAGE / "py.typed").is_file()


def test_tests_are_no_packages() -> None:
    assert not list((ROOT / "tests").rglob("__init__.py"))


def _child(code: str, *, path: tuple[Path, ...] = ()) -> str:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    env["PYTHONPATH"] = os.pathsep.join(str(entry) for entry in path)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("name", LINKED)
def test_an_installed_package_of_the_same_name_wins_from_the_root(name: str, tmp_path: Path) -> None:
    package = tmp_path / name
    package.mkdir()
    (package / "__init__.py").write_text("WHO = 'installed'\n")
    # PYTHONPATH comes after the current directory, which `-c` puts first.
    code = f"import sys; assert sys.path[0] in ('', {str(ROOT)!r}); import {name}; print({name}.WHO)"
    assert _child(code, path=(tmp_path,)) == "installed"


def test_the_command_line_starts_without_heavy_imports() -> None:
    code = f"import sys, ticket_agent.cli; print([name for name in {HEAVY} if name in sys.modules])"
    assert _child(code, path=(ROOT,)) == "[]"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["journal", "list", "--help"],
        ["peft", "--help"],
        ["release", "watch", "--help"],
        ["release", "init", "--help"],
        ["release", "prepare", "--help"],
        ["release", "plan", "--help"],
        ["release", "submit", "--help"],
        ["release", "verify", "--help"],
        ["release", "serve", "--help"],
    ],
)
def test_helps_import_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys, contextlib, io\n"
        f"sys.argv = ['ticket-agent', *{arguments}]\n"
        "from ticket_agent.cli import main\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):\n"
        "    main()\n"
        "assert 'click' in sys.modules\n"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    assert _child(code, path=(ROOT,)) == "[]"


def _functions(path: Path) -> list[tuple[str, int]]:
    nodes = ast.walk(ast.parse(path.read_bytes()))
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [(node.name, (node.end_lineno or node.lineno) - node.lineno + 1) for node in functions]


def test_modules_and_functions_stay_small() -> None:
    large = []
    for path in _modules().values():
        lines = len(path.read_text(encoding="utf-8").splitlines())
        if lines > MAX_MODULE_LINES:
            large.append(f"{path.relative_to(ROOT)}: {lines} lines")
        large += [
            f"{path.relative_to(ROOT)}: {name}: {length} lines"
            for name, length in _functions(path)
            if length > MAX_FUNCTION_LINES
        ]
    assert not large


SECRETS = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY|\bgh[pousr]_[A-Za-z0-9]{20}|\bgithub_pat_|\bhf_[A-Za-z0-9]{30}"
    r"|\bAKIA[0-9A-Z]{16}\b|\bxox[abprs]-[0-9A-Za-z-]{10}|\bsk-[A-Za-z0-9_-]{20}"
)


def _texts() -> list[Path]:
    folders = [ROOT / name for name in ("ticket_agent", *LINKED, "tests", "vectors", ".ci")]
    found = [path for folder in folders for path in folder.rglob("*") if "__pycache__" not in path.parts]
    found += [ROOT / name for name in ("README.md", "pyproject.toml")]
    return [path for path in found if path.is_file() and path.resolve() != Path(__file__).resolve()]


def test_no_file_holds_a_secret() -> None:
    texts = _texts()
    assert ROOT / "journal" / "store.py" in texts
    hits = [path for path in texts if SECRETS.search(path.read_text(encoding="utf-8", errors="replace"))]
    assert not hits


@pytest.mark.parametrize(
    "text", ["-----BEGIN OPENSSH " + "PRIVATE KEY-----", "gh" + "p_" + "a" * 36, "AK" + "IA" + "A" * 16]
)
def test_the_secret_pattern_finds_what_it_is_for(text: str) -> None:
    assert SECRETS.search(f"token = '{text}'")
