# labels: interop
"""Checkpoints of Hugging Face's Trainer and of accelerate, held against the optimizers that
saved them.

1. Every moment comes out under the name of its weight, in a native step and in a
   distributed checkpoint of PyTorch, from safetensors and from .bin, of several families;
   groups, step, scheduler and random numbers too.
2. dcp-train goes on from a run with the losses that torch goes on with.
3. accelerate's folders: .bin keeps the order of the weights, safetensors does not, and is
   refused unless a config.json, or the shapes, tell it.
4. FSDP's folders, sharded and whole.
5. What lies beside them keeps its own tensors, whatever these are called.
"""

import glob
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile

import accelerate
import safetensors.torch
import torch
import transformers
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from programs import BIN, program, reshard

SEQ, SAMPLES, STEPS = 16, 8, 12
SMALL = {"vocab_size": 256, "hidden_size": 32, "intermediate_size": 64,
         "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 32}
GPT2 = {"n_layer": 2, "n_head": 2, "n_embd": 32, "n_positions": SEQ, "vocab_size": 256}
FSDP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fsdp_peer.py")


def gpt2():
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, attn_implementation="eager", **GPT2))


def family(name, head="CausalLM", **more):
    config = transformers.AutoConfig.for_model(
        name, **{**SMALL, "num_key_value_heads": 2, "head_dim": 16, "pad_token_id": 0,
                 **more})
    return getattr(transformers, "AutoModelFor" + head).from_config(config)


MODELS = {
    "gpt2": gpt2,
    "gpt2-score": lambda: transformers.GPT2ForSequenceClassification(
        transformers.GPT2Config(pad_token_id=0, **GPT2)),
    "llama": lambda: family("llama"), "qwen2": lambda: family("qwen2"),
    "qwen3": lambda: family("qwen3", tie_word_embeddings=True),
    "gemma2": lambda: family("gemma2"), "neox": lambda: family("gpt_neox"),
    "bert": lambda: family("bert", "MaskedLM"),
    "bert-score": lambda: family("bert", "SequenceClassification"),
}


class Samples(torch.utils.data.Dataset):
    def __init__(self, scores):
        self.scores = scores

    def __len__(self):
        return 64

    def __getitem__(self, i):
        ids = torch.randint(1, 256, (SEQ,), generator=torch.Generator().manual_seed(i))
        return {"input_ids": ids, "labels": torch.tensor(i % 2) if self.scores else ids}


def train(model, folder, steps=2):
    torch.manual_seed(1)
    trainer = transformers.Trainer(model, transformers.TrainingArguments(
        folder, max_steps=steps, save_steps=3 if steps > 2 else steps, use_cpu=True,
        report_to=[], weight_decay=0.1, learning_rate=1e-3, disable_tqdm=True,
        per_device_train_batch_size=4, logging_steps=100), train_dataset=Samples(
            "Classification" in type(model).__name__))
    trainer.train()
    optimizer = trainer.optimizer
    return getattr(optimizer, "optimizer", optimizer)


def expected(model, optimizer):
    """{(role, name): tensor} of what the optimizer has."""
    return {(role, name): optimizer.state[parameter][role].detach().clone()
            for name, parameter in model.named_parameters()
            for role in ("exp_avg", "exp_avg_sq")}


