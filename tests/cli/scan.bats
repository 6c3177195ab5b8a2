# dcp-inspect scan, and what show, verify and dcp-reshard say of the same names.

setup_file() {
    load helper
    cd "$BATS_FILE_TMPDIR"
    python3 - <<'PYTHON'
import collections, datetime, io, json, os, pathlib, pickle, random, tarfile, \
    zipfile, zlib


class Evil:
    def __reduce__(self):
        return os.system, ("true",)


def torch(path, data):
    """A file of torch.save without tensors, around a pickle."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/data.pkl", data)
        archive.writestr("a/version", "3\n")


def weights(path, value):
    """The same with a tensor, and a value under the key x."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/data.pkl", (
            b"\x80\x02}(X\x01\0\0\0wctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storage"
            b"ctorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpuK\x02tQK\x00K\x02\x85"
            b"K\x01\x85\x89ccollections\nOrderedDict\n)RtRX\x01\0\0\0x") +
            pickle.dumps(value, 2)[2:-1].replace(b"__main__", b"mine") + b"u.")
        archive.writestr("a/data/0", bytes(8))
        archive.writestr("a/version", "3\n")


class Config:
    def __init__(self):
        self.deep = [1, {"path": pathlib.PurePosixPath("x")}]


def npy(array, descr="'|O'", version=1, pad=0, begin="{"):
    head = f"{begin}'descr': {descr}, 'fortran_order': True, 'shape': (1,), }}".encode()
    head += b" " * pad
    head += b" " * (63 - (len(head) + 8 + 2 * version) % 64) + b"\n"
    return (b"\x93NUMPY" + bytes([version, 0]) + len(head).to_bytes(2 * version, "little")
            + head + array)


weights("date.pt", datetime.date(2026, 1, 2))
weights("config.pt", {"in": Config()})
weights("os.pt", {"in": [Evil()]})
for protocol in range(6):
    torch(f"os_system_{protocol}.pt", pickle.dumps({"x": [Evil()]}, protocol))
    with open(f"os_system_{protocol}.pkl", "wb") as file:
        pickle.dump(Evil(), file, protocol)
torch("safe.pt", pickle.dumps(collections.OrderedDict(a=1), 2))
torch("nothing.pt", pickle.dumps({"a": 1}, 2))
torch("mine.pt", b"\x80\x02}X\x01\0\0\0ccmy.module\nConfig\n)\x81}X\x01\0\0\0xK\x01sbs.")
torch("inst.pt", b"\x80\x02(X\x04\0\0\0trueios\nsystem\n.")
torch("obj.pt", b"\x80\x02(cos\nsystem\nX\x04\0\0\0trueo.")
torch("ext.pt", b"\x80\x02\x82\x01.")
torch("dotted.pt", b"\x80\x04\x8c\x05torch\x8c\x09os.system\x93.")
torch("memo.pt", b"\x80\x04\x8c\x02os\x94\x8c\x06system\x94N000h\x00h\x01\x93.")
torch("cut.pt", b"\x80\x02cos\nsystem\nX\x04\0\0")
torch("empty.pt", b"")
with open("text.bin", "wb") as file:
    file.write(b"cos\nsystem\n(S'true'\ntR.")
with open("words.bin", "wb") as file:
    file.write(b"common words, and no pickle\n")
with open("two.pkl", "wb") as file:
    pickle.dump(1, file)
    pickle.dump(Evil(), file)
with open("objects.npy", "wb") as file:
    file.write(npy(pickle.dumps([Evil()])))
with zipfile.ZipFile("objects.npz", "w") as archive:
    archive.writestr("x.npy", npy(pickle.dumps([Evil()])))

# Every way in which NumPy finds objects in a file, and in an archive.
evil = pickle.dumps([Evil()])
objects = {
    "bare": npy(evil, "'O'"), "name": npy(evil, "'object'"), "quotes": npy(evil, '"|O"'),
    "escaped": npy(evil, "'\\x4f'"), "texts": npy(evil, "'T'"), "long": npy(evil, pad=2000),
    "version2": npy(evil, version=2), "longest": npy(evil, version=2, pad=70000),
    "lines": npy(evil, begin="{\n"), "inside": npy(evil, "[('a', '<f4'), ('b', 'O')]"),
    "structure": npy(evil, "'O,i4'"),
}
os.mkdir("npy")
for name, data in objects.items():
    with open(f"npy/{name}.npy", "wb") as file:
        file.write(data)
    for inner in (f"{name}.npy", name, f"{name}/data/0"):
        with zipfile.ZipFile(f"npy/{name}{len(inner)}.npz", "w",
                             zipfile.ZIP_DEFLATED if len(name) % 2 else 0) as archive:
            archive.writestr(inner, data)
