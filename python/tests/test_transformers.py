"""The files beside the step that a Trainer of transformers looks for, and others need."""

from __future__ import annotations

import json
import os
import pathlib

import pytest
from conftest import flip, peer

import libdcp

torch = peer("torch")
safetensors = peer("safetensors.torch")
transformers = peer("transformers")
accelerate = peer("accelerate")
import libdcp.transformers  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::libdcp.StaleWarning"),
    pytest.mark.usefixtures("accelerate_anew"),
]


class Texts(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, i):
        return {"input_ids": torch.arange(6) + i, "labels": torch.arange(6) + i}


class Processing:
    def save_pretrained(self, folder):
        pathlib.Path(folder, "tokenizer.json").touch()


def trainer_of(run, steps=4, hook=libdcp.transformers.hook, **options):
    config = transformers.GPT2Config(
        vocab_size=40, n_positions=16, n_embd=8, n_layer=1, n_head=2
    )
    arguments = transformers.TrainingArguments(
        output_dir=str(run),
        use_cpu=True,
        max_steps=steps,
        save_steps=2,
        per_device_train_batch_size=2,
        report_to=[],
        disable_tqdm=True,
        dataloader_pin_memory=False,
        **options,
    )
    trainer = transformers.Trainer(
        model=transformers.GPT2LMHeadModel(config),
        args=arguments,
        train_dataset=Texts(),
        data_collator=transformers.default_data_collator,
    )
    trainer.processing_class = Processing()
    return hook(trainer)


def test_the_trainers_own_state_is_digested(tmp_path):
    """Where it was is held against the step: other numbers would lead elsewhere."""
    trainer_of(tmp_path).train()
    ckpt = str(tmp_path / "checkpoint-2")
    state = tmp_path / "checkpoint-2" / "trainer_state.json"
    good = state.read_bytes()
    at = good.index(b'"global_step": 2') + 15
    for damage in (lambda: flip(state, at), lambda: flip(state, 0), state.unlink):
        damage()
        trainer = trainer_of(tmp_path)
        with pytest.raises(libdcp.CorruptError, match=r"trainer_state\.json is") as why:
            trainer.train(resume_from_checkpoint=ckpt)
        assert why.value.file == str(state)
        with pytest.raises(libdcp.CorruptError):  # the way that FSDP takes
            trainer._load_optimizer_and_scheduler(ckpt)
        state.write_bytes(good)
    trainer = trainer_of(tmp_path)
    trainer.train(resume_from_checkpoint=ckpt)
    assert trainer.state.global_step == 4


def test_what_others_need_is_there(tmp_path):
    """The configuration, the tokenizer, the arguments: an export is a model."""
    trainer = trainer_of(tmp_path)
    trainer.train()
    ckpt = tmp_path / "checkpoint-4"
    names = {n for n in os.listdir(ckpt) if n.endswith((".json", ".bin"))}
    assert names == {
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "trainer_state.json",
        "training_args.bin",
    }
    told = json.loads((ckpt / "config.json").read_text(encoding="utf-8"))
    assert told["architectures"] == ["GPT2LMHeadModel"] and told["dtype"] == "float32"
    libdcp.export(ckpt, tmp_path / "hf")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    weights = trainer.model.state_dict()
    assert all(torch.equal(weights[k], v) for k, v in model.state_dict().items())


def test_a_folder_with_adafactor(tmp_path):
    """Its variances of rows and columns tell together which weight they are of."""
    trainer = trainer_of(tmp_path, hook=lambda plain: plain, optim="adafactor")
    trainer.train()
    names = {param: name for name, param in trainer.model.named_parameters()}
    libdcp.reshard(
        tmp_path / "checkpoint-4", tmp_path / "made", to="torch-dist", spelling="nested"
    )
    with libdcp.open(tmp_path / "made") as ckpt:
        for param, state in trainer.optimizer.state.items():
            for key in {"exp_avg_sq", "exp_avg_sq_row", "exp_avg_sq_col"} & set(state):
                kept = ckpt[f"optim.state.{names[param]}.{key}"].torch()
                assert torch.equal(kept, state[key])


def small_llama():
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=32,
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            tie_word_embeddings=True,
        )
    )


def small_gpt2():
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=32, n_positions=16, n_embd=16, n_layer=1, n_head=2
        )
    )


