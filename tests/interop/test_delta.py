#!/usr/bin/env python3
"""A model of transformers through fifty steps in which few weights change, each kept as a delta
on the one before, with makers and readers that are killed: the last step comes back byte for
byte, from_pretrained reads it, and the deltas are fifty times smaller than what they tell."""

import filecmp
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import torch
import transformers

BIN = os.environ.get("DCP_BIN_DIR", "build/bin")
STEPS = 50
KILLS = 12  # of makers, and as many of readers


def dcp(program, *words):
    return subprocess.run([os.path.join(BIN, program), *words], capture_output=True, text=True)


def size_of(folder):
    return sum(os.path.getsize(os.path.join(folder, name)) for name in os.listdir(folder))


def learn(model, generator):
    """One in two hundred weights moves by one unit of its last place, as small rates do to
    numbers of 16 bits."""
    for tensor in model.parameters():
        bits = tensor.data.view(torch.int16)
        moves = torch.rand(bits.shape, generator=generator)
        bits += (moves < 0.0025).to(torch.int16) - (moves > 0.9975).to(torch.int16)


class Delta(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="dcp-delta-")
        self.addCleanup(shutil.rmtree, self.folder)
        self.rng = random.Random(11)

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def killed(self, *words, after):
        """Runs dcp-reshard, and kills it meanwhile."""
        process = subprocess.Popen([os.path.join(BIN, "dcp-reshard"), *words],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(after)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def same(self, a, b):
        names = sorted(os.listdir(a))
        self.assertEqual(names, sorted(os.listdir(b)))
        match, differ, wrong = filecmp.cmpfiles(a, b, names, shallow=False)
        self.assertEqual((differ, wrong), ([], []))

    def test_fifty_steps_of_reinforcement_learning(self):
        torch.set_num_threads(1)
        transformers.utils.logging.disable_progress_bar()
        torch.manual_seed(3)
        generator = torch.Generator().manual_seed(3)
        config = transformers.GPT2Config(n_layer=2, n_head=4, n_embd=192, n_positions=64,
                                         vocab_size=1500)
        model = transformers.GPT2LMHeadModel(config).to(torch.bfloat16)
        model.save_pretrained(self.path("full-0"))
        full = size_of(self.path("full-0"))
        base, sizes = self.path("full-0"), []
        kills = set(self.rng.sample(range(1, STEPS + 1), KILLS))
        for step in range(1, STEPS + 1):
            target, out = self.path(f"full-{step}"), self.path(f"delta-{step}")
            learn(model, generator)
            model.save_pretrained(target)
            make = ("delta", "make", base, target, out, "--max-chain", "64")
            if step in kills:
                self.killed(*make, after=self.rng.random() * 0.03)
            if not os.path.exists(out):
                done = dcp("dcp-reshard", *make)
                self.assertEqual(done.returncode, 0, done.stderr)
            sizes.append(size_of(out))
            if step > 1 and step < STEPS:  # the deltas must do without it
                shutil.rmtree(target)
            base = out
        print(f"{full} bytes, {sum(sizes) / STEPS:.0f} as a delta: "
              f"{full * STEPS / sum(sizes):.0f} times smaller", file=sys.stderr)
        self.assertGreaterEqual(full, 50 * max(sizes))

        out = self.path("out")
        for _ in range(KILLS):
            self.killed("delta", "apply", base, out, after=self.rng.random() * 0.15)
            if os.path.exists(out):
                self.same(out, target)
                shutil.rmtree(out)
        done = dcp("dcp-reshard", "delta", "apply", base, out)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.same(out, target)
        self.assertEqual([name for name in os.listdir(self.folder) if name[0] == "."], [])
        again = transformers.GPT2LMHeadModel.from_pretrained(out, dtype=torch.bfloat16)
        for (name, a), b in zip(model.named_parameters(), again.parameters()):
            self.assertTrue(torch.equal(a.view(torch.int16), b.view(torch.int16)), name)

        # Shorter again; and a step in the middle is as good as ever.
        done = dcp("dcp-reshard", "delta", "rebase", base, self.path("short"), "--onto",
                   self.path("full-0"))
        self.assertEqual(done.returncode, 0, done.stderr)
        done = dcp("dcp-reshard", "delta", "apply", self.path("short"), self.path("again"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.same(self.path("again"), target)
        done = dcp("dcp-inspect", "verify", self.path("delta-20"))
        self.assertEqual(done.returncode, 0, done.stderr)
        done = dcp("dcp-inspect", "diff", self.path("delta-1"), self.path("full-1"))
        self.assertEqual(done.returncode, 0, done.stdout)


if __name__ == "__main__":
    unittest.main()
