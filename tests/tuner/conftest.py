"""Nothing that a test leaves lies outside its temporary folders."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

# Before accl_py reads its environment, here and in the processes that tests start.
os.environ.setdefault("ACCL_LOG", "error")
_traces = tempfile.TemporaryDirectory(prefix="accl-traces-")  # goes with this process
os.environ["ACCL_TRACE_DIR"] = _traces.name
os.environ.pop("ACCL_RULES", None)
for name in ("RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"):
    os.environ.pop(name, None)  # the tests start their own ranks
sys.path.insert(0, str(Path(__file__).parent))
