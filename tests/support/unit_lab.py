"""The printed unit under a real manager of systemd: the agent in its sandbox serves a hive. A program.

It prints one JSON object. A user manager stands in for the one of the system, so the accounts of the unit are
left away, and what the interpreter and that manager need is bound into the sandbox; all the rest is in force.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from hive_support import TOKEN, raw_grant

from ticket_agent.cli.install import FILES
from ticket_agent.hive.console.lock import lock_path
from ticket_agent.hive.reference import ConsoleServer, ReferenceHive

HOME = Path("/run/lab")
"""On a file system of this scene alone, and no place that the sandbox hides."""
STATE = Path(os.environ["XDG_CONFIG_HOME"], "ticket-agent")
"""Where a user manager puts the state directory; the caller sets the variable for the manager too."""
NEEDS_A_SYSTEM_MANAGER = ("User=", "Group=")
PATIENCE_S = 100.0


def main() -> None:
    units = Path(os.environ["XDG_RUNTIME_DIR"], "systemd", "user")
    units.mkdir(parents=True)
    STATE.parent.mkdir(parents=True)
    (HOME / "token").write_text(TOKEN, encoding="ascii")
    hive = ReferenceHive(clock=lambda: int(time.time() * 1000))
    with ConsoleServer(hive, token=TOKEN) as server:
        found = _serve(hive, server.port, units)
    found |= {
        "bwrap": _phase(units, "plain"),
        "bwrap, drop-in": _phase(units, "loose", FILES["release-bubblewrap"].text("")),
    }
    print(json.dumps(found))


def _serve(hive: ReferenceHive, port: int, units: Path) -> dict[str, object]:
    program = HOME / "ticket-agent"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m ticket_agent "$@"\n', encoding="ascii")
    program.chmod(0o755)
    toml = FILES["config"].text("").replace("port = 31337", f"port = {port}")
    toml = toml.replace("/etc/ticket-agent/console.token", str(HOME / "token"))
    (HOME / "agent.toml").write_text(toml, encoding="utf-8")
    lock = lock_path("127.0.0.1", port)
    lock.touch()
    lock.chmod(0o666)
    unit = (
        _unit()
        .replace("31337", str(port))
        .replace("/etc/ticket-agent/ticket-agent.toml", str(HOME / "agent.toml"))
    )
    (units / "agent.service").write_text(unit.replace("@program@", str(program)), encoding="utf-8")
    _drop_in(
        units,
        "agent",
        f"[Service]\nWorkingDirectory={Path.cwd()}\n{_source()}StandardError=file:{HOME}/log\n",
    )
    _systemctl("daemon-reload")
    _systemctl("start", "agent.service")
    worker = hive.spawn_worker("worker-gpu")
    hive.submit(raw_grant(hive, worker, "t1", "lease-1", ttl_s=60))
    deadline = time.monotonic() + PATIENCE_S
    while not hive.terminal_lines(("t1", "key-t1")) and time.monotonic() < deadline:
        time.sleep(0.01)
    shown = _show("agent", "MainPID", "ActiveState", "StatusText", "WatchdogUSec", "NoNewPrivileges")
    status = Path("/proc", shown["MainPID"], "status").read_text(encoding="ascii")
    owner = lock.read_text(encoding="ascii")
    _systemctl("stop", "agent.service")
    lock.unlink()
    return {
        "lock": owner == f"pid={shown['MainPID']}\n",
        "shown": {name: value for name, value in shown.items() if name != "MainPID"},
        "outcome": hive.admission_of("t1").outcome,
        "seccomp": status.split("Seccomp:")[1].split()[0],
        "capabilities": status.split("CapBnd:")[1].split()[0],
        "result": _show("agent", "Result", "ExecMainStatus"),
        "state": sorted(path.name for path in STATE.iterdir()),
        "log": (HOME / "log").read_text(encoding="utf-8")[-2000:],
    }


def _phase(units: Path, name: str, drop_in: str = "") -> str:
    """What the trial of bubblewrap finds in the unit's sandbox, as before each release.

    Not as root, because the kernel lets nobody without capabilities map that account; hence the few calls
    that changing the account takes.
    """
    nobody = "/usr/bin/setpriv --reuid 65534 --regid 65534 --clear-groups --bounding-set -all"
    once = f"Type=oneshot\nExecStart={nobody} {sys.executable} -m unit_trial"
    dropped = (
        "ExecStart=",
        "Type=",
        "WatchdogSec=",
        "Restart",
        "CapabilityBoundingSet=",
        "TimeoutStart",
        "StateDir",
    )
    lines = [line for line in _unit().splitlines() if not line.startswith(dropped)]
    (units / f"{name}.service").write_text(
        "\n".join(lines).replace("[Service]", f"[Service]\n{once}"), encoding="utf-8"
    )
    lab = f"SystemCallFilter=@setuid capset\nEnvironment=PYTHONPATH={Path(__file__).parent}:{Path.cwd()}\n"
    lab += f"StandardOutput=file:{HOME}/{name}.log\nStandardError=inherit\n"
    _drop_in(units, name, f"{drop_in}\n[Service]\n{_source()}{lab}")
    _systemctl("daemon-reload")
    _systemctl("start", f"{name}.service", check=False)
    return (HOME / f"{name}.log").read_text(encoding="utf-8").strip()


def _unit() -> str:
    text = FILES["unit"].text("@program@")
    return "\n".join(line for line in text.splitlines() if not line.startswith(NEEDS_A_SYSTEM_MANAGER))


def _source() -> str:
    """The interpreter and the source may lie where the sandbox hides everything: in a home, or in /tmp."""
    places = {str(Path.cwd()), sys.prefix, sys.base_prefix}
    binds = "".join(f"BindReadOnlyPaths={place}\n" for place in sorted(places))
    # The notification socket of a user manager, unlike that of the system's, lies among what is hidden.
    return f"ProtectHome=tmpfs\nBindPaths={os.environ['XDG_RUNTIME_DIR']}\n{binds}"


def _drop_in(units: Path, name: str, text: str) -> None:
    directory = units / f"{name}.service.d"
    directory.mkdir()
    (directory / "lab.conf").write_text(text, encoding="utf-8")


def _systemctl(*arguments: str, check: bool = True, timeout_s: float = 100.0) -> str:
    command = ["timeout", str(timeout_s), "systemctl", "--user", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if check and done.returncode != 0:
        sys.exit(f"systemctl {arguments}: {done.stderr}\n{_why()}")
    return done.stdout


def _why() -> str:
    """What the manager and the agent said."""
    said = [Path("/run/manager.log"), HOME / "log"]
    texts = [path.read_text(encoding="utf-8", errors="replace")[-3000:] for path in said if path.exists()]
    return "\n".join([*texts, _systemctl("status", "--no-pager", "agent.service", check=False)])


def _show(name: str, *properties: str) -> dict[str, str]:
    wanted = [f"--property={one}" for one in properties]
    lines = _systemctl("show", *wanted, f"{name}.service").splitlines()
    return dict(line.split("=", 1) for line in lines)


if __name__ == "__main__":
    main()
