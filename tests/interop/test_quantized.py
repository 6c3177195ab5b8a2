# labels: interop
"""Casts of models with quantized weights in integers: what the integers mean only together
with keeps every bit, in the forms of bitsandbytes, GPTQ, AWQ, HQQ, compressed-tensors and
ModelOpt; all else is cast, and integers of models that are not quantized keep nothing back.
"""

import json
import os
import tempfile
import unittest

import safetensors.torch
import torch
import transformers

from programs import program

torch.manual_seed(7)


def integers(dtype, *shape):
    return torch.randint(0, 100, shape, dtype=dtype)


QUANTIZED = {
    "bitsandbytes, 4 bits": {
        "l.weight": integers(torch.uint8, 32, 1), "l.weight.absmax": torch.rand(4) / 999 + 1,
        "l.weight.quant_map": torch.linspace(-1, 1, 16),
        "l.weight.nested_absmax": torch.rand(1),
        "l.weight.quant_state.bitsandbytes__nf4": integers(torch.uint8, 80)},
    "bitsandbytes, 8 bits": {
        "l.weight": integers(torch.int8, 4, 4), "l.SCB": torch.rand(4) + 1,
        "l.weight_format": torch.tensor(0, dtype=torch.uint8)},
    "GPTQ": {
        "l.qweight": integers(torch.int32, 4, 4), "l.qzeros": integers(torch.int32, 1, 4),
        "l.scales": torch.rand(1, 32).half(), "l.g_idx": integers(torch.int32, 4)},
    "HQQ": {
        "l.W_q": integers(torch.uint8, 8, 4), "l.scale": torch.rand(8, 1).half(),
        "l.zero": torch.rand(8, 1).half()},
    "compressed-tensors": {
        "l.weight": integers(torch.int8, 4, 4), "l.weight_scale": torch.rand(4, 1)},
    "NVFP4": {
        "l.weight": integers(torch.uint8, 8, 4), "l.weight_scale_2": torch.tensor(0.01),
        "l.weight_scale": (torch.rand(8, 1) + 0.5).to(torch.float8_e4m3fn)},
    "quanto": {
        "l.weight._data": integers(torch.int8, 4, 4), "l.weight._scale": torch.rand(4, 1),
        "l.input_scale": torch.rand(1), "l.output_scale": torch.rand(1)},
    "MXFP4 of gpt-oss": {
        "experts.up_proj_blocks": integers(torch.uint8, 2, 4, 2, 16),
        "experts.up_proj_scales": integers(torch.uint8, 2, 4, 2)},
}  # fmt: skip
PLAIN = {
    "bn.weight": torch.rand(4), "bn.running_mean": torch.rand(4),
    "bn.num_batches_tracked": torch.tensor(3), "embeddings.class_embedding": torch.rand(8),
    "embeddings.position_ids": torch.arange(6)[None], "h.0.attn.masked_bias": torch.rand(1),
    "h.0.attn.bias": torch.ones(1, 1, 4, 4, dtype=torch.uint8).tril(),
    "swin.relative_position_index": torch.arange(9).int().reshape(3, 3),
    "swin.relative_position_bias_table": torch.rand(9, 2),
    "grid.offsets": integers(torch.int32, 4), "grid.embeddings": torch.rand(8, 2),
    "moe.expert_map": integers(torch.int32, 4), "moe.w1": torch.rand(4, 2),
    "vq.usage": integers(torch.int32, 4), "vq.embed": torch.rand(4, 2),
    "conv.pruned_channels": integers(torch.int16, 4), "conv.weight": torch.rand(4),
    "q.qweight": integers(torch.int32, 4, 4), "q.bias": torch.rand(4),
}  # fmt: skip


def bits(tensor):
    return tensor.reshape(-1).view(torch.uint8)


class Quantized(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="dcp-quantized-")
        self.addCleanup(temporary.cleanup)
        self.work = temporary.name

    def cast(self, tensors, dtype):
        """What an export with a dtype holds, and what it says."""
        source, out = (os.path.join(self.work, f) for f in ("a.safetensors", "b.safetensors"))
        safetensors.torch.save_file(tensors, source)
        said = program("dcp-reshard", "export", source, out, "--force", "--dtype", dtype,
                       "--json")
        return safetensors.torch.load_file(out), json.loads(said)

    def test_kept(self):
        for what, tensors in QUANTIZED.items():
            more = {"norm.weight": torch.rand(4, dtype=torch.float64)}
            for name, dtype in (("bf16", torch.bfloat16), ("fp32", torch.float32)):
                found, said = self.cast(tensors | more, name)
                self.assertEqual(found.keys(), (tensors | more).keys(), what)
                for key, tensor in tensors.items():
                    self.assertEqual(found[key].dtype, tensor.dtype, f"{what}: {key}")
                    self.assertTrue(torch.equal(bits(found[key]), bits(tensor)), key)
                self.assertEqual(found["norm.weight"].dtype, dtype)
                kept = [t for t in tensors.values() if t.is_floating_point()]
                self.assertEqual(said["n_kept"], sum(t.dtype != dtype for t in kept), what)

    def test_plain(self):
        found, said = self.cast(PLAIN, "bf16")
        for name, tensor in PLAIN.items():
            dtype = torch.bfloat16 if tensor.is_floating_point() else tensor.dtype
            self.assertEqual(found[name].dtype, dtype, name)
        self.assertEqual(said["n_kept"], 0)

    def test_own_dtype(self):
        """GGUF has norms and biases in 32 bits, whatever was asked for: none was kept."""
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
            n_layer=1, n_head=2, n_embd=32, n_positions=8, vocab_size=16))
        model.save_pretrained(os.path.join(self.work, "hf"))
        said = program("dcp-reshard", "export", os.path.join(self.work, "hf"),
                       os.path.join(self.work, "m.gguf"), "--dtype", "fp16", "--json")
        self.assertEqual(json.loads(said)["n_kept"], 0)


if __name__ == "__main__":
    unittest.main()
