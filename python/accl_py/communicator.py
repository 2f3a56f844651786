"""Communicator: collectives on arrays of the host (numpy, torch, whatever has DLPack or the buffer
protocol) and of GPUs (CuPy, torch, whatever has __cuda_array_interface__).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from numbers import Real
from os import PathLike
from typing import Any, NoReturn, Unpack

import numpy as np

from accl_py import _core
from accl_py.arguments import (
    OPTION_NAMES,
    CallOptions,
    core_options,
    counts_of,
    integer,
    seconds_of,
)
from accl_py.arrays import Staged, View, finish_all, like, view
from accl_py.device import DeviceOptions, DeviceSide, Origin, device_of
from accl_py.device_arrays import stream_handle
from accl_py.errors import AcclError, InvalidArgument, SeveralHostsError
from accl_py.stores import StoreAdapter
from accl_py.work import HostWork, Work

__all__ = [
    "ANY_SOURCE",
    "CallOptions",
    "Communicator",
    "DeviceOptions",
    "Group",
    "PreparedCall",
    "PreparedDeviceCall",
    "Work",
]

ANY_SOURCE: int = _core.ANY_SOURCE
Rules = _core.Rules
PreparedCall = _core.PreparedCall
PreparedDeviceCall = _core.PreparedDeviceCall
_C = _core.Collective
_PLAIN_OPS = {word: op for word, op in _core.ReduceOp.__members__.items() if word != "premul_sum"}


_POINT_TO_POINT = (_C.send, _C.recv)


@dataclass(slots=True)
class _Made:
    """A call that is ready to be made."""

    kind: _core.Collective
    call: _core.Call
    keep: list[Staged]  # its arrays
    outputs: list[Staged]
    result: Any
    peer: int = -1


class Group:
    """Sends and receives that are posted together, in any order; see Communicator.group."""

    def __init__(self, communicator: Communicator, stream: Any = None) -> None:
        self._communicator = communicator
        self._stream = stream
        self._calls: list[_core.Call] = []
        self._keep: list[Staged] = []
        self._finish: list[Staged] = []
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
        communicator = self._communicator
        device = device_of(self._keep)
        if device is not None:
            handle = communicator._gpu.require("A group", device)
            options: CallOptions = {"stream": self._stream}
            communicator._gpu.enqueue(handle, self._calls, self._keep, None, options)
            return
        _refuse_stream(self._stream)
        communicator._host.post_group(self._calls, self._keep).wait()
        finish_all(self._finish)


class Communicator:
    """A fixed set of ranks that call the same collectives in the same order.

    Made by `from_store`, `from_mpi` or `accl_py.init`. Arrays on the host: numpy arrays, torch CPU
    tensors, and anything with DLPack or the buffer protocol; of any layout (non-contiguous ones are
    staged through a copy). Shapes must agree between ranks as each method says; what does not agree
    raises MismatchError on every rank. All methods raise InvalidArgument for a bad argument
    (nothing is started then), TimeoutError, PeerError, MismatchError and AbortedError as
    accl_py.errors says; after any but the first, the communicator has ended.

    Arrays on a GPU: CuPy arrays, torch CUDA tensors, and anything with __cuda_array_interface__;
    contiguous, all on one GPU, the same in all calls. NCCL moves them, or kernels of our own. A
    call returns when it has been put on a stream (the current one of the array's library, or
    `stream`), and its result is ordered on that stream; the host does not wait. Ranks that do not
    agree hang on the GPU until the call's timeout, which names who is missing. The first collective
    call makes the GPU half of the communicator, on all ranks; `device` makes it at once. The host
    half and the GPU half end separately on errors; abort() and shutdown() end both.

    Thread-safe. Not usable in a forked child.
    """

    _quick = True  # calls go straight to the core where they can

    def __init__(
        self, origin: Origin, handle: _core.Communicator | None, gpu: DeviceSide | None = None
    ) -> None:
        self._origin = origin
        self._handle = handle  # None: ranks of several hosts, who have a GPU half alone
        self._gpu = DeviceSide(origin) if gpu is None else gpu
        self._size = origin.size
        self._splits = 0

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
        device: int | None = None,
        device_options: DeviceOptions | None = None,
    ) -> Communicator:
        """Makes a communicator; every rank calls it, with the same store, size and name.

        store: any object with set(key, value) and a blocking get(key); see accl_py.stores.
        timeout: seconds to wait for the others, and of each call.
        rules: a rules file or Rules, the same on every rank; None: the file that ACCL_RULES names,
            else the defaults.
        device: the GPU of this rank's CUDA arrays; all ranks or none give it. The GPU half is then
            made at once, and ranks may be on several hosts (calls with arrays of the host then
            raise SeveralHostsError). None: it is made at the first collective call with CUDA
            arrays. The store must stay usable while the GPU half lives.
        device_options: see DeviceOptions.
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
        _checked_name(name)
        if device is not None:
            device = integer(device, "device", 0)
        origin = Origin(
            store,
            integer(rank, "rank"),
            integer(size, "size"),
            seconds_of(timeout),
            name,
            rules,
            rules_file,
            _device_options(device_options),
        )
        communicator = cls(origin, _join_host(origin, alone=device is None))
        if device is not None:
            communicator._gpu.join(device)
        return communicator

    @classmethod
    def from_mpi(cls, comm: Any, **options: Any) -> Communicator:
        """Makes a communicator of the ranks of an mpi4py communicator; options as in from_store."""
        from accl_py.mpi import MpiStore

        return cls.from_store(MpiStore(comm), comm.Get_rank(), comm.Get_size(), **options)

    # ---- what it is ----

    @property
    def rank(self) -> int:
        """This rank."""
        return self._origin.rank

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self._size

    @property
    def nodes(self) -> int:
        """The number of hosts."""
        return self._either.nodes

    @property
    def device(self) -> int | None:
        """The GPU of the arrays; None where there is no GPU half yet."""
        return None if self._gpu.handle is None else self._gpu.handle.device

    @property
    def nccl_version(self) -> int:
        """NCCL's, such as 22809 for 2.28.9."""
        return self._gpu.require("nccl_version").nccl_version

    @property
    def kernels_unavailable(self) -> str:
        """Why our own GPU kernels cannot be used here; empty where they can, as rules say."""
        return self._gpu.require("kernels_unavailable").kernels_unavailable

    @property
    def name(self) -> str:
        """Its name, in errors and traces."""
        return self._origin.name

    @property
    def timeout(self) -> float:
        """Seconds of each call that is given none of its own."""
        return self._either.timeout

    @timeout.setter
    def timeout(self, seconds: float | timedelta) -> None:
        seconds = seconds_of(seconds)
        for half in self._halves:
            half.timeout = seconds

    @property
    def rules(self) -> Rules:
        """The rules by which algorithms are chosen."""
        return self._either.rules

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
        host = self._handle
        if self._quick and out is None and not options and type(x) is np.ndarray:  # the usual case
            plain = _PLAIN_OPS.get(op) if isinstance(op, str) else None
            if plain is not None and host is not None and host.all_reduce_in_place(x, plain):
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
            source = Staged(view(x, "x"), read=True)
            call = self._call(
                _C.reduce,
                source,
                None,
                options,
                count=source.caller.count,
                root=root,
                **self._op(op, factor),
            )
            return self._execute(_Made(_C.reduce, call, [source], [], None), options)
        return self._execute(
            self._reduction(_C.reduce, x, out, op, factor, options, root=root), options
        )

    def broadcast(self, x: Any, *, root: int = 0, **options: Unpack[CallOptions]) -> Any:
        """Copies the root's `x` into every rank's; shape and dtype the same everywhere. In place.

        Returns x.
        """
        self._check_root(root)
        is_root = self.rank == root
        staged = Staged(view(x, "x", writable=not is_root), read=is_root)
        call = self._call(
            _C.broadcast, staged, staged, options, count=staged.caller.count, root=root
        )
        outputs = [] if is_root else [staged]
        return self._execute(_Made(_C.broadcast, call, [staged], outputs, x), options)

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
        source = Staged(view(x, "x"), read=True)
        uneven = self._uneven(source.caller, counts, self.rank)
        call = self._call(_C.gather, source, None, options, root=root, **uneven)
        return self._execute(_Made(_C.gather, call, [source], [], None), options)

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
        source = Staged(view(x, "x"), read=True)
        target, call_counts = self._part(source.caller, out, counts, options)
        call = self._call(
            _C.reduce_scatter, source, target, options, **call_counts, **self._op(op, factor)
        )
        return self._execute(_both(_C.reduce_scatter, call, source, target), options)

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
            target = Staged(view(out, "out", writable=True), read=False)
            uneven = self._uneven(target.caller, counts, self.rank)
            call = self._call(_C.scatter, None, target, options, root=root, **uneven)
            return self._execute(_Made(_C.scatter, call, [target], [target], out), options)
        source = Staged(view(x, "x"), read=True)
        target, call_counts = self._part(source.caller, out, counts, options)
        call = self._call(_C.scatter, source, target, options, root=root, **call_counts)
        return self._execute(_both(_C.scatter, call, source, target), options)

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
        source = Staged(view(x, "x"), read=True)
        shape = source.caller.shape
        if not shape:
            raise InvalidArgument(
                "x has no dimension; expected at least one, whose parts go to the ranks."
            )
        row = _row_elements(shape)
        send = counts_of(send_counts, "send_counts", self._size)
        receive = counts_of(receive_counts, "receive_counts", self._size)
        if (send is None) != (receive is None):
            raise InvalidArgument("send_counts and receive_counts must be given together.")
        if send is not None and receive is not None:
            if sum(send) != shape[0]:
                raise InvalidArgument(
                    f"send_counts sum to {sum(send)}, but x has a first dimension of {shape[0]}."
                )
            target = self._target(source.caller, out, [(sum(receive), *shape[1:])], options)
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
            target = self._target(source.caller, out, [shape], options)
            call = self._call(
                _C.all_to_all, source, target, options, count=source.caller.count // self._size
            )
        return self._execute(_both(_C.all_to_all, call, source, target), options)

    def barrier(self, **options: Unpack[CallOptions]) -> Any:
        """Waits until every rank is here: their hosts; what their GPUs do is another matter.

        With `stream`: puts a barrier on that stream of the GPU instead, and returns. What is put on
        the stream afterwards runs when all ranks' streams are there.
        """
        made = _Made(_C.barrier, self._call(_C.barrier, None, None, options), [], [], None)
        return self._execute(made, options)

    # ---- point to point ----

    def send(self, x: Any, peer: int, *, tag: int = 0, **options: Unpack[CallOptions]) -> Any:
        """Sends `x` to `peer`. Complete when x may be changed.

        The peer need not have received it.
        """
        call, staged = self._message(_C.send, x, peer, tag, options)
        return self._execute(_Made(_C.send, call, [staged], [], None, peer), options)

    def recv(
        self, x: Any, peer: int = ANY_SOURCE, *, tag: int = 0, **options: Unpack[CallOptions]
    ) -> Any:
        """Receives into `x` from `peer` (default: from any rank) the next message with that tag.

        Returns the rank that sent it; with async_op a Work, which has `source_rank`. On a GPU the
        peer must be named, and messages of a pair match in order, whatever their tags.
        """
        call, staged = self._message(_C.recv, x, peer, tag, options)
        made = _Made(_C.recv, call, [staged], [staged], x, peer)
        if options.get("async_op"):
            return self._execute(made, options)
        if staged.caller.device is not None:
            self._execute(made, options)
            return peer
        _refuse_stream(options.get("stream"))
        source = self._host.run(call, staged)
        staged.finish()
        return source

    @contextmanager
    def group(self, *, stream: Any = None) -> Iterator[Group]:
        """Sends and receives that are posted together, so that their order does not matter:

            with comm.group() as g:
                g.send(a, right)
                g.recv(b, left)

        Complete when the block has been left; with arrays on a GPU it is then on the stream.
        """
        group = Group(self, stream)
        try:
            yield group
        finally:
            group._open = False
        group._run()

    # ---- measuring, looking, ending ----

    def prepare(
        self, collective: str, x: Any = None, out: Any = None, **arguments: Any
    ) -> PreparedCall | PreparedDeviceCall:
        """A call to be made again and again from C++; for measuring. Arrays must be contiguous.

        collective: all_reduce, all_gather, reduce_scatter, broadcast, reduce, all_to_all, gather,
            scatter, barrier, send
        or recv. Arguments as in the method of that name. With arrays on a GPU: always on the stream
        that `stream` names, or that is current now; the GPU half must be there.
        """
        made, options = self._prepared(collective, x, out, arguments)
        if any(staged.staged for staged in made.keep):
            raise InvalidArgument("prepare() needs contiguous arrays; x or out is not.")
        handle = self._gpu_of(made, options, "prepare()")
        if handle is not None:
            stream = self._gpu.stream_for(handle, made.keep, options)
            return PreparedDeviceCall(handle, made.call, stream, made.keep)
        return PreparedCall(self._host, made.call, made.keep)

    def choice_for(
        self, collective: str, x: Any = None, out: Any = None, **arguments: Any
    ) -> dict[str, Any]:
        """What a call would use: algorithm, protocol, channels, chunk_bytes; on a GPU engine, too.

        Empty words: NCCL's own choice. Arguments as in prepare().
        """
        made, options = self._prepared(collective, x, out, arguments)
        handle = self._gpu_of(made, options, "choice_for()")
        return (self._host if handle is None else handle).choice_for(made.call)

    def split(self, color: int, key: int = 0, *, name: str | None = None) -> Communicator | None:
        """Makes communicators of the ranks that give the same colour, ordered by key, then by rank.

        Collective over all ranks. Returns None where color is negative: that rank takes no part.
        Timeout, rules and device options are the parent's; the GPU half, where the parent has one,
        is made by ncclCommSplit. name: of the child; None: the parent's with a number.
        """
        color, key = integer(color, "color"), integer(key, "key")
        self._splits += 1
        name = (
            f"{self.name}/{self._splits}.{max(color, 0)}" if name is None else _checked_name(name)
        )
        taking_part = color >= 0
        members = self._members(color, key)
        store = self._origin.store
        if hasattr(store, "split"):  # MPI's, whose calls are collective
            store = store.split(color, key)
        origin = replace(
            self._origin,
            store=store,
            rank=members.index(self.rank) if taking_part else 0,
            size=len(members),
            timeout=self.timeout,
            name=name,
        )
        host = _join_host(origin, alone=True) if taking_part and self._handle else None
        gpu = self._gpu.split(color, key, origin)
        if gpu is None:
            return None
        if self._handle is None and gpu.handle is not None:
            origin = replace(origin, rank=gpu.handle.rank, size=gpu.handle.size)
        return Communicator(origin, host, gpu)

    def _members(self, color: int, key: int) -> list[int]:
        """The ranks of one colour in their new order; without a host half NCCL finds them."""
        if self._handle is None:
            return [self.rank]
        pairs = self.all_gather(np.array([color, key], np.int64)).tolist()
        ranks = [rank for rank, (theirs, _) in enumerate(pairs) if theirs == color]
        return sorted(ranks, key=lambda rank: (pairs[rank][1], rank))

    def statistics(self) -> dict[str, Any]:
        """Counters since the start: works posted, completed and failed, traffic, staging_bytes.

        Where there is a GPU half, `device` has its own: enqueued, completed, failed, captured (into
        graphs), nccl_calls, kernel_launches.
        """
        counters = {} if self._handle is None else self._handle.statistics()
        if self._gpu.handle is not None:
            counters["device"] = self._gpu.handle.statistics()
        return counters

    def trace(self, *, device: bool = False) -> dict[str, Any]:
        """The last 2,048 operations, of the host half or of the GPU half; docs/trace.md has the
        fields.
        """
        half = self._gpu.require("trace(device=True)") if device else self._host
        result: dict[str, Any] = json.loads(half.trace_json())
        return result

    @property
    def error(self) -> AcclError | None:
        """The error that ended the communicator or one half of it; None while it is well."""
        for half in self._halves:
            try:
                half.raise_error()
            except AcclError as error:
                return error
        return None

    def abort(self, reason: str = "the program asked for it") -> None:
        """Ends all pending and later calls, here with AbortedError and on the peers with
        PeerError. Idempotent.
        """
        for half in self._halves:
            half.abort(str(reason))

    def shutdown(self) -> None:
        """Waits for the posted calls and leaves. Idempotent; later calls raise AbortedError."""
        try:
            if self._gpu.handle is not None:
                self._gpu.handle.shutdown()
        finally:
            if self._handle is not None:
                self._handle.shutdown()

    # ---- inside ----

    @property
    def _host(self) -> _core.Communicator:
        if self._handle is None:
            raise SeveralHostsError(
                f"The ranks of communicator '{self.name}' are on several hosts, and the CPU engine "
                "connects ranks of one host only in this version; give arrays on the GPU, and "
                "barrier(stream=...)."
            )
        return self._handle

    @property
    def _halves(self) -> list[_core.Communicator | _core.DeviceCommunicator]:
        return [half for half in (self._handle, self._gpu.handle) if half is not None]

    @property
    def _either(self) -> _core.Communicator | _core.DeviceCommunicator:
        return self._halves[0]

    def _prepared(
        self, collective: str, x: Any, out: Any, arguments: dict[str, Any]
    ) -> tuple[_Made, CallOptions]:
        kind = _core.collective(collective)
        options: CallOptions = {k: arguments.pop(k) for k in list(arguments) if k in OPTION_NAMES}  # type: ignore[assignment]
        options.pop("async_op", None)
        recorder = _Recorder(self)
        method = getattr(recorder, kind.name)
        positional = {_C.barrier: (), _C.broadcast: (x,), _C.send: (x,), _C.recv: (x,)}.get(
            kind, (x, out)
        )
        method(*positional, **arguments, **options)
        return recorder.recorded[0], options

    def _gpu_of(
        self, made: _Made, options: CallOptions, what: str
    ) -> _core.DeviceCommunicator | None:
        """The GPU half, if the call is for it; made before, since not all ranks may be here."""
        device = device_of(made.keep)
        if device is not None or (made.kind == _C.barrier and options.get("stream") is not None):
            return self._gpu.require(what, device)
        _refuse_stream(options.get("stream"))
        return None

    def _op(self, op: str, factor: float) -> dict[str, Any]:
        if not isinstance(op, str):
            raise InvalidArgument(f"op is {op!r}; expected a word such as 'sum'.")
        if type(factor) is not float:
            if not isinstance(factor, Real):
                raise InvalidArgument(f"factor is {factor!r}; expected a number.")
            factor = float(factor)
        return {"op": _core.reduce_op(op), "factor": factor}

    def _check_root(self, root: int) -> None:
        if not 0 <= integer(root, "root") < self._size:
            raise InvalidArgument(f"root is {root}; expected 0 to {self._size - 1}.")

    def _call(
        self,
        kind: _core.Collective,
        source: Staged | None,
        target: Staged | None,
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
            **core_options(options),
        )

    def _execute(self, made: _Made, options: CallOptions) -> Any:
        device = device_of(made.keep)
        stream = options.get("stream")
        if device is not None or (stream is not None and made.kind == _C.barrier):
            return self._execute_on_gpu(made, device, options)
        if stream is not None:
            _refuse_stream(stream)
        if options.get("async_op"):
            work = self._host.post(made.call, made.keep)
            return HostWork(work, made.result, [staged for staged in made.outputs if staged.staged])
        self._host.run(made.call, made.keep)
        finish_all(made.outputs)
        return made.result

    def _execute_on_gpu(self, made: _Made, device: int | None, options: CallOptions) -> Any:
        if options.get("stream") is not None:
            stream_handle(options["stream"], device)  # a bad one is refused before anything starts
        if device is None or made.kind in _POINT_TO_POINT:
            handle = self._gpu.require(f"{made.kind.name}() on a GPU", device)
        else:
            handle = self._gpu.join(device, self.timeout)
        return self._gpu.enqueue(handle, [made.call], made.keep, made.result, options, made.peer)

    def _reduction(
        self,
        kind: _core.Collective,
        x: Any,
        out: Any,
        op: str,
        factor: float,
        options: CallOptions,
        **fields: Any,
    ) -> _Made:
        in_place = out is None
        source = Staged(view(x, "x", writable=in_place), read=True)
        shapes = [source.caller.shape]
        target = source if in_place else self._target(source.caller, out, shapes, options)
        call = self._call(
            kind,
            source,
            target,
            options,
            count=source.caller.count,
            **self._op(op, factor),
            **fields,
        )
        return _both(kind, call, source, target)

    def _gathering(
        self,
        kind: _core.Collective,
        x: Any,
        out: Any,
        counts: Sequence[int] | None,
        root: int,
        options: CallOptions,
    ) -> _Made:
        source = Staged(view(x, "x"), read=True)
        shape = source.caller.shape
        counts = counts_of(counts, "counts", self._size)
        if counts is None:
            shapes = [(self._size, *shape)]
            if shape:
                shapes.append((self._size * shape[0], *shape[1:]))
        else:
            shapes = [(sum(counts), *shape[1:])]
        uneven = self._uneven(source.caller, counts, self.rank)
        target = self._target(source.caller, out, shapes, options)
        call = self._call(kind, source, target, options, root=root, **uneven)
        return _both(kind, call, source, target)

    def _uneven(self, v: View, counts: Sequence[int] | None, rank: int) -> dict[str, Any]:
        """The sizes of a call whose own block is `v`."""
        checked = counts_of(counts, "counts", self._size)
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
        self, whole: View, out: Any, counts: Sequence[int] | None, options: CallOptions
    ) -> tuple[Staged, dict[str, Any]]:
        """The output of one rank's part of `whole`, and the sizes of the call."""
        shape = whole.shape
        if not shape:
            raise InvalidArgument(
                "x has no dimension; expected at least one, whose parts go to the ranks."
            )
        checked = counts_of(counts, "counts", self._size)
        if checked is not None:
            if sum(checked) != shape[0]:
                raise InvalidArgument(
                    f"counts sum to {sum(checked)}, but x has a first dimension of {shape[0]}."
                )
            row = _row_elements(shape)
            target = self._target(whole, out, [(checked[self.rank], *shape[1:])], options)
            return target, {"counts": [c * row for c in checked]}
        if shape[0] % self._size:
            raise InvalidArgument(
                f"x has a first dimension of {shape[0]}, which {self._size} ranks do not divide; "
                "give counts."
            )
        shapes = [(shape[0] // self._size, *shape[1:])]
        if shape[0] == self._size:
            shapes.insert(0, shape[1:])
        target = self._target(whole, out, shapes, options)
        return target, {"count": whole.count // self._size}

    def _target(
        self, source: View, out: Any, shapes: list[tuple[int, ...]], options: CallOptions
    ) -> Staged:
        """The output: the caller's, of one of `shapes` and the source's dtype, or a new one of the
        first.
        """
        if out is None:
            stream = options.get("stream")
            if stream is not None and source.device is not None:
                stream = stream_handle(stream, source.device)
            made = like(source, shapes[0], stream)
            return Staged(view(made, "out", writable=True), read=False)
        target = view(out, "out", writable=True)
        if target.dtype != source.dtype:
            raise InvalidArgument(
                f"out has dtype {target.dtype.name}, but x has {source.dtype.name}; they must be "
                "the same."
            )
        if target.shape not in shapes:
            wanted = " or ".join(str(shape) for shape in shapes)
            raise InvalidArgument(f"out has shape {target.shape}; expected {wanted}.")
        return Staged(target, read=False)

    def _message(
        self, kind: _core.Collective, x: Any, peer: int, tag: int, options: CallOptions
    ) -> tuple[_core.Call, Staged]:
        receives = kind == _C.recv
        staged = Staged(view(x, "x", writable=receives), read=not receives)
        fields = {
            "count": staged.caller.count,
            "peer": integer(peer, "peer"),
            "tag": integer(tag, "tag"),
        }
        if receives:
            return self._call(kind, None, staged, options, **fields), staged
        return self._call(kind, staged, None, options, **fields), staged


class _Recorder(Communicator):
    """A communicator that notes the call that a method would make, instead of making it."""

    _quick = False

    def __init__(self, communicator: Communicator) -> None:
        super().__init__(communicator._origin, communicator._handle, communicator._gpu)
        self.recorded: list[_Made] = []

    def _execute(self, made: _Made, options: CallOptions) -> Any:
        self.recorded.append(made)

    def recv(
        self, x: Any, peer: int = ANY_SOURCE, *, tag: int = 0, **options: Unpack[CallOptions]
    ) -> Any:
        call, staged = self._message(_C.recv, x, peer, tag, options)
        self.recorded.append(_Made(_C.recv, call, [staged], [staged], x, peer))


def _both(kind: _core.Collective, call: _core.Call, source: Staged, target: Staged) -> _Made:
    return _Made(kind, call, [source, target], [target], target.caller.array)


def _refuse_stream(stream: Any) -> None:
    if stream is not None:
        raise InvalidArgument(
            "stream is given, but the arrays are in host memory; expected arrays on a GPU."
        )


def _checked_name(name: Any) -> str:
    if not isinstance(name, str) or not name or "\n" in name:
        raise InvalidArgument(f"name is {name!r}; expected a text of one line.")
    return name


def _device_options(options: Any) -> DeviceOptions:
    if options is not None and not isinstance(options, dict):
        raise InvalidArgument(f"device_options is {options!r}; expected a dict or None.")
    return DeviceOptions(**(options or {}))


def _join_host(origin: Origin, *, alone: bool) -> _core.Communicator | None:
    """The host half; None where the ranks are on several hosts, and it does not stand alone."""
    try:
        return _core.Communicator.create(
            StoreAdapter(origin.store),
            origin.rank,
            origin.size,
            origin.timeout,
            origin.name,
            origin.rules,
            origin.rules_file,
        )
    except SeveralHostsError as error:
        if alone:
            raise SeveralHostsError(
                f"{error} For arrays on GPUs, give device= on every rank."
            ) from None
        return None


def _row_elements(shape: tuple[int, ...]) -> int:
    elements = 1
    for n in shape[1:]:
        elements *= n
    return elements
