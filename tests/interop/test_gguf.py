"""GGUF in and out, judged by gguf-py, the package of llama.cpp, and by the loader of
transformers.

1. What is written from Hugging Face folders is what the rules of llama.cpp's converters
   give: names, types, order of rows, keys.
2. Files that gguf-py wrote from models come back with the logits of those models, and
   transformers loads what was written again from them, tokenizer and all.
3. Other files keep names, values and bytes; quantized ones are refused by name.
"""

import json
import os
import tempfile
import unittest

import gguf
import numpy as np
import torch
import transformers

from programs import program, reshard

TOKENS = torch.arange(40).reshape(4, 10)
TYPES = gguf.GGMLQuantizationType




def filled(model):
    torch.manual_seed(3)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


def gpt2():
    return filled(transformers.GPT2LMHeadModel(transformers.GPT2Config(
        n_layer=2, n_head=2, n_embd=16, vocab_size=48, bos_token_id=1, eos_token_id=2)))


SHAPE = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 48,
         "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def llama(**more):
    return filled(transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**{**SHAPE, **more})))


def mistral():
    return filled(transformers.MistralForCausalLM(transformers.MistralConfig(
        **SHAPE, head_dim=16, sliding_window=None)))


def qwen2():
    return filled(transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**SHAPE)))


MODELS = {
    "gpt2": gpt2, "llama": llama, "mistral": mistral, "qwen2": qwen2,
    "llama3": lambda: llama(rope_theta=500000.0, rope_scaling=LLAMA3,
                            tie_word_embeddings=True, num_attention_heads=2,
                            num_key_value_heads=1),
    "biased": lambda: llama(attention_bias=True, mlp_bias=True),
}


def architecture(model):
    kind = model.config.model_type
    return "llama" if kind == "mistral" else kind


def permuted(weight, heads):
    return (weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
            .swapaxes(1, 2).reshape(weight.shape))


def converted(model):
    """The tensors of llama.cpp's converters, in 32 bits: a dict by name."""
    config = model.config
    arch = {"gpt2": gguf.MODEL_ARCH.GPT2, "llama": gguf.MODEL_ARCH.LLAMA,
            "qwen2": gguf.MODEL_ARCH.QWEN2}[architecture(model)]
    names = gguf.get_tensor_name_map(arch, 2)
    out = {}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        tensor = tensor.detach()
        if arch == gguf.MODEL_ARCH.GPT2 and tensor.dim() == 2 and ".h." in name:
            tensor = tensor.t()
        if arch == gguf.MODEL_ARCH.LLAMA and "q_proj" in name:
            tensor = permuted(tensor, config.num_attention_heads)
        if arch == gguf.MODEL_ARCH.LLAMA and "k_proj" in name:
            tensor = permuted(tensor, config.num_key_value_heads)
        out[names.get_name(name, (".weight", ".bias"))] = tensor.contiguous()
    return out


