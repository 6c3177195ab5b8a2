# labels: interop
"""An export is the model alone, as torch has it; what is left out is named.

1. torchtitan's distributed checkpoints, whose weights stand at the top beside counters.
2. Lightning's .ckpt, with a tensor of a callback, and its FSDP folder with meta.pt.
"""

import os
import subprocess
import sys
import tempfile

import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (StateDictOptions,
                                                     get_optimizer_state_dict)

from programs import BIN, program


def trained():
    torch.manual_seed(2)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    return model, optimizer


def torchtitan(model, optimizer, folder):
    states = get_optimizer_state_dict(model, optimizer, options=StateDictOptions(
        flatten_optimizer_state_dict=True))
    dcp.save({**model.state_dict(), **states, "lr_scheduler": {"last_epoch": 7},
              "train_state": {"step": torch.tensor(7), "ntokens_seen": torch.tensor(9)}},
             checkpoint_id=folder)


LIGHTNING = {"epoch": 1, "global_step": 7, "pytorch-lightning_version": "2.5.0",
             "loops": {"fit_loop": {}}, "lr_schedulers": [],
             "callbacks": {"ModelCheckpoint": {"best_model_score": torch.tensor(0.5)}}}


def lightning(model, optimizer, file):
    torch.save({**LIGHTNING, "state_dict": model.state_dict(),
                "optimizer_states": [optimizer.state_dict()]}, file)


def lightning_fsdp(model, _, folder):
    dcp.save({"model": model.state_dict()}, checkpoint_id=folder)
    torch.save(LIGHTNING, folder + "/meta.pt")


def main():
    model, optimizer = trained()
    with tempfile.TemporaryDirectory(prefix="dcp-export-") as work:
        for save, left in ((torchtitan, "2 tensors that are no weights ('train_state."),
                           (lightning, "1 tensor that is no weight ('callbacks."),
                           (lightning_fsdp, "what the format safetensors cannot hold: lightning")):
            source = os.path.join(work, save.__name__)
            save(model, optimizer, source)
            out = os.path.join(work, "out.safetensors")
            said = program("dcp-reshard", "export", source, out, "--force")
            assert f"left out {left}" in said, said
            found = safetensors.torch.load_file(out)
            assert found.keys() == model.state_dict().keys(), found.keys()
            for name, tensor in model.state_dict().items():
                assert torch.equal(found[name], tensor), name
            if "'" in left:
                name = left.split("'")[1] + "*"
                program("dcp-reshard", "export", source, out, "--force", "--select", name)
        assert "lightning" in program("dcp-inspect", source)
        program("dcp-reshard", source, os.path.join(work, "step-00000007"))
        done = subprocess.run([os.path.join(BIN, "dcp-inspect"), "diff", source,
                               os.path.join(work, "step-00000007")], check=False)
        assert done.returncode == 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
