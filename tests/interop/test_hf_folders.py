# labels: interop
"""Folders of Hugging Face, judged by transformers: what goes in is what comes out.

1. A base model, without a head, keeps its names, whatever it is written to.
2. Tokenizer, chat template and settings of generation go along, byte for byte.
"""

import filecmp
import os
import sys
import tempfile

import safetensors.torch
import tokenizers
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


def go_along(work):
    folder, ours = os.path.join(work, "whole"), os.path.join(work, "ours")
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
        n_layer=1, n_head=1, n_embd=8, vocab_size=8, n_positions=8, eos_token_id=1))
    model.save_pretrained(folder)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer(
        tokenizers.models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?")))
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    tokenizer.save_pretrained(folder)
    program("dcp-reshard", "export", folder, ours + "/", "--force")
    names = sorted(os.listdir(folder))
    assert names == sorted(os.listdir(ours)), os.listdir(ours)
    _, differ, missing = filecmp.cmpfiles(folder, ours, names, shallow=False)
    assert not differ and not missing, (differ, missing)
    again = transformers.AutoTokenizer.from_pretrained(ours)
    assert again("a b c").input_ids == tokenizer("a b c").input_ids
    assert again.chat_template == tokenizer.chat_template


def main():
    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory(prefix="dcp-hf-") as work:
        keep_names(work)
        go_along(work)
    return 0


if __name__ == "__main__":
    sys.exit(main())
