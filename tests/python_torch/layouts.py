"""Values and memory layouts for the checks."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
FLOAT8 = [torch.float8_e4m3fn, torch.float8_e5m2]
FLOAT8_UNSIGNED_ZERO = [
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
]  # no engine type: moved as bytes
SIGNED = [torch.int8, torch.int16, torch.int32, torch.int64]
UNSIGNED = [torch.uint8, torch.uint16, torch.uint32, torch.uint64]
COMPLEX = [torch.complex64, torch.complex128]
ALL = [*FLOATS, *FLOAT8, *FLOAT8_UNSIGNED_ZERO, *SIGNED, *UNSIGNED, torch.bool, *COMPLEX]

SIZES = (2, 3, 4, 5)  # four dimensions, so that channels_last exists


def values(rank: int, dtype: torch.dtype, sizes: tuple[int, ...] = SIZES) -> Tensor:
    """Distinct small values for each rank, exact in every dtype."""
    count = torch.Size(sizes).numel()
    numbers = (torch.arange(count) * 3 + rank * 5) % 8
    if dtype == torch.bool:
        return (numbers % 2 == 0).reshape(sizes)
    if dtype.is_complex:
        return torch.complex(numbers.double(), (numbers + 1).double()).to(dtype).reshape(sizes)
    return (
        numbers.float().to(dtype).reshape(sizes)
        if dtype.is_floating_point
        else numbers.to(dtype).reshape(sizes)
    )


def bits(tensor: Tensor) -> Tensor:
    """The bytes of a tensor in logical order: compares dtypes that have no ``==``."""
    packed = tensor.clone(memory_format=torch.contiguous_format).resolve_conj().resolve_neg()
    return packed.reshape(-1).view(torch.uint8)


def same(a: Tensor, b: Tensor) -> bool:
    """Equal sizes, dtype and bits, whatever the strides."""
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(bits(a), bits(b))


def contiguous(tensor: Tensor, rank: int = 0) -> Tensor:
    return tensor.clone(memory_format=torch.contiguous_format)


def every_other(tensor: Tensor, rank: int = 0) -> Tensor:
    """Stride 2 in the last dimension."""
    wide = torch.zeros(*tensor.shape, 2, dtype=tensor.dtype)
    view = wide[..., 0]
    view.copy_(tensor)
    return view


def transposed(tensor: Tensor, rank: int = 0) -> Tensor:
    view = torch.zeros(tensor.shape[::-1], dtype=tensor.dtype).permute(
        *range(tensor.dim() - 1, -1, -1)
    )
    view.copy_(tensor)
    return view


def channels_last(tensor: Tensor, rank: int = 0) -> Tensor:
    return (
        tensor.clone(memory_format=torch.channels_last) if tensor.dim() == 4 else transposed(tensor)
    )


def inner_slice(tensor: Tensor, rank: int = 0) -> Tensor:
    """The middle of a larger tensor: a storage offset, and gaps."""
    larger = torch.zeros([size + 2 for size in tensor.shape], dtype=tensor.dtype)
    view = larger[tuple(slice(1, size + 1) for size in tensor.shape)]
    view.copy_(tensor)
    return view


def mixed(tensor: Tensor, rank: int = 0) -> Tensor:
    """Another layout on each rank."""
    return [channels_last, contiguous, every_other][rank % 3](tensor)


Layout = Callable[[Tensor, int], Tensor]
LAYOUTS: dict[str, Layout] = {
    f.__name__: f for f in (contiguous, every_other, transposed, channels_last, inner_slice, mixed)
}