os.mkdir("npy-plain")
for i, descr in enumerate(["'<f4'", "'|b1'", "'<U3'", "'<M8[ns]'", "'|V4'", "'S5'",
                           "[('x', '<f4'), ('y', '<i2')]"]):
    with open(f"npy-plain/{i}.npy", "wb") as file:
        file.write(npy(bytes(40), descr))
    with zipfile.ZipFile(f"npy-plain/{i}.npz", "w") as archive:
        archive.writestr("x.npy", npy(bytes(40), descr))

# Streams of torch.save whose pickles are of any protocol; one in each of their places.
os.mkdir("streams")
magic = pickle.dumps(0x1950a86a20f9469cfc6c, 2)
for protocol in (0, 1, 2, 4):
    for place in range(1, 5):
        rest = [pickle.dumps(1, protocol) for _ in range(4)]
        rest[place - 1] = pickle.dumps(Evil(), protocol)
        with open(f"streams/{protocol}-{place}.pt", "wb") as file:
            file.write(magic + b"".join(rest) + b"\1" * 99)
with open("many.pkl", "wb") as file:
    file.write(pickle.dumps(1) * 64 + pickle.dumps(Evil()))
with open("sixty-four.pkl", "wb") as file:
    file.write(pickle.dumps(1) * 64)
with open("old-behind.pkl", "wb") as file:
    file.write(pickle.dumps(1) + pickle.dumps(Evil(), 0))
with open("old-two.pkl", "wb") as file:
    file.write(pickle.dumps(1, 0) + pickle.dumps(Evil(), 0))

# Files that are called pickles.
for suffix in ("pkl", "pickle", "pt", "pth", "ckpt", "joblib"):
    with open(f"packed.{suffix}", "wb") as file:
        file.write(zlib.compress(pickle.dumps(Evil())))

# What Python reads and we do not, before the first name, in files that may be anything.
for name, before in (("memo", b"Np9999999\n0"), ("surrogate", b"X\3\0\0\0\xed\xa0\x800"),
                     ("left", b"NN.")):
    for suffix in ("bin", "pth"):
        with open(f"odd-{name}.{suffix}", "wb") as file:
            file.write(before + b"cos\nsystem\n(S'true'\ntR.")
for name, before in (("far", b"N0" * (9 << 20)), ("line", b"V" + b"x" * 5000 + b"\n0"),
                     ("bytes", b"B" + (17 << 20).to_bytes(4, "little") + bytes(17 << 20) +
                      b"0")):
    with open(f"long-{name}.bin", "wb") as file:
        file.write(before + b"cos\nsystem\n(S'true'\ntR.")


def tar(path, storages, tensors, tree):
    with tarfile.open(path, "w") as archive:
        for name, data in (("storages", storages), ("tensors", tensors), ("pickle", tree)):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


# The oldest files of torch: pickles in each member, what they ran put aside.
one, none, call = pickle.dumps(1, 2), pickle.dumps(0, 2), b"cos\nsystem\nU\4true\x85R0"
floats = b"ctorch\nFloatStorage\n"
def storages(head):
    return (one + b"\x80\2" + head + b"(U\1" + b"1U\3cpu" + floats + b"t." +
            (1).to_bytes(8, "little") + bytes(4) + b"\x80\2].")
def tensors(head):
    return (one + b"\x80\2" + head + b"(U\1" + b"2U\1" + b"1ctorch\nFloatTensor\nt." +
            (1).to_bytes(8, "little") * 3 + bytes(8))
tree = b"\x80\2}U\1wU\1" + b"2Qs."
tar("old.pt", storages(b""), tensors(b""), tree)
tar("old-storages.pt", storages(call), tensors(b""), tree)
tar("old-tensors.pt", storages(b""), tensors(call), tree)
tar("old-pickle.pt", storages(b""), tensors(b""), b"\x80\2" + call + tree[2:])

