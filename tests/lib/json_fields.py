"""The fields of every document of --json: the one table. docs/JSON.md is made from it:

    python3 tests/lib/json_fields.py >docs/JSON.md

tests/cli/test_json.py holds the page against it, and it against what the programs print.

A row is "path type meaning". Path: a.b is a member, a[] an item of a list, a[][] of a list of
lists. Type: integer, number, string, boolean, any; "?" behind it: or null, and "-" before the
path: only where the meaning says. A number that JSON has no word for is a string ("NaN",
"Infinity", "-Infinity"), and so is an integer above 2^63 - 1.
"""

# Of a checkpoint, in several documents.
CHECKPOINT = """
path            string    what was opened: with the step that was chosen
format          string    as `dcp-reshard formats` lists them
version         string    of the format
producer        string    what wrote it, where it says so
step            integer?  the step it was saved at
layout          string    the rule by which tensors are cut, or ""
world           integer   ranks that saved it
mesh.dp         integer   data parallel ranks
mesh.tp         integer   tensor parallel ranks
mesh.pp         integer   pipeline stages
n_tensors       integer   of all roles
size_bytes      integer   of all tensors, not compressed
n_files         integer   with its manifests
"""

# One checkpoint that was verified; several: the sums, and each under `steps`.
VERIFIED = """
whole                    boolean   every digest holds
-subset.from             number    with --subset: the part that was read, of 1
-subset.to               number    likewise
n_damages                integer   findings
n_blocks                 integer   that were read
n_unproved               integer   tensors without any digest
untold                   string?   what the files do not say, so that no digest can tell
hole_bytes               integer   of files without digests: never written, or zeros
lacks                    string?   the first weight that the model has and this not
read_bytes               integer   in all
seconds                  number    that it took
-damages[].code          string    as in a failure
-damages[].path          string    of the checkpoint
-damages[].file          string?   where
-damages[].tensor        string?   which
-damages[].begin         integer?  of the elements that are hit
-damages[].end           integer?  behind them
-damages[].offset        integer?  in the file
-damages[].size_bytes    integer?  from there
-damages[].what          string    the sentence
"""

MARKED = """
steps[].path     string    of a step that was named
steps[].pinned   boolean   it stays until it is unpinned
steps[].tags[]   string    it stays while it has any
"""

SIDE = """
{0}.path        string    of the checkpoint
{0}.format      string    its format
{0}.world       integer   its ranks
{0}.layout      string    its layout
{0}.step        integer?  its step
{0}.size_bytes  integer   of what is read or written
{0}.n_files     integer   files
"""

RESHARD = (
    SIDE.format("source") + SIDE.format("target") + """
n_tensors          integer   that are written
n_overflows        integer   numbers that became infinite in a narrower dtype
n_left_out         integer   tensors that --lossy left out
objects_left_out   string?   what is not a tensor and had no place in the target
n_objects_left_out integer   these, and objects that name what is not known safe
n_unsafe_left_out  integer   the latter alone
n_unsafe_objects   integer   such objects that were kept
n_beside_left_out  integer   tensors beside the model, no weights, that export left out
n_unproved         integer   tensors that no digest of the source proves
n_from_masters     integer   weights that were made of their masters
assumed            string?   what the source does not say: which tensors are trained, their order
n_cast             integer   tensors whose dtype changed
n_kept             integer   scales of quantized weights, which were not cast
shared_bytes       integer?  with --reflink: shared with the source, not written
plan.n_copies      integer   copies of pieces
plan.n_reads       integer   reads that they were merged to
plan.n_writes      integer   files that are written
plan.read_bytes    integer   to read
plan.buffer_bytes  integer   memory for it, at most
plan.free_bytes    integer   on the target's file system
part               integer?  of --part: it alone was made, and nothing published
-parts[].part      integer   of a target in parts: each of them, from 1
-parts[].n_files   integer   of a target in parts: files of this one that the plan knows
-parts[].size_bytes integer  of a target in parts: of these files
-parts[].made      boolean   of a target in parts: it was done when this was planned
was_done           boolean   the part was made, or the target published, before
dry_run            boolean   nothing was written
verified           boolean   fingerprints equal to the source's, and files read back
seconds            number    that it took
"""
)

