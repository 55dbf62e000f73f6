"""Whether release phases would be confined by bubblewrap in the sandbox that this program runs in."""

from __future__ import annotations

from ticket_agent.peft.release.confine import Bubblewrap
from ticket_agent.peft.release.detect import detect
from ticket_agent.peft.release.launch_errors import NoLauncherError


def main() -> None:
    try:
        found = detect(unconfined=False, choice=[Bubblewrap.of_host("/usr/bin/bwrap")])
    except NoLauncherError as error:
        print(f"none: {error}")
    else:
        print(f"{found.launcher.name}: {', '.join(sorted(found.held))}")


if __name__ == "__main__":
    main()
