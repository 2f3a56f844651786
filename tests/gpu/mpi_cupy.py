"""CuPy arrays under mpirun, without torch; see test_accl_py_cuda.py."""

from __future__ import annotations

import os
import sys

import accl_py
import numpy as np
from array_libraries import CupyLibrary
from mpi4py import MPI


def main() -> None:
    # The ranks share a GPU: NCCL takes each for a host of its own, and connects over loopback.
    host = f"rank{MPI.COMM_WORLD.Get_rank()}"
    os.environ.update(NCCL_HOSTID=host, NCCL_SOCKET_IFNAME="lo", NCCL_IB_DISABLE="1")
    assert accl_py.device.gpu_unavailable() is None
    library = CupyLibrary(0)
    with accl_py.Communicator.from_mpi(MPI.COMM_WORLD, timeout=60) as c:
        size = c.size
        x = library.make(np.full(1000, c.rank + 1), "float32")
        total = size * (size + 1) / 2
        assert (library.read(c.all_reduce(x)) == total).all()
        rows = c.all_gather(library.make([c.rank], "int32"))
        assert library.read(rows).ravel().tolist() == list(range(size))
        assert (c.all_reduce(np.ones(3)) == size).all()  # of the host
        child = c.split(0, -c.rank)
        assert child is not None
        with child:
            part = child.all_gather(library.make([c.rank], "int32"))
            assert library.read(part).ravel().tolist() == list(reversed(range(size)))
        print(f"rank {c.rank} of {size}: torch {'torch' in sys.modules}")


main()
