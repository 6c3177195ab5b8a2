#!/usr/bin/env python3
"""Byte pair encoding against Hugging Face's GPT2Tokenizer, on a vocabulary that the test
trains itself: every character of Unicode, random text, and real text."""
import glob
import os
import random
import subprocess
import tempfile
import unicodedata

os.environ["HF_HUB_OFFLINE"] = "1"
from tokenizers import ByteLevelBPETokenizer
from transformers import GPT2Tokenizer

BUILD = os.environ.get("DCP_BUILD_DIR",
                       os.path.join(os.path.dirname(__file__), "..", "..", "build"))
END = "<|endoftext|>"


def read(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read().replace("\0", "")


def real_texts():
    """Sources of Python's library: prose, code, long lines; the same on every machine that
    has the same Python."""
    paths = sorted(glob.glob(os.path.join(os.path.dirname(os.__file__), "*.py")))
    return [read(path) for path in paths[:60]]


def every_character():
    """Each assigned character between letters, digits, marks and spaces."""
    line = []
    for code in range(1, 0x110000):
        character = chr(code)
        if unicodedata.category(character) in ("Cs", "Cn"):
            continue
        line.append(f"a{character}a1{character}1!{character}! {character} ")
        if len(line) == 64:
            yield "".join(line)
            line = []
    yield "".join(line)


def random_texts(count):
    generator = random.Random(20240520)
    pieces = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'", "'S", " ", "  ", "\n", "\t",
              "\r\n", "\u00a0", "\u3000", "\u2028", "\u0085", "a", "the", " the", "Haus",
              "naïve", "中文", "язык", "٣", "²", "Ⅷ", "½", "0", "42", "e\u0301", "😀", "👩‍💻",
              ".", "...", "-", "_", "\u200b", "\ufeff", "<|", "|>", END, "\x01", "\x7f", "ſ"]
    for _ in range(count):
        yield "".join(generator.choices(pieces, k=generator.randrange(1, 40)))


def encode_here(spec, texts):
    program = os.path.join(BUILD, "tests", "test_unit_tokenizer")
    found = subprocess.run([program, "encode", spec], capture_output=True, check=True,
                           input=b"".join(text.encode() + b"\0" for text in texts))
    return [[int(id) for id in line.split()] for line in found.stdout.decode().split("\n")]


def compare(spec, theirs, texts, what):
    ours = encode_here(spec, texts)
    assert len(ours) == len(texts) + 1
    for text, found in zip(texts, ours):
        wanted = theirs.encode(text)
        if found != wanted:
            at = next((i for i, (a, b) in enumerate(zip(found, wanted)) if a != b),
                      min(len(found), len(wanted)))
            raise AssertionError(f"{what}: token {at} behind {theirs.decode(wanted[:at])[-40:]!r}: "
                                 f"{found[at:at + 5]} here, {wanted[at:at + 5]} there")
    print(f"{what}: {sum(map(len, ours))} tokens are equal")


with tempfile.TemporaryDirectory() as folder:
    texts = real_texts()
    trainer = ByteLevelBPETokenizer()
    trainer.train_from_iterator(texts[:30] + list(random_texts(300)), vocab_size=3000,
                                special_tokens=[END], show_progress=False)
    trainer.save_model(folder)
    theirs = GPT2Tokenizer.from_pretrained(folder)
    assert theirs.encode(f"a{END}")[-1] == theirs.convert_tokens_to_ids(END)
    spec = "gpt2:" + folder
    compare(spec, theirs, list(every_character()), "every character")
    compare(spec, theirs, list(random_texts(5000)), "random text")
    compare(spec, theirs, texts, "real text")
    compare(spec, theirs, ["a" * 3000, "ab" * 3000, " " * 3000, "é" * 3000], "long words")

    single = os.path.join(folder, "single")
    theirs.save_pretrained(single)
    if os.path.exists(os.path.join(single, "tokenizer.json")):
        for name in ("vocab.json", "merges.txt"):
            if os.path.exists(os.path.join(single, name)):
                os.remove(os.path.join(single, name))
        compare("gpt2:" + single, theirs, list(random_texts(500)), "tokenizer.json")