os.makedirs("folder/in")
torch("folder/in/evil.pt", pickle.dumps(Evil(), 2))
torch("folder/safe.pt", pickle.dumps({"a": 1}, 2))
with tarfile.open("folder.tar", "w") as archive:
    archive.add("folder/in/evil.pt", "in/evil.pt")
    archive.add("folder/safe.pt", "safe.pt")
import bz2, gzip, lzma, zlib
evil = pickle.dumps(Evil(), 2)
for name, data in {"evil.pkl.gz": gzip.compress(evil), "evil.pkl.bz2": bz2.compress(evil),
                   "evil.pkl.xz": lzma.compress(evil), "evil.joblib": zlib.compress(evil, 3),
                   "evil.dat": zlib.compress(evil), "evil.7z": b"7z\xbc\xaf\x27\x1c" + bytes(9),
                   "evil.lzma": lzma.compress(evil, lzma.FORMAT_ALONE), "evil.raw": evil,
                   "words.md": b"x^2 + y^2\n"}.items():
    with open(name, "wb") as file:
        file.write(data)
with tarfile.open("evil.tar.gz", "w:gz") as archive:
    archive.add("folder/in/evil.pt", "evil.pt")
with zipfile.ZipFile("inner.zip", "w") as archive:
    archive.write("folder/in/evil.pt", "evil.pt")
with tarfile.open("whole.tar", "w") as archive:
    archive.add("os_system_2.pt", "evil.pt")
with open("whole.tar", "rb") as file, open("cut.tar", "wb") as cut:
    cut.write(file.read(700))
os.makedirs("nested")
os.link("whole.tar", "nested/evil.tar")
deep = "deep" + "/d" * 20
os.makedirs(deep)
torch(deep + "/evil.pt", evil)
with open("half.zip", "wb") as file:
    file.write(b"PK\3\4" + bytes(60))


# The memo: indices of their own (PUT, BINPUT, LONG_BINPUT) between those of MEMOIZE, and
# what Python would import then.
def memo_pickle(rng):
    words = ["collections", "OrderedDict", "posix", "system"]
    memo, out = {}, b"\x80\x04"
    for i in range(rng.randrange(2, 12)):
        word = rng.choice(words).encode()
        out += b"\x8c" + bytes([len(word)]) + word
        at = rng.randrange(8)
        how = rng.randrange(5)
        out += (b"q" + bytes([at]) if how == 0 else b"r" + at.to_bytes(4, "little")
                if how == 1 else b"p%d\n" % at if how == 2 else b"\x94") + b"0"
        memo[at if how < 3 else len(memo)] = word
    module, name = rng.choice(sorted(memo)), rng.choice(sorted(memo))
    return out + b"h" + bytes([module]) + b"h" + bytes([name]) + b"\x93."


class Names(pickle.Unpickler):
    def find_class(self, module, name):
        self.name = module + "." + name
        return None


os.mkdir("memo")
want = {}
rng = random.Random(1)
for i in range(200):
    data = memo_pickle(rng)
    python = Names(io.BytesIO(data))
    python.load()
    want[f"{i}.pkl"] = python.name
    with open(f"memo/{i}.pkl", "wb") as file:
        file.write(data)
with open("memo.json", "w") as file:
    json.dump(want, file)
PYTHON
}

setup() {
    load helper
    cd "$BATS_FILE_TMPDIR"
}

@test "scan finds os.system wherever it stands, in every protocol" {
    for file in os_system_*.p* inst.pt obj.pt memo.pt cut.pt text.bin two.pkl \
        objects.np? folder; do
        run -1 dcp-inspect scan "$file"
        [[ $output =~ dangerous\ +(os|posix|nt)\.system ]] ||
            { echo "$file: $output" && false; }
    done
    run -1 dcp-inspect scan folder.tar --json
    json '[(g["file"], g["where"], g["kind"]) for g in d["globals"]] == [
        ("in/evil.pt", "a/data.pkl", "dangerous")] and d["n_pickles"] == 2'
}

