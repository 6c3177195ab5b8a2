"""Modules of Lightning by themselves, from a checkpoint of ours."""

from __future__ import annotations

import pytest
from conftest import peer

import libdcp

torch = peer("torch")
lightning = peer("lightning")
import libdcp.lightning  # noqa: E402


class Module(lightning.LightningModule):
    def __init__(self, width=4):
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Linear(width, width)


@pytest.mark.parametrize("ours", [True, False])
def test_load_from_checkpoint(tmp_path, ours):
    """With its hyperparameters, by a file in memory; also of what Lightning wrote."""
    plugins = [libdcp.lightning.CheckpointIO()] if ours else []
    trainer = lightning.Trainer(
        accelerator="cpu", logger=False, enable_checkpointing=False, plugins=plugins
    )
    module = Module(width=3)
    trainer.strategy.connect(module)
    trainer.save_checkpoint(tmp_path / "it.ckpt")
    assert (tmp_path / "it.ckpt").is_dir() == ours
    file = libdcp.lightning.as_file(tmp_path / "it.ckpt")
    got = Module.load_from_checkpoint(file)
    assert torch.equal(got.net.weight, module.net.weight) and got.hparams.width == 3


def test_arguments(tmp_path):
    """Options are checked at once; a place that is not honoured is warned of."""
    for how in (
        {"paritty": 1},
        {"step": -1},
        {"keep": -2},
        {"codec": 3},
        {"export_name": ""},
    ):
        with pytest.raises(libdcp.UsageError):
            libdcp.lightning.CheckpointIO(**how)
    files = libdcp.lightning.CheckpointIO(parity=0, threads=1)
    files.save_checkpoint({"w": torch.ones(2)}, tmp_path / "it")
    with pytest.warns(RuntimeWarning, match="map_location='meta' does nothing"):
        assert files.load_checkpoint(tmp_path / "it", "meta")["w"].device.type == "cpu"


@pytest.mark.parametrize("name", ["FSDPStrategy", "ModelParallelStrategy"])
def test_strategies_that_load_files_alone(tmp_path, name):
    full = {"FSDPStrategy": {}, "ModelParallelStrategy": {}}
    full["ModelParallelStrategy"]["save_distributed_checkpoint"] = False
    strategy = getattr(lightning.pytorch.strategies, name)(**full[name])
    strategy.checkpoint_io = libdcp.lightning.CheckpointIO()
    with pytest.raises(libdcp.UnsupportedError, match=f"{name} loads full checkpoints"):
        strategy.save_checkpoint({"global_step": 1}, tmp_path / "it.ckpt")
    assert not (tmp_path / "it.ckpt").exists()
