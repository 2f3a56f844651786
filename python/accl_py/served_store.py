"""A store that one rank serves over TCP, for as long as its process lives.

The others learn its address and a secret from the MPI communicator that they have in common; who
does not know the secret is hung up on.
"""

from __future__ import annotations

import hmac
import os
import secrets
import socket
import socketserver
import struct
import threading
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

from accl_py.errors import StoreError, TimeoutError
from accl_py.stores import HashStore

__all__ = ["Address", "ServedStore", "host_identity", "serve"]

_SECRET_BYTES = 32
_CONNECT_SECONDS = 5.0
_ANSWER_SECONDS = 10.0  # beyond what the server was asked to wait
_MOST_BYTES = 1 << 30
_SET, _GET, _VALUE, _LATE = b"s", b"g", b"v", b"t"


@dataclass(frozen=True)
class Address:
    """Where the store is: what it may be reached under, and the secret."""

    host: str  # whose loopback device it listens on, too
    names: tuple[str, ...]
    port: int
    secret: bytes


def serve(several_hosts: bool) -> Address:
    """Starts a store in this process; its threads end with the process."""
    secret = secrets.token_bytes(_SECRET_BYTES)
    server = _Server(("" if several_hosts else "127.0.0.1", 0), secret)
    threading.Thread(target=server.serve_forever, name="accl-store", daemon=True).start()
    return Address(host_identity(), _names(), server.server_address[1], secret)


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 1024

    def __init__(self, address: tuple[str, int], secret: bytes) -> None:
        super().__init__(address, _Handler)
        self.secret = secret
        self.store = HashStore()


class _Handler(socketserver.BaseRequestHandler):
    server: _Server

    def handle(self) -> None:
        with suppress(OSError, EOFError):  # the client has gone
            self.request.settimeout(_CONNECT_SECONDS)
            if not hmac.compare_digest(_read(self.request, _SECRET_BYTES), self.server.secret):
                return
            self.request.settimeout(None)
            self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while True:
                self._answer()

    def _answer(self) -> None:
        kind, key, value = (_receive(self.request) for _ in range(3))
        if kind == _SET:
            self.server.store.set(key.decode(), value)
            return _send(self.request, _VALUE)
        seconds = struct.unpack("!d", value)[0]
        try:
            found = self.server.store.get(key.decode(), timedelta(seconds=seconds))
        except TimeoutError:
            return _send(self.request, _LATE)
        return _send(self.request, _VALUE + found)


class ServedStore:
    """A client. Thread-safe: each call that waits has a connection of its own."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._idle: list[socket.socket] = []
        self._process = os.getpid()

    def set(self, key: str, value: bytes) -> None:
        """Stores `value` under `key`."""
        self._ask(_SET, key, bytes(value), 0)

    def get(self, key: str, timeout: timedelta = timedelta(minutes=30)) -> bytes:
        """Waits for `key`; raises accl_py.errors.TimeoutError after `timeout`."""
        seconds = timeout.total_seconds()
        answer = self._ask(_GET, key, struct.pack("!d", seconds), seconds)
        if answer[:1] == _LATE:
            raise TimeoutError(f"the key '{key}' did not appear within {seconds:g} s")
        return answer[1:]

    def _ask(self, kind: bytes, key: str, value: bytes, seconds: float) -> bytes:
        try:
            connection = self._connection()
            connection.settimeout(seconds + _ANSWER_SECONDS)
            for part in (kind, key.encode(), value):
                _send(connection, part)
            answer = _receive(connection)
        except (OSError, EOFError) as error:
            raise StoreError(
                f"The store of rank 0 on {self._address.host} does not answer ({error}); has its "
                "process ended?"
            ) from error
        self._idle.append(connection)
        return answer

    def _connection(self) -> socket.socket:
        if (
            self._process != os.getpid()
        ):  # a forked child must not speak on its parent's connections
            self._idle, self._process = [], os.getpid()
        with suppress(IndexError):
            return self._idle.pop()
        here = self._address.host == host_identity()
        faults = []
        for name in ("127.0.0.1",) if here else self._address.names:
            try:
                connection = socket.create_connection((name, self._address.port), _CONNECT_SECONDS)
            except OSError as error:
                faults.append(f"{name}: {error}")
                continue
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(self._address.secret)
            return connection
        raise OSError(f"port {self._address.port} was tried under {'; '.join(faults)}")


def _send(connection: socket.socket, part: bytes) -> None:
    connection.sendall(struct.pack("!I", len(part)) + part)


def _receive(connection: socket.socket) -> bytes:
    (size,) = struct.unpack("!I", _read(connection, 4))
    if size > _MOST_BYTES:
        raise EOFError("it speaks another language")
    return _read(connection, size)


def _read(connection: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(size - len(parts))
        if not part:
            raise EOFError("it hung up")
        parts += part
    return bytes(parts)


def host_identity() -> str:
    """What tells hosts apart whose loopback devices are not the same."""
    boot = ""
    with suppress(OSError):
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        boot += f" {os.stat('/proc/self/ns/net').st_ino}"
    return f"{socket.gethostname()} {boot}"


def _names() -> tuple[str, ...]:
    """What this host may be reached under, the likeliest first."""
    names = [socket.gethostname(), socket.getfqdn()]
    with suppress(OSError):
        names += [str(found[4][0]) for found in socket.getaddrinfo(names[0], None, socket.AF_INET)]
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # nothing is sent: the route tells the own address
        names.append(probe.getsockname()[0])
    return tuple(dict.fromkeys(name for name in names if not name.startswith("127.")))
