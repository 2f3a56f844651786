"""accl-perf: time, bandwidth and correctness of a collective, in the form of nccl-tests.

Started bare, it starts --ranks processes here; under torchrun, mpirun or srun it is one rank of
theirs. With --device cuda each rank uses one GPU: that of its number on the host.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from accl_py import __version__, _core
from accl_py.communicator import Communicator
from accl_py.errors import AcclError, InvalidArgument
from accl_py.launch import check_local_ranks, init, local_rank, rank_of_launcher
from accl_py.perf import data, table
from accl_py.perf.cuda import Device, device_count
from accl_py.perf.measure import Plan, check, prepare
from accl_py.perf.memory import GpuMemory, HostMemory, Memory, Timed
from accl_py.perf.sizes import COLLECTIVES, Shape, bandwidths, parse_size, progression
from accl_py.perf.world import World, parse_split
from accl_py.stores import FileStore

__all__ = ["main"]

EXIT_WRONG = 1  # wrong elements, or bandwidth below --min-bw
EXIT_USAGE = 2
EXIT_FAILED = 3  # a rank failed
_TOLD = ("ACCL_", "NCCL_")  # of the environment, in the JSON file
_ALIASES = {
    "all_to_all": "alltoall",
    "all_to_all_v": "alltoallv",
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
}


def _parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="accl-perf", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("collective", help=f"one of: {', '.join(COLLECTIVES)}")
    p.add_argument("-b", "--minbytes", default="32M", help="least size (K, M, G are binary)")
    p.add_argument("-e", "--maxbytes", default="32M", help="largest size")
    p.add_argument(
        "-f", "--stepfactor", type=int, default=1, help="factor between sizes; 1: use -i"
    )
    p.add_argument("-i", "--stepbytes", default="1M", help="bytes between sizes")
    p.add_argument("-n", "--iters", type=int, default=20, help="timed calls a size")
    p.add_argument("-w", "--warmup_iters", type=int, default=1, help="calls before them")
    p.add_argument("-c", "--check", type=int, default=1, help="0: do not check results")
    p.add_argument("-o", "--op", default="sum", help=f"one of: {', '.join(data.OPERATIONS)}, all")
    p.add_argument(
        "-d", "--datatype", default="float", help=f"one of: {', '.join(data.DTYPES)}, all"
    )
    p.add_argument("-r", "--root", type=int, default=0, help="root; -1: every rank in turn")
    p.add_argument("-m", "--agg_iters", type=int, default=1, help="calls counted as one")
    p.add_argument("-N", "--run_cycles", type=int, default=1, help="how often to run all sizes")
    p.add_argument(
        "-I",
        "--per_iteration",
        action="store_true",
        help="also print least, most, 99th percentile and CV of the calls",
    )
    p.add_argument(
        "-t",
        "--nthreads",
        type=int,
        default=1,
        choices=[1],
        help="1 only: a rank is a process here",
    )
    p.add_argument(
        "-g", "--ngpus", type=int, default=1, choices=[1], help="1 only: a rank is a process here"
    )
    p.add_argument(
        "-z", "--blocking", type=int, default=0, help="1: a barrier before every timed call"
    )
    p.add_argument(
        "-a", "--average", type=int, default=1, help="time of: 0 rank 0, 1 average, 2 least, 3 most"
    )
    p.add_argument(
        "-T", "--timeout", type=float, default=0, help="seconds of each call; 0: 30 minutes"
    )
    p.add_argument("-J", "--output_file", default=None, help="write JSON, too")
    p.add_argument(
        "--ranks", type=int, default=2, help="processes to start, where no launcher does"
    )
    p.add_argument("--device", default="cpu", choices=["cpu", "cuda"], help="where the data lies")
    p.add_argument(
        "-G",
        "--cudagraph",
        type=int,
        default=0,
        metavar="N",
        help="capture the timed calls into a CUDA graph and launch it N times",
    )
    p.add_argument(
        "-C",
        "--report_cputime",
        type=int,
        default=0,
        choices=[0, 1],
        help="1: time what the host needs to put the calls on the stream",
    )
    p.add_argument(
        "--share-gpu",
        action="store_true",
        help="for tests: let ranks share GPUs; NCCL then goes over loopback sockets",
    )
    p.add_argument(
        "--split",
        default=os.environ.get("NCCL_TESTS_SPLIT"),
        metavar="RULE",
        help="several groups at once: 'MOD 2', 'DIV 4', 'AND 0x3' of the rank is its group "
        "(default: NCCL_TESTS_SPLIT)",
    )
    p.add_argument("--rules", default=None, help="a rules file")
    p.add_argument("--algorithm", default=None, help="force an algorithm (docs/algorithms.md)")
    p.add_argument("--protocol", default=None, help="force a protocol: inline or bulk")
    p.add_argument("--chunk", default=None, help="force a chunk size in bytes")
    p.add_argument(
        "--against",
        default=None,
        metavar="BACKEND",
        help="compare with a torch backend, in one interleaved run",
    )
    p.add_argument("--local-rank", type=int, default=None, help=argparse.SUPPRESS)
    p.add_argument("--local-store", default=None, help=argparse.SUPPRESS)
    return p


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command. Exit codes: 0 good, 1 wrong results, 2 bad arguments, 3 a rank failed."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    options = _parser().parse_args(words)
    try:
        shape = _validate(options)
        if options.local_rank is None and rank_of_launcher() is None:
            check_local_ranks(options.ranks)
            _check_gpus(options)
            return _start_ranks(words, options.ranks)
        return _run(options, shape)
    except InvalidArgument as error:
        print(f"accl-perf: {error}", file=sys.stderr)
        return EXIT_USAGE
    except AcclError as error:
        print(f"accl-perf: {error}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        return 130


def _validate(o: argparse.Namespace) -> Shape:
    name = _ALIASES.get(o.collective, o.collective)
    if name not in COLLECTIVES:
        raise InvalidArgument(
            f"Collective '{o.collective}' is unknown; expected one of: {', '.join(COLLECTIVES)}."
        )
    o.first, o.last = parse_size(o.minbytes, "-b"), parse_size(o.maxbytes, "-e")
    o.increment = parse_size(o.stepbytes, "-i")
    o.chunk_bytes = None if o.chunk is None else parse_size(o.chunk, "--chunk")
    if o.first > o.last:
        raise InvalidArgument(f"-b {o.minbytes} is above -e {o.maxbytes}.")
    if o.stepfactor <= 1 and o.increment == 0:
        raise InvalidArgument("-i is 0; expected bytes above 0, or a factor -f above 1.")
    for value, flag, least in (
        (o.iters, "-n", 1),
        (o.warmup_iters, "-w", 0),
        (o.ranks, "--ranks", 1),
        (o.agg_iters, "-m", 1),
        (o.run_cycles, "-N", 1),
        (o.stepfactor, "-f", 1),
        (o.cudagraph, "-G", 0),
    ):
        if value < least:
            raise InvalidArgument(f"{flag} is {value}; expected at least {least}.")
    if o.average not in (0, 1, 2, 3):
        raise InvalidArgument(f"-a is {o.average}; expected 0, 1, 2 or 3.")
    for value, flag, known in ((o.op, "-o", data.OPERATIONS), (o.datatype, "-d", data.DTYPES)):
        if value not in known and value != "all":
            raise InvalidArgument(f"{flag} is '{value}'; expected one of: {', '.join(known)}, all.")
    o.color_of = parse_split(o.split)
    _validate_device(o)
    return COLLECTIVES[name]


def _validate_device(o: argparse.Namespace) -> None:
    if o.device == "cpu":
        for given, flag in (
            (o.cudagraph, "-G"),
            (o.report_cputime, "-C 1"),
            (o.share_gpu, "--share-gpu"),
        ):
            if given:
                raise InvalidArgument(f"{flag} is for GPUs only; expected --device cuda with it.")
    if o.cudagraph and (o.per_iteration or o.blocking):
        raise InvalidArgument(
            "-G times all calls of a graph together; expected neither -I nor -z with it."
        )
    if o.report_cputime and o.per_iteration:
        raise InvalidArgument(
            "-I shows the GPU's time between calls, and -C 1 asks for the host's; expected one of them."
        )
    if o.against and (o.device == "cuda" or o.split):
        raise InvalidArgument(
            "--against compares on the CPU, with all ranks in one group; expected neither "
            "--device cuda nor --split with it."
        )


def _check_gpus(o: argparse.Namespace) -> None:
    """Says before the start that there are too few GPUs."""
    if o.device != "cuda" or o.share_gpu:
        return
    count = device_count()
    if o.ranks > count:
        raise InvalidArgument(
            f"--ranks is {o.ranks}, but this process sees {count} GPU(s), and a rank needs one of "
            "its own; use fewer ranks, or --share-gpu to let ranks share them, for tests."
        )


def _start_ranks(words: list[str], ranks: int) -> int:
    """Starts the ranks here; when one fails, the others are ended."""
    with tempfile.TemporaryDirectory(prefix="accl-perf-") as directory:
        command = [
            sys.executable,
            "-m",
            "accl_py.perf.cli",
            *words,
            "--local-store",
            directory,
            "--local-rank",
        ]
        processes = [subprocess.Popen([*command, str(rank)]) for rank in range(ranks)]
        try:
            while any(p.poll() is None for p in processes):
                failed = [
                    r for r, p in enumerate(processes) if p.poll() not in (None, 0, EXIT_WRONG)
                ]
                if failed:
                    time.sleep(2)  # the others notice, and say so
                    break
                time.sleep(0.01)
        finally:
            for p in processes:
                if p.poll() is None:
                    p.kill()
                p.wait()
        codes = [p.returncode for p in processes]
    for rank, code in enumerate(codes):
        if code < 0:
            print(f"accl-perf: rank {rank} was ended by signal {-code}.", file=sys.stderr)
            return EXIT_FAILED
    return max(codes)


def _run(o: argparse.Namespace, shape: Shape) -> int:
    memory = _memory(o)
    with _join(o, memory) as comm:
        world = World(comm, memory)
        group = comm.split(o.color_of(comm.rank), comm.rank) if o.split else comm
        assert group is not None
        _check_root(o, group.size)
        _check_memory(o, comm.size)
        rival = None
        if o.against:
            from accl_py.torch.rival import Rival

            rival = Rival(o.against, comm, shape.method)
        rows = _measure_all(o, shape, world, group, memory, rival)
        wrong = sum(
            h.wrong or 0 for row in rows for h in (row.out_of_place, row.in_place) if h is not None
        )
        if world.rank == 0:
            _finish(o, world, rows, wrong)
        world.barrier()
        if group is not comm:
            group.shutdown()
    return EXIT_WRONG if wrong else 0


def _memory(o: argparse.Namespace) -> Memory:
    if o.device == "cpu":
        return HostMemory()
    if o.share_gpu:
        _share_gpu(o)
    mine = local_rank() if o.local_rank is None else o.local_rank
    count = device_count()
    if count == 0:
        raise InvalidArgument("--device is cuda, but this process sees no GPU.")
    return GpuMemory(Device(mine % count), o.cudagraph, bool(o.report_cputime))


def _share_gpu(o: argparse.Namespace) -> None:
    """NCCL takes two ranks on one GPU for a mistake, unless it takes them for two hosts."""
    rank = rank_of_launcher() if o.local_rank is None else o.local_rank
    os.environ["NCCL_HOSTID"] = f"accl-perf-{rank or 0}"
    for name, value in (("NCCL_SOCKET_IFNAME", "lo"), ("NCCL_IB_DISABLE", "1")):
        os.environ.setdefault(name, value)
    _core.reload_environment()


def _join(o: argparse.Namespace, memory: Memory) -> Communicator:
    settings: dict[str, Any] = {"rules": o.rules, "name": "accl-perf"}
    if o.timeout:
        settings["timeout"] = o.timeout
    if isinstance(memory, GpuMemory):
        settings["device"] = memory.device.ordinal
    if o.local_rank is None:
        return init(**settings)
    return Communicator.from_store(FileStore(o.local_store), o.local_rank, o.ranks, **settings)


def _check_root(o: argparse.Namespace, ranks: int) -> None:
    if o.root >= ranks or o.root < -1:
        raise InvalidArgument(
            f"-r is {o.root}; expected 0 to {ranks - 1}, or -1 for every rank in turn."
        )


def _check_memory(o: argparse.Namespace, ranks: int) -> None:
    """Says before the start that the sizes do not fit into what the machine has free."""
    elements = o.last // (1 if o.datatype == "all" else data.DTYPES[o.datatype].itemsize)
    # Buffers and their reset copy; for the check the values of all ranks in int64.
    need = ranks * (4 * o.last + (8 * elements * (ranks + 3) if o.check else 8 * elements))
    available = next(
        int(line.split()[1]) * 1024
        for line in Path("/proc/meminfo").read_text().splitlines()
        if line.startswith("MemAvailable")
    )
    if need > available:
        raise InvalidArgument(
            f"-e {o.maxbytes} with {ranks} ranks needs about {need / 2**30:.1f} GiB on this host, which has {available / 2**30:.1f} "
            "GiB free; use a smaller -e, fewer ranks, or -c 0 (no check needs less)."
        )


def _measure_all(
    o: argparse.Namespace,
    shape: Shape,
    world: World,
    group: Communicator,
    memory: Memory,
    rival: Any,
) -> list[table.Row]:
    _print_header(o, shape, world, group, memory)
    operations = (
        (list(data.OPERATIONS) if o.op == "all" else [o.op]) if shape.reducing else ["none"]
    )
    dtypes = list(data.DTYPES) if o.datatype == "all" else [o.datatype]
    roots = (range(group.size) if o.root == -1 else [o.root]) if shape.rooted else [-1]
    choice = (
        ("algorithm", o.algorithm),
        ("protocol", o.protocol),
        ("chunk_bytes", o.chunk_bytes),
    )
    forced = {k: v for k, v in choice if v is not None}
    rows: list[table.Row] = []
    for size in list(progression(o.first, o.last, o.stepfactor, o.increment)) * o.run_cycles:
        for dtype in dtypes:
            count = shape.count(size, data.DTYPES[dtype].itemsize, group.size)
            for op in operations:
                for root in roots:
                    plan = Plan(shape, count, dtype, op, max(root, 0), forced, bool(o.check))
                    row = _Measurement(o, world, group, memory, rival).row(plan, root, len(rows))
                    rows.append(row)
                    if world.rank == 0:
                        print(table.line(row), flush=True)
    return rows


@dataclass
class _Measurement:
    """What one row needs."""

    options: argparse.Namespace
    world: World
    group: Communicator
    memory: Memory
    rival: Any

    def row(self, plan: Plan, root: int, seed: int) -> table.Row:
        """Out of place, then in place where that exists."""
        itemsize = data.DTYPES[plan.dtype].itemsize
        size = plan.shape.bytes(plan.count, itemsize, self.group.size)
        halves: list[table.Half | None] = []
        against = None
        for in_place in (False, True):
            timed = prepare(plan, self.group, self.memory, seed * 2 + in_place, in_place)
            if timed is None:
                halves.append(None)
                continue
            wrong = None
            if self.options.check:
                wrong = int(self.world.over_ranks(float(check(timed, self.memory)), "sum"))
            timed.warm(self.options.warmup_iters)
            each: tuple[float, ...] = ()
            if self.rival is not None and not in_place:
                seconds, against = self._race(plan, size)
            else:
                self.world.barrier()
                seconds, each = self._time(timed)
                seconds = self._average(seconds)
            bandwidth = bandwidths(plan.shape, size, seconds, self.group.size)
            halves.append(table.Half(seconds, *bandwidth, wrong, each))
        out_of_place = halves[0]
        assert out_of_place is not None
        return table.Row(
            size, plan.count, plan.dtype, plan.op, root, out_of_place, halves[1], against
        )

    def _race(self, plan: Plan, size: int) -> tuple[float, tuple[float, float]]:
        o = self.options
        mine, theirs = self.rival.race(
            plan.count, data.DTYPES[plan.dtype].name, plan.root, o.iters, o.warmup_iters
        )
        other = self.world.over_ranks(theirs, "max")
        busbw = bandwidths(plan.shape, size, other, self.group.size)[1]
        return self.world.over_ranks(mine, "max"), (other, busbw)

    def _time(self, timed: Timed) -> tuple[float, tuple[float, ...]]:
        """Seconds a call, and with -I of each call, as the slowest rank saw it."""
        o = self.options
        if o.per_iteration:
            each = self.world.gather(np.array(timed.time_each(o.iters))).max(0)
            return float(each.mean()), tuple(each.tolist())
        if not o.blocking:
            return timed.time(o.iters * o.agg_iters) / (o.iters * o.agg_iters), ()
        total = 0.0
        for _ in range(o.iters):  # every call begins with all ranks ready
            self.world.barrier()
            total += timed.time(o.agg_iters)
        return total / (o.iters * o.agg_iters), ()

    def _average(self, seconds: float) -> float:
        mode = self.options.average
        if mode == 0:
            return self.world.of_rank(seconds, 0)
        return self.world.over_ranks(seconds, {1: "avg", 2: "min", 3: "max"}[mode])


def _print_header(
    o: argparse.Namespace, shape: Shape, world: World, group: Communicator, memory: Memory
) -> None:
    """Collective: every rank tells which it is."""
    where = "device  0 [0x00] cpu"
    if isinstance(memory, GpuMemory):
        gpu = memory.device
        where = f"device {gpu.ordinal:2d} [{gpu.bus_id}] {gpu.name}"
    own = f"Group {o.color_of(world.rank):2d} Pid {os.getpid():6d} on {socket.gethostname():>10} "
    ranks = world.texts(own + where)
    if world.rank != 0:
        return
    step = f"{o.stepfactor}(factor)" if o.stepfactor > 1 else f"{o.increment}(bytes)"
    print(f"# accl-perf version {__version__} (form of nccl-tests 2.19){_nccl(group, memory)}")
    print(f"# Collective test starting: {shape.name}_perf")
    print(
        f"# nThread 1 nGpus 1 minBytes {o.first} maxBytes {o.last} step: {step} warmup iters: {o.warmup_iters} "
        f"iters: {o.iters} agg iters: {o.agg_iters} validation: {o.check} graph: {o.cudagraph}"
    )
    print("#\n# Using devices")
    for rank, text in enumerate(ranks):
        print(f"#  Rank {rank:2d} {text}")
    print("#")
    if o.share_gpu:
        print(
            "# RANKS SHARE GPUS (--share-gpu): NCCL takes each for a host of its own, and moves data over\n"
            "# LOOPBACK SOCKETS. These figures say nothing about the links of GPUs.\n#"
        )
    if o.report_cputime:
        print("# time: of the host, to put a call on the stream (-C 1)\n#")
    print("\n".join(table.header(o.against, o.per_iteration)), flush=True)


def _nccl(group: Communicator, memory: Memory) -> str:
    return f" nccl-library={group.nccl_version}" if isinstance(memory, GpuMemory) else ""


def _finish(o: argparse.Namespace, world: World, rows: list[table.Row], wrong: int) -> None:
    halves = [h for row in rows for h in (row.out_of_place, row.in_place) if h is not None]
    average = sum(h.busbw for h in halves) / max(len(halves), 1)
    print(f"# Out of bounds values : {wrong} {'OK' if wrong == 0 else 'FAILED'}")
    print(f"# Avg bus bandwidth    : {average:g}\n#", flush=True)
    if o.output_file is None:
        return
    document = {
        "version": 3,
        "args": sys.argv,
        "env": [f"{k}={v}" for k, v in sorted(os.environ.items()) if k.startswith(_TOLD)],
        "config": {
            "nranks": world.size,
            "iters": o.iters,
            "warmup_iters": o.warmup_iters,
            "device": o.device,
            "graph": o.cudagraph,
            "shared_gpus": o.share_gpu,
        },
        "results": [table.json_row(row) for row in rows],
        "out_of_bounds": {"count": wrong, "okay": "true" if wrong == 0 else "false"},
        "average_bus_bandwidth": {"bandwidth": average, "okay": "true"},
    }
    _free_path(Path(o.output_file)).write_text(json.dumps(document, indent=1) + "\n")


def _free_path(path: Path) -> Path:
    """The path, or path.0, path.1, ... where that exists: nothing is overwritten."""
    candidate, number = path, 0
    while candidate.exists():
        candidate, number = path.with_name(f"{path.name}.{number}"), number + 1
    return candidate


if __name__ == "__main__":
    sys.exit(main())
