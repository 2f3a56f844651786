"""A store out of an mpi4py communicator."""

from __future__ import annotations

from typing import Any

from accl_py.errors import InvalidArgument, StoreError
from accl_py.served_store import ServedStore, host_identity, serve

__all__ = ["MpiStore"]


class MpiStore:
    """A key-value store whose set() is collective: every rank calls it, as often and in the same
    order.

    That is what making a communicator does (once). mpi4py's communicator is used again only where
    the GPU half is made, and by split().
    """

    def __init__(self, comm: Any) -> None:
        if not all(hasattr(comm, name) for name in ("allgather", "Get_rank", "Get_size")):
            raise InvalidArgument(
                f"comm is a {type(comm).__name__}; expected a communicator of mpi4py."
            )
        self._comm = comm
        self._values: dict[str, bytes] = {}

    def set(self, key: str, value: bytes) -> None:
        """Exchanges keys and values with all ranks."""
        self._values.update(self._comm.allgather((key, bytes(value))))

    def get(self, key: str) -> bytes:
        """The value; StoreError where no rank has set it."""
        try:
            return self._values[key]
        except KeyError:
            raise StoreError(
                f"No rank of the MPI communicator has set '{key}'; do all ranks make the same "
                "communicator?"
            ) from None

    def lasting(self) -> ServedStore:
        """Collective: a store that may be used at any time, from any thread.

        Rank 0 serves it; MPI only tells where.
        """
        several = len(set(self._comm.allgather(host_identity()))) > 1
        address = serve(several) if self._comm.Get_rank() == 0 else None
        return ServedStore(self._comm.bcast(address, 0))

    def split(self, color: int, key: int) -> MpiStore | None:
        """Collective: the store of the ranks with the same colour; None where it is negative."""
        child = self._comm.Split(max(color + 1, 0), key)
        if color >= 0:
            return MpiStore(child)
        child.Free()
        return None
