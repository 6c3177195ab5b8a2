"""Writes the note of core/parts/finish.c: part_note.py STAGING TARGET, the files of which
are about to take the place of another target."""

import os
import struct
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "oracle"))
import read_dcp


def crc64(data):
    return int(read_dcp.crc64(data), 16)


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
