"""How the name reaches torch: entry points, import orders, and that nothing of it can break
``import torch``.
"""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
GROUPS = ("torch.backends", "torch.distributed.backends")
TARGET = "accl_torch_entry:register"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """An environment in which the entry points exist, also where the package is not installed."""
    paths = [os.environ.get("PYTHONPATH", "")]
    if not importlib.metadata.entry_points(group=GROUPS[0], name="accl"):
        info = tmp_path / "accl_test-0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: accl-test\nVersion: 0\n")
        (info / "entry_points.txt").write_text(
            "".join(f"[{group}]\naccl = {TARGET}\n" for group in GROUPS)
        )
        paths.insert(0, str(tmp_path))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [*paths, *sys.path[1:]]))}


def python(code: str, environment: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", done.stderr
    return done.stdout.strip()


def test_declared() -> None:
    """The project declares both entry points."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    for group in GROUPS:
        assert declared[group]["accl"] == TARGET


ORDERS = {
    "torch alone": "import torch",
    "accl_py first": "import accl_py; import torch",
    "accl_py.torch first": "import accl_py.torch; import torch",
    "torch.distributed first": "import torch.distributed",
}


@pytest.mark.parametrize("order", ORDERS)
def test_import_orders(environment: dict[str, str], order: str) -> None:
    code = f"""
        {ORDERS[order]}
        import sys
        import torch
        import torch.distributed as dist
        assert "accl" in dist.Backend.backend_list
        assert dist.Backend.backend_capability["accl"] == ["cpu", "cuda"]
        assert dist.Backend.default_device_backend_map["cpu"] == "gloo"
        assert "accl_py.torch._backend" not in sys.modules, "the compiled part was loaded"
        import accl_py.torch.register
        accl_py.torch.register.register()
        print("registered")
    """
    assert python(code, environment) == "registered"


def test_switched_off(environment: dict[str, str]) -> None:
    environment["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    code = """
        import torch.distributed as dist
        assert "accl" not in dist.Backend.backend_list
        import accl_py.torch
        print("accl" in dist.Backend.backend_list)
    """
    assert python(code, environment) == "True"


def test_failure_is_quiet(environment: dict[str, str]) -> None:
    """Whatever goes wrong in registering, the hook itself returns."""
    code = """
        import logging
        logging.disable(logging.CRITICAL)
        import torch.distributed as dist
        if hasattr(dist.Backend, "ACCL"):
            del dist.Backend.ACCL
        dist.Backend.register_backend = None
        import accl_py.torch.register
        accl_py.torch.register.register()
        print("survived")
    """
    assert python(code, environment) == "survived"


def test_broken_installation(environment: dict[str, str], tmp_path: Path) -> None:
    """An ``accl_py`` that cannot be imported costs a warning, and torch works."""
    broken = tmp_path / "broken" / "accl_py"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise OSError('libaccl.so is gone')")
    environment["PYTHONPATH"] = f"{broken.parent}{os.pathsep}{environment['PYTHONPATH']}"
    code = """
        import logging
        said = []
        logging.getLogger("accl_py.torch").addHandler(logging.NullHandler())
        logging.getLogger("accl_py.torch").addFilter(lambda r: said.append(r.exc_info[1]))
        import torch
        assert torch.ones(2).sum() == 2
        assert "accl" not in torch.distributed.Backend.backend_list
        print(said[0])
    """
    assert python(code, environment) == "libaccl.so is gone"


def test_torchrun(environment: dict[str, str]) -> None:
    """A program with only ``import torch`` and ``init_process_group("accl")``."""
    program = ROOT / "tests" / "multiprocess" / "torch_exit.py"
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        str(program),
    ]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("sum 2") == 2
