"""Debian's Chromium for tests, headless, over the DevTools protocol: pages as people see and use them.

One process serves a session of tests, each page is a target of its own. Every wait is for an event of the
browser, with a limit that only a hang reaches.
"""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from websocket import WebSocket, create_connection

from waiting import eventually

LIMIT_S = 180.0
"""That only a hang reaches."""
OPTIONS = (
    "--headless=new",
    "--no-sandbox",  # of which root has none
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--remote-debugging-port=0",
)


@dataclass
class Browser:
    """A running browser and its one connection."""

    socket: WebSocket
    events: list[dict[str, Any]] = field(default_factory=list)
    num_sent: int = 0

    def send(self, method: str, session: str | None = None, **parameters: Any) -> Any:
        """Return what the browser answers to a command; events that come before it are kept."""
        self.num_sent += 1
        message = {"id": self.num_sent, "method": method, "params": parameters}
        self.socket.send(json.dumps(message if session is None else {**message, "sessionId": session}))
        while (answer := json.loads(self.socket.recv())).get("id") != self.num_sent:
            self.events.append(answer)
        assert "error" not in answer, (method, answer["error"])
        return answer["result"]

    def event(self, session: str, name: str) -> dict[str, Any]:
        """Return the first event of a name that a page had or has; it is taken."""
        while True:
            for event in self.events:
                if (event.get("sessionId"), event.get("method")) == (session, name):
                    self.events.remove(event)
                    return event
            self.events.append(json.loads(self.socket.recv()))

    @contextmanager
    def page(
        self, path: Path, *, width: int = 1280, height: int = 900, is_dark: bool = False, script: bool = True
    ) -> Iterator[OpenPage]:
        """Open a file in a page of that size; it is closed in the end."""
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = OpenPage(browser=self, session=session)
        for domain in ("Page", "Runtime", "Log", "Network", "Security"):
            page.send(f"{domain}.enable")
        page.send("Emulation.setEmulatedMedia", features=[_scheme(is_dark=is_dark)])
        page.send("Emulation.setScriptExecutionDisabled", value=not script)
        page.resize(width, height)
        page.send("Page.navigate", url=path.resolve().as_uri())
        self.event(session, "Page.loadEventFired")
        try:
            yield page
        finally:
            self.send("Target.closeTarget", targetId=target)


def _scheme(*, is_dark: bool) -> dict[str, str]:
    return {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}


@dataclass
class OpenPage:
    """A page that has been loaded."""

    browser: Browser
    session: str

    def send(self, method: str, **parameters: Any) -> Any:
        """Return what the browser answers to a command of this page."""
        return self.browser.send(method, self.session, **parameters)

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression of JavaScript, awaited if it is a promise."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def settle(self) -> None:
        """Wait until what was changed is drawn: two frames."""
        self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def resize(self, width: int, height: int = 900) -> None:
        """Make the page another size."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )

    def key(self, name: str, code: int) -> None:
        """Press and release a key."""
        text = {"Enter": "\r"}.get(name, "")
        for kind in ("keyDown", "keyUp"):
            pressed = {"text": text} if text and kind == "keyDown" else {}
            self.send(
                "Input.dispatchKeyEvent",
                type=kind,
                key=name,
                code=name,
                windowsVirtualKeyCode=code,
                **pressed,
            )

    def mouse(self, kind: str, x: float, y: float, *, is_down: bool = False) -> None:
        """Move the mouse, or press or release its button."""
        button = {"button": "left", "buttons": 1, "clickCount": 1} if is_down else {}
        self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, **button)

    def complaints(self) -> list[str]:
        """Return what the console said, and every request but that for the page itself."""
        self.settle()
        said = []
        for event in [one for one in self.browser.events if one.get("sessionId") == self.session]:
            match event["method"], event["params"]:
                case "Runtime.consoleAPICalled", call:
                    said.append(f"console: {call['args']}")
                case "Runtime.exceptionThrown", thrown:
                    said.append(f"exception: {thrown['exceptionDetails']}")
                case "Log.entryAdded", {"entry": entry}:
                    said.append(f"log: {entry['text']}")
                case "Network.requestWillBeSent", {"type": "Document"}:
                    pass
                case "Network.requestWillBeSent", request:
                    said.append(f"request: {request['request']['url']}")
        return said

    def screenshot(self, path: Path, *, width: int) -> None:
        """Write a picture of the whole page."""
        height = self.evaluate("document.documentElement.scrollHeight")
        self.resize(width, int(height))
        self.settle()
        data = self.send("Page.captureScreenshot", format="png")["data"]
        path.write_bytes(base64.b64decode(data))


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start a browser with a profile of its own; it is ended and its profile removed in the end."""
    command = shutil.which("chromium")
    assert command, "needs Debian's package chromium"
    profile = Path(tempfile.mkdtemp(prefix="gpuproof-chromium-"))
    process = subprocess.Popen(
        [command, *OPTIONS, f"--user-data-dir={profile}", "about:blank"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        port = profile / "DevToolsActivePort"
        eventually("the browser listens", lambda: port.read_text().count("\n") >= 1)
        number, path = port.read_text().splitlines()[:2]
        socket = create_connection(f"ws://127.0.0.1:{number}{path}", timeout=LIMIT_S, suppress_origin=True)
        yield Browser(socket=socket)
        socket.close()
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(profile, ignore_errors=True)
