"""Writes the six novels of the Debian package r-cran-janeaustenr as plain text.

usage: austen.py Rdata.rdb OUT

The .rdb file is a row of chunks, each a big-endian length and a zlib stream of one R
object in XDR form; here every object is a vector of strings, the lines of one novel.
"""

import struct
import sys
import zlib

STRSXP, CHARSXP = 16, 9  # types of R objects, the low byte of their flags
MISSING = 0xFFFFFFFF


class Xdr:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, n):
        if self.at + n > len(self.data):
            raise ValueError("the object ends too early")
        self.at += n
        return self.data[self.at - n : self.at]

    def number(self):
        return struct.unpack(">I", self.take(4))[0]


def objects(data):
    while data:
        (size,) = struct.unpack(">I", data[:4])
        stream = zlib.decompressobj()
        yield stream.decompress(data[4:], size)
        data = stream.unused_data


def lines(data):
    xdr = Xdr(data)
    if xdr.take(2) != b"X\n":
        raise ValueError("not in XDR form")
    version, _, _ = xdr.number(), xdr.number(), xdr.number()
    if version >= 3:
        xdr.take(xdr.number())  # the name of the native encoding
    if xdr.number() & 0xFF != STRSXP:
        raise ValueError("not a vector of strings")
    for _ in range(xdr.number()):
        if xdr.number() & 0xFF != CHARSXP:
            raise ValueError("not a string")
        size = xdr.number()
        yield xdr.take(size) if size != MISSING else b""


def main(source, target):
    with open(source, "rb") as file:
        data = file.read()
    with open(target, "wb") as file:
        for novel in objects(data):
            file.write(b"\n".join(lines(novel)) + b"\n\n")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
