# labels: cli
"""Every format that is read, into every format that is written: the table of formats makes
the matrix. What both sides hold is the same bit for bit, compared with the state that was
trained; what a target cannot hold is said, and left out only when that is asked for."""

import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile

BIN = os.environ.get("DCP_BIN_DIR", "build/bin")
TESTS = os.environ.get("DCP_TESTS_DIR", os.path.join(os.path.dirname(__file__), ".."))
OPTIMIZER = ("exp_avg", "exp_avg_sq")
HEAD = ("only_b", "lm_head.weight")
SPELLINGS = {"torch.tree", "dcp.keys", "dcp.attributes"}  # how names are nested: no state
EMBEDDING = "transformer.wte.weight"

CONFIG = {
    "seed": 7,
    "steps": 3,
    "train_batch_size": 4,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.003, "weight_decay": 0.1}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 4}},
    "zero_optimization": {"stage": 3},
    "model": {"n_layer": 2, "n_head": 2, "n_embd": 16, "n_positions": 32, "vocab_size": 256},
    "data": {"train": "text.txt", "seq_len": 16},
    "checkpoint": {"dir": "run"},
}


def run(program, *args, status=0):
    done = subprocess.run([os.path.join(BIN, program), *args], capture_output=True, text=True)
    statuses = status if isinstance(status, tuple) else (status,)
    if done.returncode not in statuses:
        raise AssertionError(f"{program} {' '.join(args)} ended with {done.returncode}: "
                             f"{done.stdout}{done.stderr}")  # fmt: skip
    return done


def convert(source, target, form, options=()):
    """Converts; when the target cannot hold all, that is said, and --lossy goes on. Returns
    the names of what is no tensor and was left out."""
    args = [source, target, "--to", form, "--json", *options]
    done = run("dcp-reshard", *args, status=(0, 5))
    if done.returncode:
        said = json.loads(done.stderr)
        if "cannot hold" not in said["message"] or not said["hint"] or os.path.exists(target):
            raise AssertionError(f"{form}: {done.stderr}")
        done = run("dcp-reshard", *args, "--lossy")
    return set(filter(None, (json.loads(done.stdout)["objects_left_out"] or "").split(", ")))


def objects(path):
    shown = json.loads(run("dcp-inspect", "show", path, "--json").stdout)
    return {held["name"] for held in shown["objects"]}


def differences(a, b, *options):
    done = run("dcp-inspect", "diff", a, b, "--json", *options, status=(0, 1))
    return json.loads(done.stdout)


def roles(path):
    listed = json.loads(run("dcp-inspect", "ls", path, "--json").stdout)["tensors"]
    return {(tensor["role"], tensor.get("param") or tensor["name"]) for tensor in listed}


