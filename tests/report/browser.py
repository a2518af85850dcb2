"""A headless Chromium, driven over a pipe by its own protocol (https://chromedevtools.github.io/devtools-protocol/)."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
LIMIT_S = 60.0


class Browser:
    """One page of a browser of its own; use it in a ``with``."""

    def __init__(self, width: int = 1100, height: int = 2400, *, dark: bool = False) -> None:
        assert CHROMIUM is not None
        self._folder = TemporaryDirectory(ignore_cleanup_errors=True)  # its helpers write for a moment after it has ended
        read_end, self._send = os.pipe()
        self._receive, write_end = os.pipe()
        colours = ["--force-dark-mode", "--blink-settings=preferredColorScheme=0"] if dark else []
        # The browser reads commands from file descriptor 3 and writes answers to 4.
        command = [
            "bash", "-c", f'exec "$@" 3<&{read_end} 4>&{write_end}', "-", CHROMIUM, "--headless=new", "--no-sandbox",
            "--disable-gpu", "--remote-debugging-pipe", f"--user-data-dir={self._folder.name}",
            f"--window-size={width},{height}", *colours, "about:blank",
        ]  # fmt: skip
        self._process = subprocess.Popen(
            command, pass_fds=(read_end, write_end), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(read_end)
        os.close(write_end)
        self._buffer, self._number = b"", 0
        self.events: list[dict[str, Any]] = []
        self._session = ""
        target = next(t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(10)
        os.close(self._send)
        os.close(self._receive)
        self._folder.cleanup()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send one command and wait for its answer; events that come in between are kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._send, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                return dict(answer["result"])
            self.events.append(answer)
        raise TimeoutError(method)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            piece = os.read(self._receive, 1 << 20)
            assert piece, "the browser is gone"
            self._buffer += piece
        message, self._buffer = self._buffer.split(b"\0", 1)
        return dict(json.loads(message))

    def open(self, path: Path) -> None:
        """Go to a file and draw everything on it."""
        self.call("Page.navigate", url=path.as_uri())
        deadline = time.monotonic() + LIMIT_S
        while self.run("document.readyState + String(typeof window.drawAll)") != "completefunction":
            assert time.monotonic() < deadline
            time.sleep(0.05)
        self.run("window.drawAll()")

    def seen(self, method: str) -> list[dict[str, Any]]:
        """The events of one kind so far."""
        return [event for event in self.events if event.get("method") == method]

    def run(self, expression: str) -> Any:
        """The value of an expression; a promise is waited for."""
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        """Press and release one key ("Tab", "ArrowDown", "Enter")."""
        codes = {"Tab": 9, "ArrowDown": 40, "Enter": 13}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=codes[key])

    def screenshot(self) -> bytes:
        """What is to be seen, as PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])
