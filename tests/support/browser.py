"""A real headless Chromium, driven over the W3C protocol on loopback, with the standard library alone."""

from __future__ import annotations

import base64
import http.client
import json
import re
import shutil
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PATIENCE_S = 200.0
ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-dev-shm-usage",
    "--disable-sync",
    "--force-color-profile=srgb",
    "--force-device-scale-factor=1",
    "--hide-scrollbars",
)


def _browser() -> str | None:
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def missing_browser() -> str | None:
    """Why no page can be looked at here, or None."""
    if _browser() is None:
        return "no Chromium is installed"
    return None if shutil.which("chromedriver") else "chromedriver is not installed"


class Browser:
    """One session with one window."""

    def __init__(self, port: int, profile: Path) -> None:
        self._port = port
        options = {"binary": _browser(), "args": [*ARGUMENTS, f"--user-data-dir={profile}"]}
        wanted = {"browserName": "chrome", "goog:chromeOptions": options}
        wanted["goog:loggingPrefs"] = {"browser": "ALL"}
        session = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._base = f"/session/{session['sessionId']}"

    def _ask(self, method: str, path: str, body: object = None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE_S)
        try:
            data = None if body is None else json.dumps(body).encode()
            connection.request(method, path, data, {"Content-Type": "application/json"})
            value = json.loads(connection.getresponse().read())["value"]
        finally:
            connection.close()
        assert not (isinstance(value, dict) and "error" in value), value
        return value

    def open(self, page: Path, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Show a file in a view of this size."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.command("Emulation.setEmulatedMedia", features=[scheme])
        self.command(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        self._ask("POST", f"{self._base}/url", {"url": page.as_uri()})

    def command(self, name: str, **parameters: object) -> Any:
        """A command of the browser's own protocol."""
        return self._ask("POST", f"{self._base}/goog/cdp/execute", {"cmd": name, "params": parameters})

    def script(self, source: str) -> Any:
        """What a function body returns in the page; it works on pages that allow no scripts of their own."""
        return self._ask("POST", f"{self._base}/execute/sync", {"script": source, "args": []})

    def boxes(self, selector: str) -> list[dict[str, float]]:
        """Where the elements are drawn: left, top, right, bottom in pixels of the view."""
        return list(
            self.script(
                f"return [...document.querySelectorAll({json.dumps(selector)})].map(e => {{"
                "const b = e.getBoundingClientRect();"
                "return {left: b.left, top: b.top, right: b.right, bottom: b.bottom}})"
            )
        )

    def count(self, selector: str) -> int:
        return int(self.script(f"return document.querySelectorAll({json.dumps(selector)}).length"))

    def screenshot(self) -> bytes:
        """The view as PNG."""
        return base64.b64decode(self._ask("GET", f"{self._base}/screenshot"))

    def log(self) -> list[str]:
        """What the browser complained about since the last call."""
        entries = self._ask("POST", f"{self._base}/se/log", {"type": "browser"})
        return [entry["message"] for entry in entries]

    def close(self) -> None:
        self._ask("DELETE", self._base)


@contextmanager
def running_browser(home: Path) -> Iterator[Browser]:
    """A browser with an empty profile, until the block ends."""
    driver = subprocess.Popen(
        ["chromedriver", "--port=0"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert driver.stdout is not None
    try:
        port = next(
            int(found[1])
            for line in driver.stdout
            if (found := re.search(r"started successfully on port (\d+)", line))
        )
        browser = Browser(port, home / "profile")
        try:
            yield browser
        finally:
            browser.close()
    finally:
        driver.terminate()
        driver.wait(PATIENCE_S)
        driver.stdout.close()