def with_head(folder, make, form, head=None):
    """A folder that has weights of the head and of the embedding, in files of their own
    or in one; without `head` their bytes are the same. The head that it has."""
    model = make()
    model.save_pretrained(folder)
    weights = safetensors.load_file(folder / "model.safetensors")
    embedding = model.get_input_embeddings().weight.detach()
    weights["lm_head.weight"] = embedding.clone() if head is None else head
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if make is small_gpt2:  # as old ones are: tied because nothing is said
        del config["tie_word_embeddings"]
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    if form == "one":
        meta = {"format": "pt"}
        safetensors.save_file(weights, folder / "model.safetensors", metadata=meta)
        return weights["lm_head.weight"]
    (folder / "model.safetensors").unlink()
    if form == "bin":
        torch.save(weights, folder / "pytorch_model.bin")
        return weights["lm_head.weight"]
    files = {n: f"model-{n == 'lm_head.weight':d}.safetensors" for n in weights}
    for file in set(files.values()):
        part = {n: w for n, w in weights.items() if files[n] == file}
        safetensors.save_file(part, folder / file, metadata={"format": "pt"})
    index = json.dumps({"metadata": {}, "weight_map": files})
    (folder / "model.safetensors.index.json").write_text(index, encoding="utf-8")
    return weights["lm_head.weight"]


def head_of(path):
    with libdcp.open(path) as ckpt:
        found = [t for t in ckpt.values() if t.param == "lm_head.weight"]
        return found[0].torch() if found else None


def differing(a, b):
    with libdcp.open(a) as one, libdcp.open(b) as other:
        return [d.a for d in one.diff(other).differences]


@pytest.mark.parametrize("form", ["one", "shards", "bin"])
@pytest.mark.parametrize("make", [small_llama, small_gpt2])
def test_a_head_of_its_own(tmp_path, make, form):
    """Where its bytes are not the embedding's, transformers loads it, and ties nothing,
    whatever the configuration says."""
    given = with_head(tmp_path / "own", make, form, torch.randn(32, 16))
    auto = transformers.AutoModelForCausalLM
    assert torch.equal(auto.from_pretrained(tmp_path / "own").lm_head.weight, given)
    assert torch.equal(head_of(tmp_path / "own"), given)
    for to in ("native", "safetensors", "torch", "torch-dist", "gguf", "hf"):
        libdcp.reshard(tmp_path / "own", tmp_path / to, to=to)
        assert torch.equal(head_of(tmp_path / to), given), to
        if to != "gguf":
            assert not differing(tmp_path / "own", tmp_path / to), to
    for source in ("own", "native", "torch-dist"):
        libdcp.export(tmp_path / source, tmp_path / f"{source}-hf")
        model = auto.from_pretrained(tmp_path / f"{source}-hf")
        assert torch.equal(model.lm_head.weight, given)
    with_head(tmp_path / "tied", make, form)
    assert "lm_head.weight" in differing(tmp_path / "own", tmp_path / "tied")


@pytest.mark.parametrize("form", ["one", "shards", "bin"])
@pytest.mark.parametrize("make", [small_llama, small_gpt2])
def test_a_head_with_the_bytes_of_the_embedding(tmp_path, make, form):
    """It is one weight, as transformers has it. One of another dtype is not."""
    given = with_head(tmp_path / "tied", make, form)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "tied")
    assert model.lm_head.weight is model.get_input_embeddings().weight
    assert head_of(tmp_path / "tied") is None
    with_head(tmp_path / "half", make, form, given.half())
    assert torch.equal(head_of(tmp_path / "half"), given.half())
    with libdcp.open(tmp_path / "half") as ckpt:
        assert ckpt.verify().n_tensors == len(ckpt)


@pytest.mark.parametrize("safe", [True, False])
def test_an_optimizer_with_a_head_of_its_own(tmp_path, safe):
    """The weights of a Trainer's folder are as many as its optimizer has."""
    trainer = trainer_of(tmp_path, hook=lambda plain: plain)
    trainer.model.lm_head.weight = torch.nn.Parameter(torch.randn(40, 8))
    trainer.train()
    folder = tmp_path / "checkpoint-4"
    if not safe:
        (folder / "model.safetensors").unlink()
        torch.save(trainer.model.state_dict(), folder / "pytorch_model.bin")
    libdcp.reshard(folder, tmp_path / "made")
    names = {param: name for name, param in trainer.model.named_parameters()}
    with libdcp.open(tmp_path / "made") as ckpt:
        kept = {t.param: t.torch() for t in ckpt.values() if t.role == "exp_avg"}
    assert "lm_head.weight" in kept and len(kept) == len(names)
    for param, state in trainer.optimizer.state.items():
        assert torch.equal(kept[names[param]], state["exp_avg"])
