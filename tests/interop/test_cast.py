#!/usr/bin/env python3
"""Casts against real torch, bit for bit; NaNs need only be NaNs."""

import ctypes
import os
import unittest

import torch

BUILD = os.environ.get("DCP_BUILD_DIR",
                       os.path.join(os.path.dirname(__file__), "..", "..", "build"))
SMALL = {
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
}

library = ctypes.CDLL(os.path.join(BUILD, "lib", "libdcp.so"))
library.dcp_dtype_parse.argtypes = [ctypes.c_char_p]
library.dcp_cast.argtypes = [
    ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t,
    ctypes.c_void_p,
]  # fmt: skip


def cast(tensor, source, target, out_dtype):
    out = torch.empty(tensor.numel(), dtype=out_dtype)
    code = [library.dcp_dtype_parse(name.encode()) for name in (source, target)]
    n = tensor.numel()
    assert library.dcp_cast(*code, tensor.data_ptr(), out.data_ptr(), n, None) == 0
    return out


def bits(tensor):
    return tensor.view(torch.uint8 if tensor.element_size() == 1 else torch.int16)


def samples():
    """Every upper half of a float with lower halves that decide roundings, and numbers
    around what the small types can hold."""
    upper = torch.arange(1 << 16, dtype=torch.int64) << 16
    lower = [0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF, 0x0FFF, 0x1000, 0x1001, 0x2000]
    words = torch.cat([upper + low for low in lower])
    generator = torch.Generator().manual_seed(1)
    random = torch.randint(0, 1 << 32, (1 << 20,), generator=generator)
    words = torch.cat([words, random])
    words = torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)
    return words.view(torch.float32)


class Cast(unittest.TestCase):
    def test_from_float(self):
        values = samples()
        for name, dtype in SMALL.items():
            with self.subTest(name):
                # Beyond 464 older torch gives NaN, as libdcp does, and newer torch 448.
                some = values[~(values.abs() > 464)] if name == "F8_E4M3" else values
                wanted, found = some.to(dtype), cast(some, "F32", name, dtype)
                nan = torch.isnan(wanted.float())
                self.assertTrue(torch.equal(nan, torch.isnan(found.float())))
                wrong = (bits(wanted) != bits(found)) & ~nan
                at = int(wrong.nonzero()[0]) if wrong.any() else 0
                self.assertFalse(wrong.any(), f"{some[at]!r}: {found[at]!r} here, "
                                 f"{wanted[at]!r} in torch")  # fmt: skip

    def test_to_float(self):
        for name, dtype in SMALL.items():
            with self.subTest(name):
                wide = dtype in (torch.float16, torch.bfloat16)
                codes = torch.arange(1 << (16 if wide else 8), dtype=torch.int32)
                codes = codes.to(torch.int16 if wide else torch.uint8).view(dtype)
                wanted, found = codes.float(), cast(codes, name, "F32", torch.float32)
                nan = torch.isnan(wanted)
                self.assertTrue(torch.equal(nan, torch.isnan(found)))
                same = wanted.view(torch.int32) == found.view(torch.int32)
                self.assertTrue(bool((same | nan).all()))

    def test_doubles_and_whole_numbers(self):
        generator = torch.Generator().manual_seed(2)
        words = torch.randint(-(1 << 63), (1 << 63) - 1, (1 << 18,), generator=generator)
        near = samples().double() * (1 + 2**-40)
        doubles = torch.cat([words.view(torch.float64), near])
        found = cast(doubles, "F64", "F32", torch.float32)
        wanted = doubles.float()
        nan = torch.isnan(wanted)
        self.assertTrue(torch.equal(nan, torch.isnan(found)))
        self.assertTrue(bool(((wanted == found) | nan).all()))
        for whole in (words, words >> 20, words >> 45):
            found = cast(whole, "I64", "F32", torch.float32)
            self.assertTrue(torch.equal(found, whole.float()))


if __name__ == "__main__":
    unittest.main()
