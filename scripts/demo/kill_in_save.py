"""Kills one rank with SIGKILL while a save is being written.

usage: kill_in_save.py RUN RANK AFTER

Waits until the run folder holds AFTER steps and then for the next temporary folder, the
sign of a save that is not published; kills the dcp-train process of that rank at once.
"""

import os
import re
import signal
import sys
import time

STEP = re.compile(r"step-\d+$")
UNFINISHED = ".tmp-step-"


def folders(run):
    try:
        with os.scandir(run) as entries:
            return {entry.name for entry in entries if entry.is_dir()}
    except FileNotFoundError:
        return set()


def process_of(rank):
    wanted = f"OMPI_COMM_WORLD_RANK={rank}".encode()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.path.basename(os.readlink(f"/proc/{pid}/exe")) != "dcp-train":
                continue
            with open(f"/proc/{pid}/environ", "rb") as file:
                if wanted in file.read().split(b"\0"):
                    return int(pid)
        except OSError:
            continue  # gone, or not ours
    return None


def main(run, rank, after):
    deadline = time.monotonic() + 180
    pid = None
    while time.monotonic() < deadline:
        names = folders(run)
        steps = {name for name in names if STEP.match(name)}
        if len(steps) < after:
            time.sleep(0.02)
            continue
        pid = pid or process_of(rank)
        saves = [name for name in names if name.startswith(UNFINISHED)]
        if pid and saves:
            os.kill(pid, signal.SIGKILL)
            print(f"killed rank {rank} (process {pid}) while {saves[0]} was written")
            return 0
        time.sleep(0.0005)
    print(f"no save was seen in {run}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
