"""Models of the Llama family, judged by transformers: Hugging Face's folders through every
form, and the folders of Meta, made here by the inverse of the rule that
convert_llama_weights_to_hf.py has, split as Meta's model.py splits its layers."""

import json
import os
import tempfile
import unittest

import safetensors.torch
import torch
import transformers

from programs import reshard

TOKENS = torch.arange(40).reshape(4, 10)
SHAPE = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 48}
META = {"self_attn.q_proj": "attention.wq", "self_attn.k_proj": "attention.wk",
        "self_attn.v_proj": "attention.wv", "self_attn.o_proj": "attention.wo",
        "mlp.gate_proj": "feed_forward.w1", "mlp.up_proj": "feed_forward.w3",
        "mlp.down_proj": "feed_forward.w2", "input_layernorm": "attention_norm",
        "post_attention_layernorm": "ffn_norm", "embed_tokens": "tok_embeddings",
        "lm_head": "output"}




def filled(model):
    torch.manual_seed(7)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


def llama(**more):
    return filled(transformers.LlamaForCausalLM(transformers.LlamaConfig(
        **{**SHAPE, "bos_token_id": 1, "eos_token_id": 2, "rms_norm_eps": 1e-5, **more})))


def meta_state(model):
    """Meta's names and order of rows."""
    heads = {"wq": model.config.num_attention_heads,
             "wk": model.config.num_key_value_heads}
    state = {}
    for name, tensor in model.state_dict().items():
        name = name.removeprefix("model.")
        for theirs, metas in META.items():
            name = name.replace(theirs, metas)
        n = heads.get(name.split(".")[-2])
        if n:
            rows = tensor.shape[0]
            tensor = tensor.view(n, 2, rows // n // 2, -1).transpose(1, 2).reshape(rows, -1)
        state[name] = tensor
    return state


def split(name, tensor, world, vocabulary):
    layer = name.split(".")[-2]
    if layer in ("wq", "wk", "wv", "w1", "w3", "output"):
        return tensor.chunk(world, 0)
    if layer in ("wo", "w2"):
        return tensor.chunk(world, 1)
    if layer == "tok_embeddings":
        return tensor.chunk(world, 0 if vocabulary else 1)
    return [tensor] * world


class Llama(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, *parts):
        return os.path.join(self.folder, *parts)

    def check(self, model, folder, kind=None):
        again = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32).eval()
        self.assertEqual(type(again), kind or type(model))
        with torch.no_grad():
            self.assertTrue(torch.equal(model(TOKENS).logits, again(TOKENS).logits))
        return again.config

    # -- Hugging Face -----------------------------------------------------------------

    def test_folders(self):
        models = {
            "llama": llama(), "tied": llama(tie_word_embeddings=True),
            "mistral": filled(transformers.MistralForCausalLM(
                transformers.MistralConfig(**SHAPE, head_dim=16))),
            "qwen2": filled(transformers.Qwen2ForCausalLM(
                transformers.Qwen2Config(**SHAPE))),
        }
        for name, model in models.items():
            source = self.path(name)
            model.save_pretrained(source, max_shard_size="20KB")
            reshard(source, self.path(name + ".step"), "native", "--world", "3")
            reshard(self.path(name + ".step"), self.path(name + ".again"), "hf",
                    "--max-shard-size", "30K")
            self.check(model, self.path(name + ".again"))
            configs = []
            for folder in (name, name + ".again"):
                with open(self.path(folder, "config.json"), encoding="utf-8") as file:
                    configs.append(json.load(file))
            self.assertEqual(*configs)

    def test_names_without_prefix(self):
        """A file of the base model, buffers of old versions in it."""
        model = llama(tie_word_embeddings=True)
        model.config.save_pretrained(self.path("old"))
        state = {k.removeprefix("model."): v for k, v in model.state_dict().items()
                 if k != "lm_head.weight"}
        for i in range(2):
            state[f"layers.{i}.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
        torch.save(state, self.path("old", "pytorch_model.bin"))
        reshard(self.path("old"), self.path("new"), "hf")
        self.check(model, self.path("new"))
        found = safetensors.torch.load_file(self.path("new", "model.safetensors"))
        self.assertEqual(set(found), set(model.state_dict()) - {"lm_head.weight"})

    def test_rename(self):
        """The table of names by itself: Meta's, and back."""
        model = llama()
        safetensors.torch.save_file(dict(model.state_dict()), self.path("x.safetensors"))
        reshard(self.path("x.safetensors"), self.path("y.safetensors"), "safetensors",
                "--rename", "meta")
        found = safetensors.torch.load_file(self.path("y.safetensors"))
        self.assertEqual(set(found), set(meta_state(model)))
        reshard(self.path("y.safetensors"), self.path("z.safetensors"), "safetensors",
                "--rename", "hf")
        found = safetensors.torch.load_file(self.path("z.safetensors"))
        self.assertEqual(set(found), set(model.state_dict()))

    # -- Meta -------------------------------------------------------------------------

    def write_meta(self, model, name, world, vocabulary=False, **more):
        folder = self.path(name)
        os.mkdir(folder)
        config = model.config
        state = meta_state(model)
        for rank in range(world):
            part = {k: split(k, v, world, vocabulary)[rank].clone()
                    for k, v in state.items()}
            part["rope.freqs"] = torch.ones(4)
            torch.save(part, os.path.join(folder, f"consolidated.{rank:02d}.pth"))
        params = {"dim": config.hidden_size, "multiple_of": 256, "vocab_size": -1,
                  "n_heads": config.num_attention_heads, "norm_eps": config.rms_norm_eps,
                  "n_layers": config.num_hidden_layers, **more}
        if config.num_key_value_heads != config.num_attention_heads:
            params["n_kv_heads"] = config.num_key_value_heads
        with open(os.path.join(folder, "params.json"), "w", encoding="utf-8") as file:
            json.dump(params, file)
        return folder

    def test_meta(self):
        model = llama()
        for world, vocabulary in ((1, False), (2, False), (2, True)):
            folder = self.write_meta(model, f"{world}{vocabulary}", world, vocabulary)
            reshard(folder, folder + ".hf", "hf")
            config = self.check(model, folder + ".hf")
            self.assertEqual(config.max_position_embeddings, 4096)
            self.assertEqual((config.bos_token_id, config.eos_token_id), (1, 2))
            reshard(folder, folder + ".gguf", "gguf")
            again = transformers.AutoModelForCausalLM.from_pretrained(
                self.folder, gguf_file=os.path.basename(folder) + ".gguf",
                dtype=torch.float32).eval()
            with torch.no_grad():
                self.assertTrue(torch.equal(model(TOKENS).logits, again(TOKENS).logits))

    def test_meta_without_groups(self):
        model = llama(num_key_value_heads=4, rms_norm_eps=1e-6)
        folder = self.write_meta(model, "seven", 4)
        reshard(folder, folder + ".hf", "hf")
        self.assertEqual(self.check(model, folder + ".hf").max_position_embeddings, 2048)

    def test_llama_3(self):
        """Told by its vocabulary; the rotation is stretched as params.json says."""
        model = llama(vocab_size=100352, hidden_size=16, rope_theta=500000.0,
                      max_position_embeddings=131072,
                      rope_scaling={"rope_type": "llama3", "factor": 32.0,
                                    "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                    "original_max_position_embeddings": 8192})
        folder = self.write_meta(model, "three", 2, True, rope_theta=500000.0,
                                 use_scaled_rope=True)
        reshard(folder, folder + ".hf", "hf")
        config = self.check(model, folder + ".hf")
        self.assertEqual(config.max_position_embeddings, 131072)
        self.assertEqual(config.bos_token_id, 128000)
        self.assertEqual(config.rope_parameters, model.config.rope_parameters)

    def test_mistral(self):
        """One file of safetensors, a head that is not the width by the heads."""
        model = llama(head_dim=16)
        folder = self.path("mistral")
        os.mkdir(folder)
        safetensors.torch.save_file(
            {k: v.contiguous() for k, v in meta_state(model).items()},
            os.path.join(folder, "consolidated.safetensors"))
        with open(os.path.join(folder, "params.json"), "w", encoding="utf-8") as file:
            json.dump({"dim": 32, "n_layers": 2, "head_dim": 16, "hidden_dim": 48,
                       "n_heads": 4, "n_kv_heads": 2, "norm_eps": 1e-5,
                       "vocab_size": 48}, file)
        reshard(folder, folder + ".hf", "hf")
        self.check(model, folder + ".hf")

    def test_meta_refused(self):
        model = llama()
        cases = {
            "a rank is missing": ("not as wide as",
                                  lambda f: os.remove(f + "/consolidated.01.pth")),
            "more layers": ("do not make a Llama model", lambda f: self.edit(f, n_layers=3)),
            "other heads": ("heads|head", lambda f: self.edit(f, n_heads=3)),
            "foreign": ("is not a tensor of Llama", lambda f: torch.save(
                {"x": torch.ones(2)}, f + "/consolidated.00.pth")),
        }
        for name, (words, spoil) in cases.items():
            folder = self.write_meta(model, name, 2)
            spoil(folder)
            with self.subTest(name), self.assertRaisesRegex(AssertionError, words):
                reshard(folder, folder + ".hf", "hf")

    def edit(self, folder, **changes):
        path = os.path.join(folder, "params.json")
        with open(path, encoding="utf-8") as file:
            params = json.load(file)
        with open(path, "w", encoding="utf-8") as file:
            json.dump({**params, **changes}, file)


if __name__ == "__main__":
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    unittest.main()
