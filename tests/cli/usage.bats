# Mistakes: one clear sentence, the next act, the right exit status, nothing on stdout.

setup() {
    load helper
    cd "$BATS_TEST_TMPDIR"
    make_safetensors model.safetensors a=4 b=2
}

# refused STATUS WORD...: the command ends so and says why on stderr alone.
refused() {
    local want=$1
    shift
    run --separate-stderr "-$want" "$@"
    [ -z "$output" ]
    [ "${#stderr_lines[@]}" -le 2 ]
    [[ ${stderr_lines[0]} == "$1: "* ]]
}

@test "missing and superfluous words" {
    refused 2 dcp-inspect
    [[ $stderr == *"PATH is missing"*"dcp-inspect show [OPTION]... PATH"* ]]
    refused 2 dcp-inspect diff model.safetensors
    [[ $stderr == *"B is missing"* ]]
    refused 2 dcp-reshard model.safetensors
    [[ $stderr == *"DST is missing"* ]]
    refused 2 dcp-inspect ls model.safetensors more
    [[ $stderr == *"unexpected argument 'more'"* ]]
    refused 2 dcp-reshard formats x
}

@test "unknown verbs" {
    refused 2 dcp-inspect verfy model.safetensors
    [[ $stderr == *"unknown verb 'verfy'"*"did you mean 'dcp-inspect verify'?"* ]]
    refused 2 dcp-reshard exprot model.safetensors x.bin
    [[ $stderr == *"did you mean 'dcp-reshard export'?"* ]]
    refused 2 dcp-inspect xyzzy model.safetensors
    [[ $stderr == *"unknown verb 'xyzzy'"*"dcp-inspect show --help"* ]]
    refused 3 dcp-inspect stat
    [[ $stderr == *"was the verb 'stats' meant?"* ]]
}

@test "a file may be called like a verb" {
    cp model.safetensors ls
    run -0 dcp-inspect ./ls
    run -0 dcp-inspect show ls
    run -0 dcp-inspect ls ls
    [[ ${lines[1]} == "a "* ]]
}

@test "unknown options and bad values" {
    refused 2 dcp-inspect ls --srot size model.safetensors
    [[ $stderr == *"unknown option '--srot'"*"did you mean '--sort'?"* ]]
    refused 2 dcp-inspect ls -Z model.safetensors
    [[ $stderr == *"unknown option '-Z'"* ]]
    refused 2 dcp-inspect ls --sort siz model.safetensors
    [[ $stderr == *"did you mean '--sort size'?"* ]]
    refused 2 dcp-inspect ls model.safetensors --sort
    [[ $stderr == *"'--sort' needs a value"* ]]
    refused 2 dcp-inspect diff a b --rtol=-1
    refused 2 dcp-reshard model.safetensors out --memory 3x
    [[ $stderr == *"such as 256M"* ]]
    refused 2 dcp-reshard model.safetensors out --memory 1
    [[ $stderr == *"'--memory' must be 8 MiB or more, not '1'"* ]]
    for n in 0 -1 65537 x 1.5 ''; do
        refused 2 dcp-reshard model.safetensors out "--world=$n"
    done
}

@test "options of the library are named when they do not exist" {
    refused 2 dcp-reshard model.safetensors out --layout zero4
    [[ $stderr == *"there are flat, zero1, zero2, zero3, dim0, replicated"* ]]
    refused 2 dcp-reshard model.safetensors out --to safetensor
    [[ $stderr == *"did you mean '--to safetensors'?"* ]]
    refused 2 dcp-reshard model.safetensors out --dtype int8
    refused 2 dcp-reshard model.safetensors out --dtype float17
    [ ! -e out ]
}

@test "rules for names are read before anything else" {
    refused 3 dcp-reshard model.safetensors out --rename names.txt
    echo "remove a" >names.txt
    refused 2 dcp-reshard model.safetensors out --rename names.txt
    [[ $stderr == *"names.txt, line 1: 'remove a' is no rule"* ]]
    [ ! -e out ]
}