SIGNED = """
step        string   the step's path
key         string   the name of the key that signed it
n_files     integer  files that were hashed
size_bytes  integer  of them
"""

TENSOR = """
tensors[].name         string   its name
"""

# verb: (what prints it, rows)
DOCUMENTS = {
    "show": ("dcp-inspect PATH", CHECKPOINT + """
model.family          string?   as "gpt2"
model.n_params        integer   numbers in its weights
model.n_layers        integer?  layers, when names tell
model.n_vocab         integer?  rows of the embedding, when names tell
model.n_tied          integer   second names of weights
holds[].role          string    model, buffer, master, exp_avg, exp_avg_sq, optim or other
holds[].dtype         string    of these tensors
holds[].n_tensors     integer   of this role and dtype
holds[].n_elems       integer   numbers in them
holds[].size_bytes    integer   of them
objects[].name        string    of what is not a tensor
objects[].kind        string    json or bytes
objects[].size_bytes  integer   of it
not_known_safe[]      string    classes that its objects name, see scan
shards.n              integer   files with tensors
shards.size_bytes     integer   of all
shards.least_bytes    integer   of the smallest
shards.most_bytes     integer   of the largest
has_digests           boolean   whether verify can prove its bytes
whole                 boolean   nothing is missing, by the headers; manifests have their digests
why                   string?   when it is incomplete
finite                boolean   its weights and its loss were, when it was saved
parity.rows           integer   files that can be lost of a group
parity.size_bytes     integer   of the parity files
resume.possible       boolean   dcp-train can go on from it
resume.missing        string?   what it lacks for that
-lineage.run          string    the run it is of, 16 hexadecimal digits
-lineage.parent       integer?  the step that training went on from
-lineage.fingerprint  string?   of the parent's state, 16 hexadecimal digits
-delta.base           string    of what is stored as a delta: its base's path from there
-delta.chain          integer   deltas one upon the other, this one included
-delta.full_bytes    integer   of the files that it stands for
-delta.stored_bytes  integer   of the delta's own, in their place
signed_by[]           string    names of keys; nothing is checked
steps[].step          integer   of a run folder, newest first
steps[].name          string    of its folder
steps[].whole         boolean   it can be loaded as it is
steps[].finite        boolean?  its weights and its loss were, when it was saved
steps[].mendable      boolean   its parity gives what is missing
steps[].why           string?   when it is incomplete
n_unfinished          integer   temporary folders
"""),
    "ls": ("dcp-inspect ls PATH", CHECKPOINT + TENSOR + """
n_selected               integer   tensors that the options chose
tensors[].param          string    the weight it belongs to
tensors[].role           string    as in show
tensors[].dtype          string    as FORMAT.md names them
tensors[].shape[]        integer   of it
tensors[].n_elems        integer   numbers in it
tensors[].size_bytes     integer   not compressed
tensors[].n_pieces       integer   it is cut into
tensors[].fingerprint    string?   CRC-64 of its bytes, 16 hexadecimal digits
-tensors[].pieces[].rank           integer   with --pieces: who holds it
-tensors[].pieces[].region.kind    string    whole, flat or box
-tensors[].pieces[].region.begin   integer   of a flat range, in elements
-tensors[].pieces[].region.end     integer   behind it
-tensors[].pieces[].region.offset[] integer  of a box
-tensors[].pieces[].region.size[]  integer   of a box
-tensors[].pieces[].file           string?   it lies in
-tensors[].pieces[].offset         integer   in that file
-tensors[].pieces[].stored_bytes   integer   as it lies there
-tensors[].pieces[].codec          string    none, zstd, planes, split, ...
"""),
    "map": ("dcp-inspect map PATH", CHECKPOINT + TENSOR + """
ranks[].rank           integer   a rank
ranks[].size_bytes     integer   that it holds
ranks[].n_pieces       integer   of tensors
tensors[].role         string    as in show
tensors[].size_bytes   integer   of it
tensors[].n_pieces     integer   it is cut into
tensors[].dimension    integer?  along which it is cut, when it is one
tensors[].cells[]      any       64 parts of it: the rank that holds most of each, "several", null
"""),
    "stats": ("dcp-inspect stats PATH", CHECKPOINT + TENSOR + """
verified                        boolean   false with --no-verify
n_selected                      integer   tensors that the options chose
tensors[].dtype                 string    of it
tensors[].shape[]               integer   of it
tensors[].n                     integer   numbers in it
tensors[].n_nan                 integer   that are NaN
tensors[].n_inf                 integer   that are infinite
tensors[].n_zero                integer   that are 0
tensors[].min                   number?   of the finite ones
tensors[].max                   number?   likewise
tensors[].mean                  number?   likewise
tensors[].deviation             number?   likewise
tensors[].norm                  number?   the 2-norm
tensors[].histogram.low         number?   where the first bin begins
tensors[].histogram.width       number?   of a bin
tensors[].histogram.counts[]    integer   in each bin
"""),
    "diff": ("dcp-inspect diff A B", "".join(
        f"{side}.{row}\n" for side in "ab" for row in CHECKPOINT.strip().splitlines()) + """
same                            boolean   the exit status says it, too
verified                        boolean   false with --no-verify
n_tensors                       integer   that were compared
n_same                          integer   that are the same
n_by_fingerprint                integer   proved by fingerprints, without reading
n_by_value                      integer   that were read
n_within_tolerance              integer   that differ less than was allowed
n_elements                      integer   numbers in tensors that both have in one dtype
n_changed                       integer   of them of other bits
size_bytes                      integer   of these tensors
delta_bytes                     integer   about what a delta between them would take
seconds                         number    that it took
-differences[].kind             string    values, dtype, shape, near, same_values, only_a or only_b
-differences[].tensor           string    its name
-differences[].a.dtype          string    in A
-differences[].a.shape[]        integer   in A
-differences[].b.dtype          string    in B
-differences[].b.shape[]        integer   in B
-differences[].n_differ         integer   numbers that differ
-differences[].n_nan            integer   of them NaN on one side
-differences[].first            integer   the first, counted from 0
-differences[].first_a          number    its value in A
-differences[].first_b          number    its value in B
-differences[].max_abs_diff     number    of all
-differences[].n_elements       integer   numbers in it
-differences[].n_changed        integer   of them of other bits, of one dtype
-differences[].delta_bytes      integer   about what they take in a delta
objects_compared                boolean   both sides have some
-objects[].name                 string    an object that differs
-objects[].in_a                 boolean   A has it
-objects[].in_b                 boolean   B has it
"""),
    "verify": ("dcp-inspect verify PATH...", CHECKPOINT + VERIFIED + "".join(
        f"steps[].{row}\n" if row[0] != "-" else f"-steps[].{row[1:]}\n"
        for row in (CHECKPOINT + VERIFIED).splitlines() if row) + """
-steps[].retired         boolean   it was removed from the run meanwhile: no more of it
"""),
    "dump": ("dcp-inspect dump PATH NAME[SLICE]", """
path                      string    what was opened
verified                  boolean   false with --no-verify
slices[].slice            string    as it was asked for
slices[].tensor           string    its name
slices[].dtype            string    of it
slices[].tensor_shape[]   integer   of all of it
slices[].shape[]          integer   of the slice
slices[].values           any       lists in lists, as the shape says; numbers or strings
-object                   string    with --object: its name
-value                    any       with --object: what it is
"""),
    "reshard": ("dcp-reshard SRC DST", RESHARD),
    "export": ("dcp-reshard export SRC FILE", RESHARD),
    "repair": ("dcp-reshard repair STEP", """
step          string    its path
files[]       string    that were rebuilt
n_units       integer   of 64 KiB that were not good
read_bytes    integer   in all
seconds       number    that it took
steps[].step         string    its path: one of several
steps[].files[]      string    that were rebuilt
steps[].n_units      integer   of 64 KiB that were not good
steps[].read_bytes   integer   in all
steps[].seconds      number    that it took
"""),
    "delta": ("dcp-reshard delta make|apply|rebase", """
act               string    make, apply or rebase
source            string    TARGET or DELTA
base              string?   what the new delta is against; of apply null
target            string    OUT
dry_run           boolean   nothing was written
chain             integer   deltas one upon the other, this one included
n_files           integer   of what the delta stands for
full_bytes        integer   of these files
stored_bytes      integer   of the delta's own
blocks.unchanged  integer   of 1 MiB that take nothing
blocks.sparse     integer   of which places and masks are stored
blocks.planes     integer   of which byte planes are stored
blocks.raw        integer   that are stored as they are
n_elements        integer   in coded blocks, of the widths they were coded with
n_changed         integer   of them that differ from the base's
seconds           number    that it took
"""),
    "steps": ("dcp-inspect steps RUN", """
path                  string    the run folder
steps[].step          integer   newest first
steps[].name          string    of its folder
steps[].saved         integer?  when, in seconds since 1970
steps[].size_bytes    integer?  of all files
steps[].world         integer?  ranks that saved it
steps[].whole         boolean   it can be loaded as it is
steps[].mendable      boolean   its parity gives what is missing
steps[].why           string?   when it is incomplete
steps[].finite        boolean?  its weights and its loss were, when it was saved
steps[].weights_only  boolean?  it has nothing of an optimizer: training does not go on from it
steps[].pinned        boolean   it stays until it is unpinned
steps[].tags[]        string    it stays while it has any
steps[].run           string?   the run it is of, 16 hexadecimal digits
steps[].parent        integer?  the step that training went on from
steps[].fingerprint   string?   of its state, 16 hexadecimal digits
n_unfinished          integer   temporary folders
steps[].base          string?   of a delta: the step that it is against, or a path
steps[].chain         integer   deltas one upon the other from there; 0: it is none
"""),
    "scan": ("dcp-inspect scan PATH", """
path              string    what was searched
safe              boolean   every name is known to be safe: the exit status says it, too
n_pickles         integer   that were found
n_safe            integer   names that are known to be safe
n_unknown         integer   names that are not known
n_dangerous       integer   names that run code
globals[].kind    string    safe, unknown or dangerous
globals[].name    string    module.name
globals[].file    string    where it stands
globals[].where   string    in which object or record of it
globals[].n       integer   how often
"""),
    "prune": ("dcp-reshard prune RUN", """
path                 string    the run folder
dry_run              boolean   nothing was removed: --yes does it
n_removed            integer   steps that go
removed_bytes        integer   of them, and of the optimizer states that go
steps[].step         integer   each step of the run
steps[].goes         boolean   it goes
steps[].why          string    or why it stays
steps[].size_bytes   integer   of it
optimizer_states[].step        integer   each step whose optimizer state need not stay
optimizer_states[].goes        boolean   it goes; the weights stay
optimizer_states[].why         string    or why it stays
optimizer_states[].size_bytes  integer   of it
"""),
    "tag": ("dcp-reshard tag STEP TAG...", MARKED),
    "pin": ("dcp-reshard pin STEP...", MARKED),
    "unpin": ("dcp-reshard unpin STEP...", MARKED),
    "gc": ("dcp-reshard gc FOLDER", """
path                     string    the folder
dry_run                  boolean   nothing was removed: --yes does it
n_removed                integer   leftovers that go
removed_bytes            integer   of them
leftovers[].name         string    of what a process left over
leftovers[].kind         string    what it is
leftovers[].size_bytes   integer   of it
leftovers[].in_use       boolean   its process lives
leftovers[].goes         boolean   it goes
leftovers[].why          string    or why it stays
"""),
    "formats": ("dcp-reshard formats", """
formats[].name       string    for --to
formats[].alias      string?   an older name, which is understood too
formats[].help       string    what it is
formats[].suffixes   string    that mean it
formats[].reads      boolean   it can be read
formats[].writes     boolean   and written
formats[].is_dir     boolean   it is a folder
formats[].sharded    boolean   of any world size
formats[].optim      boolean   it holds optimizer state
formats[].objects    boolean   and what is not a tensor
formats[].codecs     boolean   and compressed blocks
"""),
    "keygen": ("dcp-reshard keygen FILE", """
secret   string   the file with the secret key
public   string   the one with the public key
"""),
    "sign": ("dcp-reshard sign STEP --key FILE", SIGNED),
    "signature": ("dcp-reshard verify STEP --key FILE", SIGNED),
    "train": ("dcp-train: what a run that ended well came to, or would (--dry-run)", """
world               integer   ranks
parameters          integer   numbers in the weights
resume_step         integer?  it goes on from
-dir                string    after training: the run folder
-step               integer   after training: that it is at
-saved_step         integer?  after training: the newest complete one
-loss               number?   after training: of the last step, if one was made
-seconds            number    after training: that it took
-config             any       with --dry-run: the configuration with all defaults, see CONFIG.md
-train_tokens       integer   with --dry-run: of the data
-train_samples      integer   with --dry-run: of the data
-weight_bytes       integer   with --dry-run: of the largest rank
-gradient_bytes     integer   with --dry-run: likewise
-optimizer_bytes    integer   with --dry-run: likewise
-disk_bytes         integer   with --dry-run: of these in files
-step_bytes         integer   with --dry-run: of a saved step
-storage            string    with --dry-run: the file system of the run folder; "": not known
-storage_shared     boolean   with --dry-run: several machines may see it
"""),
    "estimate": ("dcp-train --estimate: bytes of a rank, for each number of ranks and stage", """
parameters                                integer  numbers in the weights
dtype                                     string   of the weights: "bf16" or "fp32"
activation_checkpointing                  string   what "checkpointed" means: "full", "every 2", ...
estimates[].world                         integer  ranks
estimates[].stage                         integer  of ZeRO
estimates[].micro_batch                   integer  samples that a rank computes at once
estimates[].accumulation                  integer  micro-batches of a rank in a step
estimates[].weight_bytes                  integer  held all the time
estimates[].gradient_bytes                integer  likewise
estimates[].optimizer_bytes               integer  likewise: masters and moments
estimates[].layer_bytes                   integer  gathered layers, their gradients, what is sent
estimates[].host_bytes                    integer  on the host, of a GPU's rank
estimates[].disk_bytes                    integer  of weights, gradients and optimizer in files
estimates[].activation_bytes              integer  when all are kept
estimates[].checkpointed_activation_bytes integer  when they are computed again
estimates[].save_bytes                    integer  the copy that is written in the background
estimates[].save_work_bytes               integer  what its first rank works with meanwhile
estimates[].total_bytes                   integer  all of it; with a GPU without those two
estimates[].checkpointed_total_bytes      integer  the same with activation checkpointing
impossible[].world                        integer  ranks that the configuration cannot have
impossible[].why                          string   the sentence
"""),
    "eval": ("dcp-train --eval", """
step      integer?  that was measured
loss      number    its mean on data.val
batches   integer   that were read
"""),
    "generate": ("dcp-train --generate TEXT", """
text         string    what came after the text
new_tokens   integer   in it
"""),
}

