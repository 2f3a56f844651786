"""Communicator: collectives on numpy arrays, torch CPU tensors and whatever has DLPack or the
buffer protocol.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from numbers import Real
from operator import index
from os import PathLike
from threading import Lock
from typing import Any, NoReturn, TypedDict, Unpack

import numpy as np

from accl_py import _core
from accl_py.arrays import View, contiguous, copy_back, like, view
from accl_py.errors import AcclError, InvalidArgument, TimeoutError
from accl_py.stores import StoreAdapter

__all__ = ["ANY_SOURCE", "CallOptions", "Communicator", "Group", "PreparedCall", "Work"]

ANY_SOURCE: int = _core.ANY_SOURCE
Rules = _core.Rules
PreparedCall = _core.PreparedCall
_C = _core.Collective
_PLAIN_OPS = {word: op for word, op in _core.ReduceOp.__members__.items() if word != "premul_sum"}


class CallOptions(TypedDict, total=False):
    """What every collective takes besides its own arguments.

    algorithm, protocol, chunk_bytes: force a choice, which must be the same on every rank; None
        leaves it to the rules. See accl_py.schedule.algorithms and docs/algorithms.md.
    timeout: seconds for this call; None: the communicator's.
    async_op: return a `Work` at once instead of waiting.
    """

    algorithm: str | None
    protocol: str | None
    chunk_bytes: int | None
    timeout: float | timedelta | None
    async_op: bool


_INT_MAX = 2**31 - 1
_SIZE_MAX = 2**62
_OPTION_NAMES = frozenset(CallOptions.__annotations__)


def seconds_of(timeout: float | timedelta, name: str = "timeout") -> float:
    """A timeout in seconds; InvalidArgument where it is none.

    `name` is what the message calls it.
    """
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if isinstance(seconds, bool) or not isinstance(seconds, Real) or not seconds > 0:
        raise InvalidArgument(f"{name} is {timeout!r}; expected seconds above 0 or a timedelta.")
    return float(seconds)


def _core_options(options: CallOptions) -> dict[str, Any]:
    """The options as _core.Call takes them.

    Raises InvalidArgument for an unknown or ill-typed one.
    """
    if not options:
        return {}
    if unknown := options.keys() - _OPTION_NAMES:
        raise InvalidArgument(
            f"Option {min(unknown)!r} is unknown; expected one of: "
            f"{', '.join(sorted(_OPTION_NAMES))}."
        )
    result: dict[str, Any] = {}
    for word in ("algorithm", "protocol"):
        value = options.get(word)
        if value is None:
            continue
        if not isinstance(value, str):
            raise InvalidArgument(f"{word} is {value!r}; expected a word or None.")
        result[word] = value
    chunk = options.get("chunk_bytes")
    if chunk is not None:
        result["chunk_bytes"] = _integer(chunk, "chunk_bytes", 0, _SIZE_MAX)
    timeout = options.get("timeout")
    if timeout is not None:
        result["timeout"] = seconds_of(timeout)
    if options.get("async_op"):
        result["background"] = True
    return result


def _integer(value: Any, name: str, least: int = -_INT_MAX - 1, most: int = _INT_MAX) -> int:
    try:
        number = index(value)
    except TypeError:
        raise InvalidArgument(f"{name} is {value!r}; expected an integer.") from None
    if number < least:
        raise InvalidArgument(f"{name} is {number}; expected at least {least}.")
    if number > most:
        raise InvalidArgument(f"{name} is {number}; expected at most {most}.")
    return number


def _counts(values: Sequence[int] | None, name: str, size: int) -> list[int] | None:
    if values is None:
        return None
    if not isinstance(values, Iterable) or isinstance(values, str):
        raise InvalidArgument(f"{name} is {values!r}; expected a list of one integer a rank.")
    counts = [_integer(v, f"{name}[{i}]", 0, _SIZE_MAX) for i, v in enumerate(values)]
    if len(counts) != size:
        raise InvalidArgument(f"{name} has {len(counts)} entries; expected one a rank: {size}.")
    return counts


class Work:
    """A call under way.

    May be dropped: it completes all the same, and its arrays are kept until then.
    """

    def __init__(self, work: _core.Work, result: Any, staged: list[_Staged]) -> None:
        self._work = work
        self._result = result
        self._staged = staged  # results that are still to be copied back
        self._finishing = Lock()

    def __del__(self) -> None:
        # Dropped under way: the results are copied back once they are there.
        if self._staged:
            work, staged = self._work, self._staged
            work.on_complete(lambda: None if work.failed() else _finish_all(staged))

    def wait(self, timeout: float | timedelta | None = None) -> Any:
        """Waits and returns the call's result.

        Raises the call's error, or accl_py.errors.TimeoutError if `timeout` (seconds) passes first:
        the call then goes on and may be waited for again.
        """
        if not self._work.wait(None if timeout is None else seconds_of(timeout)):
            raise TimeoutError(
                f"The call (#{self.sequence}) was not complete after {timeout} s; it goes on."
            )
        self._copy_back()
        return self._result

    def _copy_back(self) -> None:
        if self._staged:
            with self._finishing:
                staged, self._staged = self._staged, []
                _finish_all(staged)

    def done(self) -> bool:
        """Whether it is complete, with or without an error."""
        if not self._work.done():
            return False
        if not self._work.failed():
            self._copy_back()
        return True

    @property
    def result(self) -> Any:
        """What the call returns; waits for it."""
        return self.wait()

    @property
    def sequence(self) -> int:
        """The number of the call, from 1; collectives and point-to-point messages count apart."""
        return self._work.sequence

    @property
    def source_rank(self) -> int:
        """Of a recv: who sent it; -1 until it is complete."""
        return self._work.source_rank

    def report(self) -> dict[str, Any]:
        """What really ran: algorithm, protocol, chunk_bytes, traffic.

        Empty words until it is complete.
        """
        return self._work.report()

    def __repr__(self) -> str:
        return f"<accl_py.Work #{self.sequence}, {'complete' if self.done() else 'under way'}>"


class _Staged:
    """An array of a call: the caller's, or a contiguous copy where the caller's is not."""

    def __init__(self, v: View, *, read: bool) -> None:
        self.caller = v
        self.staged = not v.contiguous
        if self.staged:
            self.memory = contiguous(v) if read else like(v, v.shape)
            self.address = view(self.memory, "staging").address
        else:
            self.memory = v.memory
            self.address = v.address

    def finish(self) -> None:
        if self.staged:
            copy_back(self.caller, self.memory)


def _finish_all(outputs: list[_Staged]) -> None:
    for staged in outputs:
        staged.finish()


class Group:
    """Sends and receives that are posted together, in any order; see Communicator.group."""

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator
        self._calls: list[_core.Call] = []
        self._keep: list[Any] = []
        self._finish: list[_Staged] = []
        self._open = True

    def send(self, x: Any, peer: int, *, tag: int = 0) -> None:
        """Adds a send; as Communicator.send."""
        self._check_open()
        call, staged = self._communicator._message(_C.send, x, peer, tag, {})
        self._calls.append(call)
        self._keep.append(staged)

    def recv(self, x: Any, peer: int = ANY_SOURCE, *, tag: int = 0) -> None:
        """Adds a receive; as Communicator.recv."""
        self._check_open()
        call, staged = self._communicator._message(_C.recv, x, peer, tag, {})
        self._calls.append(call)
        self._keep.append(staged)
        self._finish.append(staged)

    def _check_open(self) -> None:
        if not self._open:
            raise InvalidArgument("This group has been posted already; open another one.")

    def _run(self) -> None:
        self._communicator._handle.post_group(self._calls, self._keep).wait()
        _finish_all(self._finish)


class Communicator:
    """A fixed set of ranks that call the same collectives in the same order.

    Made by `from_store`, `from_mpi` or `accl_py.init`. Arrays: numpy arrays, torch CPU tensors, and
    anything with DLPack or the buffer protocol; of any layout (non-contiguous ones are staged
    through a copy). Shapes must agree between ranks as each method says; what does not agree raises
    MismatchError on every rank. All methods raise InvalidArgument for a bad argument (nothing is
    started then), TimeoutError, PeerError, MismatchError and AbortedError as accl_py.errors says;
    after any but the first, the communicator has ended.

    Thread-safe. Not usable in a forked child.
    """

    _quick = True  # calls go straight to the core where they can

    def __init__(self, handle: _core.Communicator) -> None:
        self._handle = handle
        self._size = handle.size

    @classmethod
    def from_store(
        cls,
        store: Any,
        rank: int,
        size: int,
        *,
        timeout: float | timedelta = 1800.0,
        name: str = "world",
        rules: Rules | str | PathLike[str] | None = None,
    ) -> Communicator:
        """Makes a communicator; every rank calls it, with the same store, size and name.

        store: any object with set(key, value) and a blocking get(key); see accl_py.stores.
        timeout: seconds to wait for the others, and of each call.
        rules: a rules file or Rules, the same on every rank; None: the file that ACCL_RULES names,
            else the defaults.
        Raises InvalidArgument, MismatchError (sizes, versions or rules differ), TimeoutError,
        StoreError, PeerError, RulesError, AcclSystemError.
        """
        rules_file = ""
        if isinstance(rules, (str, PathLike)):
            rules_file, rules = os.fsdecode(rules), None
            if not rules_file:
                raise InvalidArgument("rules is an empty path; expected that of a rules file.")
        if rules is not None and not isinstance(rules, Rules):
            raise InvalidArgument(
                f"rules is {rules!r}; expected Rules, the path of a file, or None."
            )
        if not isinstance(name, str) or not name or "\n" in name:
            raise InvalidArgument(f"name is {name!r}; expected a text of one line.")
        handle = _core.Communicator.create(
            StoreAdapter(store),
            _integer(rank, "rank"),
            _integer(size, "size"),
            seconds_of(timeout),
            name,
            rules,
            rules_file,
        )
        return cls(handle)

    @classmethod
    def from_mpi(cls, comm: Any, **options: Any) -> Communicator:
        """Makes a communicator of the ranks of an mpi4py communicator; options as in from_store."""
        from accl_py.mpi import MpiStore

        return cls.from_store(MpiStore(comm), comm.Get_rank(), comm.Get_size(), **options)

    # ---- what it is ----

    @property
    def rank(self) -> int:
        """This rank."""
        return self._handle.rank

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self._size

    @property
    def nodes(self) -> int:
        """The number of hosts."""
        return self._handle.nodes

    @property
    def name(self) -> str:
        """Its name, in errors and traces."""
        return self._handle.name

    @property
    def timeout(self) -> float:
        """Seconds of each call that is given none of its own."""
        return self._handle.timeout

    @timeout.setter
    def timeout(self, seconds: float | timedelta) -> None:
        self._handle.timeout = seconds_of(seconds)

    @property
    def rules(self) -> Rules:
        """The rules by which algorithms are chosen."""
        return self._handle.rules

    def __repr__(self) -> str:
        return f"<accl_py.Communicator '{self.name}', rank {self.rank} of {self.size}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "A Communicator cannot be pickled: it is bound to this process. Make one in each "
            "process."
        )

    def __enter__(self) -> Communicator:
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        if kind is None:
            self.shutdown()
        else:
            self.abort(f"{kind.__name__} left its with block")

    # ---- collectives ----

    def all_reduce(
        self,
        x: Any,
        out: Any = None,
        *,
        op: str = "sum",
        factor: float = 1.0,
        **options: Unpack[CallOptions],
    ) -> Any:
        """Reduces `x` over all ranks; every rank gets the result.

        x: the same shape and dtype everywhere. out: like x; None: in place.
        op: sum, product, min, max, avg, premul_sum (x * factor before the sum), band, bor, bxor.
        Returns out (or x); with async_op a Work.
        """
        if self._quick and out is None and not options and type(x) is np.ndarray:  # the usual case
            plain = _PLAIN_OPS.get(op) if isinstance(op, str) else None
            if plain is not None and self._handle.all_reduce_in_place(x, plain):
                return x
        return self._execute(self._reduction(_C.all_reduce, x, out, op, factor, options), options)

    def reduce(
        self,
        x: Any,
        out: Any = None,
        *,
        root: int = 0,
        op: str = "sum",
        factor: float = 1.0,
        **options: Unpack[CallOptions],
    ) -> Any:
        """Reduces `x` over all ranks to `root`; op and factor as in all_reduce.

        out: on the root, like x; None: in place there. Other ranks' arrays are left as they are.
        Returns out (or x) on the root, None elsewhere.
        """
        self._check_root(root)
        if self.rank != root:
            source = _Staged(view(x, "x"), read=True)
            call = self._call(
                _C.reduce,
                source,
                None,
                options,
                count=source.caller.count,
                root=root,
                **self._op(op, factor),
            )
            return self._execute((call, [source], [], None), options)
        return self._execute(
            self._reduction(_C.reduce, x, out, op, factor, options, root=root), options
        )

    def broadcast(self, x: Any, *, root: int = 0, **options: Unpack[CallOptions]) -> Any:
        """Copies the root's `x` into every rank's; shape and dtype the same everywhere. In place.

        Returns x.
        """
        self._check_root(root)
        is_root = self.rank == root
        staged = _Staged(view(x, "x", writable=not is_root), read=is_root)
        call = self._call(
            _C.broadcast, staged, staged, options, count=staged.caller.count, root=root
        )
        return self._execute((call, [staged], [] if is_root else [staged], x), options)

    def all_gather(
        self,
        x: Any,
        out: Any = None,
        *,
        counts: Sequence[int] | None = None,
        **options: Unpack[CallOptions],
    ) -> Any:
        """Gathers every rank's `x` on every rank.

        out: (size, *x.shape) or (size * x.shape[0], *x.shape[1:]); None: a new array (size,
            *x.shape).
        counts: sizes of x's first dimension on each rank, where they differ; out is then
            (sum(counts), *x.shape[1:]).
        """
        return self._execute(self._gathering(_C.all_gather, x, out, counts, 0, options), options)

    def gather(
        self,
        x: Any,
        out: Any = None,
        *,
        root: int = 0,
        counts: Sequence[int] | None = None,
        **options: Unpack[CallOptions],
    ) -> Any:
        """Gathers every rank's `x` on `root`; shapes as in all_gather. Returns None elsewhere."""
        self._check_root(root)
        if self.rank == root:
            return self._execute(self._gathering(_C.gather, x, out, counts, root, options), options)
        source = _Staged(view(x, "x"), read=True)
        uneven = self._uneven(source.caller, counts, self.rank)
        call = self._call(_C.gather, source, None, options, root=root, **uneven)
        return self._execute((call, [source], [], None), options)

    def reduce_scatter(
        self,
        x: Any,
        out: Any = None,
        *,
        op: str = "sum",
        factor: float = 1.0,
        counts: Sequence[int] | None = None,
        **options: Unpack[CallOptions],
    ) -> Any:
        """Reduces `x` over all ranks and gives each rank its part; op and factor as in all_reduce.

        x: (size, *shape), or (size * n, ...) where out is (n, ...); with counts (sum(counts), ...).
        out: one rank's part; None: a new array.
        """
        source = _Staged(view(x, "x"), read=True)
        target, call_counts = self._part(source.caller, out, counts)
        call = self._call(
            _C.reduce_scatter, source, target, options, **call_counts, **self._op(op, factor)
        )
        return self._execute((call, [source, target], [target], target.caller.array), options)

    def scatter(
        self,
        x: Any,
        out: Any = None,
        *,
        root: int = 0,
        counts: Sequence[int] | None = None,
        **options: Unpack[CallOptions],
    ) -> Any:
        """Gives each rank its part of the root's `x`.

        x: on the root (size, *shape) or (size * n, ...), with counts (sum(counts), ...); ignored
            elsewhere.
        out: one rank's part; None: a new array, on the root only (others do not know the shape).
        """
        self._check_root(root)
        if self.rank != root:
            if out is None:
                raise InvalidArgument(
                    f"out is missing on rank {self.rank}: only the root {root} knows the shape of "
                    "its part."
                )
            target = _Staged(view(out, "out", writable=True), read=False)
            uneven = self._uneven(target.caller, counts, self.rank)
            call = self._call(_C.scatter, None, target, options, root=root, **uneven)
            return self._execute((call, [target], [target], out), options)
        source = _Staged(view(x, "x"), read=True)
        target, call_counts = self._part(source.caller, out, counts)
        call = self._call(_C.scatter, source, target, options, root=root, **call_counts)
        return self._execute((call, [source, target], [target], target.caller.array), options)

    def all_to_all(
        self,
        x: Any,
        out: Any = None,
        *,
        send_counts: Sequence[int] | None = None,
        receive_counts: Sequence[int] | None = None,
        **options: Unpack[CallOptions],
    ) -> Any:
        """Sends block r of `x` to rank r, and gets block r of the result from rank r.

        x: first dimension divisible by size (block r is its r-th part); out: like x, not x itself.
        send_counts, receive_counts: first-dimension sizes to and from each rank where they differ;
            both must be given.
        """
        source = _Staged(view(x, "x"), read=True)
        shape = source.caller.shape
        if not shape:
            raise InvalidArgument(
                "x has no dimension; expected at least one, whose parts go to the ranks."
            )
        row = _row_elements(shape)
        send = _counts(send_counts, "send_counts", self._size)
        receive = _counts(receive_counts, "receive_counts", self._size)
        if (send is None) != (receive is None):
            raise InvalidArgument("send_counts and receive_counts must be given together.")
        if send is not None and receive is not None:
            if sum(send) != shape[0]:
                raise InvalidArgument(
                    f"send_counts sum to {sum(send)}, but x has a first dimension of {shape[0]}."
                )
            target = self._target(source.caller, out, [(sum(receive), *shape[1:])])
            sizes = {
                "counts": [c * row for c in send],
                "receive_counts": [c * row for c in receive],
            }
            call = self._call(_C.all_to_all, source, target, options, **sizes)
        else:
            if shape[0] % self._size:
                raise InvalidArgument(
                    f"x has a first dimension of {shape[0]}, which {self._size} ranks do not "
                    "divide; give counts."
                )
            target = self._target(source.caller, out, [shape])
            call = self._call(
                _C.all_to_all, source, target, options, count=source.caller.count // self._size
            )
        return self._execute((call, [source, target], [target], target.caller.array), options)

    def barrier(self, **options: Unpack[CallOptions]) -> Any:
        """Waits until every rank is here."""
        return self._execute((self._call(_C.barrier, None, None, options), [], [], None), options)

    # ---- point to point ----

    def send(self, x: Any, peer: int, *, tag: int = 0, **options: Unpack[CallOptions]) -> Any:
        """Sends `x` to `peer`. Complete when x may be changed.

        The peer need not have received it.
        """
        call, staged = self._message(_C.send, x, peer, tag, options)
        return self._execute((call, [staged], [], None), options)

    def recv(
        self, x: Any, peer: int = ANY_SOURCE, *, tag: int = 0, **options: Unpack[CallOptions]
    ) -> Any:
        """Receives into `x` from `peer` (default: from any rank) the next message with that tag.

        Returns the rank that sent it; with async_op a Work, which has `source_rank`.
        """
        call, staged = self._message(_C.recv, x, peer, tag, options)
        if options.get("async_op"):
            return self._execute((call, [staged], [staged], x), options)
        source = self._handle.run(call, staged)
        staged.finish()
        return source

    @contextmanager
    def group(self) -> Iterator[Group]:
        """Sends and receives that are posted together, so that their order does not matter:

            with comm.group() as g:
                g.send(a, right)
                g.recv(b, left)

        Complete when the block has been left.
        """
        group = Group(self)
        try:
            yield group
        finally:
            group._open = False
        group._run()

    # ---- measuring, looking, ending ----

    def prepare(
        self, collective: str, x: Any = None, out: Any = None, **arguments: Any
    ) -> PreparedCall:
        """A call to be made again and again from C++; for measuring. Arrays must be contiguous.

        collective: all_reduce, all_gather, reduce_scatter, broadcast, reduce, all_to_all, gather,
            scatter, barrier, send
        or recv. Arguments as in the method of that name.
        """
        kind = _core.collective(collective)
        options: CallOptions = {k: arguments.pop(k) for k in list(arguments) if k in _OPTION_NAMES}  # type: ignore[assignment]
        call, keep = self._prepared(kind, x, out, arguments, options)
        if any(staged.staged for staged in keep):
            raise InvalidArgument("prepare() needs contiguous arrays; x or out is not.")
        return PreparedCall(self._handle, call, keep)

    def choice_for(
        self, collective: str, x: Any = None, out: Any = None, **arguments: Any
    ) -> dict[str, Any]:
        """What a call would use: algorithm, protocol, channels, chunk_bytes.

        Arguments as in prepare().
        """
        kind = _core.collective(collective)
        options: CallOptions = {k: arguments.pop(k) for k in list(arguments) if k in _OPTION_NAMES}  # type: ignore[assignment]
        call, _ = self._prepared(kind, x, out, arguments, options)
        return self._handle.choice_for(call)

    def statistics(self) -> dict[str, Any]:
        """Counters since the start: works posted, completed and failed, traffic, staging_bytes."""
        return self._handle.statistics()

    def trace(self) -> dict[str, Any]:
        """The last 2,048 operations; docs/trace.md has the fields."""
        result: dict[str, Any] = json.loads(self._handle.trace_json())
        return result

    @property
    def error(self) -> AcclError | None:
        """The error that ended the communicator; None while it is well."""
        try:
            self._handle.raise_error()
        except AcclError as error:
            return error
        return None

    def abort(self, reason: str = "the program asked for it") -> None:
        """Ends all pending and later calls, here with AbortedError and on the peers with
        PeerError. Idempotent.
        """
        self._handle.abort(str(reason))

    def shutdown(self) -> None:
        """Waits for the posted calls and leaves. Idempotent; later calls raise AbortedError."""
        self._handle.shutdown()

    # ---- inside ----

    def _prepared(
        self,
        kind: _core.Collective,
        x: Any,
        out: Any,
        arguments: dict[str, Any],
        options: CallOptions,
    ) -> tuple[_core.Call, list[_Staged]]:
        recorded: list[tuple[_core.Call, list[_Staged]]] = []
        recorder = _Recorder(self, recorded)
        method = getattr(recorder, kind.name)
        positional = {_C.barrier: (), _C.broadcast: (x,), _C.send: (x,), _C.recv: (x,)}.get(
            kind, (x, out)
        )
        method(
            *positional,
            **arguments,
            **{k: v for k, v in options.items() if k != "async_op"},
        )
        return recorded[0]

    def _op(self, op: str, factor: float) -> dict[str, Any]:
        if not isinstance(op, str):
            raise InvalidArgument(f"op is {op!r}; expected a word such as 'sum'.")
        if type(factor) is not float:
            if not isinstance(factor, Real):
                raise InvalidArgument(f"factor is {factor!r}; expected a number.")
            factor = float(factor)
        return {"op": _core.reduce_op(op), "factor": factor}

    def _check_root(self, root: int) -> None:
        if not 0 <= _integer(root, "root") < self._size:
            raise InvalidArgument(f"root is {root}; expected 0 to {self._size - 1}.")

    def _call(
        self,
        kind: _core.Collective,
        source: _Staged | None,
        target: _Staged | None,
        options: CallOptions,
        **fields: Any,
    ) -> _core.Call:
        one = source or target
        if one is not None:
            fields["dtype"] = one.caller.dtype
        return _core.Call(
            kind,
            source.address if source is not None else 0,
            target.address if target is not None else 0,
            **fields,
            **_core_options(options),
        )

    def _execute(
        self, prepared: tuple[_core.Call, list[_Staged], list[_Staged], Any], options: CallOptions
    ) -> Any:
        call, keep, outputs, result = prepared
        if options.get("async_op"):
            work = self._handle.post(call, keep)
            return Work(work, result, [staged for staged in outputs if staged.staged])
        self._handle.run(call, keep)
        _finish_all(outputs)
        return result

    def _reduction(
        self,
        kind: _core.Collective,
        x: Any,
        out: Any,
        op: str,
        factor: float,
        options: CallOptions,
        **fields: Any,
    ) -> tuple[_core.Call, list[_Staged], list[_Staged], Any]:
        in_place = out is None
        source = _Staged(view(x, "x", writable=in_place), read=True)
        target = source if in_place else self._target(source.caller, out, [source.caller.shape])
        call = self._call(
            kind,
            source,
            target,
            options,
            count=source.caller.count,
            **self._op(op, factor),
            **fields,
        )
        return call, [source, target], [target], target.caller.array

    def _gathering(
        self,
        kind: _core.Collective,
        x: Any,
        out: Any,
        counts: Sequence[int] | None,
        root: int,
        options: CallOptions,
    ) -> tuple[_core.Call, list[_Staged], list[_Staged], Any]:
        source = _Staged(view(x, "x"), read=True)
        shape = source.caller.shape
        counts = _counts(counts, "counts", self._size)
        if counts is None:
            shapes = [(self._size, *shape)]
            if shape:
                shapes.append((self._size * shape[0], *shape[1:]))
        else:
            shapes = [(sum(counts), *shape[1:])]
        uneven = self._uneven(source.caller, counts, self.rank)
        target = self._target(source.caller, out, shapes)
        call = self._call(kind, source, target, options, root=root, **uneven)
        return call, [source, target], [target], target.caller.array

    def _uneven(self, v: View, counts: Sequence[int] | None, rank: int) -> dict[str, Any]:
        """The sizes of a call whose own block is `v`."""
        checked = _counts(counts, "counts", self._size)
        if checked is None:
            return {"count": v.count}
        if not v.shape or v.shape[0] != checked[rank]:
            raise InvalidArgument(
                f"the array of rank {rank} has shape {v.shape}, but counts[{rank}] is "
                f"{checked[rank]}."
            )
        row = _row_elements(v.shape)
        return {"counts": [c * row for c in checked]}

    def _part(
        self, whole: View, out: Any, counts: Sequence[int] | None
    ) -> tuple[_Staged, dict[str, Any]]:
        """The output of one rank's part of `whole`, and the sizes of the call."""
        shape = whole.shape
        if not shape:
            raise InvalidArgument(
                "x has no dimension; expected at least one, whose parts go to the ranks."
            )
        checked = _counts(counts, "counts", self._size)
        if checked is not None:
            if sum(checked) != shape[0]:
                raise InvalidArgument(
                    f"counts sum to {sum(checked)}, but x has a first dimension of {shape[0]}."
                )
            row = _row_elements(shape)
            target = self._target(whole, out, [(checked[self.rank], *shape[1:])])
            return target, {"counts": [c * row for c in checked]}
        if shape[0] % self._size:
            raise InvalidArgument(
                f"x has a first dimension of {shape[0]}, which {self._size} ranks do not divide; "
                "give counts."
            )
        shapes = [(shape[0] // self._size, *shape[1:])]
        if shape[0] == self._size:
            shapes.insert(0, shape[1:])
        return self._target(whole, out, shapes), {"count": whole.count // self._size}

    def _target(self, source: View, out: Any, shapes: list[tuple[int, ...]]) -> _Staged:
        """The output: the caller's, of one of `shapes` and the source's dtype, or a new one of the
        first.
        """
        if out is None:
            return _Staged(view(like(source, shapes[0]), "out", writable=True), read=False)
        target = view(out, "out", writable=True)
        if target.dtype != source.dtype:
            raise InvalidArgument(
                f"out has dtype {target.dtype.name}, but x has {source.dtype.name}; they must be "
                "the same."
            )
        if target.shape not in shapes:
            wanted = " or ".join(str(shape) for shape in shapes)
            raise InvalidArgument(f"out has shape {target.shape}; expected {wanted}.")
        return _Staged(target, read=False)

    def _message(
        self, kind: _core.Collective, x: Any, peer: int, tag: int, options: CallOptions
    ) -> tuple[_core.Call, _Staged]:
        receives = kind == _C.recv
        staged = _Staged(view(x, "x", writable=receives), read=not receives)
        fields = {
            "count": staged.caller.count,
            "peer": _integer(peer, "peer"),
            "tag": _integer(tag, "tag"),
        }
        if receives:
            return self._call(kind, None, staged, options, **fields), staged
        return self._call(kind, staged, None, options, **fields), staged


class _Recorder(Communicator):
    """A communicator that notes the call that a method would make, instead of making it."""

    _quick = False

    def __init__(
        self, communicator: Communicator, recorded: list[tuple[_core.Call, list[_Staged]]]
    ) -> None:
        super().__init__(communicator._handle)
        self._recorded = recorded

    def _execute(
        self, prepared: tuple[_core.Call, list[_Staged], list[_Staged], Any], options: CallOptions
    ) -> Any:
        self._recorded.append((prepared[0], prepared[1]))

    def recv(
        self, x: Any, peer: int = ANY_SOURCE, *, tag: int = 0, **options: Unpack[CallOptions]
    ) -> Any:
        call, staged = self._message(_C.recv, x, peer, tag, options)
        self._recorded.append((call, [staged]))


def _row_elements(shape: tuple[int, ...]) -> int:
    elements = 1
    for n in shape[1:]:
        elements *= n
    return elements
