"""Blocks with a codec, by docs/FORMAT.md alone (4, Blocks and codecs): decoders for
read_dcp.Step."""

import zstandard


class Corrupt(Exception):
    """A block that is none of its codec's."""


def require(condition, why):
    if not condition:
        raise Corrupt(why)


def frame(data, size):
    """Exactly one frame of zstd, of exactly so many bytes."""
    decoder = zstandard.ZstdDecompressor().decompressobj()
    try:
        raw = decoder.decompress(data)
    except zstandard.ZstdError as error:
        raise Corrupt(str(error)) from error
    require(decoder.eof and not decoder.unused_data, "no whole frame")
    require(len(raw) == size, "a frame of another size")
    return raw


def zstd(block, size, _width):
    return frame(block, size)


def planes(block, size, width):
    data, rows = frame(block, size), size // width
    return b"".join(data[i::rows] for i in range(rows))


def split(block, size, width):
    rows, head = size // width, 1 + 4 * width
    require(size % width == 0 and len(block) >= head, "no block of such numbers")
    turned = block[0]
    require(turned in (0, 1) and (not turned or width in (2, 4)), "a head that says neither")
    found, at = [], head
    for plane in range(width):
        stored = int.from_bytes(block[1 + 4 * plane :][:4], "little")
        data, at = block[at : at + stored], at + stored
        require(at <= len(block), "a plane outside of its block")
        if stored != rows:
            data = data * rows if stored == 1 else frame(data, rows)
        found.append(data)
    require(at == len(block), "bytes behind the planes")
    numbers = (bytes(number) for number in zip(*found))
    return b"".join(turn_back(number) for number in numbers) if turned else b"".join(numbers)


def turn_back(number):
    """To the right by one bit."""
    value = int.from_bytes(number, "little")
    value = value >> 1 | (value & 1) << 8 * len(number) - 1
    return value.to_bytes(len(number), "little")


DECODERS = {"zstd": zstd, "planes": planes, "split": split}
