"""Draws up what the demo did, and checks that the model learned.

usage: summary.py TEXT METRICS... -- PATH...

METRICS are metrics.jsonl files in the order of training, PATHs files and folders whose
sizes are shown. Exit status 1 when the last loss is not clearly below the entropy of
single bytes, which a model reaches that knows only how often each byte occurs.
"""

import collections
import json
import math
import os
import statistics
import sys

CLEARLY = 0.3  # nats


def unigram_entropy(path):
    with open(path, "rb") as file:
        counts = collections.Counter(file.read())
    total = sum(counts.values())
    return -sum(n / total * math.log(n / total) for n in counts.values())


def size_bytes(path):
    if os.path.isfile(path):
        return os.path.getsize(path)
    return sum(
        os.path.getsize(os.path.join(folder, name))
        for folder, _, names in os.walk(path)
        for name in names
    )


def last_of_each_step(paths):
    steps = {}
    for path in paths:
        with open(path, encoding="utf-8") as file:
            for line in file:
                row = json.loads(line)
                if "loss" in row:
                    steps[row["step"]] = row
    return [steps[step] for step in sorted(steps)]


def main(arguments):
    split = arguments.index("--")
    text, metrics, paths = arguments[0], arguments[1:split], arguments[split + 1 :]
    rows = last_of_each_step(metrics)
    entropy = unigram_entropy(text)
    tail = [row["loss"] for row in rows[-5:]]
    loss = sum(tail) / len(tail)
    stalls = [row["save_stall_s"] for row in rows if row.get("save_stall_s")]

    print(f"steps           {rows[0]['step']} to {rows[-1]['step']}")
    print(f"loss            {rows[0]['loss']:.3f} to {loss:.3f} "
          f"(single bytes: {entropy:.3f})")
    step_s = statistics.median(row["step_s"] for row in rows)
    print(f"time of a step  {1e3 * step_s:.0f} ms (median)")
    if stalls:
        print(f"stall of a save {1e3 * max(stalls):.0f} ms (the longest)")
    for path in paths:
        print(f"{size_bytes(path) / 2**20:10.2f} MiB  {path}")
    if loss > entropy - CLEARLY:
        print("the model did not learn: its loss is not clearly below single bytes'")
        return 1
    return 0


if __name__ == "__main__":
    if len(sys.argv) < 4 or "--" not in sys.argv:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1:]))