# One line on stderr, of any verb that fails.
FAILURE = """
message_type   string    "error"
code           string    NOT_FOUND, CORRUPT, ...: the names of error.h
exit           integer   the exit status
tensor         string?   the tensor concerned
rank           integer?  the rank that failed
message        string    the sentence
hint           string?   the next act
"""


def rows(text):
    """(path, type, may be null, only sometimes, meaning) of each row."""
    for line in text.strip().splitlines():
        if line.strip():
            path, kind, meaning = line.split(None, 2)
            yield (path.lstrip("-"), kind.rstrip("?"), kind.endswith("?"),
                   path.startswith("-"), meaning)


def page():
    out = [
        "# What --json prints\n",
        "<!-- made by tests/lib/json_fields.py; change the table there -->\n",
        "One document on stdout, whose first member is `\"schema\": \"dcp.<verb>/1\"`. Sizes are",
        "integers in bytes, times are in seconds. Members may be added, never changed: a reader",
        "passes over what it does not know. `a[]` is an item of a list. A number that JSON has no",
        "word for is a string (`\"NaN\"`, `\"Infinity\"`, `\"-Infinity\"`), an integer above",
        "2^63 − 1 too.\n",
    ]
    tables = [(f"dcp.{verb}/1", what, text) for verb, (what, text) in DOCUMENTS.items()]
    tables.append(("A failure", "one line on stderr, instead of the document", FAILURE))
    for title, what, text in tables:
        out += [f"## {title}\n", f"{what}\n", "| member | type | |", "|---|---|---|"]
        for path, kind, null, _, meaning in rows(text):
            out.append(f"| `{path}` | {kind}{' or null' if null else ''} | {meaning} |")
        out.append("")
    return "\n".join(out)


if __name__ == "__main__":
    print(page(), end="")
