"""Key-value stores over which ranks find each other while a communicator is made.

Any object with ``set(key: str, value: bytes)`` and a blocking ``get(key: str) -> bytes`` serves,
such as torch's stores; a ``get(key, timeout)`` is given a `datetime.timedelta`. Two small ones are
here: `FileStore` for processes of one host, `HashStore` for threads of one process.
"""

import inspect
import os
import tempfile
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol, runtime_checkable
from urllib.parse import quote

from accl_py.errors import InvalidArgument, StoreError, TimeoutError

__all__ = ["FileStore", "HashStore", "Store", "StoreAdapter"]

_POLL_SECONDS = 0.002


@runtime_checkable
class Store(Protocol):
    """What a communicator needs of a store."""

    def set(self, key: str, value: bytes) -> Any:
        """Stores `value` under `key`."""

    def get(self, key: str) -> bytes:
        """Waits until `key` is there and returns its value."""


class HashStore:
    """A store in this process, for ranks that are threads."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()

    def set(self, key: str, value: bytes) -> None:
        """Stores `value` under `key`."""
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def get(self, key: str, timeout: timedelta = timedelta(minutes=30)) -> bytes:
        """Waits for `key`; raises accl_py.errors.TimeoutError after `timeout`."""
        with self._changed:
            if not self._changed.wait_for(lambda: key in self._values, timeout.total_seconds()):
                raise TimeoutError(
                    f"the key '{key}' did not appear within {timeout.total_seconds():g} s"
                )
            return self._values[key]


class FileStore:
    """A store in a directory: one file a key. For the processes of one host.

    `directory` must exist and be writable, and be fresh for each run. Raises StoreError where it is
    not.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._directory = Path(directory)
        if not self._directory.is_dir():
            raise StoreError(
                f"FileStore: '{self._directory}' is no directory; create it before the ranks start."
            )

    def set(self, key: str, value: bytes) -> None:
        """Stores `value` under `key`, at once and whole."""
        try:
            handle, name = tempfile.mkstemp(dir=self._directory, prefix=".new-")
            with os.fdopen(handle, "wb") as file:
                file.write(value)
            os.replace(name, self._path(key))
        except OSError as error:
            raise StoreError(
                f"FileStore: '{key}' could not be written to '{self._directory}': {error}"
            ) from error

    def get(self, key: str, timeout: timedelta = timedelta(minutes=30)) -> bytes:
        """Waits for `key`.

        Raises accl_py.errors.TimeoutError after `timeout`, StoreError if the directory goes.
        """
        deadline = time.monotonic() + timeout.total_seconds()
        path = self._path(key)
        while True:
            try:
                return path.read_bytes()
            except FileNotFoundError:
                if not self._directory.is_dir():
                    raise StoreError(
                        f"FileStore: the directory '{self._directory}' is gone."
                    ) from None
            except OSError as error:
                raise StoreError(f"FileStore: '{key}' could not be read: {error}") from error
            if time.monotonic() >= deadline:
                raise TimeoutError(
                    f"the key '{key}' did not appear within {timeout.total_seconds():g} s"
                )
            time.sleep(_POLL_SECONDS)

    def _path(self, key: str) -> Path:
        return self._directory / quote(key, safe="")


class StoreAdapter:
    """Gives the core one shape of store: get(key, seconds)."""

    def __init__(self, store: Any) -> None:
        for method in ("set", "get"):
            if not callable(getattr(store, method, None)):
                raise InvalidArgument(
                    f"store is a {type(store).__name__}, which has no method {method}(); expected "
                    "set(key, value) and get(key)."
                )
        self._store = store
        self._takes_timeout = _takes_timeout(store.get)

    def set(self, key: str, value: bytes) -> None:
        """Passes on."""
        self._store.set(key, value)

    def get(self, key: str, seconds: float) -> bytes:
        """Waits at most `seconds` where the store can be told so."""
        if hasattr(self._store, "wait") and hasattr(
            self._store, "set_timeout"
        ):  # torch's: get() has no timeout
            try:
                self._store.wait([key], timedelta(seconds=seconds))
            except RuntimeError as error:
                if "wait timeout" in str(error).lower():
                    raise TimeoutError(str(error)) from error
                raise
            return bytes(self._store.get(key))
        if self._takes_timeout:
            return bytes(self._store.get(key, timedelta(seconds=seconds)))
        return bytes(self._store.get(key))


def _takes_timeout(get: Any) -> bool:
    try:
        return len(inspect.signature(get).parameters) >= 2
    except (TypeError, ValueError):  # a built-in without a signature
        return False
