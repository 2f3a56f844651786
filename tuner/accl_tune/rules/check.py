"""accl-tune check: whether rules files are valid, and what is in them."""

from __future__ import annotations

from pathlib import Path

from accl_py import Rules
from accl_py.errors import RulesError

__all__ = ["check"]


def check(path: Path) -> tuple[bool, str]:
    """Whether a file is valid, and a line that says so, or what is wrong with it and where."""
    try:
        rules = Rules.load(str(path))
    except RulesError as error:
        return False, str(error)
    counts: dict[str, int] = {}
    for row in rules.rows:
        counts[row.engine] = counts.get(row.engine, 0) + 1
    number = len(rules.rows)
    engines = ", ".join(f"{count} for {engine}" for engine, count in counts.items())
    what = f"{number} rule{'s' if number != 1 else ''}" + (f" ({engines})" if engines else "")
    return True, f"{path}: valid, {what}, digest {rules.digest()}"