def written_by_gguf(model, path):
    """A file as the converters write it, with a vocabulary that a tokenizer can be of."""
    config = model.config
    writer = gguf.GGUFWriter(path, architecture(model))
    writer.add_name("a model")
    writer.add_block_count(2)
    if config.model_type == "gpt2":
        writer.add_context_length(config.n_positions)
        writer.add_embedding_length(config.n_embd)
        writer.add_feed_forward_length(4 * config.n_embd)
        writer.add_head_count(config.n_head)
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
    else:
        writer.add_context_length(config.max_position_embeddings)
        writer.add_embedding_length(config.hidden_size)
        writer.add_feed_forward_length(config.intermediate_size)
        writer.add_head_count(config.num_attention_heads)
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
        writer.add_vocab_size(48)
        if config.model_type != "qwen2":
            writer.add_rope_dimension_count(config.head_dim)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    letters = [chr(33 + i) for i in range(45)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(["<s>", "</s>", "<pad>", *letters])
    writer.add_token_types([3, 3, 3] + [1] * 45)
    writer.add_token_merges([f"{a} {b}" for a, b in zip(letters[:2], letters[1:])])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    for name, tensor in converted(model).items():
        writer.add_tensor(name, tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def array_of(tensor):
    """The numbers of a tensor that GGUFReader found, as torch has them."""
    shape = tuple(reversed(tensor.shape.tolist()))
    data = torch.from_numpy(np.array(tensor.data))
    if tensor.tensor_type == TYPES.BF16:
        data = data.view(torch.bfloat16)
    return data.reshape(shape)


def keys_of(reader):
    return {name: field.contents() for name, field in reader.fields.items()
            if not name.startswith("GGUF.")}


class Gguf(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, *parts):
        return os.path.join(self.folder, *parts)

    def same_logits(self, a, b, what):
        with torch.no_grad():
            self.assertTrue(torch.equal(a(TOKENS).logits, b(TOKENS).logits), what)

    def loaded(self, name, **options):
        options.setdefault("dtype", torch.float32)
        return transformers.AutoModelForCausalLM.from_pretrained(
            self.path(name) if "gguf_file" not in options else self.folder,
            **options).eval()

    def test_written(self):
        types = {"fp32": (torch.float32, TYPES.F32), "bf16": (torch.bfloat16, TYPES.BF16),
                 "fp16": (torch.float16, TYPES.F16)}
        for name, make in MODELS.items():
            model = make()
            model.save_pretrained(self.path(name))
            wanted = converted(model)
            for dtype, (torch_type, ggml_type) in types.items():
                file = self.path(f"{name}.{dtype}.gguf")
                reshard(self.path(name), file, "gguf", "--dtype", dtype)
                reader = gguf.GGUFReader(file)
                found = {t.name: t for t in reader.tensors}
                factors = found.pop("rope_freqs.weight", None)
                self.assertEqual(factors is not None, name == "llama3")
                self.assertEqual(set(found), set(wanted))
                for key, tensor in found.items():
                    vector = wanted[key].dim() == 1
                    self.assertEqual(tensor.tensor_type, TYPES.F32 if vector else ggml_type)
                    expected = wanted[key] if vector else wanted[key].to(torch_type)
                    self.assertTrue(torch.equal(array_of(tensor), expected), key)
            self.same_logits(model, self.through(f"{name}.fp32.gguf"), name)

    def through(self, file):
        folder = self.path(file + ".hf")
        reshard(self.path(file), folder, "hf")
        return self.loaded(file + ".hf")

    def test_keys(self):
        model = mistral()
        model.save_pretrained(self.path("m"))
        reshard(self.path("m"), self.path("m.gguf"), "gguf", "--dtype", "bf16")
        keys = keys_of(gguf.GGUFReader(self.path("m.gguf")))
        epsilon = keys.pop("llama.attention.layer_norm_rms_epsilon")
        self.assertEqual(np.float32(epsilon), np.float32(1e-6))
        self.assertEqual(keys, {
            "general.architecture": "llama", "general.type": "model",
            "general.name": "llama", "general.file_type": 32,
            "general.quantization_version": 2, "llama.block_count": 2,
            "llama.context_length": 64, "llama.embedding_length": 32,
            "llama.feed_forward_length": 48, "llama.attention.head_count": 4,
            "llama.attention.head_count_kv": 2, "llama.rope.freq_base": 10000.0,
            "llama.attention.key_length": 16, "llama.attention.value_length": 16,
            "llama.rope.dimension_count": 16, "llama.vocab_size": 48,
            "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2})

    def test_rope_factors(self):
        """generate_extra_tensors of llama.cpp, in 32 bits."""
        model = MODELS["llama3"]()
        model.save_pretrained(self.path("l3"))
        reshard(self.path("l3"), self.path("l3.gguf"), "gguf")
        found = [t for t in gguf.GGUFReader(self.path("l3.gguf")).tensors
                 if t.name == "rope_freqs.weight"]
        wanted = []
        for freq in 1.0 / 500000.0 ** (torch.arange(0, 16, 2, dtype=torch.float32) / 16):
            wavelength = 2 * torch.pi / freq
            smooth = (8192 / wavelength - 1) / 3
            wanted.append(1 if wavelength < 2048 else 8 if wavelength > 8192 else
                          1 / ((1 - smooth) / 8 + smooth))
        self.assertTrue(np.allclose(found[0].data, wanted, rtol=1e-6))
        self.assertEqual({1.0, 8.0} - set(found[0].data.tolist()), set())

    def test_written_by_gguf(self):
        for name in ("gpt2", "llama", "qwen2"):
            model = MODELS[name]()
            written_by_gguf(model, self.path(f"{name}.gguf"))
            self.same_logits(model, self.through(f"{name}.gguf"), name)
            reshard(self.path(f"{name}.gguf"), self.path(f"{name}.again.gguf"), "gguf")
            again = self.loaded("", gguf_file=f"{name}.again.gguf")
            self.assertEqual(again.config.vocab_size, 48)
            self.same_logits(model, again, name)
            old, new = (keys_of(gguf.GGUFReader(self.path(f"{name}{x}.gguf")))
                        for x in ("", ".again"))
            for key, value in old.items():
                self.assertEqual(new[key], value, key)

    def test_config(self):
        model = gpt2()
        written_by_gguf(model, self.path("g.gguf"))
        reshard(self.path("g.gguf"), self.path("g"), "hf", "--dtype", "bf16")
        with open(self.path("g", "config.json"), encoding="utf-8") as file:
            config = json.load(file)
        self.assertEqual(config, {
            "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_layer": 2,
            "n_positions": 1024, "n_ctx": 1024, "n_embd": 16, "n_head": 2,
            "layer_norm_epsilon": 1e-5, "vocab_size": 48, "bos_token_id": 0,
            "eos_token_id": 1, "tie_word_embeddings": True,
            "activation_function": "gelu_new", "torch_dtype": "bfloat16"})

    def test_through_native(self):
        """Nothing is lost on the way over two ranks and back."""
        model = llama()
        written_by_gguf(model, self.path("x.gguf"))
        reshard(self.path("x.gguf"), self.path("step"), "native", "--world", "2")
        reshard(self.path("step"), self.path("y.gguf"), "gguf")
        reshard(self.path("x.gguf"), self.path("z.gguf"), "gguf")
        with open(self.path("y.gguf"), "rb") as a, open(self.path("z.gguf"), "rb") as b:
            self.assertEqual(a.read(), b.read())
        self.same_logits(model, self.loaded("", gguf_file="y.gguf"), "native")

    def test_other_architectures(self):
        arrays = {
            "x.weight": np.arange(24, dtype=np.float32).reshape(2, 3, 4),
            "x.bias": np.arange(3, dtype=np.float16),
            "y": np.arange(6, dtype=np.float64).reshape(3, 2),
            "i8": np.arange(-4, 4, dtype=np.int8).reshape(2, 2, 2, 1),
            "i16": np.arange(5, dtype=np.int16), "i32": np.arange(5, dtype=np.int32),
            "i64": np.arange(5, dtype=np.int64),
        }
        writer = gguf.GGUFWriter(self.path("x.gguf"), "of-its-own")
        writer.add_array("a.list", [1, -2, 3])
        writer.add_float64("a.number", 0.1)
        for name, array in arrays.items():
            writer.add_tensor(name, array)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        reshard(self.path("x.gguf"), self.path("y.gguf"), "gguf")
        with open(self.path("x.gguf"), "rb") as a, open(self.path("y.gguf"), "rb") as b:
            self.assertEqual(a.read(), b.read())
        reshard(self.path("x.gguf"), self.path("x.pt"), "torch")
        state = torch.load(self.path("x.pt"), weights_only=True)
        self.assertEqual(set(state), set(arrays))
        for name, array in arrays.items():
            self.assertTrue(torch.equal(state[name], torch.from_numpy(array)), name)

    def test_quantized(self):
        for kind in (TYPES.Q8_0, TYPES.Q4_0, TYPES.Q5_1, TYPES.TQ1_0):
            path = self.path(f"{kind.name}.gguf")
            data = gguf.quants.quantize(np.ones((2, 256), np.float32), kind)
            writer = gguf.GGUFWriter(path, "llama")
            writer.add_tensor("blk.0.attn_q.weight", data, raw_dtype=kind)
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
            writer.close()
            self.assertRegex(program("dcp-inspect", "ls", path),
                             rf"blk.0.attn_q.weight +{kind.name} +\[2, 256\] +{data.nbytes} B")
            self.assertIn("weights quantized", program("dcp-inspect", "show", path))
            self.assertIn("512 parameters", program("dcp-inspect", "show", path))
            for verb in (["stats"], ["diff", path]):
                with self.assertRaisesRegex(AssertionError, rf"quantized \({kind.name}\)"):
                    program("dcp-inspect", *verb, path)
            with self.assertRaisesRegex(AssertionError, rf"quantized \({kind.name}\)"):
                reshard(path, self.path("never"), "native")

    def test_heads(self):
        """A tied head is left out, one of its own is there."""
        for name, wanted in (("gpt2", False), ("llama", True), ("llama3", False)):
            MODELS[name]().save_pretrained(self.path(name))
            reshard(self.path(name), self.path(f"{name}.gguf"), "gguf")
            names = [t.name for t in gguf.GGUFReader(self.path(f"{name}.gguf")).tensors]
            self.assertEqual("output.weight" in names, wanted, name)


if __name__ == "__main__":
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    unittest.main()
