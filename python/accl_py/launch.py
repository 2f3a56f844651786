"""A communicator from the environment that a launcher (torchrun, mpirun, srun) sets."""

import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from accl_py.arguments import seconds_of
from accl_py.communicator import Communicator
from accl_py.errors import AcclError, InvalidArgument, StoreError
from accl_py.stores import HashStore

__all__ = ["check_local_ranks", "init", "local_rank", "rank_of_launcher"]

_TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# sbatch and salloc set SLURM_NTASKS in shells of one process too; this one is srun's alone.
_MPI_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")


def init(**options: Any) -> Communicator:
    """Makes the communicator of all ranks that a launcher started; options as in
    Communicator.from_store.

    torchrun: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, over torch's TCPStore.
    mpirun, srun: over mpi4py. Started bare: one rank.
    Raises InvalidArgument where that environment is set in part, AcclError where the package that
    it needs is missing.
    """
    environment = os.environ
    if any(name in environment for name in ("RANK", "WORLD_SIZE")):
        return _from_torchrun(environment, options)
    for name in _MPI_SIZES:
        if name in environment and (size := _number(environment, name)) != 1:
            return _from_mpi(name, size, options)
    return Communicator.from_store(HashStore(), 0, 1, **options)


def rank_of_launcher() -> int | None:
    """This process's rank as a launcher set it; None where it was started bare."""
    return _first_number("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")


def local_rank() -> int:
    """The number of this rank among those of its host, as the launcher set it; else 0."""
    found = _first_number(
        "LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"
    )
    return 0 if found is None else found


def _first_number(*names: str) -> int | None:
    name = next((name for name in names if name in os.environ), None)
    return None if name is None else _number(os.environ, name)


def check_local_ranks(ranks: int) -> None:
    """Whether this host's free memory holds so many rank processes, roughly.

    Raises InvalidArgument where it does not: hundreds of processes would end others by force first.
    """
    # A Python process with numpy; its shared memory grows with the number of its peers.
    need = ranks * ((64 << 20) + ranks * (64 << 10))
    with Path("/proc/meminfo").open() as lines:
        words = next(line.split() for line in lines if line.startswith("MemAvailable"))
    available = int(words[1]) << 10
    if need > available:
        raise InvalidArgument(
            f"{ranks} local ranks need about {need / 2**30:.1f} GiB, but {available / 2**30:.1f} GiB are "
            "free on this host; start fewer."
        )


def _number(environment: Mapping[str, str], name: str) -> int:
    value = environment[name]
    try:
        return int(value)
    except ValueError:
        raise InvalidArgument(f"{name} is '{value}'; expected an integer.") from None


def _from_torchrun(environment: Mapping[str, str], options: dict[str, Any]) -> Communicator:
    missing = [name for name in _TORCHRUN if name not in environment]
    if missing:
        raise InvalidArgument(
            f"{', '.join(missing)} is not set, though RANK or WORLD_SIZE is; torchrun sets all of "
            f"{', '.join(_TORCHRUN)}."
        )
    rank, size = _number(environment, "RANK"), _number(environment, "WORLD_SIZE")
    port = _number(environment, "MASTER_PORT")
    if size == 1:
        return Communicator.from_store(HashStore(), rank, size, **options)
    if not 0 <= rank < size:
        raise InvalidArgument(f"RANK is {rank}; expected 0 to {size - 1} for WORLD_SIZE {size}.")
    store = _tcp_store(environment["MASTER_ADDR"], port, rank, size, options.get("timeout", 1800.0))
    return Communicator.from_store(store, rank, size, **options)


def _tcp_store(host: str, port: int, rank: int, size: int, timeout: Any) -> Any:
    if find_spec("torch") is None:
        raise AcclError(
            "torchrun's rendezvous needs torch, which is not installed; start with mpirun, "
            "or give from_store a store."
        )
    from accl_py.torch.rendezvous import tcp_store

    seconds = seconds_of(timeout)
    try:
        return tcp_store(host, port, rank, size, seconds)
    except RuntimeError as error:  # torch's DistError
        reason = str(error).partition("\n")[0]
        raise StoreError(
            f"Rank {rank} could not reach the store of the launcher at {host}:{port} (MASTER_ADDR, "
            f"MASTER_PORT): {reason}"
        ) from error


def _from_mpi(name: str, size: int, options: dict[str, Any]) -> Communicator:
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise AcclError(
            f"{name} says that a launcher started several ranks, which needs mpi4py; install it, "
            "or give from_store a store."
        ) from error
    if MPI.COMM_WORLD.Get_size() != size:
        raise AcclError(
            f"{name} is {size}, but mpi4py sees {MPI.COMM_WORLD.Get_size()} rank(s): it was built "
            "for "
            "another MPI than the launcher's. Start with the mpirun of mpi4py's MPI "
            f"({MPI.Get_library_version().splitlines()[0]})."
        )
    return Communicator.from_mpi(MPI.COMM_WORLD, **options)
