"""The example: a real classifier over accl, equal to gloo and to one process."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("sklearn")
PROGRAM = Path(__file__).parent.parent.parent / "examples" / "digits_ddp.py"
# Registers the name also where the package is not installed with its entry points.
BOOT = """
import accl_py.torch, runpy, sys
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize("size", [2, 3])
def test_digits(size: int, tmp_path: Path) -> None:
    boot = tmp_path / "boot.py"
    boot.write_text(BOOT)
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={size}",
        str(boot),
    ]
    done = subprocess.run(
        [*command, str(PROGRAM)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{size} ranks, 50 steps" in done.stdout
    apart = [
        float(x) for x in re.findall(r"largest difference of a loss or weight (\S+)", done.stdout)
    ]
    assert len(apart) == 2 and max(apart) <= 1e-5, done.stdout
    accuracy = re.search(r"accuracy on all digits (\S+)", done.stdout)
    assert accuracy is not None and float(accuracy[1]) > 0.9
    rows = [line for line in done.stdout.splitlines() if re.match(r" *\d+  ", line)]
    assert len(rows) >= 10 and float(rows[-1].split()[2]) < 0.5 * float(rows[0].split()[2])
