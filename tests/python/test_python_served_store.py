"""The store that one rank serves, and what clients of it see."""

from __future__ import annotations

import dataclasses
import os
import socket
import subprocess
import sys
import threading
import time
from datetime import timedelta

import pytest
from accl_py.errors import StoreError, TimeoutError
from accl_py.served_store import ServedStore, serve

LITTLE = timedelta(seconds=0.05)


def test_values_of_any_bytes_and_waits() -> None:
    address = serve(several_hosts=False)
    a, b = ServedStore(address), ServedStore(address)
    a.set("key with spaces ü", bytes(range(256)) * 100)
    assert b.get("key with spaces ü") == bytes(range(256)) * 100
    begin = time.monotonic()
    with pytest.raises(TimeoutError, match=r"the key 'none' did not appear within 0\.05 s"):
        a.get("none", LITTLE)
    assert time.monotonic() - begin < 5
    threading.Timer(0.1, lambda: b.set("late", b"1")).start()
    assert a.get("late", timedelta(seconds=10)) == b"1"


def test_waits_do_not_hold_others_up() -> None:
    store = ServedStore(serve(several_hosts=False))
    waiting = [threading.Thread(target=lambda: store.get("go")) for _ in range(8)]
    for thread in waiting:
        thread.start()
    store.set("other", b"2")  # while they wait
    assert store.get("other", LITTLE) == b"2"
    store.set("go", b"3")
    for thread in waiting:
        thread.join(10)
        assert not thread.is_alive()


def test_who_does_not_know_the_secret_is_hung_up_on() -> None:
    address = serve(several_hosts=False)
    ServedStore(address).set("key", b"value")
    stranger = ServedStore(dataclasses.replace(address, secret=b"?" * 32))
    with pytest.raises(StoreError, match="does not answer"):
        stranger.get("key", LITTLE)
    with socket.create_connection(("127.0.0.1", address.port)) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n\r\n" + b" " * 32)
        assert connection.recv(1) == b""
    assert ServedStore(address).get("key") == b"value"


def test_other_hosts_try_its_names() -> None:
    address = serve(several_hosts=True)
    abroad = dataclasses.replace(address, host="elsewhere")
    if not address.names:
        pytest.skip("this host has no address but the loopback device's")
    ServedStore(abroad).set("key", b"value")
    assert ServedStore(address).get("key", LITTLE) == b"value"
    nowhere = dataclasses.replace(abroad, names=("127.0.0.2",), port=1)
    with pytest.raises(StoreError, match=r"port 1 was tried under 127\.0\.0\.2"):
        ServedStore(nowhere).set("key", b"")


def test_a_server_that_has_ended() -> None:
    code = "from accl_py.served_store import serve; a = serve(False); print(a.port, a.secret.hex(), flush=True); input()"
    server = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ,
    )
    assert server.stdout is not None
    port, secret = server.stdout.readline().split()
    own = serve(several_hosts=False)
    address = dataclasses.replace(own, port=int(port), secret=bytes.fromhex(secret))
    store = ServedStore(address)
    store.set("key", b"value")
    server.communicate("\n", timeout=20)
    assert server.returncode == 0  # threads that serve do not hold it up
    with pytest.raises(StoreError, match="has its process ended"):
        store.get("key")
