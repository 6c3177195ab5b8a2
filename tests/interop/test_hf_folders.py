# labels: interop
"""Folders of Hugging Face, judged by transformers: what goes in is what comes out.

1. A base model, without a head, keeps its names, whatever it is written to.
"""

import os
import sys
import tempfile

import safetensors.torch
import torch
import transformers

from programs import program, reshard

TOKENS = torch.arange(20).reshape(2, 10)
SHAPE = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 48}


def bases():
    torch.manual_seed(1)
    yield transformers.GPT2Model(transformers.GPT2Config(
        n_layer=2, n_head=2, n_embd=16, vocab_size=48))
    for model, config in ((transformers.LlamaModel, transformers.LlamaConfig),
                          (transformers.MistralModel, transformers.MistralConfig),
                          (transformers.Qwen2Model, transformers.Qwen2Config)):
        yield model(config(**SHAPE))


def hidden(model):
    with torch.no_grad():
        return model.eval()(TOKENS).last_hidden_state


def keep_names(work):
    for model in bases():
        kind = type(model).__name__
        folder, step = os.path.join(work, kind), os.path.join(work, kind + ".step")
        model.save_pretrained(folder)
        names = set(safetensors.torch.load_file(os.path.join(folder, "model.safetensors")))
        program("dcp-reshard", folder, step)
        for source in (folder, step):
            ours = os.path.join(work, "ours")
            program("dcp-reshard", "export", source, ours + "/", "--force")
            again, info = transformers.AutoModel.from_pretrained(
                ours, output_loading_info=True)
            assert not any(info.values()), (kind, info)
            assert type(again) is type(model)
            assert torch.equal(hidden(again), hidden(model)), kind
            file = os.path.join(work, "weights.safetensors")
            program("dcp-reshard", "export", source, file, "--force")
            assert set(safetensors.torch.load_file(file)) == names, kind
        reshard(folder, os.path.join(work, kind + ".gguf"), "gguf", "--only", "model")


def main():
    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory(prefix="dcp-hf-") as work:
        keep_names(work)
    return 0


if __name__ == "__main__":
    sys.exit(main())