@test "what is not in this version says so" {
    refused 8 dcp-reshard model.safetensors out --tp 2
    refused 8 dcp-reshard model.safetensors out --pp 2 --dp 2
    [ ! -e out ]
}

@test "parity is for native steps, and repair for what has it" {
    refused 2 dcp-reshard model.safetensors out --to torch --parity 1
    [[ $stderr == *"native steps can have it"* ]]
    refused 2 dcp-reshard model.safetensors out --parity 33
    refused 3 dcp-reshard repair model.safetensors
    refused 3 dcp-reshard repair nowhere
    [ ! -e out ]
    dcp-reshard -q model.safetensors out
    refused 3 dcp-reshard repair out
    [[ $stderr == *"'./out' has no parity"*"hint:"*"--parity of dcp-reshard"* ]]
}

@test "what is not there, what nobody knows" {
    for verb in show ls map stats verify dump; do
        refused 3 dcp-inspect $verb nowhere
    done
    refused 3 dcp-inspect diff model.safetensors nowhere
    refused 3 dcp-reshard nowhere out
    refused 3 dcp-reshard repair nowhere
    head -c 5000 /dev/zero >zeros
    refused 8 dcp-inspect zeros
    mkdir empty
    refused 8 dcp-inspect empty
}

@test "a name like a file's wants export or --to" {
    refused 2 dcp-reshard model.safetensors out.bin
    [[ $stderr == *"dcp-reshard export"* ]]
    refused 2 dcp-reshard export model.safetensors out.xyz
    [[ $stderr == *"give --to FORMAT"* ]]
}

@test "world sizes that disagree" {
    refused 2 dcp-reshard model.safetensors out --world 4 --dp 2
    run -0 dcp-reshard model.safetensors out --world 2 --dp 2 --tp 1
}

@test "a selection without tensors" {
    refused 3 dcp-inspect ls model.safetensors -t 'x*'
    [[ $stderr == *"no tensor of 'model.safetensors' matches 'x*'"* ]]
    refused 3 dcp-inspect stats model.safetensors --only optim
    refused 5 dcp-reshard model.safetensors out --select 'x*'
    [ ! -e out ]
}

@test "with --json a failure is one line of JSON" {
    run --separate-stderr -3 dcp-inspect ls nowhere --json
    [ -z "$output" ]
    [ "${#stderr_lines[@]}" -eq 1 ]
    output=$stderr
    json 'd["message_type"] == "error" and d["code"] == "NOT_FOUND" and d["exit"] == 3
          and "nowhere" in d["message"] and d["tensor"] is None'
    run --separate-stderr -2 dcp-inspect --sort --json
    output=$stderr
    json 'd["code"] == "USAGE" and d["exit"] == 2'
}

@test "names are escaped wherever they are shown" {
    name=$(printf 'evil\033[2Jname')
    make_safetensors "$name" "$(printf 'a\033]0;x\a\nb\tc')=3" $'caf\u00e9\u202e=2'
    for verb in show ls map stats verify; do
        run -0 dcp-inspect $verb "$name"
        [[ $output != *$'\033'* && $output != *$'\a'* && $output != *$'\u202e'* ]]
    done
    run -0 dcp-inspect ls "$name"
    [[ $output == *'a\x1b]0;x\x07\nb\tc'* && $output == *'café\u{202e}'* ]]
    run -3 dcp-inspect "nowhere$name"
    [[ $output == *'evil\x1b[2Jname'* && $output != *$'\033'* ]]
    run -2 dcp-inspect "--$name"
    [[ $output != *$'\033'* ]]
    run -0 dcp-inspect ls "$name" --json
    json '{t["name"] for t in d["tensors"]} == {"a\033]0;x\a\nb\tc", "caf\u00e9\u202e"}'
    run -1 dcp-inspect diff "$name" model.safetensors
    [[ $output != *$'\033'* ]]
    run -0 dcp-reshard "$name" $'out\033' --world 2
    [[ $output != *$'\033'* ]]
}

@test "a path that is no UTF-8 gives valid JSON" {
    cp model.safetensors $'bad\xff'
    run -0 dcp-inspect $'bad\xff' --json
    json 'd["path"] == "bad\\xff"'
}
