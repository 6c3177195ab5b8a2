# labels: interop
"""The scaler of the loss of 16-bit training, judged by the real DeepSpeed: what training
without ZeRO scaled by a run with ZeRO goes on with, and where nobody says a scale an engine
has the one that it begins with."""

import os
import tempfile
import unittest

import deepspeed_peer as peer
import torch
from programs import reshard

STARTS = 256.0  # by the configuration of the peer
WINDOW = 1000


def engine_of(stage, world, universal=False):
    config = peer.config_of(stage, "fp16", world, universal)
    del config["scheduler"]  # of which files of weights say nothing
    return peer.engine_of(peer.gpt2(), config, 1)


def save(rank, world, folder):
    """A run whose scale was halved once, without ZeRO."""
    engine = engine_of(0, world)
    peer.train(engine, rank, world, 0, 3)
    engine.optimizer.loss_scale_config.cur_scale = STARTS / 2
    engine.optimizer.loss_scale_config.last_overflow_iter = 1
    engine.save_checkpoint(folder)


def load(rank, world, jobs):
    """What the engine of each stage scales by, before and after a step."""
    for folder, stage, universal, out in jobs:
        engine = engine_of(stage, world, universal)
        path, _ = engine.load_checkpoint(folder)
        assert path, "DeepSpeed found nothing to load"
        scaler = engine.optimizer.loss_scaler
        facts = dict(vars(scaler), told=engine.optimizer.dynamic_loss_scale)
        peer.train(engine, rank, world, 3, 1)
        assert scaler.cur_iter == facts["cur_iter"] + 1
        torch.save(facts, out)


class Scaler(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="dcp-scaler-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, *parts):
        return os.path.join(self.folder, *parts)

    def loaded(self, source):
        """Of each stage, and of a universal checkpoint, what an engine has then."""
        jobs = []
        for stage in (1, 2, 3):
            made = self.path(f"zero{stage}")
            reshard(source, made, "deepspeed", "--layout", f"zero{stage}", "--force")
            jobs.append((made, stage, False, made + ".out"))
        made = self.path("universal")
        reshard(source, made, "universal", "--force")
        jobs.append((made, 2, True, made + ".out"))
        peer.launch(1, load, jobs)
        return {job[0]: torch.load(job[3], weights_only=False) for job in jobs}

    def test_without_zero(self):
        peer.launch(1, save, self.path("src"))
        for name, facts in self.loaded(self.path("src")).items():
            with self.subTest(name):
                self.assertTrue(facts["dynamic"] and facts["told"])
                self.assertEqual(facts["cur_scale"], STARTS / 2)
                self.assertEqual((facts["cur_iter"], facts["last_overflow_iter"]), (3, 1))
                self.assertEqual((facts["scale_window"], facts["delayed_shift"]), (WINDOW, 2))

    def test_unknown(self):
        torch.save({"model": peer.gpt2().half().state_dict()}, self.path("half.pt"))
        for name, facts in self.loaded(self.path("half.pt")).items():
            with self.subTest(name):
                self.assertTrue(facts["dynamic"] and facts["told"])
                # Stage 3 takes what the file has, and must have one: as DeepSpeed begins.
                self.assertEqual(facts["cur_scale"],
                                 65536.0 if name.endswith("zero3") else STARTS)
                self.assertEqual((facts["scale_window"], facts["delayed_shift"]), (WINDOW, 2))


if __name__ == "__main__":
    unittest.main()
