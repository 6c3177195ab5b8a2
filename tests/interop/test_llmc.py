"""llm.c in and out: files in the layout of train_gpt2.py (write_model) and of
train_gpt2.cu (save_state), made and read here by the program's own rules, and the GPT-2 of
transformers as the judge of the weights.

1. A model file gives the logits of the model it was made from, and is written again
   byte for byte, from Hugging Face's folder too.
2. A run of several processes gives every weight, moment and master, and is written again
   byte for byte, data loader and all, over a step of two ranks; for another number of
   processes the shards are those that the program would hold.
"""

import os
import struct
import subprocess
import tempfile
import unittest

import numpy as np
import torch
import transformers

from programs import BIN, program, reshard

TRANSPOSED = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight",
              "mlp.c_proj.weight")
LAYERED = ("ln_1.weight", "ln_1.bias", "attn.c_attn.weight", "attn.c_attn.bias",
           "attn.c_proj.weight", "attn.c_proj.bias", "ln_2.weight", "ln_2.bias",
           "mlp.c_fc.weight", "mlp.c_fc.bias", "mlp.c_proj.weight", "mlp.c_proj.bias")
STEP = 40
MT19937_BYTES = 2520




def read(path):
    with open(path, "rb") as file:
        return file.read()


def arrays(state, config):
    """The 16 arrays of a file, each a list of its layers' tensors as (out, in)."""
    wte = state["transformer.wte.weight"]
    padding = -wte.shape[0] % 128
    out = [[torch.nn.functional.pad(wte, (0, 0, 0, padding))],
           [state["transformer.wpe.weight"]]]
    for name in LAYERED:
        layers = [state[f"transformer.h.{i}.{name}"] for i in range(config.n_layer)]
        out.append([t.t() for t in layers] if name in TRANSPOSED else layers)
    return out + [[state["transformer.ln_f.weight"]], [state["transformer.ln_f.bias"]]]


def raw(tensor, dtype):
    tensor = tensor.detach().contiguous().to(dtype)
    if dtype == torch.bfloat16:
        tensor = tensor.view(torch.int16)
    return tensor.numpy().tobytes()


