"""Calls the plugin as NCCL does: the exported structures, read by offset, and a flat cost table."""

from __future__ import annotations

import ctypes
import json
import os
import sys
from ctypes import POINTER, byref, c_char_p, c_float, c_int, c_size_t, c_uint64, c_ulong, c_void_p
from pathlib import Path

SUCCESS, INVALID_USAGE = 0, 5
WARN, INFO = 2, 3
TREE, RING, COLLNET_DIRECT, COLLNET_CHAIN, NVLS, NVLS_TREE, PAT = range(7)
LL, LL128, SIMPLE = range(3)
BROADCAST, REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE = range(5)
FUNCTIONS = {
    "broadcast": BROADCAST,
    "reduce": REDUCE,
    "all_gather": ALL_GATHER,
    "reduce_scatter": REDUCE_SCATTER,
    "all_reduce": ALL_REDUCE,
}
NONE, LEFT, APPLIED, IGNORED, DIFFER = range(5)

# Variadic in C; the plugin gives one text for one "%s".
LOGGER = ctypes.CFUNCTYPE(None, c_int, c_ulong, c_char_p, c_int, c_char_p, c_char_p)
NO_LOGGER = ctypes.cast(None, LOGGER)


def plugin_path() -> Path:
    """The plugin that is tested: ACCL_TEST_PLUGIN, else the one that came with accl_py."""
    given = os.environ.get("ACCL_TEST_PLUGIN")
    if given:
        return Path(given)
    import accl_py

    return Path(accl_py.__file__).parent / "lib" / "libaccl-nccl-tuner.so"


class Last(ctypes.Structure):
    """struct accl_tuner_last of accl_tuner.h."""

    _fields_ = [
        *((name, c_uint64) for name in ("size", "communicators", "live", "questions", "applied")),
        *((name, c_uint64) for name in ("ignored", "communicator", "ranks", "nodes")),
        ("message_bytes", c_uint64),
        *((name, c_int) for name in ("version", "function", "pipe_ops", "registered")),
        *((name, c_int) for name in ("algorithms", "protocols")),
        *((name, c_int) for name in ("channels_before", "channels_after")),
        *((name, c_int) for name in ("outcome", "forced", "line", "entries")),
        ("before", c_float * 4 * 16),
        ("after", c_float * 4 * 16),
        *((name, c_uint64) for name in ("chunk_questions", "chunk_before", "chunk_after")),
    ]


class Plugin:
    """The loaded object and what it said through the logger, as (level, text)."""

    def __init__(self, path: Path | None = None) -> None:
        self.library = ctypes.CDLL(str(path or plugin_path()))
        self.library.accl_tuner_error.restype = c_char_p
        self.library.accl_tuner_taken.restype = c_uint64
        self.library.accl_tuner_force.argtypes = [c_char_p, c_char_p, c_char_p, c_int, c_size_t]
        self.library.accl_tuner_give_rules.argtypes = [c_char_p, c_char_p, c_int]
        self.said: list[tuple[int, str]] = []
        self.logger = LOGGER(self._log)

    def _log(self, level, flags, file, line, form, text):
        assert flags == 64 and form == b"%s" and file and line >= 0
        self.said.append((level, text.decode()))

    def warnings(self) -> list[str]:
        return [text for level, text in self.said if level == WARN]

    def member(self, version: int, offset: int, *types) -> ctypes._CFuncPtr:
        """The function at a byte offset of ncclTunerPlugin_v<version>."""
        table = ctypes.addressof(ctypes.c_char.in_dll(self.library, f"ncclTunerPlugin_v{version}"))
        return ctypes.CFUNCTYPE(c_int, *types)(c_void_p.from_address(table + offset).value)

    def name(self, version: int) -> str:
        table = ctypes.addressof(ctypes.c_char.in_dll(self.library, f"ncclTunerPlugin_v{version}"))
        return c_char_p.from_address(table).value.decode()

    def force(self, collective, algorithm=None, protocol=None, channels=0, chunk=0) -> str:
        """Empty where it was accepted, else the sentence."""
        words = [None if word is None else word.encode() for word in (algorithm, protocol)]
        name = None if collective is None else collective.encode()
        failed = self.library.accl_tuner_force(name, *words, channels, chunk)
        return self.error() if failed else ""

    def give_rules(self, text, name="given.csv", everywhere=True) -> str:
        raw = None if text is None else text.encode()
        failed = self.library.accl_tuner_give_rules(raw, name.encode(), int(everywhere))
        return self.error() if failed else ""

    def taken(self) -> int:
        return self.library.accl_tuner_taken()

    def error(self) -> str:
        return self.library.accl_tuner_error().decode()

    def clear(self) -> None:
        self.library.accl_tuner_clear()

    def reload(self) -> None:
        self.library.accl_tuner_reload()

    def last(self) -> Last:
        last = Last(size=ctypes.sizeof(Last))
        assert self.library.accl_tuner_report(byref(last)) == 0, self.error()
        return last


