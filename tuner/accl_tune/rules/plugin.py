"""accl-tune plugin: shell lines with which stock NCCL takes the rules for it, and notes on them."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import accl_py
from accl_py import Rules

from accl_tune.errors import ArgumentError

__all__ = ["Steering", "steer"]

_FILE = "libaccl-nccl-tuner.so"


@dataclass(frozen=True)
class Steering:
    """What the shell reads, and what its user should know before relying on it."""

    lines: str
    notes: tuple[str, ...]


def steer(path: Path | None, environment: Mapping[str, str]) -> Steering:
    """Lines for `path`; without one, for the file that ACCL_RULES names, if any.

    Raises RulesError where the rules are wrong, ArgumentError where the plugin is missing.
    """
    plugin = _plugin()
    notes = []
    other = environment.get("NCCL_TUNER_PLUGIN", "")
    if other not in ("", str(plugin)):
        notes.append(f"NCCL_TUNER_PLUGIN was '{other}'; NCCL loads one tuner, so now ours alone.")
    named = environment.get("ACCL_RULES", "")
    if path is None and not named:
        notes.append("There are no rules yet: give a file, or set ACCL_RULES later.")
        return Steering(_script({"NCCL_TUNER_PLUGIN": str(plugin)}, _WITHOUT_RULES), tuple(notes))
    file = path or Path(named)
    rules = Rules.load(str(file))
    number = sum(row.engine == "nccl" for row in rules.rows)
    if number == 0:
        notes.append(f"No rule in '{file}' is for nccl, so NCCL chooses by itself everywhere.")
    values = {
        "NCCL_TUNER_PLUGIN": str(plugin),
        "ACCL_RULES": os.path.abspath(file),
        "ACCL_RULES_DIGEST": rules.digest(),
    }
    return Steering(_script(values, _with_rules(number)), tuple(notes))


def _plugin() -> Path:
    """The plugin that came with accl_py. By its full path: a bare name means something else to
    NCCL.
    """
    path = Path(os.path.abspath(accl_py.__file__)).parent / "lib" / _FILE
    if not path.is_file():
        raise ArgumentError(f"The tuner plugin '{path}' is missing; install accl-n again.")
    return path


def _script(values: Mapping[str, str], comments: tuple[str, ...]) -> str:
    """Comments come last, and statements end in ';': an eval without quotes makes one line of it
    all.
    """
    exports = [f"export {name}={shlex.quote(value)};" for name, value in values.items()]
    return "\n".join([*exports, *(f"# {comment}" for comment in comments)])


_WITHOUT_RULES = (
    "NCCL now loads the tuner plugin, and chooses by itself until ACCL_RULES names a rules file.",
)


def _with_rules(number: int) -> tuple[str, ...]:
    # No path in here: it may hold what ends a comment.
    rules = f"{number} rule{'s' if number != 1 else ''}"
    return (
        f"NCCL of this shell's programs takes {rules} from the file; else it chooses by itself.",
        "Every rank needs these three variables, on other hosts too: where a rank's rules have",
        "another digest, no communicator is made. After a change to the file, run this again.",
        "To see what NCCL chooses: NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=TUNING",
    )
