"""A mail server with TLS on port 465, which writes each code that it gets into the pipe ``/run/otp``.

It runs with the Python of an empty machine. Usage: ``mail.py CERTIFICATE``, a file that has the key, too.
"""

from __future__ import annotations

import os
import socketserver
import ssl
import sys
from email import message_from_bytes, policy

PIPE = "/run/otp"


class Session(socketserver.StreamRequestHandler):
    """One session of a client."""

    def handle(self) -> None:
        self.wfile.write(b"220 mail.example.com\r\n")
        for line in self.rfile:
            match line.split()[0].upper():
                case b"EHLO":
                    self.wfile.write(b"250-mail.example.com\r\n250 AUTH PLAIN LOGIN\r\n")
                case b"AUTH":
                    self.wfile.write(b"235 in\r\n")
                case b"DATA":
                    self.wfile.write(b"354 go\r\n")
                    self._take(b"".join(iter(self.rfile.readline, b".\r\n")))
                    self.wfile.write(b"250 taken\r\n")
                case b"QUIT":
                    self.wfile.write(b"221 bye\r\n")
                    return
                case _:
                    self.wfile.write(b"250 ok\r\n")

    def _take(self, message: bytes) -> None:
        code = message_from_bytes(message, policy=policy.default)["Subject"][-6:]
        if code.isdecimal():
            # Open for reading as well, so that nothing waits for a reader.
            pipe = os.open(PIPE, os.O_RDWR)
            os.write(pipe, code.encode() + b"\n")
            # Not closed: what no reader has is lost with the last descriptor.


class Server(socketserver.ThreadingTCPServer):
    """It accepts TLS only."""

    allow_reuse_address = True
    daemon_threads = True


if __name__ == "__main__":
    os.mkfifo(PIPE)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(sys.argv[1])
    with Server(("127.0.0.1", 465), Session) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        server.serve_forever()
