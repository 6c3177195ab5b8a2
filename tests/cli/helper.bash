# shellcheck shell=bash
# Loaded by the tests beside it.

export LC_ALL=C.UTF-8
unset NO_COLOR COLUMNS TERM
golden=$BATS_TEST_DIRNAME/golden
bats_require_minimum_version 1.5.0

# The run folder of tests/lib/run_folder.h, once for each file of tests.
make_run() {
    local maker=$DCP_BUILD_DIR/tests/test_unit_facts
    [ -x "$maker" ] || skip "built without cmocka"
    "$maker" make "$1"
}

# $output is the text of a golden file. UPDATE_GOLDEN=1 writes it anew: look at the diff.
is_golden() {
    if [ -n "${UPDATE_GOLDEN:-}" ]; then
        printf '%s\n' "$output" >"$golden/$1"
    fi
    diff -u "$golden/$1" <(printf '%s\n' "$output")
}

# Runs a command as a user who may read only what all may read.
as_nobody() {
    if [ "$(id -u)" -ne 0 ]; then
        "$@"
    elif setpriv --reuid=65534 --regid=65534 --clear-groups dcp-inspect --version \
        >/dev/null 2>&1; then
        setpriv --reuid=65534 --regid=65534 --clear-groups "$@"
    else
        skip "root cannot become another user here"
    fi
}

# Evaluates a Python expression in which `d` is the document in $output.
json() {
    printf '%s' "$output" | python3 -c 'import json, sys
d = json.load(sys.stdin, parse_constant=lambda text: sys.exit("not JSON: " + text))
result = eval("(" + sys.argv[1] + ")")
print(result)
sys.exit(0 if result else 1)' "$1"
}

# A safetensors file of float32 tensors: NAME=N... with numbers 0 to N-1.
make_safetensors() {
    python3 - "$@" <<'PYTHON'
import json, struct, sys
header, data = {}, b""
for word in sys.argv[2:]:
    name, n = word.rsplit("=", 1)
    body = struct.pack("<%df" % int(n), *range(int(n)))
    header[name] = {"dtype": "F32", "shape": [int(n)],
                    "data_offsets": [len(data), len(data) + len(body)]}
    data += body
text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
open(sys.argv[1], "wb").write(struct.pack("<Q", len(text)) + text + data)
PYTHON
}
