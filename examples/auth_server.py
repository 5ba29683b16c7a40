"""A small auth server for nsqd: secrets and what they grant come from a JSON file.

    python examples/auth_server.py grants.json --port 4181
    nsqd --auth-http-address=127.0.0.1:4181 [--http-auth]

The file maps each secret to an identity and a list of authorizations:

    {
      "correct horse battery staple": {
        "identity": "billing",
        "authorizations": [
          {"topic": "^orders$", "channels": ["^billing$"], "permissions": ["subscribe"]},
          {"topic": "^invoices$", "channels": ["^$"], "permissions": ["publish"]}
        ]
      }
    }

`topic` and `channels` are RE2 patterns that are searched for, hence the `^` and `$`. To publish is to have an
entry with a channel pattern that matches the empty name: `^$`, or `.*`. nsqd asks with `secret`, `remote_ip`,
`tls` (`true` or `false`) and `common_name`, the name in the client's certificate, in the query of a GET or in
the JSON of a POST, and asks again when `ttl` seconds are over. An unknown secret is answered 403.

The file is read for every question, so a change counts as soon as the last answer has run out. Only Python's
standard library is used. Put it behind TLS (nsqd takes `--auth-http-address=https://…/auth`) or on the same
host: secrets come in the clear otherwise.
"""

from __future__ import annotations

import argparse
import hmac
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

MAX_BODY = 1 << 20


def find_grant(file: Path, secret: str) -> dict[str, Any] | None:
    """Every secret is compared, in constant time: how long it takes tells nothing."""
    found = None
    for known, grant in json.loads(file.read_text()).items():
        if hmac.compare_digest(known.encode(), secret.encode()):
            found = grant
    return found


class Handler(BaseHTTPRequestHandler):
    file: Path
    ttl: int

    def do_GET(self) -> None:
        self._answer(parse_qs(urlsplit(self.path).query, keep_blank_values=True))

    def do_POST(self) -> None:
        try:
            length = int(self.headers.get("Content-Length", 0))
            asked = json.loads(self.rfile.read(length)) if 0 < length <= MAX_BODY else {}
        except ValueError:
            asked = {}
        self._answer(asked if isinstance(asked, dict) else {})

    def _answer(self, asked: dict[str, list[str]]) -> None:
        grant = find_grant(self.file, (asked.get("secret") or [""])[0])
        if urlsplit(self.path).path != "/auth" or grant is None:
            self._send(403, {"message": "FORBIDDEN"})
            return
        self._send(
            200,
            {
                "ttl": self.ttl,
                "identity": grant.get("identity", ""),
                "identity_url": grant.get("identity_url", ""),
                "authorizations": grant["authorizations"],
            },
        )

    def _send(self, status: int, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Without the query, which holds the secret."""
        print(f"{self.client_address[0]} {self.command} {urlsplit(self.path).path} {code}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="an auth server for nsqd")
    parser.add_argument("file", type=Path, help="secrets and what they grant, as JSON")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=4181, help="0: a free one")
    parser.add_argument("--ttl", type=int, default=3600, help="seconds for which an answer holds")
    options = parser.parse_args()
    json.loads(options.file.read_text())  # so that a mistake in it is found now
    Handler.file, Handler.ttl = options.file, options.ttl
    with ThreadingHTTPServer((options.host, options.port), Handler) as server:
        print("listening on {}:{}".format(*server.server_address[:2]), flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
