"""Random calls against numpy: `python fuzz_calls.py RANKS SEED SECONDS`; ranks are processes.

All ranks draw the same calls from one seed: collectives, messages and groups, of random sizes, dtypes, algorithms,
protocols and chunk sizes, in and out of place, waited for at once or later. A wrong element ends a rank with a
sentence that has all that is needed to make the call again.
"""

import random
import subprocess
import sys
import tempfile
import time

import accl_py
import numpy as np
from accl_py import schedule

DTYPES = "float64 float32 float16 int8 int16 int32 int64 uint8 uint16 uint32 uint64 complex64 complex128".split()
COUNTS = (0, 1, 2, 3, 7, 64, 100, 1000, 5000)
CHUNKS = (64, 128, 1024, 4096, 65536, 1 << 20)
KINDS = (
    "all_reduce reduce broadcast all_gather gather reduce_scatter scatter all_to_all barrier "
    "uneven_all_gather uneven_all_to_all messages group"
).split()
BETWEEN_AGREEMENTS = 200  # calls, after which the ranks agree on whether time is up


class Fuzz:
    """One rank."""

    def __init__(self, comm, seed):
        self.comm, self.seed = comm, seed
        self.rng = random.Random(seed)
        self.number = 0
        self.pending = []

    def values(self, rank, count, salt=0):
        """What a rank holds in this call: whole numbers 0 to 2."""
        generator = np.random.default_rng([self.seed, self.number, rank, salt])
        return generator.integers(0, 3, count).astype(self.dtype)

    def reduced(self, values):
        stack = np.stack(values)
        if self.op == "max":
            return stack.max(0)
        if self.op == "min":
            return stack.min(0)
        total = stack.sum(0)
        if self.op == "avg":
            whole = np.dtype(self.dtype).kind in "iu"
            total = total // self.comm.size if whole else total / self.comm.size
        return total.astype(self.dtype)

    def step(self):
        """Draws a call, makes it, and checks it now or later."""
        rng, comm = self.rng, self.comm
        self.number += 1
        self.kind = rng.choice(KINDS)
        self.count = rng.choice((*COUNTS, rng.randrange(200_000)))
        self.dtype = rng.choice(DTYPES)
        self.op = "sum" if self.dtype.startswith("c") else rng.choice(("sum", "max", "min", "avg"))
        self.root = rng.randrange(comm.size)
        self.options = self.draw_options()
        work, out, right = getattr(self, self.kind)()
        if isinstance(work, accl_py.Work):
            self.pending.append((work, out, right, self.describe()))
        else:
            self.check(out, right, self.describe())
        if len(self.pending) > 6 or rng.random() < 0.3:
            self.settle()

    def draw_options(self):
        rng, options = self.rng, {}
        method = self.kind.removeprefix("uneven_")
        if method not in ("messages", "group"):
            uneven = self.kind.startswith("uneven_")
            names = [a.name for a in schedule.algorithms(method) if a.uneven or not uneven]
            if rng.random() < 0.7:
                options["algorithm"] = rng.choice(names)
            if rng.random() < 0.5:
                options["protocol"] = rng.choice(("inline", "bulk"))
            if rng.random() < 0.5:
                options["chunk_bytes"] = rng.choice(CHUNKS)
            if rng.random() < 0.4:
                options["async_op"] = True
        return options

    def describe(self):
        return (
            f"seed {self.seed}, call {self.number}: {self.kind} of {self.count} {self.dtype} ({self.op}), root "
            f"{self.root}, {self.options}, rank {self.comm.rank} of {self.comm.size}"
        )

    def check(self, got, right, what):
        if np.asarray(right).dtype.kind in "fc":
            tolerance = 2 * float(np.finfo(np.asarray(right).dtype).eps)
            good = np.allclose(got, right, rtol=tolerance, atol=0)
        else:
            good = np.array_equal(got, right)
        if not good:
            wrong = np.flatnonzero(np.ravel(got) != np.ravel(right))
            raise AssertionError(f"{what}: wrong at {wrong[:5]} and {max(len(wrong) - 5, 0)} more")

    def settle(self):
        for work, out, right, what in self.pending:
            work.wait()
            self.check(out, right, what)
        self.pending = []

    # Each makes one call; returns what it returned (a Work or not), the result, and the right result.

    def all_reduce(self):
        values = [self.values(r, self.count) for r in range(self.comm.size)]
        x = values[self.comm.rank].copy()
        out = np.empty_like(x) if self.rng.random() < 0.5 else None
        work = self.comm.all_reduce(x, out, op=self.op, **self.options)
        return work, x if out is None else out, self.reduced(values)

    def reduce(self):
        values = [self.values(r, self.count) for r in range(self.comm.size)]
        out = np.empty_like(values[0])
        x = values[self.comm.rank]
        work = self.comm.reduce(x.copy(), out, op=self.op, root=self.root, **self.options)
        return (work, out, self.reduced(values)) if self.comm.rank == self.root else (work, 0, 0)

    def broadcast(self):
        x = self.values(self.comm.rank, self.count)
        return (
            self.comm.broadcast(x, root=self.root, **self.options),
            x,
            self.values(self.root, self.count),
        )

    def all_gather(self):
        values = [self.values(r, self.count) for r in range(self.comm.size)]
        out = np.empty((self.comm.size, self.count), self.dtype)
        return (
            self.comm.all_gather(values[self.comm.rank], out, **self.options),
            out,
            np.stack(values),
        )

    def uneven_all_gather(self):
        counts = [(r * 7 + self.count) % (self.count + 1) for r in range(self.comm.size)]
        values = [self.values(r, n) for r, n in enumerate(counts)]
        out = np.empty(sum(counts), self.dtype)
        work = self.comm.all_gather(values[self.comm.rank], out, counts=counts, **self.options)
        return work, out, np.concatenate(values)

    def gather(self):
        values = [self.values(r, self.count) for r in range(self.comm.size)]
        is_root = self.comm.rank == self.root
        out = np.empty((self.comm.size, self.count), self.dtype) if is_root else None
        work = self.comm.gather(values[self.comm.rank], out, root=self.root, **self.options)
        return (work, out, np.stack(values)) if is_root else (work, 0, 0)

    def _parts(self):
        values = [self.values(r, self.count * self.comm.size) for r in range(self.comm.size)]
        mine = slice(self.comm.rank * self.count, (self.comm.rank + 1) * self.count)
        return values, mine, np.empty(self.count, self.dtype)

    def reduce_scatter(self):
        values, mine, out = self._parts()
        work = self.comm.reduce_scatter(values[self.comm.rank], out, op=self.op, **self.options)
        return work, out, self.reduced(values)[mine]

    def scatter(self):
        values, mine, out = self._parts()
        x = values[self.root] if self.comm.rank == self.root else None
        return (
            self.comm.scatter(x, out, root=self.root, **self.options),
            out,
            values[self.root][mine],
        )

    def all_to_all(self):
        values, mine, _ = self._parts()
        out = np.empty_like(values[0])
        work = self.comm.all_to_all(values[self.comm.rank], out, **self.options)
        return work, out, np.concatenate([v[mine] for v in values])

    def uneven_all_to_all(self):
        n, me = self.comm.size, self.comm.rank
        counts = [
            [(a * 3 + b * 5 + self.count) % (self.count + 1) for b in range(n)] for a in range(n)
        ]
        block = lambda a, b: self.values(a, counts[a][b], salt=b)  # noqa: E731
        x = np.concatenate([block(me, b) for b in range(n)])
        received = [counts[a][me] for a in range(n)]
        out = np.empty(sum(received), self.dtype)
        work = self.comm.all_to_all(
            x, out, send_counts=counts[me], receive_counts=received, **self.options
        )
        return work, out, np.concatenate([block(a, me) for a in range(n)])

    def barrier(self):
        return self.comm.barrier(**self.options), 0, 0

    def messages(self):
        n, me, tag = self.comm.size, self.comm.rank, self.number % 3
        out = np.empty(self.count, self.dtype)
        sent = self.comm.send(self.values(me, self.count), (me + 1) % n, tag=tag, async_op=True)
        self.comm.recv(out, (me - 1) % n, tag=tag)
        sent.wait()
        return None, out, self.values((me - 1) % n, self.count)

    def group(self):
        n = self.comm.size
        x = self.values(self.comm.rank, self.count)
        outs = [np.empty_like(x) for _ in range(n)]
        with self.comm.group() as group:
            for peer in range(n):
                group.recv(outs[peer], peer, tag=5)
                group.send(x, peer, tag=5)
        return None, np.stack(outs), np.stack([self.values(r, self.count) for r in range(n)])


def run(rank, ranks, seed, seconds, directory):
    with accl_py.Communicator.from_store(
        accl_py.FileStore(directory), rank, ranks, timeout=60
    ) as comm:
        fuzz, end = Fuzz(comm, seed), time.monotonic() + seconds
        while True:
            for _ in range(BETWEEN_AGREEMENTS):
                fuzz.step()
            if comm.all_reduce(np.array([time.monotonic() > end], np.uint8), op="max")[0]:
                break
        fuzz.settle()
        if rank == 0:
            print(f"{fuzz.number} calls of {ranks} ranks were right")


def main(arguments):
    ranks, seed, seconds = int(arguments[0]), int(arguments[1]), float(arguments[2])
    if len(arguments) > 3:
        return run(int(arguments[3]), ranks, seed, seconds, arguments[4])
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, __file__, *arguments]
        processes = [subprocess.Popen([*command, str(rank), directory]) for rank in range(ranks)]
        return max(abs(process.wait()) for process in processes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
