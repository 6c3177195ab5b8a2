# What file systems keep no blocks for.

setup() {
    load helper
    cd "$BATS_TEST_TMPDIR"
}

# A file whose bytes from 4 MiB on were never written.
has_holes() {
    python3 - "$1" <<'PYTHON'
import os, sys
size = os.path.getsize(sys.argv[1])
os.truncate(sys.argv[1], 4 << 20)
os.truncate(sys.argv[1], size)
file = os.open(sys.argv[1], os.O_RDONLY)
sys.exit(os.lseek(file, 0, os.SEEK_HOLE) >= size)
PYTHON
}

@test "verify tells of what was never written where no digest does" {
    make_safetensors a.safetensors wte.weight=2097152
    run -0 dcp-inspect verify a.safetensors
    [[ $output != *"note"* ]]
    has_holes a.safetensors || skip "this file system tells of no holes"
    run -0 dcp-inspect verify a.safetensors
    local said="has 4.00 MiB that were never written, or only zeros"
    [ "${lines[2]}" = "note      a.safetensors $said" ]
    run -0 dcp-inspect verify a.safetensors --json
    json 'd["whole"] is True and d["hole_bytes"] >> 20 == 4'
    mkdir model
    mv a.safetensors model/model.safetensors
    echo '{"model_type": "of its own"}' >model/config.json
    run -0 dcp-inspect verify model
    [[ ${lines[2]} == "note      model.safetensors has 4.00 MiB"* ]]
    dcp-reshard -q model step # with digests: its zeros are what was saved
    run -0 dcp-inspect verify step
    [[ $output != *"note"* ]]
}
