"""Random calls against numpy, in the short form; `python tests/python/fuzz_calls.py 4 SEED SECONDS` is the long one."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.mp
@pytest.mark.parametrize(("ranks", "seed"), [(1, 10), (2, 11), (3, 12), (5, 13)])
def test_random_calls_are_right(ranks, seed):
    command = [
        sys.executable,
        Path(__file__).with_name("fuzz_calls.py"),
        str(ranks),
        str(seed),
        "3",
    ]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"calls of {ranks} ranks were right" in result.stdout
