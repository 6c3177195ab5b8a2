# Terminals, pipes, full disks, signals.

setup() {
    load helper
    cd "$BATS_TEST_TMPDIR"
    make_safetensors model.safetensors a.long.name.of.a.tensor.that.takes.room=4 b=2
}

# Runs a command line on a terminal of so many columns.
on_terminal() {
    local columns=$1
    shift
    TERM=xterm run -0 script -qec "stty cols $columns; $*" /dev/null </dev/null
    raw=$output
    output=${output//$'\r'/}
    plain=$(sed 's/\x1b\[[0-9;]*[mK]//g' <<<"$output")
}

# MIB of zeros that take no room, as one tensor of bytes: work for a second or so.
make_big() {
    python3 -c '
import json, struct, sys
n = int(sys.argv[1]) << 20
header = json.dumps({"x": {"dtype": "U8", "shape": [n], "data_offsets": [0, n]}}).encode()
header += b" " * (-len(header) % 8)
with open("big.safetensors", "wb") as file:
    file.write(struct.pack("<Q", len(header)) + header)
    file.truncate(8 + len(header) + n)' "$1"
}

@test "colours only on a terminal, and not with NO_COLOR" {
    run -0 dcp-inspect model.safetensors
    [[ $output != *$'\033'* ]]
    run -0 dcp-inspect model.safetensors --color always
    [[ $output == *$'\033'* ]]
    on_terminal 80 dcp-inspect model.safetensors
    [[ $output == *$'\033'* ]]
    on_terminal 80 NO_COLOR=1 dcp-inspect model.safetensors
    [[ $output != *$'\033'* ]]
    on_terminal 80 NO_COLOR=1 dcp-inspect model.safetensors --color=always
    [[ $output == *$'\033'* ]]
    on_terminal 80 TERM=dumb dcp-inspect model.safetensors
    [[ $output != *$'\033'* ]]
    on_terminal 80 dcp-inspect model.safetensors --color never
    [[ $output != *$'\033'* ]]
}

@test "tables and maps fit the terminal" {
    for columns in 60 80 120; do
        for verb in ls map; do
            on_terminal $columns dcp-inspect $verb model.safetensors
            [ "$(wc -L <<<"$plain")" -le $columns ]
        done
    done
    on_terminal 80 dcp-inspect stats model.safetensors
    [ "$(wc -L <<<"$plain")" -le 80 ]
    on_terminal 60 dcp-inspect ls model.safetensors
    [[ $plain == *…*room* ]]
    run -0 dcp-inspect ls model.safetensors
    [[ $output == *a.long.name.of.a.tensor.that.takes.room* ]]
}

@test "outside UTF-8 drawings are ASCII" {
    for variable in LC_ALL=C LC_ALL=de_DE.ISO-8859-1; do
        for verb in show ls map stats verify; do
            run -0 env "$variable" dcp-inspect $verb model.safetensors
            [ -z "$(tr -d '\000-\177' <<<"$output")" ]
        done
    done
    run -0 env -u LC_ALL -u LANG -u LC_CTYPE dcp-inspect map model.safetensors
    [[ $output == *│* ]]
}

@test "progress stays off pipes and out of quick work" {
    run -0 --separate-stderr dcp-inspect verify model.safetensors
    [ -z "$stderr" ]
    on_terminal 80 dcp-inspect verify model.safetensors
    [[ $plain != *"["* ]]
}

@test "a bar on a terminal, gone at the end; none with -q" {
    make_big 320
    on_terminal 80 'dcp-inspect stats big.safetensors -j 1'
    [[ $raw == *$'\rreading  ['*" %  "*"iB/s"* ]]
    [[ $raw == *$'\r\033[K'*name*dtype*histogram* ]]
    on_terminal 80 'dcp-inspect stats big.safetensors -q'
    [[ $output != *"reading"* ]]
    run -0 --separate-stderr dcp-inspect stats big.safetensors --progress=always
    [[ $stderr == *"reading  ["* ]]
    run -0 --separate-stderr dcp-inspect stats big.safetensors --progress=never
    [ -z "$stderr" ]
}

@test "a reader that goes away ends the work quietly" {
    run -0 bash -c 'dcp-inspect ls model.safetensors | true; echo "${PIPESTATUS[0]}"'
    [ "$output" = 0 ]
    run -0 bash -c 'dcp-inspect --help | head -n 1; echo "${PIPESTATUS[0]}"'
    [ "${lines[1]}" = 0 ]
    run -0 dcp-inspect ls model.safetensors >&-
}

@test "an answer that does not arrive is a failure" {
    for words in 'dcp-inspect model.safetensors' 'dcp-inspect --help' \
        'dcp-inspect ls model.safetensors --json' 'dcp-reshard formats'; do
        run -6 --separate-stderr bash -c "$words >/dev/full"
        [[ $stderr == *"cannot write to standard output: No space left on device"* ]]
    done
}

@test "a signal leaves nothing behind" {
    make_big 1024
    for signal in TERM HUP; do
        dcp-reshard big.safetensors out --world 2 --memory 32M &
        pid=$!
        until [ -e .tmp-out ] || ! kill -0 $pid 2>/dev/null; do :; done
        kill -$signal $pid
        status=0
        wait $pid || status=$?
        [ "$status" -eq 130 ]
        [ ! -e out ]
        [ ! -e .tmp-out ]
    done
}

@test "an interrupted reader ends at once" {
    make_big 1024
    run timeout --preserve-status -s INT 0.3 dcp-inspect stats big.safetensors -j 1
    [ "$status" -eq 130 ]
}
