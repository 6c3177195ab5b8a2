"""runs: what the methods beside this file share that treat the real dcp-train badly: a run
folder, what is known of it, and what must hold of it whatever happened.

What is expected comes from one run that nobody disturbed: the losses of every step, and
the fingerprints of every tensor of every step. Training gives the same bits at every
world size, so that this one run is what all others are held against.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
# What the shim counts and lets fail, in the order of its table.
SHIM_CALLS = ["create", "open", "read", "write", "ftruncate", "fallocate", "fsync",
              "syncdir", "mkdir", "rename", "link", "unlink", "close", "closeread", "clone"]
CONFIG = {
    "seed": 7, "train_batch_size": 12, "train_micro_batch_size_per_gpu": 1,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.003, "weight_decay": 0.1}},
    "zero_optimization": {"stage": 3},
    "model": {"n_layer": 1, "n_head": 2, "n_embd": 8, "n_positions": 16},
    "data": {"train": "text.txt", "seq_len": 8},
    "checkpoint": {"dir": "root/run", "save_every": 2, "keep": 2},
}
EXIT_COMM = 7
HANG_S = 120
REACH_S = {1: 0.25, 2: 0.9, 4: 1.3}  # about what a run takes
KNOWN = re.compile(r"step-\d{8}|latest|metrics\.jsonl|\.dcp-lock")
TEMPORARY = re.compile(r"\.tmp-step-\d{8}|\.tmp-repair-step-\d{8}|\.trash-step-\d{8}"
                       r"|\.latest\.tmp")


def arguments(doc):
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--long", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--number", type=int, help="how many are tried")
    return parser


def skip(why):
    print(f"skipped: {why}")
    print("explored=0 violations=0 seconds=0.0 skipped=1")
    sys.exit(77)


def build_dir():
    return os.path.abspath(os.environ.get("DCP_BUILD_DIR") or
                           os.path.join(HERE, "..", "..", "build"))


def work_dir(name):
    shm = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    return tempfile.mkdtemp(prefix=f"dcp-{name}-", dir=shm)


def environment(**more):
    env = dict(os.environ, OMP_NUM_THREADS="1", LC_ALL="C.UTF-8",
               OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
               PATH=os.path.join(build_dir(), "bin") + ":" + os.environ["PATH"])
    for name in ("DCP_TEST_KILL", "TMPDIR", "LD_PRELOAD"):
        env.pop(name, None)
    env.update(more)
    if "DCP_TEST_KILL" in more:  # only this dcp-train has kill points
        env["PATH"] = os.path.join(build_dir(), "tests", "killable") + ":" + env["PATH"]
    return env


def shim(root, **more):
    """The environment that puts the shim under a program."""
    return dict(more, LD_PRELOAD=os.path.join(build_dir(), "tests", "libfault_shim.so"),
                DCP_SHIM_ROOT=root)


# --- processes ---

def descendants(pid):
    """All processes below one, itself too; by who started whom."""
    children = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as f:
                fields = f.read().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] != "Z":
            children.setdefault(int(fields[1]), []).append(int(name))
    found, todo = [], [pid]
    while todo:
        at = todo.pop()
        found.append(at)
        todo += children.get(at, [])
    return found


def ranks_of(pid):
    """{rank: process} of a dcp-train that started several."""
    ranks = {}
    for at in descendants(pid):
        try:
            with open(f"/proc/{at}/environ", "rb") as f:
                said = re.search(rb"(?:^|\0)OMPI_COMM_WORLD_RANK=(\d+)\0", f.read())
        except OSError:
            continue
        if said:
            ranks[int(said[1])] = at
    return ranks


def is_there(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as f:
            return f.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(holds, seconds):
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


class Process:
    """A dcp-train at work. What it says goes to a file, which outlives it."""

    def __init__(self, run, command, env):
        self.log = run.path("said")
        self.seen = set()
        with open(self.log, "wb") as out:
            self.popen = subprocess.Popen(command, cwd=run.folder, env=env, stdout=out,
                                          stderr=out, start_new_session=True)

    def said(self):
        with open(self.log, encoding="utf-8", errors="replace") as f:
            return f.read()

    def look(self):
        self.seen |= set(descendants(self.popen.pid))
        return self.seen

    def kill(self, pids, number=signal.SIGKILL):
        for pid in pids:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass

    def end(self, seconds=HANG_S):
        """The status, once nobody is left; None: they hang, and are killed."""
        def over():
            if self.popen.poll() is None:
                self.look()
                return False
            return not any(is_there(pid) for pid in self.seen)
        if wait_until(over, seconds):
            return self.popen.returncode
        self.kill(pid for pid in self.seen if is_there(pid))
        self.popen.wait()
        return None


def strike(process, world, rng):
    """Kills something at some time. Whether it was there, and what it was."""
    end = time.monotonic() + rng.random() * REACH_S[world]
    while time.monotonic() < end and process.popen.poll() is None:
        process.look()
        time.sleep(min(0.01, max(0, end - time.monotonic())))
    who = "all"
    pids = process.look()
    if world > 1:
        ranks = ranks_of(process.popen.pid)
        who = rng.choice(["rank", "rank", "rank", "all", "launcher"])
        if who == "rank" and ranks:
            rank = rng.choice(sorted(ranks))
            who, pids = f"rank {rank}", [ranks[rank]]
        elif who == "rank":
            who = "all"
        elif who == "launcher":
            pids = [process.popen.pid]
    killed = process.popen.poll() is None
    # The launcher first, or it would tell of the others.
    process.kill(sorted(pids, key=lambda pid: pid != process.popen.pid))
    return killed, who


# --- a run folder ---

def read_prints(step):
    with open(os.path.join(step, "manifest.json"), encoding="utf-8") as f:
        return {(t["name"], t["role"]): t["crc64"] for t in json.load(f)["tensors"]}


def read_losses(path, offset=0):
    """[(step, loss, norm, rate)] of the whole lines from an offset on; and the end."""
    try:
        with open(path, "rb") as f:
            f.seek(offset)
            data = f.read()
    except FileNotFoundError:
        return [], 0
    lines = []
    for line in data.split(b"\n"):
        try:
            m = json.loads(line)
        except ValueError:
            continue  # torn
        lines.append((m["step"], m["loss"], m["grad_norm"], m["lr"]))
    return lines, offset + data.rfind(b"\n") + 1


def make_folder(folder, config=None):
    os.makedirs(os.path.join(folder, "root"))
    shutil.copy(os.path.join(HERE, "..", "..", "LICENSE"), os.path.join(folder, "text.txt"))
    with open(os.path.join(folder, "train.json"), "w", encoding="ascii") as f:
        json.dump(config or CONFIG, f)


class Reference:
    """A run of so many steps that nobody disturbed, every step saved."""

    def __init__(self, work, steps, config=None):
        folder = os.path.join(work, "reference")
        self.config = config or CONFIG
        self.steps = steps
        make_folder(folder, self.config)
        command = ["dcp-train", "--config", "train.json", "-q", "--steps", str(steps)]
        for setting in ("keep=0", "save_every=1", "async=false"):
            command += ["--set", "checkpoint." + setting]
        done = subprocess.run(command, cwd=folder, env=environment(), text=True,
                              capture_output=True, timeout=600, check=False)
        if done.returncode:
            sys.exit(f"the undisturbed run fails: {done.stderr}")
        run = os.path.join(folder, "root", "run")
        self.losses = {line[0]: line for line in read_losses(run + "/metrics.jsonl")[0]}
        self.prints = {n: read_prints(f"{run}/step-{n:08d}") for n in range(1, steps + 1)}
        shutil.rmtree(folder)


def base_of(step):
    """The name of the step that one is a delta on, or None."""
    try:
        with open(os.path.join(step, "delta.json"), "rb") as file:
            return os.path.basename(json.load(file)["base"]["path"])
    except FileNotFoundError:
        return None


class Run:
    """A run folder that is treated badly, and the model of it: `acked`, the newest step
    that was promised; `keep` of them stay."""

    def __init__(self, reference, folder, options=()):
        self.reference, self.folder, self.options = reference, folder, list(options)
        self.acked = 0       # the newest promised step
        self.newest = 0      # the newest that was found, promised or not
        self.keep = reference.config["checkpoint"]["keep"]
        self.offset = 0      # of metrics.jsonl: what was looked at
        self.promises = set()
        if not os.path.isdir(os.path.join(folder, "root")):
            make_folder(folder, reference.config)

    def path(self, *parts):
        return os.path.join(self.folder, *parts)

    @property
    def root(self):
        return self.path("root", "run")

    def command(self, steps, ranks=1, options=()):
        words = ["dcp-train", "--config", "train.json", "--steps", str(steps)]
        if ranks > 1:
            words += ["--ranks", str(ranks)]
        for setting in [*self.options, *options]:
            words += ["--set", setting]
        return words

    def start(self, steps, ranks=1, options=(), env=None):
        return Process(self, self.command(steps, ranks, options),
                       environment(**(env or {})))

    def note(self, said):
        """Promises: "step N saved …" of what a run has said."""
        for n in re.findall(r"^step (\d+) +saved", said, re.M):
            self.promises.add(int(n))
            self.acked = max(self.acked, int(n))

    def tool(self, *words):
        return subprocess.run(words, cwd=self.folder, env=environment(), text=True,
                              capture_output=True, timeout=HANG_S, check=False)

    def step_names(self):
        if not os.path.isdir(self.root):
            return []
        return sorted(n for n in os.listdir(self.root) if re.fullmatch(r"step-\d+", n))

    # -- what must hold, always --

    def check(self, damaged=False):
        """None, or what is wrong. `corrupt`: parity is at work, files may be."""
        found = self.tool("dcp-inspect", "--json", "root/run")
        if found.returncode:
            if not self.acked and found.returncode in (3, 8) and not self.step_names():
                return self.check_names()
            return f"step {self.acked} is lost: {(found.stdout + found.stderr).strip()}"
        step = json.loads(found.stdout)["step"]
        if step < self.acked:
            return f"step {self.acked} was promised, but step {step} is found"
        self.newest = max(self.newest, step)
        if not damaged:
            for name in self.step_names():
                verified = self.tool("dcp-inspect", "verify", f"root/run/{name}")
                if verified.returncode:
                    return f"{name}: {(verified.stdout + verified.stderr).strip()}"
                if not self.is_undisturbed(name, name == self.step_names()[-1]):
                    return f"{name} is not what an undisturbed run has"
        kept = len(self.step_names())
        if kept < min(self.keep, len(self.promises)):
            return f"only {kept} steps are left of {len(self.promises)}"
        return self.check_losses() or self.check_names()

    def is_undisturbed(self, name, newest):
        prints = read_prints(os.path.join(self.root, name))
        want = self.reference.prints[int(name[5:])]
        if prints == want:
            return True
        thin = any("keep_optimizer" in option for option in self.options) and not newest
        weights = {key: crc for key, crc in want.items() if key[1] == "model"}
        return thin and prints == weights

    def check_losses(self):
        lines, self.offset = read_losses(os.path.join(self.root, "metrics.jsonl"),
                                         self.offset)
        for line in lines:
            if line != self.reference.losses[line[0]]:
                return (f"the losses of step {line[0]} are {line[1:]}, "
                        f"not {self.reference.losses[line[0]][1:]}")
        return None

    def check_names(self):
        for name in os.listdir(self.root) if os.path.isdir(self.root) else []:
            if not KNOWN.fullmatch(name) and not TEMPORARY.fullmatch(name):
                return f"nobody knows '{name}'"
        return None

    def check_tidy(self):
        """After a save: nothing temporary, the pointer right, no more steps than asked
        for."""
        for name in os.listdir(self.root):
            if not KNOWN.fullmatch(name):
                return f"'{name}' is left"
        names = self.step_names()
        bases = {base_of(os.path.join(self.root, name)) for name in names}
        needed = len(bases & set(names[:-self.keep])) if self.keep else 0
        if len(names) > self.keep + needed and self.keep:
            return f"{len(names)} steps are kept, not {self.keep}"
        with open(os.path.join(self.root, "latest"), encoding="ascii") as f:
            latest = f.read().strip()
        return None if latest == names[-1] else f"'latest' is {latest}, not {names[-1]}"

    def finish(self, steps, ranks=1, options=(), env=None):
        """Trains on undisturbed, which must go well. None, or what is wrong."""
        process = self.start(steps, ranks, options, env)
        status = process.end()
        said = process.said()
        self.note(said)
        if status != 0:
            return f"the next run ends with {status}:\n{said}"
        self.acked = max(self.acked, steps)
        self.promises.add(steps)
        return self.check() or self.check_tidy()


def end_report(explored, violations, started, work):
    if violations:
        print(f"what they left is in {work}")
    else:
        shutil.rmtree(work, ignore_errors=True)
    print(f"explored={explored} violations={violations} "
          f"seconds={time.monotonic() - started:.1f}")
    return 1 if violations else 0