class Trainer(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)
        temporary = tempfile.TemporaryDirectory(prefix="dcp-trainer-")
        self.addCleanup(temporary.cleanup)
        self.work = temporary.name

    def path(self, name):
        return os.path.join(self.work, name)

    def refused(self, *arguments, status=5):
        done = subprocess.run([os.path.join(BIN, "dcp-reshard"), *arguments],
                              capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, status, done.stderr)
        return done.stderr

    def check(self, folder, wanted):
        """What a native step has of it; its manifest."""
        reshard(folder, self.path("step"), "native", "--world", "1", "--force")
        shard, = glob.glob(self.path("step/*.safetensors"))
        found = safetensors.torch.load_file(shard)
        for (role, name), tensor in wanted.items():
            named = found.get(f"optimizer.{role}.{name}")
            fsdp = found.get(f"optimizer.state.{name}.{role}")
            self.assertTrue(torch.equal(fsdp if named is None else named, tensor),
                            f"{role} of {name}")
        with open(self.path("step/manifest.json"), encoding="utf-8") as file:
            return json.load(file)

    def check_dcp(self, folder, model, wanted):
        """What PyTorch reads of a distributed checkpoint that it became."""
        reshard(folder, self.path("dcp"), "torch-dist", "--force")
        dcp_to_torch_save(self.path("dcp"), self.path("all.pt"))
        tree = torch.load(self.path("all.pt"), weights_only=False)
        states = tree["optim"]["state"]
        for (role, name), tensor in wanted.items():
            self.assertTrue(torch.equal(states[name][role], tensor), f"{role} of {name}")
        for name, parameter in model.named_parameters():
            self.assertTrue(torch.equal(tree["model"][name], parameter), name)
        return tree

    def test_families(self):
        for name, make in MODELS.items():
            with self.subTest(name):
                model, run = make(), self.path(name)
                wanted = expected(model, train(model, run))
                if name == "neox":  # it is saved under its old name
                    wanted = {(role, name.replace("lm_head", "embed_out")): tensor
                              for (role, name), tensor in wanted.items()}
                self.check(run, wanted)

    def test_run(self):
        model, run = gpt2(), self.path("run")
        optimizer = train(model, run, STEPS)  # checkpoint-12 is newer than checkpoint-9
        wanted = expected(model, optimizer)
        manifest = self.check(run, wanted)
        tree = self.check_dcp(run, model, wanted)
        self.assertEqual(tree["scheduler"]["last_epoch"], STEPS)
        newest = f"{run}/checkpoint-{STEPS}"
        os.rename(newest + "/model.safetensors", self.path("model.safetensors"))
        torch.save(model.state_dict(), newest + "/pytorch_model.bin")
        self.check(run, wanted)
        self.assertEqual(manifest["step"], STEPS)
        objects = {o["name"]: o["value"] for o in manifest["objects"]}
        self.assertEqual(objects["trainer"]["step"], STEPS)
        self.assertEqual(objects["trainer_state"]["global_step"], STEPS)
        self.assertEqual(objects["scheduler"]["last_epoch"], STEPS)
        self.assertEqual(objects["optimizer"]["step"], STEPS)
        self.assertIn("rng_state.rank_0", objects)
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        for found, group in zip(objects["optimizer"]["param_groups"],
                                optimizer.param_groups, strict=True):
            self.assertEqual(found["params"], [names[id(p)] for p in group["params"]])
            for key in ("lr", "weight_decay", "eps", "initial_lr"):
                self.assertEqual(found[key], group[key])
            self.assertEqual(tuple(found["betas"]), group["betas"])
        self.go_on(run, model, optimizer)
        shutil.copytree(run + "/checkpoint-3", run + "/checkpoint-100")
        self.assertIn("checkpoint-100", program("dcp-inspect", run))  # renamed, and whole
        with open(run + "/checkpoint-3/trainer_state.json", "r+", encoding="utf-8") as file:
            state = json.load(file)
            file.seek(0)
            json.dump({**state, "global_step": 100}, file)
            file.truncate()
        with self.assertRaisesRegex(AssertionError, "of step 100, and the optimizer of step 3"):
            program("dcp-inspect", run + "/checkpoint-3")

    def go_on(self, run, model, optimizer):
        """Three steps more, here and there, on the same samples."""
        text = (b"It is a truth universally acknowledged, that a single man in possession "
                b"of a good fortune, must be in want of a wife. However little known the "
                b"feelings or views")[:SEQ * SAMPLES + 1]
        with open(self.path("text.bin"), "wb") as out:
            out.write(text)
        with open(self.path("train.json"), "w", encoding="utf-8") as out:
            json.dump({"train_batch_size": SAMPLES, "gradient_clipping": 1.0,
                       "optimizer": {"type": "AdamW",
                                     "params": {"lr": 3e-3, "weight_decay": 0.1}},
                       "model": {"family": "gpt2", **GPT2},
                       "data": {"train": "text.bin", "tokenizer": "bytes",
                                "seq_len": SEQ},
                       "checkpoint": {"dir": self.path("on")}}, out)
        program("dcp-train", "--config", self.path("train.json"), "--resume", run,
                "--steps", str(STEPS + 3))
        with open(self.path("on/metrics.jsonl"), encoding="utf-8") as lines:
            here = [json.loads(line)["loss"] for line in lines]
        tokens = torch.tensor(list(text))
        inputs, targets = (tokens[i:i + SEQ * SAMPLES].reshape(SAMPLES, SEQ) for i in (0, 1))
        model.train()
        for group in optimizer.param_groups:
            group["lr"] = 3e-3
        for loss_here in here:
            loss = torch.nn.functional.cross_entropy(
                model(inputs).logits.flatten(0, 1), targets.flatten())
            self.assertAlmostEqual(loss.item(), loss_here, delta=1e-4)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

    def accelerated(self, model, folder, safe):
        accelerator = accelerate.Accelerator(cpu=True)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda e: 1 / (1 + e))
        model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
        scheduler.step()
        accelerator.save_state(folder, safe_serialization=safe)
        return expected(model, optimizer.optimizer)

    def test_accelerate(self):
        model = gpt2()
        wanted = self.accelerated(model, self.path("bin"), False)
        manifest = self.check(self.path("bin"), wanted)
        self.assertEqual(manifest["step"], 1)
        wanted = self.accelerated(model, self.path("safe"), True)
        self.assertIn("does not keep their order", self.refused(
            self.path("safe"), self.path("no")))
        program("dcp-reshard", self.path("safe"), self.path("weights"), "--only", "model")
        model.config.architectures = ["GPT2LMHeadModel"]
        model.config.save_pretrained(self.path("safe"))
        self.check(self.path("safe"), wanted)
        model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Linear(5, 7))
        self.check(self.path("shapes"),
                   self.accelerated(model, self.path("shapes"), True))

    def test_fsdp(self):
        ranks = subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", "--standalone",
             "--nproc_per_node", "2", FSDP, self.work], capture_output=True, text=True)
        self.assertEqual(ranks.returncode, 0, ranks.stderr)
        whole = torch.load(self.path("wanted.pt"))
        model = gpt2()
        model.load_state_dict(whole["model"])
        wanted = {(role, name): tensor for name, state in whole["states"].items()
                  for role, tensor in state.items() if role != "step"}
        for kind in ("SHARDED_STATE_DICT", "FULL_STATE_DICT"):
            with self.subTest(kind):
                self.assertEqual(self.check(self.path(kind), wanted)["step"], 3)
                self.check_dcp(self.path(kind), model, wanted)

    def folder(self, name):
        """A model of one layer and its optimizer, as accelerate's files."""
        folder = self.path(name)
        os.mkdir(folder)
        model = torch.nn.Linear(4, 3)
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        safetensors.torch.save_file(model.state_dict(), folder + "/model.safetensors")
        torch.save(optimizer.state_dict(), folder + "/optimizer.bin")
        return folder

    def test_tensors_of_files(self):
        """Tensors of one path in several files are several."""
        folder, size = self.folder("tensors"), 300000
        files = {"sampler.bin": "sampler", "custom_checkpoint_0.pkl": "custom_checkpoint_0",
                 "custom_checkpoint_1.pkl": "custom_checkpoint_1",
                 "rng_state_0.pth": "rng_state.rank_0", "rng_state_1.pth": "rng_state.rank_1"}
        for number, file in enumerate(files):
            torch.save({"x": torch.full((size,), float(number)),
                        "a": {"b": torch.full((size,), number + 0.25)},
                        "a.b": torch.full((size,), number + 0.5)}, f"{folder}/{file}")
        reshard(folder, self.path("all.pt"), "torch")
        found = torch.load(self.path("all.pt"))
        for number, name in enumerate(files.values()):
            for part, more in ((".x", 0), (".a.b", 0.25), (".a.b#2", 0.5)):
                self.assertTrue(torch.equal(
                    found[name + part], torch.full((size,), number + more)), name + part)

    def test_numbered_files(self):
        """Whatever accelerate has several of is there; but one model, one optimizer."""
        folder = self.folder("one")
        for name in ("scheduler", "sampler", "dl_state_dict"):
            for number, end in enumerate(("", "_1", "_12")):
                torch.save({"of": number}, f"{folder}/{name}{end}.bin")
        torch.save({"of": -1}, f"{folder}/rng_state_2147483648.pth")
        torch.save({"of": 7}, f"{folder}/rng_state_7.pth")
        reshard(folder, self.path("step"), "native")
        with open(self.path("step/manifest.json"), encoding="utf-8") as file:
            objects = {o["name"]: o.get("value") for o in json.load(file)["objects"]}
        for name in ("scheduler", "sampler", "dl_state_dict"):
            for number, end in enumerate(("", "_1", "_12")):
                self.assertEqual(objects[name + end], {"of": number})
        self.assertEqual(objects["rng_state.rank_7"], {"of": 7})
        self.assertFalse([name for name in objects if "2147483648" in name])
        for name in ("model_1.safetensors", "pytorch_model_1.bin", "optimizer_1.bin",
                     "pytorch_model_fsdp_2.bin", "pytorch_model_fsdp_1/", "optimizer_1/"):
            path = os.path.join(folder, name)
            (os.mkdir if name.endswith("/") else lambda p: open(p, "wb").close())(path)
            self.assertIn(f"'{name.rstrip('/')}' is of a second model or optimizer",
                          self.refused(folder, self.path("no"), status=8))
            (os.rmdir if name.endswith("/") else os.remove)(path)
        os.mkdir(folder + "/optimizer_0")
        reshard(folder, self.path("step"), "native", "--force")

    def test_steps_of_weights(self):
        """Steps that are numbers and differ stay what they are."""
        folder = self.folder("steps")
        state = torch.load(folder + "/optimizer.bin")
        for number, step in enumerate((5, 9)):
            state["state"][number]["step"] = step
        torch.save(state, folder + "/optimizer.bin")
        reshard(folder, self.path("step"), "native")
        with open(self.path("step/manifest.json"), encoding="utf-8") as file:
            objects = {o["name"]: o.get("value") for o in json.load(file)["objects"]}
        self.assertEqual([objects[f"optimizer.step.{name}"] for name in ("weight", "bias")],
                         [5, 9])
        self.assertEqual(objects["optimizer"]["steps"], [5, 9])
        for source in (folder, self.path("step")):
            reshard(source, self.path("dcp"), "torch-dist", "--force")
            dcp_to_torch_save(self.path("dcp"), self.path("all.pt"))
            states = torch.load(self.path("all.pt"), weights_only=False)["optim"]["state"]
            self.assertEqual([states[name]["step"] for name in ("weight", "bias")], [5, 9])

    def test_buffers(self):
        """What the optimizer does not know is a buffer, as in one file of both."""
        class Buffered(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(4, 3)
                self.register_buffer("ema_sum", torch.ones(7))
                self.register_buffer("std", torch.ones(4))

        model, folder = Buffered(), self.path("buffers")
        optimizer = torch.optim.Adam(model.layer.parameters())
        model.layer(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        os.mkdir(folder)
        torch.save(optimizer.state_dict(), folder + "/optimizer.pt")
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()},
                   self.path("both.pt"))
        for form in ("model.safetensors", "pytorch_model.bin"):
            save = safetensors.torch.save_file if "safe" in form else torch.save
            save(model.state_dict(), f"{folder}/{form}")
            facts = json.loads(program("dcp-reshard", folder, self.path("zero"), "--to",
                                       "deepspeed", "--force", "--json"))
            self.assertIn("2 tensors that the optimizer does not know are buffers",
                          facts["assumed"])
            for source in (folder, self.path("both.pt")):
                listed = json.loads(program("dcp-inspect", "ls", source, "--json"))
                roles = {t["name"].removeprefix("model."): t["role"]
                         for t in listed["tensors"]}
                self.assertEqual((roles["ema_sum"], roles["std"]), ("buffer", "buffer"))
                self.assertEqual(roles["layer.weight"], "model")
            os.remove(f"{folder}/{form}")

    def test_order(self):
        """Weights of one shape are told apart by the model's order, which is no proof: said of
        targets that have moments by the names of weights, whatever the source is."""
        named = "torch-dist", "native", "bundle", "deepspeed", "universal"
        for sizes, said in ((4, 2), None), ((4, 4, 4), "in the model's order"):
            model = torch.nn.Sequential(*map(torch.nn.Linear, sizes, sizes[1:]))
            optimizer = torch.optim.Adam(model.parameters())
            model(torch.ones(1, 4)).sum().backward()
            optimizer.step()
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state, self.path("both.pt"))
            parts = {"accelerate": ("pytorch_model.bin", "optimizer.bin"),
                     "ranks": [f"{kind}_world_size_1_rank_0.pt" for kind in ("model", "optim")]}
            for folder, names in parts.items():
                os.makedirs(self.path(folder), exist_ok=True)
                for name, part in zip(names, state.values()):
                    torch.save(part, f"{self.path(folder)}/{name}")

            os.makedirs(self.path("zero"), exist_ok=True)
            torch.save({"module": state["model"], "optimizer": state["optimizer"],
                        "dp_world_size": 1, "mp_world_size": 1, "global_steps": 1,
                        "ds_version": "0.17.0"},
                       self.path("zero") + "/mp_rank_00_model_states.pt")

            def assumed(source, *arguments):
                facts = json.loads(program("dcp-reshard", self.path(source), self.path("made"),
                                           "--force", "--json", "--to", *arguments))
                return str(facts["assumed"])

            for source in "both.pt", "zero", *parts:
                for to in named:
                    with self.subTest(source, to=to, sizes=sizes):
                        self.assertIn(said or "None", assumed(source, to))
                for to in "torch", "safetensors":  # by the names that tensors have here
                    want = "None" if source == "both.pt" or not said else said
                    self.assertIn(want, assumed(source, to, "--lossy"))
                for to in "native", "deepspeed":
                    self.assertNotIn("order", assumed(source, to, "--only", "model"))
        optimizer = torch.optim.Adam(model.named_parameters())
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()},
                   self.path("both.pt"))
        self.assertEqual(assumed("both.pt", "torch-dist"), "None")

    def test_compressed_records(self):
        """A step in a record that somebody compressed is the number that it decodes to."""
        for steps, name in ((7, "folder"), (0, "none")):
            folder = self.folder(name)
            state = torch.load(folder + "/optimizer.bin")
            for of in state["state"].values():
                of["step"] = torch.tensor(float(steps))
                del of["exp_avg_sq"]
                if not steps:
                    del of["step"]
            torch.save(state, folder + "/optimizer.bin")
            weights = safetensors.torch.load_file(folder + "/model.safetensors")
            weights = {name: weights[name] for name in ("weight", "bias")}
            torch.save({"model": weights, "optimizer": state}, self.path("whole.pt"))
            for file in (folder + "/optimizer.bin", self.path("whole.pt")):
                os.rename(file, file + ".stored")
                with zipfile.ZipFile(file + ".stored") as stored, \
                        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as deflated:
                    for record in stored.namelist():
                        deflated.writestr(record, stored.read(record))
                os.remove(file + ".stored")
            for source in (folder, self.path("whole.pt")):
                reshard(source, self.path("step"), "native", "--force")
                with open(self.path("step/manifest.json"), encoding="utf-8") as file:
                    manifest = json.load(file)
                optimizer, = [o["value"] for o in manifest["objects"]
                              if o["name"] == "optimizer"]
                self.assertEqual(optimizer.get("step"), steps or None, source)
                if source == folder:
                    self.assertEqual(manifest["step"], steps or -1)

    def test_one_file_before_an_index(self):
        """As transformers has it, whoever reads the folder."""
        for name, more in (("plain", ()), ("hub", ("config.json",)),
                           ("trainer", ("optimizer.bin",)),
                           ("both", ("optimizer.bin", "config.json"))):
            folder = self.folder(name)
            os.rename(folder + "/model.safetensors", self.path("shard"))
            if "optimizer.bin" not in more:
                os.remove(folder + "/optimizer.bin")
            if "config.json" in more:
                with open(folder + "/config.json", "w", encoding="utf-8") as out:
                    json.dump({"model_type": "other"}, out)
            shard = "model-00001-of-00001.safetensors"
            shutil.copy(self.path("shard"), f"{folder}/{shard}")
            weights = safetensors.torch.load_file(f"{folder}/{shard}")
            with open(folder + "/model.safetensors.index.json", "w", encoding="utf-8") as out:
                json.dump({"weight_map": dict.fromkeys(weights, shard)}, out)
            ones = {key: torch.ones_like(tensor) for key, tensor in weights.items()}
            for want in (weights, ones):
                if want is ones:
                    safetensors.torch.save_file(ones, folder + "/model.safetensors")
                program("dcp-reshard", folder, self.path("out.pt"), "--to", "torch",
                        "--only", "model", "--force")
                found = torch.load(self.path("out.pt"))
                for key, tensor in want.items():
                    self.assertTrue(torch.equal(found[key], tensor), f"{name} {key}")

    def test_accelerate_two(self):
        accelerator = accelerate.Accelerator(cpu=True)
        models = [torch.nn.Linear(4, 3), torch.nn.Linear(5, 3)]
        accelerator.prepare(*models, *(torch.optim.Adam(m.parameters()) for m in models))
        accelerator.save_state(self.path("two"))
        self.assertIn("second model",
                      self.refused(self.path("two"), self.path("no"), status=8))


if __name__ == "__main__":
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    unittest.main()
