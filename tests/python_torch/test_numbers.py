"""The arithmetic of narrow floats, bit for bit against torch: every pair of float8 codes, many pairs of 16-bit ones."""

import threading

import accl_py
import pytest
import torch

OPERATIONS = {"sum": torch.add, "product": torch.mul, "min": torch.minimum, "max": torch.maximum}


def reduce_pair(a, b, op):
    """op(a, b), made by two ranks."""
    store, results = accl_py.HashStore(), [a.clone(), b.clone()]

    def rank(r):
        with accl_py.Communicator.from_store(store, r, 2, timeout=30) as comm:
            comm.all_reduce(results[r], op=op)

    threads = [threading.Thread(target=rank, args=(r,)) for r in range(2)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert torch.equal(results[0].view(torch.uint8), results[1].view(torch.uint8))
    return results[0]


def same(got, right):
    nan = right.float().isnan()
    assert torch.equal(got.float().isnan(), nan)
    integer = {1: torch.uint8, 2: torch.int16}[got.element_size()]
    differ = (got.view(integer) != right.view(integer)) & ~nan
    # The sign of a zero is the order's business.
    differ &= ~((got.float() == 0) & (right.float() == 0))
    assert not differ.any(), (got[differ][:5], right[differ][:5])


@pytest.mark.parametrize("op", OPERATIONS)
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_every_pair_of_float8(dtype, op):
    codes = torch.arange(256, dtype=torch.uint8)
    a = codes.repeat_interleave(256).view(dtype)
    b = codes.repeat(256).view(dtype)
    same(reduce_pair(a, b, op), OPERATIONS[op](a.float(), b.float()).to(dtype))


@pytest.mark.parametrize("op", OPERATIONS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_pairs_of_16_bit_floats(dtype, op):
    generator = torch.Generator().manual_seed(1)
    bits = torch.randint(-(1 << 15), 1 << 15, (2, 300_000), generator=generator, dtype=torch.int16)
    a, b = bits[0].view(dtype), bits[1].view(dtype)
    same(reduce_pair(a, b, op), OPERATIONS[op](a.float(), b.float()).to(dtype))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float8_e4m3fn, torch.float8_e5m2])
def test_an_average_does_not_overflow(dtype):
    large = torch.full((100,), torch.finfo(dtype).max).to(dtype)
    same(reduce_pair(large, large, "avg"), large)