class Tuner:
    """One communicator; `result` is what init answered."""

    def __init__(
        self, plugin, *, version=6, communicator=1, ranks=8, nodes=1, logger="plugin"
    ) -> None:
        self.plugin, self.version = plugin, version
        self.context = c_void_p(0xDEAD)  # whatever was there before
        log = plugin.logger if logger == "plugin" else NO_LOGGER
        if version == 4:
            init = plugin.member(4, 8, c_size_t, c_size_t, LOGGER, POINTER(c_void_p))
            self.result = init(ranks, nodes, log, byref(self.context))
        else:
            init = plugin.member(
                version, 8, POINTER(c_void_p), c_uint64, c_size_t, c_size_t, LOGGER, c_void_p,
                c_void_p,
            )  # fmt: skip
            domains = (c_int * 3)(nodes, ranks // nodes, -(-ranks // nodes))
            constants = (ctypes.c_double * (21 + 63 + 60))()
            self.result = init(
                byref(self.context), communicator, ranks, nodes, log, domains, constants
            )
            assert not any(constants) and list(domains)[0] == nodes  # left as they came
        self._ask = plugin.member(
            version, 16, c_void_p, c_int, c_size_t, c_int, c_void_p, c_int, c_int, c_int,
            POINTER(c_int),
        )  # fmt: skip

    def ask(self, function=ALL_REDUCE, bytes=8, table=None, pipe_ops=1, registered=0, channels=0):
        """(table after, channels after); `table` is a list of rows."""
        rows = legal() if table is None else table
        size = len(rows), len(rows[0])
        flat = (c_float * (size[0] * size[1] + 8))(*(cost for row in rows for cost in row))
        guard = 12345.0
        flat[size[0] * size[1] :] = [guard] * 8
        out = c_int(channels)
        assert (
            self._ask(self.context, function, bytes, pipe_ops, flat, *size, registered, byref(out))
            == SUCCESS
        )
        assert list(flat[size[0] * size[1] :]) == [guard] * 8
        after = [list(flat[a * size[1] : (a + 1) * size[1]]) for a in range(size[0])]
        return after, out.value

    def chunk(self, chunk, function=ALL_REDUCE, algorithm=RING, protocol=SIMPLE, bytes=4096):
        ask = self.plugin.member(
            6, 32, c_void_p, c_int, c_size_t, c_int, c_int, c_int, POINTER(c_size_t)
        )
        out = c_size_t(chunk)
        assert ask(self.context, function, bytes, algorithm, protocol, 1, byref(out)) == SUCCESS
        return out.value

    def finalize(self) -> int:
        return self.plugin.member(self.version, 24, c_void_p)(self.context)


def legal(algorithms=7, protocols=3):
    """A table in which all can be chosen, the costs of which all differ and float32 holds."""
    return [[10.0 + a * protocols + p for p in range(protocols)] for a in range(algorithms)]


def chosen(table):
    """NCCL's scan: strictly less, algorithm by algorithm, ignoring what is negative."""
    best, least = None, 3.6e9
    for a, row in enumerate(table):
        for p, cost in enumerate(row):
            if 0 <= cost < least:
                best, least = (a, p), cost
    return best


def main() -> None:
    """A rank as a process: obeys lines of JSON on stdin, answers each with one on stdout."""
    plugin = Plugin()
    tuners: dict[str, Tuner] = {}
    for line in sys.stdin:
        order = json.loads(line)
        plugin.said.clear()
        what, name = order.pop("do"), order.pop("name", "")
        answer: dict[str, object] = {}
        if what == "init":
            tuners[name] = Tuner(plugin, **order)
            answer["result"] = tuners[name].result
        elif what == "ask":
            table, answer["channels"] = tuners[name].ask(**order)
            answer["chosen"] = chosen(table)
        elif what == "finalize":
            answer["result"] = tuners.pop(name).finalize()
        elif what == "fork":  # a child that lives on, as a data loader's worker does
            answer["child"] = os.fork()
            if answer["child"] == 0:
                import time

                time.sleep(60)
                os._exit(0)
        answer["said"] = plugin.said
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
