# labels: interop
"""8-bit floats with scales, against what torch makes of them.

1. A cast to a wider type applies blocks, rows and one scale for all, at every layout, and
   takes the scales and the configuration of the quantizer out.
2. Without a cast, and between types of 8 bits, scales stay as they are.
3. Scales that nothing is known of are refused.
"""

import json
import os
import subprocess
import tempfile
import unittest

import safetensors.torch
import torch
import transformers

from programs import BIN, program, reshard

torch.manual_seed(7)
F8 = torch.float8_e4m3fn
Q, ROWS, ALL = "model.layers.0.self_attn.q_proj", "model.layers.0.mlp.up_proj", "c"
GPT2 = {"n_layer": 1, "n_head": 2, "n_embd": 32, "n_positions": 32, "vocab_size": 256}
CONFIG = {"model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"],
          "torch_dtype": "bfloat16",
          "quantization_config": {"quant_method": "fp8", "fmt": "e4m3",
                                  "weight_block_size": [128, 128]}}


def bits(tensor):
    return tensor.reshape(-1).view(torch.uint8)


def blocks(scale, shape, block):
    for d, n in enumerate(shape):
        scale = scale.repeat_interleave(block, d).narrow(d, 0, n)
    return scale


def model():
    """The tensors, and the numbers they stand for."""
    weights = {name: (torch.randn(shape) * 100).to(F8) for name, shape in {
        Q: (200, 300), ROWS: (96, 40), ALL: (8, 5), "experts": (3, 256, 130),
        "e8m0": (130, 260), "comfy": (6, 6)}.items()}
    square = torch.rand(2, 3) / 4096
    rows = torch.rand(96, 1) / 512
    one = torch.tensor(0.0625, dtype=torch.bfloat16)
    three = torch.rand(3, 2, 2) / 100
    power = torch.tensor([[0.5, 2, 4], [8, 16, 0.25]]).to(torch.float8_e8m0fnu)
    tensors = {name + ".weight": weight for name, weight in weights.items()}
    del tensors["experts.weight"]
    tensors |= {
        Q + ".weight_scale_inv": square, ROWS + ".weight_scale": rows,
        ROWS + ".input_scale": torch.tensor(3.0), ALL + ".weight_scale": one,
        "experts": weights["experts"], "experts_scale_inv": three,
        "e8m0.weight_scale_inv": power, "comfy.scale_weight": torch.tensor([0.5]),
        "norm.weight": torch.rand(40, dtype=torch.bfloat16),
        "plain.weight": torch.ones(4, 4).to(F8), "logit_scale": torch.tensor([3.0]),
    }
    wanted = {
        Q + ".weight": blocks(square, (200, 300), 128),
        ROWS + ".weight": rows, ALL + ".weight": one.float(),
        "experts": torch.stack([blocks(s, (256, 130), 128) for s in three]),
        "e8m0.weight": blocks(power.float(), (130, 260), 128),
        "comfy.weight": torch.tensor(0.5)}
    wanted = {name: tensors[name].float() * scale for name, scale in wanted.items()}
    wanted |= {name: tensors[name].float()
               for name in ("norm.weight", "plain.weight", "logit_scale")}
    return tensors, wanted


