"""An interpreter of model servers that has no libraries: what it is told to serve, it answers from a table.

Installed as a program named ``python`` by ``control_scene``. It understands how each backend starts a server,
and looks before every answer into ``<its folder>/faults/<served name>`` for what it has to do wrong.
"""

from __future__ import annotations

import json
import re
import signal
import sys
import threading
from pathlib import Path
from typing import Any

HERE = Path(sys.argv[0]).resolve().parent
sys.path.insert(0, str(HERE))

from serving_double import Server  # noqa: E402 - beside this file

PROMPTS: list[str] = json.loads((HERE / "prompts.json").read_text(encoding="utf-8"))
TENSORS = 8


def said(generation: int) -> dict[str, list[str]]:
    if generation == 0:
        return {prompt: ["base", " of", f" {number}"] for number, prompt in enumerate(PROMPTS)}
    return {
        prompt: ["this", " is", f" {generation}", f" to {number}"] for number, prompt in enumerate(PROMPTS)
    }


class Faulty(Server):
    def __init__(self, spec: dict[str, Any], name: str) -> None:
        self.faults = HERE / "faults" / name
        super().__init__(spec)

    @property
    def fault(self) -> str | None:
        try:
            return self.faults.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None

    @fault.setter
    def fault(self, _: object) -> None:
        pass


def option(arguments: list[str], name: str) -> str:
    return arguments[arguments.index(name) + 1]


def wanted(arguments: list[str]) -> tuple[dict[str, Any], str]:
    """The table of answers, and the name of what is served."""
    module = option(arguments, "-m")
    if module.endswith("serve_guard"):
        told = json.loads(Path(arguments[-1]).read_bytes())
        assert Path(told["name"]).is_dir(), "what is served is in the directory that the server starts in"
        name, token, port = told["name"], told["token"], int(option(told["arguments"], "--port"))
        names = {name: generation_of(name)}
        matched = TENSORS if told["adapter"] else None
    else:
        token = json.loads(Path(option(arguments, "--config")).read_bytes())["api-key"]
        port, base = int(option(arguments, "--port")), option(arguments, "--served-model-name")
        name = base
        names = {base: 0}
        if "--lora-modules" in arguments:
            name = option(arguments, "--lora-modules").partition("=")[0]
            names = {name: generation_of(name), base: 0}
        matched = None
    answers = {served: said(generation) for served, generation in names.items()}
    spec = {"port": port, "token": token, "answers": answers, "base": said(0), "matched_tensors": matched}
    return spec, name


def generation_of(name: str) -> int:
    found = re.search(r"-g([0-9]+)-", name)
    assert found is not None
    return int(found[1])


def main() -> None:
    spec, name = wanted(sys.argv[1:])
    faults = HERE / "faults" / name
    fault = faults.read_text(encoding="utf-8") if faults.exists() else ""
    if fault == "ends-at-once":
        sys.exit(f"out of memory; the token was {spec['token']}")
    if fault == "never-ready":
        signal.pause()
    if fault == "half-matched":
        spec["matched_tensors"] = TENSORS - 1
    server = Faulty(spec, name)

    def stop(*_: object) -> None:
        if server.fault != "unstoppable":
            threading.Thread(target=server.shutdown).start()

    signal.signal(signal.SIGTERM, stop)
    print("listening", flush=True)
    server.serve_forever(poll_interval=0.01)
    server.server_close()


if __name__ == "__main__":
    main()
