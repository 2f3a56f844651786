"""A store out of an mpi4py communicator."""

from typing import Any

from accl_py.errors import InvalidArgument, StoreError

__all__ = ["MpiStore"]


class MpiStore:
    """A key-value store whose set() is collective: every rank calls it, as often and in the same
    order.

    That is what making a communicator does (once). mpi4py's communicator is not used afterwards.
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
