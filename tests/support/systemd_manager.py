"""Run a script under a user manager of systemd that exists only for it, on a host that systemd did not boot.

The manager gets a /run, a control group hierarchy and a mount namespace of its own; all of it vanishes with
the script. Needs root, and a kernel with the unified hierarchy.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

SYSTEMD = "/lib/systemd/systemd"
_SCENE = """
set -e
mount -t tmpfs tmpfs /run
mkdir -p /run/systemd/system /run/systemd/inaccessible/dir /run/user/$UID
: > /run/systemd/inaccessible/reg
mkfifo /run/systemd/inaccessible/fifo
chmod 000 /run/systemd/inaccessible/*
umount -R /sys/fs/cgroup 2>/dev/null || true
mount -t cgroup2 cgroup2 /sys/fs/cgroup
group=/sys/fs/cgroup/ticket-agent-test-$$
mkdir $group
echo $$ > $group/cgroup.procs
export XDG_RUNTIME_DIR=/run/user/$UID
mkfifo /run/ready
{systemd} --user > /run/manager.log 2>&1 &
manager=$!
for _ in $(seq 1200); do
    systemctl --user is-system-running >/dev/null 2>&1 && break
    kill -0 $manager 2>/dev/null || {{ cat /run/manager.log >&2; exit 90; }}
    read -t 0.05 <> /run/ready || true
done
set +e
{script}
code=$?
echo $$ > /sys/fs/cgroup/cgroup.procs
echo 1 > $group/cgroup.kill
wait
while grep -q 'populated 1' $group/cgroup.events; do read -t 0.01 <> /run/ready; done
find $group -depth -type d -exec rmdir {{}} +
exit $code
"""


def under_manager(*command: str, timeout_s: float = 300) -> subprocess.CompletedProcess[str]:
    """Run a command that finds the manager through its environment."""
    scene = _SCENE.format(systemd=SYSTEMD, script=shlex.join(command))
    outer = ["unshare", "--mount", "--propagation", "private", "bash", "-c", scene]
    return subprocess.run(outer, capture_output=True, text=True, check=False, timeout=timeout_s)


def why_not() -> str | None:
    """Why this cannot be done here, or None."""
    if os.geteuid() != 0:
        return "needs root to make a user manager of systemd"
    for program in ("unshare", "systemd-run", "systemctl", "bash"):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    if not Path(SYSTEMD).exists():
        return "systemd is not installed"
    trial = ("systemd-run", "--user", "--wait", "--quiet", "--pipe", "echo", "up")
    try:
        done = under_manager(*trial, timeout_s=120)
    except subprocess.TimeoutExpired:
        return "a user manager of systemd does not answer here"
    return (
        None
        if done.stdout == "up\n"
        else f"no user manager of systemd starts here: {done.stderr.strip()[-200:]}"
    )