class Matrix:
    def __init__(self):
        listed = json.loads(run("dcp-reshard", "formats", "--json").stdout)["formats"]
        self.formats = {entry["name"]: entry for entry in listed}
        self.cells = self.failed = 0

    def cell(self, what, act):
        self.cells += 1
        try:
            act()
        except (AssertionError, KeyError, ValueError) as error:
            self.failed += 1
            print(f"FAILED {what}: {error}")

    def writers(self):
        return [name for name, entry in self.formats.items() if entry["writes"]]

    def make(self, source, form, folder, options=()):
        """source as a checkpoint of that format."""
        entry = self.formats[form]
        target = os.path.join(folder, form + ("" if entry["is_dir"] else suffix(entry)))
        options = [*options, "--model-config", os.path.join(folder, "config.json")]
        if form == "npy":
            options += ["--select", "*wte.weight", "--only", "model"]
        left = convert(source, target, form, options)
        if form == "bundle" or entry["reads"]:
            self.check_objects(objects(source), objects(target), left, form)
        return target

    def check_objects(self, before, after, left, form):
        """What is no tensor is in the target, or named."""
        silent = before - after - left - SPELLINGS
        if form == "npy":  # of which the optimizer was not asked for
            silent.discard("optimizer")
        assert not silent, f"dropped in silence: {sorted(silent)}"
        if form == "llmc-run":  # whose reader makes up the settings that are in no file
            left = left - {"optimizer"}
        assert not left & after, f"named, but there: {sorted(left & after)}"

    def check(self, base, path, form, optim):
        """What the checkpoint holds is what was trained. optim: moments must be there."""
        if form == "npy":
            return  # its one tensor has no name: NumPy is asked about it elsewhere
        weights = path
        if ("model", EMBEDDING) not in roles(path):  # the masters say what they are
            weights = path + "-weights"
            run("dcp-reshard", path, weights, "--only", "model", "--force")
        diff = differences(base, weights, "--only", "model")
        # A format that cannot tie names holds the head by itself.
        bad = [d for d in diff["differences"] if (d["kind"], d["tensor"]) != HEAD]
        assert not bad, f"weights differ: {bad[:3]}"
        assert diff["n_same"] > 0, "nothing was compared"
        if not optim:
            return
        wanted = {held for held in roles(base) if held[0] in OPTIMIZER}
        lost = wanted - roles(path)
        assert not lost, f"moments are lost: {sorted(lost)[:3]}"
        diff = differences(base, path, "--only", "optim")
        bad = [d for d in diff["differences"] if d["kind"] != "only_b"]
        assert not bad, f"the optimizer differs: {bad[:3]}"

    def in_parts(self, base, whole, form, folder):
        """Made by three processes and a last one it is the same, byte for byte."""
        target = whole + "-parts"
        args = [base, target, "--to", form, "--lossy",
                "--model-config", os.path.join(folder, "config.json")]  # fmt: skip
        for part in (3, 1, 2):
            run("dcp-reshard", *args, "--part", f"{part}/3")
        run("dcp-reshard", *args, "--finish")
        done = subprocess.run(["diff", "-r", whole, target], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout
        shutil.rmtree(target)

    def pair(self, base, made, source, target, folder):
        """made[source] into a checkpoint of the format target, at another world."""
        with tempfile.TemporaryDirectory(dir=folder) as place:
            shutil.copy(os.path.join(folder, "config.json"), place)
            options = ["--world", "3"] if self.formats[target]["sharded"] else []
            path = self.make(made[source], target, place, options)
            optim = self.formats[source]["optim"] and self.formats[target]["optim"]
            self.check(base, path, target, optim)


def suffix(entry):
    return entry["suffixes"].split(" ")[0]


def train(folder):
    shutil.copy(os.path.join(TESTS, "..", "LICENSE"), os.path.join(folder, "text.txt"))
    with open(os.path.join(folder, "train.json"), "w") as out:
        json.dump(CONFIG, out)
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    subprocess.run([os.path.join(BIN, "dcp-train"), "--config", "train.json", "--ranks", "2",
                    "-q"], cwd=folder, env=environment, check=True)  # fmt: skip
    return os.path.join(folder, "run", "step-00000003")


def main():
    global BIN
    BIN = os.path.abspath(BIN)
    with tempfile.TemporaryDirectory(prefix="dcp-matrix-") as folder:
        base = train(folder)
        run("dcp-reshard", "export", base, os.path.join(folder, "config"))
        shutil.copy(os.path.join(folder, "config", "config.json"), folder)
        matrix = Matrix()
        made = {}
        for form in matrix.writers():

            def first(form=form):
                made[form] = matrix.make(base, form, folder)
                matrix.check(base, made[form], form, matrix.formats[form]["optim"])

            matrix.cell(f"trained state -> {form}", first)
            if matrix.formats[form]["is_dir"]:
                matrix.cell(
                    f"trained state -> {form}, in parts",
                    lambda form=form: matrix.in_parts(base, made[form], form, folder),
                )
        for source, target in itertools.product(made, matrix.writers()):
            if matrix.formats[source]["reads"] and source != "npy":  # which has no names
                matrix.cell(
                    f"{source} -> {target}",
                    lambda: matrix.pair(base, made, source, target, folder),
                )
    print(f"{matrix.cells} cells, {matrix.failed} failed")
    return 1 if matrix.failed else 0


if __name__ == "__main__":
    sys.exit(main())