class Fp8(unittest.TestCase):
    def setUp(self):
        self.tensors, self.wanted = model()
        temporary = tempfile.TemporaryDirectory(prefix="dcp-fp8-")
        self.addCleanup(temporary.cleanup)
        self.work = temporary.name
        self.folder = os.path.join(self.work, "hf")
        os.mkdir(self.folder)
        safetensors.torch.save_file(self.tensors, self.path("hf/model.safetensors"),
                                    {"format": "pt"})
        with open(self.path("hf/config.json"), "w", encoding="utf-8") as out:
            json.dump(CONFIG, out)

    def path(self, name):
        return os.path.join(self.work, name)

    def check(self, file, dtype):
        found = safetensors.torch.load_file(file)
        self.assertEqual(found.keys(), self.wanted.keys())
        for name, wanted in self.wanted.items():
            self.assertTrue(torch.equal(found[name], wanted.to(dtype)), name)

    def test_cast(self):
        for name, dtype in (("bf16", torch.bfloat16), ("fp32", torch.float32)):
            out = self.path(name)
            program("dcp-reshard", "export", self.folder, out + "/", "--dtype", name)
            self.check(out + "/model.safetensors", dtype)
            with open(out + "/config.json", encoding="utf-8") as file:
                config = json.load(file)
            self.assertNotIn("quantization_config", config)
            self.assertEqual(config["torch_dtype"], str(dtype).removeprefix("torch."))

    def test_layouts(self):
        """From pieces, and into pieces: ranges and boxes that cut through blocks."""
        cut = self.path("cut")
        for layout in ("zero3", "dim0", "flat"):
            reshard(self.folder, cut, "native", "--world", "5", "--layout", layout,
                    "--force", "--dtype", "fp32")
            program("dcp-reshard", "export", cut, self.path("a.safetensors"), "--force")
            self.check(self.path("a.safetensors"), torch.float32)
            reshard(self.folder, cut, "native", "--world", "5", "--layout", layout,
                    "--force")
            program("dcp-reshard", "export", cut, self.path("a.safetensors"), "--force",
                    "--dtype", "fp32")
            self.check(self.path("a.safetensors"), torch.float32)

    def test_kept(self):
        program("dcp-reshard", "export", self.folder, self.path("same") + "/")
        found = safetensors.torch.load_file(self.path("same/model.safetensors"))
        for name, tensor in self.tensors.items():
            self.assertTrue(torch.equal(bits(found[name]), bits(tensor)), name)
        with open(self.path("same/config.json"), encoding="utf-8") as file:
            self.assertEqual(json.load(file), CONFIG)
        program("dcp-reshard", "export", self.folder, self.path("e5m2.safetensors"),
                "--dtype", "f8_e5m2")
        found = safetensors.torch.load_file(self.path("e5m2.safetensors"))
        for name, tensor in self.tensors.items():
            if tensor.dtype == F8:
                self.assertEqual(found[name].dtype, torch.float8_e5m2)
            elif "_scale" in name or ".scale" in name:
                self.assertEqual(found[name].dtype,
                                 tensor.dtype if name != "logit_scale"
                                 else torch.float8_e5m2)

    def test_trained_on(self):
        """dcp-train begins with the numbers that the 8 bits stand for."""
        scaled, plain = {}, {}
        for name, tensor in transformers.GPT2LMHeadModel(transformers.GPT2Config(
                **GPT2)).state_dict().items():
            if name == "lm_head.weight":
                continue
            scaled[name] = plain[name] = tensor.contiguous()
            if tensor.dim() == 2:
                scaled[name] = (tensor * 1000).to(F8)
                scaled[name + "_scale"] = torch.rand(len(tensor), 1) / 500
                plain[name] = scaled[name].float() * scaled[name + "_scale"]
        losses = []
        for tensors, name in ((scaled, "scaled"), (plain, "plain")):
            os.mkdir(self.path(name))
            safetensors.torch.save_file(tensors, self.path(name + "/model.safetensors"))
            with open(self.path(name + "/config.json"), "w", encoding="utf-8") as out:
                json.dump({"model_type": "gpt2", **GPT2}, out)
            with open(self.path("text.bin"), "wb") as out:
                out.write(b"the quick brown fox jumps over the lazy dog. " * 20)
            with open(self.path("train.json"), "w", encoding="utf-8") as out:
                json.dump({"train_batch_size": 2, "optimizer": {"type": "AdamW"},
                           "model": {"family": "gpt2", **GPT2, "init": self.path(name)},
                           "data": {"train": "text.bin", "tokenizer": "bytes",
                                    "seq_len": 32},
                           "checkpoint": {"dir": self.path(name + ".run")}}, out)
            program("dcp-train", "--config", self.path("train.json"), "--steps", "2")
            with open(self.path(name + ".run/metrics.jsonl"), encoding="utf-8") as file:
                losses.append([json.loads(line)["loss"] for line in file])
        self.assertEqual(*losses)

    def refused(self, **more):
        file = self.path("odd.safetensors")
        safetensors.torch.save_file({"a.weight": torch.ones(100, 100).to(F8), **more},
                                    file)
        done = subprocess.run([os.path.join(BIN, "dcp-reshard"), "export", file,
                               self.path("no.safetensors"), "--dtype", "bf16"],
                              capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 8, done.stderr)
        self.assertIn("without --dtype", done.stderr)
        return done.stderr

    def test_refused(self):
        self.assertIn("do not fit", self.refused(**{"a.weight_scale": torch.ones(7, 3)}))
        self.assertIn("not known", self.refused(**{"a.zero_scales": torch.ones(7, 3)}))


if __name__ == "__main__":
    unittest.main()
