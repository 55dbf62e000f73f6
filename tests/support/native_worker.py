"""Native phases in processes that need not import the libraries each time: forked from one that has them.

    python tests/support/native_worker.py

reads lines of JSON, ``{"call": "module:function", "arguments": [...]}``, runs each in a process of its own,
and answers with one line: its exit code, what the function returned, and what it wrote.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any, Self


class Worker:
    """The process that has the libraries; use it in a ``with`` statement."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parent)},
            # Not the checkout's root, where a folder has the name of a library.
            cwd="/",
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()
        assert self._process.returncode == 0

    def call(self, function: str, *arguments: Any) -> dict[str, Any]:
        """Run ``module:function`` with JSON arguments; what it raises is in ``output``."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        line = json.dumps({"call": function, "arguments": [_plain(value) for value in arguments]})
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def phase(self, phase: str, job: Path, *faults: str) -> str:
        """Run a phase that has to end with an observation; return what it wrote to its log.

        ``faults`` are functions of ``native_faults``, called first in the same process.
        """
        answer = self.call("native_worker:run", phase, job, list(faults))
        assert answer["exit"] == 0, answer["output"]
        return str(answer["output"])


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value


def run(phase: str, job: str, faults: list[str]) -> None:
    """Run a phase in this process, as the command does."""
    from ticket_agent.peft.release.native.command import main  # noqa: PLC0415
    from ticket_agent.peft.release.native.offline import refuse_network  # noqa: PLC0415

    refuse_network()
    for fault in faults:
        getattr(importlib.import_module("native_faults"), fault)()
    sys.exit(main([phase, "--job", job]))


def make_base(folder: str) -> None:
    """Make the tiny base model."""
    importlib.import_module("tiny_base").make(Path(folder))


def _child(request: dict[str, Any], output: int, result: Path) -> int:
    os.dup2(output, 1)
    os.dup2(output, 2)
    module, _, name = request["call"].partition(":")
    try:
        returned = getattr(importlib.import_module(module), name)(*request["arguments"])
        result.write_text(json.dumps(returned), "utf-8")
    except SystemExit as error:
        return int(error.code or 0)
    except BaseException:  # noqa: BLE001 - it is told to the test
        traceback.print_exc()
        return 70
    return 0


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        log, result = Path(folder) / "log", Path(folder) / "result"
        output = os.open(log, os.O_CREAT | os.O_WRONLY, 0o600)
        child = os.fork()
        if child == 0:
            code = 70
            try:
                code = _child(request, output, result)
                sys.stdout.flush()
                sys.stderr.flush()
            finally:
                os._exit(code)
        os.close(output)
        _, status = os.waitpid(child, 0)
        return {
            "exit": os.waitstatus_to_exitcode(status),
            "returned": json.loads(result.read_text("utf-8")) if result.exists() else None,
            "output": log.read_text("utf-8", "backslashreplace"),
        }


def serve() -> None:
    """Answer until the input ends."""
    from ticket_agent.peft.release.native.offline import go_offline  # noqa: PLC0415

    go_offline(os.environ)
    for name in ("torch", "transformers", "peft", "accelerate", "safetensors.torch", "tokenizers"):
        importlib.import_module(name)
    for name in ("Trainer", "TrainingArguments", "LlamaForCausalLM", "AutoTokenizer"):
        getattr(importlib.import_module("transformers"), name)
    for line in sys.stdin:
        sys.stdout.write(json.dumps(_answer(json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve()