@test "scan tells what is known safe, unknown and not readable" {
    run -0 dcp-inspect scan nothing.pt
    [ "$output" = "known safe nothing.pt: 1 pickle, 0 names dangerous, 0 unknown, 0 known safe" ]
    run -0 dcp-inspect scan safe.pt --all
    [[ $output =~ known\ safe\ +collections.OrderedDict\ +a/data.pkl ]]
    run -0 dcp-inspect scan words.bin
    [[ $output == "no pickle found words.bin: 0 pickles"* ]]
    run -1 dcp-inspect scan mine.pt
    [[ $output =~ unknown\ +my.module.Config ]]
    for file in cut.pt empty.pt half.zip; do
        run -1 dcp-inspect scan "$file"
        [[ $output =~ dangerous\ +"(a pickle that cannot be read)" ]]
    done
    for file in ext.pt dotted.pt; do
        run -1 dcp-inspect scan "$file"
        [[ $output == dangerous* || $output == *$'\n'dangerous* ]]
    done
    run -3 dcp-inspect scan nowhere
    [[ $output == *"there is no 'nowhere'"* ]]
}

@test "scan calls nothing safe that it could not search" {
    command -v zstd >/dev/null || skip "there is no zstd"
    zstd -q whole.tar evil.raw
    head -c 200 whole.tar.zst >cut.tar.zst
    run -1 dcp-inspect scan whole.tar.zst
    [[ $output =~ dangerous\ +(os|posix|nt)\.system ]]
    for file in evil.raw.zst evil.pkl.gz evil.pkl.bz2 evil.pkl.xz evil.joblib evil.dat evil.7z \
        evil.lzma evil.tar.gz inner.zip deep; do
        run -1 dcp-inspect scan "$file"
        [[ $output =~ ^verdict.*unknown\ +"(not searched: unpack it first)" ]] ||
            { echo "$file: $output" && false; }
        [[ $output == *"not known safe $file: 0 pickles, 0 names dangerous, 1 unknown"* ]] ||
            { echo "$file: $output" && false; }
    done
    for file in cut.tar cut.tar.zst; do
        run -4 dcp-inspect scan "$file"
        [[ $output != *"known safe"* ]]
    done
    run -1 --separate-stderr dcp-inspect scan nested
    [[ $output =~ dangerous\ +"(a pickle that cannot be read)"\ +evil.tar && -z $stderr ]]
    run -0 dcp-inspect scan words.md
}

@test "scan knows what real programs write" {
    for folder in deepspeed fsdp dcp; do
        run -0 dcp-inspect scan "$BATS_TEST_DIRNAME/../formats/data/$folder"
        [[ $output == *", 0 names dangerous, 0 unknown, "* ]]
    done
}

# Each file and folder that is given names os.system.
finds_all() {
    for file in "$@"; do
        run -1 dcp-inspect scan "$file"
        [[ $output =~ dangerous\ +(os|posix|nt)\.system ]] ||
            { echo "$file: $output" && false; }
    done
}

