# labels: memory
"""A reshard of 2 GB stays within --memory 64M and 32 MB more, whatever the direction."""

import json
import os
import resource
import shutil
import struct
import subprocess
import sys
import tempfile

BIN = os.environ.get("DCP_BIN_DIR", "build/bin")
GIB = 1 << 30
LIMIT = (64 + 32) << 20


def write_sparse(path, n_tensors, tensor_bytes):
    """A valid safetensors file of zeros; takes no room on disk. Some tensors get real bytes."""
    header = {"__metadata__": {"format": "pt"}}
    for i in range(n_tensors):
        header[f"model.layers.{i:03d}.weight"] = {
            "dtype": "F32",
            "shape": [1024, tensor_bytes // 4096],
            "data_offsets": [i * tensor_bytes, (i + 1) * tensor_bytes],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for i in range(0, n_tensors, 7):
            out.seek(8 + len(text) + i * tensor_bytes)
            out.write(os.urandom(4096))
        out.truncate(8 + len(text) + n_tensors * tensor_bytes)


def peak(*command):
    """Runs a command; its peak resident memory in bytes."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        result = subprocess.run(command, stdout=subprocess.DEVNULL)
        usage = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
        os.write(write, struct.pack("<iq", result.returncode, usage))
        os._exit(0)
    os.close(write)
    status, usage = struct.unpack("<iq", os.read(read, 12))
    os.close(read)
    os.waitpid(child, 0)
    assert status == 0, f"{command} ended with {status}"
    return usage


def main():
    reshard = os.path.join(BIN, "dcp-reshard")
    work = tempfile.mkdtemp(prefix="dcp-memory-", dir=os.environ.get("TMPDIR", "/var/tmp"))
    try:
        if shutil.disk_usage(work).free < 5 * GIB:
            print("skipped: 5 GiB of disk are needed")
            return 77
        big = os.path.join(work, "big.safetensors")
        write_sparse(big, 32, 64 << 20)  # 2 GiB
        runs = [
            (big, "eight", ["--world", "8", "--layout", "zero3"]),
            ("eight", "four", ["--world", "4", "--layout", "dim0"]),
            ("four", "four.tar.zst", ["--to", "bundle"]),
            ("four.tar.zst", "four", ["--world", "5"]),
        ]
        failed = 0
        for source, target, options in runs:
            source, target = os.path.join(work, source), os.path.join(work, target)
            used = peak(reshard, source, target, "--memory", "64M", *options)
            print(f"{os.path.basename(target)}: peak {used / (1 << 20):.1f} MiB")
            failed += used > LIMIT
            if os.path.isdir(source):
                shutil.rmtree(source)
            else:
                os.remove(source)
        used = peak(reshard, "export", os.path.join(work, "four"),
                    os.path.join(work, "model.bin"), "--dtype", "bf16", "--memory", "64M")
        print(f"model.bin: peak {used / (1 << 20):.1f} MiB")
        failed += used > LIMIT
        return 1 if failed else 0
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    sys.exit(main())
