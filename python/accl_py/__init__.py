"""ACCL-N: collective communication for PyTorch and array programs.

import accl_py
comm = accl_py.init()            # under torchrun, mpirun or srun
comm.all_reduce(x)               # x: numpy or CuPy array, torch tensor, anything with DLPack
"""

from accl_py import errors, rules, schedule
from accl_py._core import environment_table
from accl_py._core import version as __version__
from accl_py.communicator import (
    ANY_SOURCE,
    Communicator,
    DeviceOptions,
    Group,
    PreparedCall,
    PreparedDeviceCall,
    Work,
)
from accl_py.device import gpu_unavailable
from accl_py.errors import AcclError
from accl_py.launch import init
from accl_py.rules import Rules
from accl_py.stores import FileStore, HashStore
from accl_py.work import DeviceWork

__all__ = [
    "ANY_SOURCE",
    "AcclError",
    "Communicator",
    "DeviceOptions",
    "DeviceWork",
    "FileStore",
    "Group",
    "HashStore",
    "PreparedCall",
    "PreparedDeviceCall",
    "Rules",
    "Work",
    "__version__",
    "environment_table",
    "errors",
    "gpu_unavailable",
    "init",
    "rules",
    "schedule",
]