@test "scan finds arrays of objects as NumPy does" {
    finds_all npy/*
    run -0 dcp-inspect scan npy-plain
    [[ $output == "no pickle found npy-plain: 0 pickles"* ]]
}

@test "scan goes through all pickles of a file" {
    finds_all streams/* old-behind.pkl old-two.pkl long-*
    run -1 dcp-inspect scan many.pkl
    [[ $output =~ "(a pickle that cannot be read)"\ +pickle\ 65 ]]
    run -0 dcp-inspect scan sixty-four.pkl
    [[ $output == "known safe sixty-four.pkl: 64 pickles"* ]]
}

@test "scan goes through all members of the oldest files of torch" {
    run -0 dcp-inspect scan old.pt
    [[ $output == "known safe old.pt: 6 pickles"* ]]
    finds_all old-*.pt
}

@test "what is called a pickle and cannot be read is not known safe" {
    for file in packed.* odd-*; do
        run -1 dcp-inspect scan "$file"
        [[ $output =~ "(a pickle that cannot be read)" || $output =~ "(not searched" ]] ||
            { echo "$file: $output" && false; }
    done
}

@test "scan goes through all of a folder" {
    run -1 dcp-inspect scan deep
    [[ $output =~ "(not searched: unpack it first)" ]]
    run -0 dcp-reshard date.pt step-and
    cp os_system_2.pt step-and/pytorch_model.bin
    mkdir step-and/ckpt
    cp os_system_2.pkl step-and/ckpt/x.pkl
    run -1 dcp-inspect scan step-and --json
    json 'sorted(g["file"] for g in d["globals"] if g["kind"] == "dangerous") == [
        "ckpt/x.pkl", "pytorch_model.bin"]'
    json 'd["n_pickles"] == 2 and d["n_safe"] == 1'
}

@test "scan reads the memo of a pickle as Python does" {
    run -1 dcp-inspect scan memo --all --json
    json '{g["file"]: g["name"] for g in d["globals"]} == json.load(open("memo.json"))'
}

@test "scan as a document" {
    run -1 dcp-inspect scan mine.pt --json
    json 'd["schema"] == "dcp.scan/1" and d["safe"] is False and d["n_unknown"] == 1'
    json 'd["globals"] == [{"kind": "unknown", "name": "my.module.Config", "file": "",
                            "where": "a/data.pkl", "n": 1}]'
}

names_of() {
    output=$(dcp-inspect scan "$1" --all --json) || true
    json 'all(g["name"] != "'"$2"'" for g in d["globals"])' && return 1
    return 0
}

@test "dcp-reshard carries what is known safe" {
    run -0 --separate-stderr dcp-reshard date.pt date-copy --to torch
    [ -z "$stderr" ]
    names_of date-copy datetime.date
    dcp-reshard date.pt date-step
    dcp-reshard date-step date-again --to torch
    names_of date-again datetime.date
}

@test "dcp-reshard carries a class of somebody's when he says so" {
    for to in torch native dcp; do
        run -5 dcp-reshard config.pt no --to "$to"
        [[ $output == *"the object at 'x.in' names 'mine.Config', a class that is not"* ]]
        [[ $output == *"hint: --trust-global 'mine.Config' keeps it"* ]]
        [ ! -e no ]
    done
    run -5 dcp-reshard config.pt no --trust-global 'mine' --trust-global '*.config'
    run -0 --separate-stderr dcp-reshard config.pt mine-copy --to torch \
        --trust-global 'mine.*'
    [ -z "$stderr" ]
    names_of mine-copy mine.Config
    run -0 --separate-stderr dcp-reshard config.pt kept --to torch --keep-unsafe-objects
    [[ $stderr == *"1 object kept that may run code"*"('x.in: mine.Config')"* ]]
    run -0 dcp-reshard config.pt less --to torch --lossy
    [[ $output == *"left out 1 object not known to be safe to load ('x.in: mine.Config')"* ]]
    run -0 dcp-inspect scan less
    run -0 dcp-reshard config.pt step --trust-global mine.Config
    run -5 dcp-reshard step out --to torch
    run -0 dcp-reshard config.pt lossy-step --lossy --json
    json 'd["n_objects_left_out"] == 1 and d["n_unsafe_objects"] == 0'
    run -0 dcp-inspect scan lossy-step
}

@test "dcp-reshard carries what runs code only when it is kept" {
    for to in torch native dcp; do
        run -5 dcp-reshard os.pt no --to "$to" --trust-global '*'
        [[ $output == *"system', which can run any code when the target is loaded"* ]]
    done
    run -0 dcp-reshard os.pt os-kept --keep-unsafe-objects
    run -5 dcp-reshard os-kept no --to torch
    run -0 dcp-reshard export os.pt w.safetensors
    run -0 dcp-reshard export os.pt w.bin
    run -0 dcp-inspect scan w.bin
}

@test "show and verify flag what is not known safe" {
    run -0 --separate-stderr dcp-inspect os_system_2.pt
    [[ $output == *"objects      1 name is not known to be safe to load"*"is dangerous)"* ]]
    run -0 --separate-stderr dcp-inspect show mine.pt --json
    json 'd["not_known_safe"] == ["my.module.Config"]'
    run -0 --separate-stderr dcp-inspect verify mine.pt
    [[ $stderr == *"'my.module.Config' is unknown): 'dcp-inspect scan' lists it"* ]]
    run -0 --separate-stderr dcp-inspect verify safe.pt
    [ -z "$stderr" ]
}
