# labels: interop
"""Files of ranks of the real DeepSpeed under each other's names: at stages 1 and 2 a file says
which parts of which parameters are in it, and one of another rank is refused; what nothing
tells apart, verify says."""

import itertools
import json
import os
import re
import shutil
import subprocess
import tempfile

import deepspeed_peer as peer
from programs import BIN

WORLD = 4
CASES = {
    "z1": (1, "fp32", "gpt2", 2, {}),
    "z1-bf16": (1, "bf16", "gpt2", 2, {}),
    "z2": (2, "bf16", "odd", 1, {}),
    "z2-fp16": (2, "fp16", "odd", 2, {}),
    "z2-aligned": (2, "bf16", "odd", 2, {"parameter_alignment": True}),
    "z2-wide": (2, "fp32", "odd", 1, {}),  # with an embedding that several ranks share
    "z2-round": (2, "fp32", "gpt2", 2, {"round_robin_gradients": True}),
    "z3": (3, "fp32", "gpt2", 2, {}),
}


def save_cases(rank, world, work):
    for name, case in CASES.items():
        peer.VOCABULARY = 300 if name == "z2-wide" else 23
        peer.save(rank, world, case, os.path.join(work, name))


def verify(folder):
    """Whether it is taken, and what is said: by the reader, or of what nothing proves."""
    done = subprocess.run([os.path.join(BIN, "dcp-inspect"), "verify", folder, "--json"],
                          capture_output=True, text=True, check=False)
    assert done.returncode in (0, 4), done.stderr
    said = json.loads(done.stdout or done.stderr)
    return done.returncode == 0, said.get("message") or said.get("untold") or ""


def check(name, folder):
    ok, untold = verify(folder)
    assert ok, f"{name}: {untold}"
    general = "nothing in a file says which rank it is of"
    apart = re.fullmatch(r"nothing tells the files of some ranks apart, as of \d and \d", untold)
    assert (untold == general) == (name in ("z2-round", "z3")), f"{name}: {untold}"
    assert apart or name != "z2-wide", f"{name}: {untold}"
    tag = os.path.join(folder, "global_step3")
    files = {int(re.search(r"zero_pp_rank_(\d)", f)[1]): os.path.join(tag, f)
             for f in os.listdir(tag) if "optim_states" in f}
    for a, b in itertools.permutations(range(WORLD), 2):
        shutil.copy(files[b], files[b] + ".was")
        shutil.copy(files[a], files[b])
        ok, said = verify(folder)
        os.replace(files[b] + ".was", files[b])
        if ok:  # only what was said before
            assert untold and untold == said, f"{name}: the file of rank {a} passes as that of {b}"
        elif untold != general:
            assert "holds what another rank saved" in said or "are expected" in said, said
        print(f"{name}: {a} as {b}: {said or 'taken'}")


def main():
    with tempfile.TemporaryDirectory(prefix="dcp-ranks-") as work:
        peer.launch(WORLD, save_cases, work)
        for name in CASES:
            check(name, os.path.join(work, name))


if __name__ == "__main__":
    main()
