"""Measurements of this folder: ranks that do what they are told, commands, and what came
of them beside a floor and a peer of the same run."""

import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
BUILD = os.environ.get("DCP_BUILD_DIR") or os.path.normpath(os.path.join(HERE, "../../build"))
BIN = os.path.join(BUILD, "bin")
PEERS = os.environ.get("DCP_PEERS") or os.path.join(BUILD, ".venv-peers/bin/python")
GIB = 1 << 30
MISSED = []  # what was told, of what missed an aim


class Ranks:
    """Processes that do what a line of text says, and tell how long it took."""

    def __init__(self, *command):
        self.process = subprocess.Popen(
            [*map(str, command)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"})

    def act(self, what, folder):
        """Seconds of the slowest, CPU seconds of all; of ours also page faults of all, and MiB
        of the largest beside its tensors."""
        self.process.stdin.write(f"{what} {folder}\n")
        self.process.stdin.flush()
        words = self.process.stdout.readline().split()
        if not words:
            sys.exit(f"'{what}' of {self.process.args} failed")
        return tuple(map(float, words))

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def ours(world, size, n_tensors, threads=1):
    return Ranks(os.path.join(BIN, "bench_ranks"), world, size, n_tensors, threads)


def dcp(world, size, n_tensors):
    """PyTorch's distributed checkpoint, or None."""
    if os.access(PEERS, os.X_OK):
        return Ranks(PEERS, os.path.join(HERE, "dcp_ranks.py"), world, size, n_tensors)
    return None


def remove(path):
    if os.path.isdir(path):
        shutil.rmtree(path)
    elif os.path.exists(path):
        os.remove(path)


def files_of(path):
    if os.path.isfile(path):
        return [path]
    return [os.path.join(d, f) for d, _, files in os.walk(path) for f in files]


def size_of(path):
    return sum(map(os.path.getsize, files_of(path)))


def drop_cache(path):
    """Reads come from the disk. A file system in memory has nothing to drop."""
    for name in files_of(path):
        fd = os.open(name, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def command(words, output=None):
    """Wall and CPU seconds until what a command wrote is durable."""
    if output:
        remove(output)
    os.sync()
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if output:
        subprocess.run(["sync", *files_of(output)], check=True)
    wall, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(f"{' '.join(words)} failed: {done.stderr[-2000:]}")
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def middle(runs):
    """Column by column."""
    return tuple(map(statistics.median, zip(*runs)))


def keep(**result):
    """A JSON line in the file that DCP_BENCH_JSON names, if it does."""
    if os.environ.get("DCP_BENCH_JSON"):
        with open(os.environ["DCP_BENCH_JSON"], "a", encoding="utf-8") as f:
            f.write(json.dumps(result) + "\n")


def over(ratio, aim):
    return bool(aim) and ratio > aim


def tell(table, act, where, mine, floor=None, peer=None, note="", aim_s=0):
    """A row: what was done, medians of its seconds and CPU seconds, the same of a floor
    (name, medians, times its seconds that are aimed at, times its CPU seconds) and of a
    peer (name, medians, times faster that are aimed at); aim_s: seconds that are aimed at.
    An aim of 0 is none. What misses one is in MISSED."""
    row = {"table": table, "act": act, "where": where, "seconds": mine[0], "cpu_s": mine[1],
           "aim_s": aim_s}
    text = f"{act:<34} {where:<9} {mine[0]:7.3f} s {mine[1]:6.2f} CPU"
    met = not over(mine[0], aim_s)
    text += f" of {aim_s} s" if aim_s else ""
    if floor:
        name, best, aim, cpu_aim = floor
        ratio, cpu = mine[0] / best[0], mine[1] / max(best[1], 1e-3)
        row |= {"floor": name, "floor_s": best[0], "floor_cpu_s": best[1], "aim": aim,
                "cpu_aim": cpu_aim}
        met = met and not over(ratio, aim) and not over(cpu, cpu_aim)
        text += f" | {name} {best[0]:6.3f} s: {ratio:5.2f}x" + (f" of {aim}" if aim else "")
        text += f", CPU {cpu:5.2f}x" + (f" of {cpu_aim}" if cpu_aim else "")
    if peer and peer[1]:
        name, theirs, aim = peer
        row |= {"peer": name, "peer_s": theirs[0], "peer_cpu_s": theirs[1], "peer_aim": aim}
        met = met and not over(aim, theirs[0] / mine[0])
        text += f" | {name} {theirs[0]:6.3f} s: {theirs[0] / mine[0]:.2f}x slower"
        text += f", aim {aim}" if aim else ""
    print(text + (f" | {note}" if note else "") + ("" if met else "  OVER"), flush=True)
    keep(**row, note=note, met=met)
    MISSED.extend([] if met else [act])
