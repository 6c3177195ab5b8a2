"""Writes the note of core/parts/finish.c: part_note.py STAGING TARGET, the files of which
are about to take the place of another target. The digests are computed here."""

import os
import struct
import sys


def table():
    out = []
    for i in range(256):
        for _ in range(8):
            i = i >> 1 ^ (0xC96C5795D7870F42 if i & 1 else 0)
        out.append(i)
    return out


TABLE = table()


def crc64(data):
    crc = (1 << 64) - 1
    for byte in data:
        crc = TABLE[(crc ^ byte) & 255] ^ crc >> 8
    return crc ^ (1 << 64) - 1


staging, target = sys.argv[1:]
with open(os.path.join(staging, "part-00001"), "rb") as f:
    job = f.read()[16:24]
n_parts = sum(name.startswith("part-") for name in os.listdir(staging))
names = sorted(os.listdir(target))
body = job + struct.pack("<IQ", n_parts, len(names))
for name in names:
    with open(os.path.join(target, name), "rb") as f:
        data = f.read()
    text = name.encode() + b"\0"
    body += struct.pack("<QQI", len(data), crc64(data), len(text)) + text
with open(os.path.join(staging, "replaces"), "wb") as f:
    f.write(b"DCPPART1" + struct.pack("<Q", crc64(body)) + body)
