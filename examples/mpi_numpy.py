"""ACCL-N on numpy arrays under mpi4py.

    mpirun -n 2 python examples/mpi_numpy.py

Estimates the mean and the covariance of points that are spread over the ranks, shares rows out
again, and checks every result against the same computation on one rank. mpi4py starts the ranks
and exchanges a few bytes so that they find each other; the data moves through ACCL-N.
"""

import accl_py
import numpy as np
from mpi4py import MPI

POINTS = 10_000  # on each rank
DIMENSIONS = 8


def points_of(rank: int) -> np.ndarray:
    """This rank's part of the data: (POINTS, DIMENSIONS) float64."""
    return np.random.default_rng(rank).normal(loc=rank, size=(POINTS, DIMENSIONS))


def main() -> None:
    with accl_py.Communicator.from_mpi(MPI.COMM_WORLD, timeout=60) as comm:
        own = points_of(comm.rank)
        everything = np.concatenate([points_of(rank) for rank in range(comm.size)])  # to check

        # The mean over all ranks: each contributes the mean of its part.
        mean = comm.all_reduce(own.mean(axis=0), op="avg")
        np.testing.assert_allclose(mean, everything.mean(axis=0), rtol=1e-10)

        # The covariance: sums of products, reduced to rank 0, which then tells everybody.
        centred = own - mean
        covariance = centred.T @ centred
        comm.reduce(covariance, root=0)
        covariance /= POINTS * comm.size - 1
        comm.broadcast(covariance, root=0)
        np.testing.assert_allclose(covariance, np.cov(everything.T), rtol=1e-8)

        # Points with a positive first coordinate, of which each rank has another number.
        positive = own[own[:, 0] > 0]
        counts = comm.all_gather(np.array(len(positive)))
        gathered = comm.all_gather(positive, counts=counts)
        np.testing.assert_array_equal(gathered, everything[everything[:, 0] > 0])

        # Columns instead of rows: rank r gets the r-th part of the dimensions of all points.
        if DIMENSIONS % comm.size == 0:
            blocks = np.stack(np.split(own, comm.size, axis=1))
            columns = np.concatenate(list(comm.all_to_all(blocks)))
            part = DIMENSIONS // comm.size
            wanted = everything[:, comm.rank * part : (comm.rank + 1) * part]
            np.testing.assert_array_equal(columns, wanted)

        comm.barrier()
        if comm.rank == 0:
            print(f"{comm.size} ranks, {len(everything)} points of {DIMENSIONS} dimensions")
            print("mean      ", np.array2string(mean, precision=4))
            print("variances ", np.array2string(np.diag(covariance), precision=4))
            print("positive  ", " + ".join(str(n) for n in counts), "=", len(gathered))
            print("moved     ", comm.statistics()["traffic"]["bytes_sent"], "bytes sent by rank 0")
            print("all results are right", flush=True)


if __name__ == "__main__":
    main()