def write_model(path, state, config, dtype):
    header = np.zeros(256, np.int32)
    header[:8] = [20240326, 3 if dtype == torch.float32 else 5, config.n_positions,
                  config.vocab_size, config.n_layer, config.n_head, config.n_embd,
                  (config.vocab_size + 127) // 128 * 128]
    with open(path, "wb") as file:
        file.write(header.tobytes())
        for array in arrays(state, config):
            for tensor in array:
                file.write(raw(tensor, dtype))


def write_run(folder, states, config, world, zero, shuffled):
    """states: the weights, m, v, master."""
    os.makedirs(folder)
    write_model(f"{folder}/model_{STEP:08d}.bin", states[0], config, torch.bfloat16)
    for rank in range(world):
        header = np.zeros(256, np.int32)
        header[:6] = [20240527, 1, world, rank, len(states) == 4, shuffled]
        header[10] = STEP
        header[20:24] = np.array([2**63 + rank, rank + 5], np.uint64).view(np.int32)
        header[30:34] = np.array([1, 17], np.uint64).view(np.int32)
        with open(f"{folder}/state_{STEP:08d}_{rank:05d}.bin", "wb") as file:
            file.write(header.tobytes())
            for state in states[1:]:
                for array in arrays(state, config):
                    for tensor in array:
                        flat = tensor.contiguous().flatten()
                        n = len(flat) // world
                        part = flat[rank * n:(rank + 1) * n] if zero else flat
                        file.write(raw(part, torch.float32))
            if shuffled:
                file.write(struct.pack("<Q2iQ3i", 2, 1, 0, 3, 2, 0, 1))
                file.write(bytes([rank]) * MT19937_BYTES)
    with open(f"{folder}/DONE_{STEP:08d}", "w", encoding="utf-8"):
        pass


class Llmc(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        torch.manual_seed(5)
        self.model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
            n_layer=2, n_head=2, n_embd=16, n_positions=32, vocab_size=50,
            bos_token_id=0, eos_token_id=1)).eval()
        for parameter in self.model.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
        self.config = self.model.config
        self.weights = dict(self.model.state_dict())

    def path(self, *parts):
        return os.path.join(self.folder, *parts)

    def rounded(self, dtype):
        """The model after its weights went through a dtype."""
        state = {k: v.to(dtype).float() for k, v in self.weights.items()}
        self.model.load_state_dict(state)
        return self.model

    def same_logits(self, folder, dtype):
        tokens = torch.arange(40).reshape(4, 10)
        again = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32).eval()
        with torch.no_grad():
            self.assertTrue(torch.equal(self.rounded(dtype)(tokens).logits,
                                        again(tokens).logits))

    def test_models(self):
        for dtype in (torch.float32, torch.bfloat16):
            name = str(dtype).rsplit(".", maxsplit=1)[-1]
            file, folder = self.path(f"{name}.bin"), self.path(f"{name}.hf")
            write_model(file, self.weights, self.config, dtype)
            reshard(file, folder, "hf")
            self.same_logits(folder, dtype)
            reshard(folder, self.path(f"{name}.again"), "llmc")
            self.assertEqual(read(file), read(self.path(f"{name}.again")))

    def test_from_hugging_face(self):
        self.model.save_pretrained(self.path("hf"))
        write_model(self.path("real.bin"), self.weights, self.config, torch.bfloat16)
        reshard(self.path("hf"), self.path("ours.bin"), "llmc", "--dtype", "bf16")
        self.assertEqual(read(self.path("real.bin")), read(self.path("ours.bin")))
        reshard(self.path("hf"), self.path("x.gguf"), "gguf", "--dtype", "bf16")
        reshard(self.path("x.gguf"), self.path("y.bin"), "llmc", "--dtype", "bf16")
        # Vectors in a GGUF file have 32 bits: they were never rounded on that way.
        self.assertEqual(len(read(self.path("y.bin"))), len(read(self.path("ours.bin"))))

    def test_half_is_refused(self):
        self.model.half().save_pretrained(self.path("hf"))
        with self.assertRaisesRegex(AssertionError, "(?s)cannot hold.*dtype fp32"):
            reshard(self.path("hf"), self.path("x.bin"), "llmc")

    def states(self, n):
        return [self.weights] + [
            {k: torch.randn_like(v) for k, v in self.weights.items()} for _ in range(n)]

    def check_tensors(self, folder, states):
        """Every tensor of a run, through torch."""
        file = self.path("check.pt")
        reshard(folder, file, "torch", "--force")
        found = torch.load(file, weights_only=True)
        roles = ("", "optimizer.exp_avg.", "optimizer.exp_avg_sq.", "optimizer.master.")
        n = 0
        for role, state in zip(roles, states):
            for name, tensor in state.items():
                if name == "lm_head.weight":
                    continue
                if not role:
                    tensor = tensor.to(torch.bfloat16)
                self.assertTrue(torch.equal(found[role + name], tensor), role + name)
                n += 1
        self.assertEqual(n, sum(isinstance(t, torch.Tensor) for t in found.values()))

    def test_runs(self):
        cases = ((1, 0, 0, 3), (4, 1, 0, 3), (4, 1, 1, 3), (3, 0, 1, 3), (2, 0, 0, 2),
                 (2, 1, 0, 2), (16, 1, 0, 3))
        for world, zero, shuffled, n_states in cases:
            states = self.states(n_states)
            folder = self.path(f"{world}.{zero}.{shuffled}.{n_states}")
            write_run(folder, states, self.config, world, zero, shuffled)
            self.check_tensors(folder, states)

    def same_files(self, a, b):
        self.assertEqual(sorted(os.listdir(a)), sorted(os.listdir(b)))
        for name in os.listdir(a):
            self.assertEqual(read(os.path.join(a, name)), read(os.path.join(b, name)), name)

    def test_runs_again(self):
        for world, shuffled in ((1, 1), (2, 0), (4, 1)):
            base = self.path(f"{world}")
            write_run(base, self.states(3), self.config, world, True, shuffled)
            reshard(base, base + ".step", "native", "--world", "2")
            reshard(base + ".step", base + ".again", "llmc-run", "--world", str(world))
            self.same_files(base, base + ".again")

    def test_other_worlds(self):
        states = self.states(3)
        write_run(self.path("four"), states, self.config, 4, True, False)
        # Three parts of a layer are incomplete: then there is no ZeRO, as in the program.
        for world, layout in ((1, "zero1"), (2, "zero1"), (8, "zero1"), (3, "zero1"),
                              (2, "replicated")):
            folder = self.path(f"{world}{layout}")
            wanted = folder + ".wanted"
            reshard(self.path("four"), folder, "llmc-run", "--world", str(world),
                    "--layout", layout)
            zero = layout == "zero1" and world != 3
            write_run(wanted, states, self.config, world, zero, False)
            self.assertEqual(sorted(os.listdir(folder)), sorted(os.listdir(wanted)))
            for rank in range(world):
                name = f"state_{STEP:08d}_{rank:05d}.bin"
                ours, theirs = (read(os.path.join(d, name)) for d in (folder, wanted))
                self.assertEqual(ours[1024:], theirs[1024:], name)
                header = np.frombuffer(ours[:1024], np.int32)
                self.assertEqual(header[:6].tolist(), [20240527, 1, world, rank, 1, 0])
                self.assertEqual(header[10], STEP)
                self.assertEqual(header[20:22].view(np.uint64)[0], 13371337 + rank)
                position = header[30:34].view(np.uint64).tolist()
                self.assertEqual(position, [1, 17 * 4 // world])

    def test_weights_alone(self):
        """A run that begins with them: masters, and moments of zeros."""
        write_model(self.path("m.bin"), self.weights, self.config, torch.float32)
        reshard(self.path("m.bin"), self.path("run"), "llmc-run", "--world", "2")
        zeros = {k: torch.zeros_like(v) for k, v in self.weights.items()}
        for rank in range(2):
            data = read(self.path("run", f"state_00000000_{rank:05d}.bin"))
            write_run(self.path(f"wanted{rank}"), [self.weights, zeros, zeros, self.weights],
                      self.config, 2, True, False)
            wanted = read(self.path(f"wanted{rank}", f"state_{STEP:08d}_{rank:05d}.bin"))
            self.assertEqual(data[1024:], wanted[1024:])

    def test_from_training(self):
        """A run of dcp-train becomes one of llm.c, masters made where there are none."""
        with open(self.path("text.bin"), "wb") as file:
            file.write(b"to be or not to be, that is the question. " * 40)
        config = self.path("train.json")
        with open(config, "w", encoding="utf-8") as file:
            file.write("""{"train_batch_size": 4,
                "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
                "zero_optimization": {"stage": 1},
                "model": {"family": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 16,
                          "n_positions": 16, "vocab_size": 256},
                "data": {"train": "text.bin", "tokenizer": "bytes", "seq_len": 16},
                "checkpoint": {"dir": "run", "save_every": 3}}""")
        subprocess.run([os.path.join(BIN, "dcp-train"), "--config", config, "--ranks", "2",
                        "--steps", "3"], cwd=self.folder, check=True, capture_output=True)
        reshard(self.path("run"), self.path("llmc"), "llmc-run", "--world", "2")
        self.assertEqual(sorted(os.listdir(self.path("llmc"))),
                         ["DONE_00000003", "model_00000003.bin",
                          "state_00000003_00000.bin", "state_00000003_00001.bin"])
        reshard(self.path("run"), self.path("a.pt"), "torch")
        reshard(self.path("llmc"), self.path("b.pt"), "torch")
        a, b = (torch.load(self.path(f"{x}.pt"), weights_only=True) for x in "ab")
        for name, tensor in a.items():
            if isinstance(tensor, torch.Tensor):
                self.assertTrue(torch.equal(tensor, b[name]), name)


if __name__ == "__main__":
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    unittest.main()
