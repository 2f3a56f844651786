"""Building and loading the compiled part: what is named how, what is refused, and in which words."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from accl_py.torch import build, load


@pytest.fixture(scope="module")
def built() -> Path:
    return build.build()


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Build directories of the test's own."""
    monkeypatch.setattr(build, "directories", lambda: [tmp_path / "package", tmp_path / "cache"])
    return tmp_path


def installed(**changes: object) -> build.Torch:
    return dataclasses.replace(build.installed_torch(), **changes)  # type: ignore[arg-type]


def test_name(built: Path) -> None:
    version = torch.__version__.split("+")[0]
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert built.name == f"accl_torch-{version}-{tag}-{build.digest()}.so"
    assert load.load_backend().BUILT_FOR_TORCH == version
    assert build.find_built(build.installed_torch()) == built


def test_built_once(built: Path) -> None:
    before = built.stat().st_mtime_ns
    assert build.build() == built and built.stat().st_mtime_ns == before


def test_digest_follows_sources(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = build.digest()
    copied = tmp_path / "csrc"
    shutil.copytree(build.SOURCES, copied)
    monkeypatch.setattr(build, "SOURCES", copied)
    assert build.digest() == before
    (copied / "work.h").write_text((copied / "work.h").read_text() + "\n")
    assert build.digest() != before


def test_other_torch_is_refused(built: Path, tmp_path: Path) -> None:
    """A library for another torch is refused by its name, before it is loaded; by its contents, if
    renamed.
    """
    other = tmp_path / built.name.replace(build.installed_torch().version, "2.11.0")
    shutil.copy(built, other)
    with pytest.raises(
        ImportError,
        match=r"built for torch 2\.11\.0.*rebuild it with: python -m accl_py\.torch\.build",
    ):
        load.load_file(other)


def test_rebuild_is_asked_for(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Built for 2.11, run with another, and no compiler: one sentence that says all three."""
    (elsewhere / "package").mkdir()
    (elsewhere / "package" / "accl_torch-2.11.0-cp311-0123456789ab.so").write_bytes(b"")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(build.BuildError) as caught:
        load.library()
    said = str(caught.value)
    assert "built for torch 2.11.0, but torch" in said and "python -m accl_py.torch.build" in said
    assert "no C++ compiler" in said


def test_no_compiler(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(elsewhere))
    with pytest.raises(build.BuildError, match=r"no C\+\+ compiler is found.*install g\+\+"):
        build.build()


def test_no_python_headers(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build.sysconfig, "get_path", lambda _: str(elsewhere))
    with pytest.raises(build.BuildError, match="headers of Python are not in"):
        build.build()


def test_compiler_error_is_told(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = elsewhere / "csrc"
    broken.mkdir()
    (broken / "bad.cc").write_text("int main() { return nonsense; }\n")
    monkeypatch.setattr(build, "SOURCES", broken)
    with pytest.raises(build.BuildError, match="nonsense"):
        build.build()
    assert not list((elsewhere / "package").glob("*.so"))


def test_torch_versions() -> None:
    build.check_torch(installed(version="2.14.1"))
    with pytest.raises(
        build.BuildError, match=r"torch 2\.10\.2 is installed.*2\.11 to 2\.14; upgrade"
    ):
        build.check_torch(installed(version="2.10.2"))
    with pytest.raises(build.BuildError, match="old C\\+\\+ ABI"):
        build.check_torch(installed(cxx11_abi=False))


def test_newer_torch_is_tried(caplog: pytest.LogCaptureFixture) -> None:
    build.check_torch(installed(version="2.99.0"))
    assert "2.99.0 is newer" in caplog.text


def test_unwritable_package(elsewhere: Path) -> None:
    """Where the package cannot be written, the cache directory serves; where neither can, a
    sentence says so.
    """
    (elsewhere / "package").write_text("a file where the directory should be")
    assert build.writable_directory() == elsewhere / "cache"
    shutil.rmtree(elsewhere / "cache")
    (elsewhere / "cache").write_text("likewise")
    with pytest.raises(build.BuildError, match="can be written"):
        build.writable_directory()


def test_stale_libraries_go(tmp_path: Path) -> None:
    """Another digest of the same torch and Python is removed; other torch versions stay."""
    here = installed(version="2.13.0")
    names = ["accl_torch-2.13.0-cp311-000000000000.so", "accl_torch-2.12.1-cp311-000000000000.so"]
    current = tmp_path / "accl_torch-2.13.0-cp311-111111111111.so"
    for path in [current, *(tmp_path / name for name in names)]:
        path.write_bytes(b"")
    build._remove_stale(tmp_path, here, current)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([names[1], current.name])


def test_command_line(built: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "accl_py.torch.build"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ,
    )
    assert done.returncode == 0 and done.stdout.strip() == str(built)


def test_needs_only_generic_libraries(built: Path) -> None:
    """The library must load on CPU and CUDA builds of torch alike: no CUDA library, no second
    pybind11.
    """
    dynamic = subprocess.run(
        ["readelf", "-d", str(built)], capture_output=True, text=True, check=True
    ).stdout
    needed = {line.split("[")[1].rstrip("]") for line in dynamic.splitlines() if "(NEEDED)" in line}
    assert "libaccl.so" in " ".join(needed)
    assert not [name for name in needed if "cuda" in name or "nccl" in name], needed
