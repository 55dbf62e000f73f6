"""Tables that say where a rule is held: each entry names tests, and what it names has to be there."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parents[1]


@cache
def _functions(path: str) -> frozenset[str]:
    tree = ast.parse((TESTS / path).read_text("utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


def missing(*named: str) -> list[str]:
    """What is not there of ``file::test``, or ``file::test::case`` where the case is a text of the file."""
    found = []
    for name in named:
        path, test, *case = name.split("::")
        text = (TESTS / path).read_text("utf-8")
        if test not in _functions(path) or any(each not in text for each in case):
            found.append(name)
    return found
