"""The package's surface: complete, lazy, and free of everything that is not the protocol."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import ticket_agent.protocol as package

FOLDER = Path(package.__file__).parent
MODULES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "__init__")
USE_PYDANTIC = {"args", "federation", "members", "result", "spec"}
FORBIDDEN = {
    "os",
    "io",
    "socket",
    "time",
    "random",
    "secrets",
    "pathlib",
    "subprocess",
    "asyncio",
    "threading",
    "datetime",
}


def loaded_by(code: str) -> set[str]:
    program = f"import sys\n{code}\nprint(*sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, cwd=FOLDER.parents[1]
    )
    return set(run.stdout.split())


def test_light_modules_load_no_pydantic() -> None:
    light = [module for module in MODULES if module not in USE_PYDANTIC]
    code = "\n".join(f"import ticket_agent.protocol.{module}" for module in light)
    code += "\nfrom ticket_agent.protocol import encode_line, parse_lease_control, newest_worker_state"
    assert "pydantic" not in loaded_by(code)
    assert "pydantic" in loaded_by("from ticket_agent.protocol import parse_spec")


def test_every_public_name_is_there_once_and_documented_for_type_checkers() -> None:
    tree = ast.parse((FOLDER / "__init__.py").read_text("utf-8"))
    imported = [
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.level
        for alias in node.names
    ]
    assert sorted(imported) == sorted(package.__all__)
    assert len(set(package.__all__)) == len(package.__all__)
    for name in package.__all__:
        assert getattr(package, name) is not None
    assert set(package.__all__) <= set(dir(package))


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = package.nothing


@pytest.mark.parametrize("module", MODULES)
def test_modules_do_no_input_or_output_and_import_nothing_of_the_agent(module: str) -> None:
    tree = ast.parse((FOLDER / f"{module}.py").read_text("utf-8"))
    absolute = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    absolute |= {
        node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and not node.level
    }
    assert all(node.level <= 1 for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    roots = {name.split(".")[0] for name in absolute}
    assert not roots & FORBIDDEN
    assert "ticket_agent" not in roots
    assert "pydantic" not in roots or module in USE_PYDANTIC
