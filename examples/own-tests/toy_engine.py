"""A serving engine in one page, so that this example runs anywhere: it prints a log and answers as a server does.

Run ``python toy_engine.py MODEL --port PORT``. It knows one sentence.
"""

from __future__ import annotations

import argparse
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ANSWER = "Paris, and it has been for a long time."


class Handler(BaseHTTPRequestHandler):
    model = ""
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        known = {
            "/health": (200, ""),
            "/v1/models": (200, json.dumps({"object": "list", "data": [{"id": self.model, "object": "model"}]})),
        }
        self.answer(*known.get(self.path, (404, "{}")))

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        words = ANSWER.split()[: asked.get("max_tokens", 16)]
        text = " ".join(words)
        chat = self.path.endswith("/chat/completions")
        usage = {"prompt_tokens": 5, "completion_tokens": len(words), "total_tokens": 5 + len(words)}
        streamed = bool(asked.get("stream"))
        choice: dict[str, Any] = {"index": 0, "finish_reason": "stop" if len(words) > 8 else "length"}
        if chat:
            choice["delta" if streamed else "message"] = {"role": "assistant", "content": text}
        else:
            choice["text"] = text
        body = {"id": "1", "object": "completion", "model": self.model, "choices": [choice], "usage": usage}
        if streamed:
            events = [body, {**body, "choices": []}]
            self.answer(
                200, "".join(f"data: {json.dumps(e)}\n\n" for e in events) + "data: [DONE]\n\n", "text/event-stream"
            )
        else:
            self.answer(200, json.dumps(body))

    def answer(self, status: int, text: str, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    asked = parser.parse_args()
    print("toy engine 1.2.0", flush=True)
    print("cache holds 4096 tokens", flush=True)
    Handler.model = asked.model
    server = ThreadingHTTPServer((asked.host, asked.port), Handler)
    print("serving", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
