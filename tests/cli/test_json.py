"""Every verb's --json is what tests/lib/json_fields.py says, field by field; docs/JSON.md is
made from that table."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..")
sys.path.insert(0, os.path.join(HERE, "..", "lib"))

import json_fields  # noqa: E402

BIN = os.environ.get("DCP_BIN_DIR", "build/bin")
NUMBERS = ("NaN", "Infinity", "-Infinity")
CONFIG = {
    "steps": 2, "train_batch_size": 2, "optimizer": {"type": "AdamW", "params": {"lr": 0.001}},
    "scheduler": {"type": "WarmupLR"},
    "model": {"n_layer": 1, "n_head": 2, "n_embd": 16, "n_positions": 32, "vocab_size": 256},
    "data": {"train": "text", "val": "text", "seq_len": 16, "eval_batches": 2},
    "checkpoint": {"dir": "run", "save_every": 1, "keep": 0},
}
# verb: commands that together show all of its members.
COMMANDS = {
    "show": ["dcp-inspect show run", "dcp-inspect show two", "dcp-inspect show delta",
             "dcp-inspect show m.safetensors"],
    "ls": ["dcp-inspect ls run --pieces", "dcp-inspect ls flat --pieces",
           "dcp-inspect ls boxes --pieces"],
    "map": ["dcp-inspect map two"],
    "stats": ["dcp-inspect stats run"],
    "diff": ["dcp-inspect diff run/step-00000001 run/step-00000002",
             "dcp-inspect diff run m.safetensors", "dcp-inspect diff run two"],
    "verify": ["dcp-inspect verify run", "dcp-inspect verify bad",
               "dcp-inspect verify run --subset 50% --state scrub"],
    "dump": ["dcp-inspect dump run transformer.wte.weight[0:1,0:2]",
             "dcp-inspect dump run -o scheduler"],
    "reshard": ["dcp-reshard run one --world 1", "dcp-reshard run never --dry-run",
                "dcp-reshard run never --dry-run --part 1/2"],
    "export": ["dcp-reshard export run m.bin --dtype bf16",
               "dcp-reshard export run hf/ --dry-run --part 1/2"],
    "repair": ["dcp-reshard repair two"],
    "delta": ["dcp-reshard delta make run/step-00000001 run/step-00000002 new",
              "dcp-reshard delta apply delta whole"],
    "steps": ["dcp-inspect steps run"],
    "scan": ["dcp-inspect scan m.bin --all"],
    "tag": ["dcp-reshard tag run/step-00000001 first"],
    "pin": ["dcp-reshard pin run/step-00000002"],
    "unpin": ["dcp-reshard unpin run/step-00000002"],
    "prune": ["dcp-reshard prune run --keep 1"],
    "gc": ["dcp-reshard gc left"],
    "formats": ["dcp-reshard formats"],
    "keygen": ["dcp-reshard keygen new.key"],
    "sign": ["dcp-reshard sign two --key me.key"],
    "signature": ["dcp-reshard verify two --key me.key.pub"],
    "train": ["dcp-train --config train.json --steps 3", "dcp-train --config train.json --steps 4",
              "dcp-train --config train.json --dry-run"],
    "estimate": ["dcp-train --config train.json --estimate"],
    "eval": ["dcp-train --config train.json --eval"],
    "generate": ["dcp-train --config train.json --generate x --max-tokens 3"],
}
# What shows only when a step goes while it is read.
RACES = {"steps[].retired"}


def run(command, *more):
    words = command.split() + list(more)
    words[0] = os.path.abspath(os.path.join(BIN, words[0])) if "/" not in words[0] else words[0]
    return subprocess.run(words, capture_output=True, text=True)


def fits(value, kind, null):
    if value is None:
        return null
    return {
        "any": lambda: True,
        "boolean": lambda: isinstance(value, bool),
        "string": lambda: isinstance(value, str),
        "integer": lambda: isinstance(value, int) and not isinstance(value, bool),
        "number": lambda: isinstance(value, (int, float)) and not isinstance(value, bool)
        or value in NUMBERS,
    }[kind]()


def walk(value, path, table, seen, wrong):
    """Every member of a document stands in the table, and is what it says."""
    if path in table:
        kind, null, _ = table[path]
        seen.add(path)
        if not fits(value, kind, null):
            wrong.append(f"{path} is {value!r}, not {kind}")
    elif isinstance(value, dict):
        for key, member in value.items():
            walk(member, f"{path}.{key}" if path else key, table, seen, wrong)
    elif isinstance(value, list):
        seen.add(path + "[]")
        for item in value:
            walk(item, path + "[]", table, seen, wrong)
        if not value:
            seen.update(p for p in table if p.startswith(path + "[]"))
    elif value is None and {rare for p, (_, _, rare) in table.items()
                            if p.startswith(path + ".")} == {True}:
        pass
    else:
        wrong.append(f"{path} is not in the table")


class Json(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        global BIN
        BIN = os.path.abspath(BIN)
        cls.work = tempfile.mkdtemp(prefix="dcp-json-")
        os.environ["OMP_NUM_THREADS"] = "1"
        shutil.copy(os.path.join(ROOT, "LICENSE"), os.path.join(cls.work, "text"))
        os.chdir(cls.work)
        with open("train.json", "w") as out:
            json.dump(CONFIG, out)
        for command in (
            "dcp-train -q --config train.json", "dcp-reshard -q run two --world 2 --parity 1",
            "dcp-reshard -q run boxes --world 2 --layout dim0",
            "dcp-reshard -q run flat --world 3 --layout zero3", "dcp-reshard keygen me.key",
            "dcp-reshard -q export run m.safetensors", "dcp-reshard -q run bad --world 2",
            "dcp-reshard -q delta make run/step-00000001 run/step-00000002 delta",
        ):
            done = run(command)
            assert done.returncode == 0, done.stderr
        with open("bad/shard-00000-of-00002.safetensors", "r+b") as shard:
            shard.seek(-9, 2)
            shard.write(b"damaged")
        os.remove("two/shard-00000-of-00002.pieces")
        os.makedirs("left/.tmp-step-00000009")

    @classmethod
    def tearDownClass(cls):
        os.chdir("/")
        shutil.rmtree(cls.work)

    def check(self, verb):
        table = {p: (kind, null, rare)
                 for p, kind, null, rare, _ in json_fields.rows(json_fields.DOCUMENTS[verb][1])}
        table["schema"] = ("string", False, False)
        seen, wrong = set(), []
        for command in COMMANDS[verb]:
            done = run(command, "--json", "-q")
            self.assertIn(done.returncode, (0, 1, 4), f"{command}: {done.stderr}")
            document = json.loads(done.stdout)
            self.assertEqual(document["schema"], f"dcp.{verb}/1")
            walk(document, "", table, seen, wrong)
            always = [p for p, (_, _, rare) in table.items() if not rare and "[]" not in p]
            for path in always:
                at = document
                for part in path.split("."):
                    self.assertIn(part, at, f"{command}: {path}")
                    at = at[part]
        self.assertEqual(wrong, [])
        missing = set(table) - seen - RACES
        self.assertEqual(sorted(missing), [], "in the table, and never printed")

    def test_failure(self):
        table = {p: (kind, null, rare)
                 for p, kind, null, rare, _ in json_fields.rows(json_fields.FAILURE)}
        for command in ("dcp-inspect ls nowhere", "dcp-inspect ls", "dcp-train --config nowhere",
                        "dcp-reshard one two three four"):
            done = run(command, "--json")
            self.assertEqual(done.stdout, "")
            document, seen, wrong = json.loads(done.stderr), set(), []
            walk(document, "", table, seen, wrong)
            self.assertEqual((wrong, sorted(set(table) - seen)), ([], []))
            self.assertEqual(document["exit"], done.returncode)

    def test_every_document_is_in_the_table(self):
        made = set()
        for folder in ("inspect", "reshard", "trainer"):
            for name in os.listdir(os.path.join(ROOT, folder)):
                if name.endswith(".c"):
                    with open(os.path.join(ROOT, folder, name), encoding="utf-8") as source:
                        made.update(re.findall(r'dcp_doc_new\("(\w+)"\)', source.read()))
        self.assertEqual(made - set(json_fields.DOCUMENTS), set())
        self.assertEqual(set(COMMANDS), set(json_fields.DOCUMENTS))

    def test_the_page_is_made_from_the_table(self):
        with open(os.path.join(ROOT, "docs", "JSON.md"), encoding="utf-8") as page:
            self.assertEqual(page.read(), json_fields.page(),
                             "python3 tests/lib/json_fields.py >docs/JSON.md")


for each in json_fields.DOCUMENTS:
    setattr(Json, f"test_{each}", lambda self, verb=each: self.check(verb))

if __name__ == "__main__":
    unittest.main()
