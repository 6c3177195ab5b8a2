# Every command of README's five minutes and of the tutorial, one after the other as they are
# written; the model alone is smaller.

setup() {
    load ../lib/train
    cd "$BATS_TEST_TMPDIR"
    [ -d /usr/share/common-licenses ] || skip "there are no texts of licences here"
    export XDG_STATE_HOME=$PWD/state
}

# The commands in the indented lines of a text; what follows two blanks or '#' is said of them.
commands_of() {
    python3 -c 'import re, sys
text = re.sub(r"\\\n *", "", sys.stdin.read())
for line in re.findall(r"^    ((?:dcp-\w+|tar|rm) .*)$", text, re.M):
    command = re.split(r"  +| +#", line)[0]
    if "Meta-Llama" not in command: # what nobody has here
        print(command)'
}

@test "the five minutes and the tutorial work as written" {
    docs=$DCP_TESTS_DIR/..
    sed -n "/gpt2.json <<'JSON'/,/^    JSON/p" "$docs/README.md" | sed '1d;$d; s/^    //' |
        sed 's/"n_layer": 4/"n_layer": 1/; s/"n_embd": 128/"n_embd": 32/
             s/"seq_len": 128/"seq_len": 32/; s/"n_positions": 128/"n_positions": 32/' >gpt2.json
    {
        sed -n '/^## Five minutes/,/^## From other/p' "$docs/README.md"
        cat "$docs/docs/TUTORIAL.md"
    } | commands_of >commands
    [ "$(wc -l <commands)" -gt 35 ]
    lost=0
    while read -r command; do
        echo "$command"
        expected=0
        if [[ $command == rm* ]]; then
            lost=4
        elif [[ $command == "dcp-inspect verify run" ]]; then
            expected=$lost
            lost=0
        elif [[ $command == *--reflink* ]] &&
            ! cp --reflink=always gpt2.json shared.json; then
            expected=8 # the file system has none
        fi
        status=0
        bash -c "$command" >said 2>&1 </dev/null || status=$?
        [ $status = $expected ] || { cat said && false; }
    done <commands
    run -0 dcp-inspect run
    [[ $output == *"lineage      90 ← 80 ← "* ]]
}
