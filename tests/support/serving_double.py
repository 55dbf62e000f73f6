"""A model server that answers from a table, as a process: streams like real ones, and misbehaves on request.

Run as a program: ``python serving_double.py SPEC.json``. It prints one line when it listens. SIGTERM ends it
after the answers that it has begun.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

LOADED_WORD = " ~"
LOADED_FAULTS = ("wrong-under-load", "refuses-others")
CALM_QUESTIONS = 5
"""So many are asked by a canary, each when the one before is answered, until others ask at the same time."""
COMPANY_S = 30.0


class Server(ThreadingHTTPServer):
    daemon_threads = False
    request_queue_size = 64

    def __init__(self, spec: dict[str, Any]) -> None:
        super().__init__(("127.0.0.1", spec["port"]), Handler)
        self.spec = spec
        self.fault = spec.get("fault")
        self.cache: dict[str, list[str]] = {}
        self.lock = threading.Lock()
        self.asked = 0
        self.busy = 0
        self.company = threading.Event()

    def came(self) -> None:
        """A question has come; note whether another is being answered, where questions are asked at once."""
        with self.lock:
            self.asked += 1
            self.busy += 1
            # Who has an answer may ask again before the thread that gave it is done.
            calm = self.asked <= CALM_QUESTIONS
            if self.busy > 1 and not calm:
                self.company.set()
        if not calm and self.fault in LOADED_FAULTS:
            # However the threads are scheduled, two of the questions meet.
            self.company.wait(COMPANY_S)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, *_: object) -> None:
        pass

    def setup(self) -> None:
        super().setup()
        self.close_connection = True

    # -- what everybody has to have -----------------------------------------------------------------------

    def do_GET(self) -> None:
        spec = self.server.spec
        if not self._authorised():
            return
        if self.path != "/v1/models":
            self._json(404, {"error": "not found"})
            return
        fault = self.server.fault
        names = list(spec["answers"])
        if fault == "other-list":
            names = ["somebody-else"]
        if fault == "more-names":
            names.append("left-behind")
        data: list[dict[str, Any]] = [{"id": name, "object": "model"} for name in names]
        if spec.get("matched_tensors") is not None:
            data[0]["matched_tensors"] = spec["matched_tensors"]
        self._json(200, {"object": "list", "data": data})

    def do_POST(self) -> None:
        if not self._authorised():
            return
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        name, prompt = body["model"], body["messages"][0]["content"]
        if name not in self.server.spec["answers"]:
            self._json(404, {"error": f"no model {name}"})
            return
        self.server.came()
        try:
            self._answer(name, prompt, body)
        finally:
            with self.server.lock:
                self.server.busy -= 1

    def _authorised(self) -> bool:
        right = self.headers.get("Authorization") == f"Bearer {self.server.spec['token']}"
        if right or self.server.fault == "open":
            return True
        self._json(401, {"error": "unauthorised"})
        return False

    def _json(self, status: int, value: object) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(data)

    # -- answers ------------------------------------------------------------------------------------------

    def _pieces(self, name: str, prompt: str) -> list[str]:
        spec, fault = self.server.spec, self.server.fault
        pieces = list(spec["answers"][name].get(prompt, ["?"]))
        if fault == "base-output":
            pieces = list(spec["base"][prompt])
        if fault == "stale-cache":
            # Keyed by the prompt alone: whoever asked first, under whichever name, is remembered.
            with self.server.lock:
                pieces = self.server.cache.setdefault(prompt, list(spec["base"][prompt]))
        if fault == "wrong-under-load" and self.server.company.is_set():
            pieces[-1] = LOADED_WORD
        return pieces

    def _answer(self, name: str, prompt: str, body: dict[str, Any]) -> None:
        spec, fault = self.server.spec, self.server.fault
        if fault == "crash-on-first-use":
            os._exit(1)
        if fault == "refuses-others" and self.server.company.is_set():
            self._json(503, {"error": "busy"})
            return
        time.sleep(spec.get("delay_s", 0.0))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.send_header("Connection", "close")
        self.end_headers()
        said = "somebody-else" if fault == "wrong-name" else name
        pieces = self._pieces(name, prompt)[: body["max_tokens"]]
        logprobs = spec.get("logprobs", {}).get(name)
        self._event(self._chunk(said, {"role": "assistant", "content": ""}))
        for number, piece in enumerate(pieces):
            if fault == "dies-half-way" and number == 1:
                os._exit(1)
            if fault == "drips":
                self._drip()
            chunk = self._chunk(said, {"content": piece})
            if logprobs is not None and body.get("logprobs"):
                chunk["choices"][0]["logprobs"] = {"content": [{"token": piece, "logprob": logprobs}]}
            self._event(chunk)
            time.sleep(0.1 if fault == "slow" else spec.get("token_s", 0.0))
        if fault == "fails-half-way":
            self._event({"error": "CUDA error: device-side assert triggered"})
        if fault == "endless":
            while True:
                self._event(self._chunk(said, {"content": "x" * 100}))
        if fault != "no-finish":
            self._event(
                self._chunk(said, {}, finish="length" if len(pieces) == body["max_tokens"] else "stop")
            )
            if spec.get("says_done"):
                self._raw(b"data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def _chunk(self, model: str, delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return {"id": "1", "object": "chat.completion.chunk", "model": model, "choices": [choice]}

    def _event(self, value: object) -> None:
        self._raw(b"data: " + json.dumps(value).encode() + b"\n\n")

    def _raw(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def _drip(self) -> None:
        while True:
            self._raw(b" ")
            time.sleep(0.02)


def main() -> None:
    spec = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    time.sleep(spec.get("start_s", 0.0))
    server = Server(spec)

    def stop(*_: object) -> None:
        threading.Thread(target=server.shutdown).start()

    signal.signal(signal.SIGTERM, stop)
    print("listening", flush=True)
    server.serve_forever(poll_interval=0.02)
    server.server_close()


if __name__ == "__main__":
    main()
