"""The files beside the step that a Trainer of transformers looks for, and others need."""

from __future__ import annotations

import json
import os
import pathlib

import pytest
from conftest import flip, peer

import libdcp

torch = peer("torch")
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
