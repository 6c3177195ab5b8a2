"""Kills one rank with SIGKILL while a save is being written.

usage: kill_in_save.py RUN RANK STEP

Waits for the temporary folder of a step that is STEP or later, the sign of a save that is
not published yet, and kills the dcp-train process of that rank at once.
"""

import os
import re
import signal
import sys
import time

UNFINISHED = re.compile(r"\.tmp-step-(\d+)$")


def unfinished(run, step):
    """The folder of a save at `step` or later that is being written, or None."""
    try:
        names = os.listdir(run)
    except FileNotFoundError:
        return None
    for name in names:
        match = UNFINISHED.match(name)
        if match and int(match.group(1)) >= step:
            return name
    return None


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


def main(run, rank, step):
    deadline = time.monotonic() + 180
    pid = None
    while time.monotonic() < deadline:
        pid = pid or process_of(rank)
        name = unfinished(run, step)
        if pid and name:
            os.kill(pid, signal.SIGKILL)
            print(f"killed rank {rank} (process {pid}) while {name} was being written")
            return 0
        time.sleep(0.001 if pid else 0.05)
    print(f"no save was seen in {run}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
