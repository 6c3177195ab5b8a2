"""Tensors of every dtype that PyTorch and this library know, and what makes two the same."""

import torch

DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32,
    torch.uint32, torch.int64, torch.uint64, torch.float16, torch.bfloat16, torch.float32,
    torch.float64, torch.complex64, torch.complex128, torch.float8_e4m3fn,
    torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu,
]


def tensor_of(dtype, *shape):
    raw = torch.randint(0, 2 if dtype == torch.bool else 120, (*shape, dtype.itemsize))
    return raw.to(torch.uint8).view(dtype).reshape(shape)


def same(a, b):
    """Equal values of equal types, tensors bit for bit."""
    if isinstance(a, torch.Tensor):
        if not isinstance(b, torch.Tensor) or a.dtype != b.dtype or a.shape != b.shape:
            return False
        a, b = (x.detach().contiguous().reshape(-1).view(torch.uint8) for x in (a, b))
        return torch.equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b
