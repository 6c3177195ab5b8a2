# What the programs say of themselves.

setup() {
    load helper
}

verbs='dcp-inspect
dcp-inspect show
dcp-inspect ls
dcp-inspect map
dcp-inspect stats
dcp-inspect diff
dcp-inspect verify
dcp-inspect dump
dcp-inspect scan
dcp-inspect steps
dcp-reshard
dcp-reshard export
dcp-reshard repair
dcp-reshard delta
dcp-reshard prune
dcp-reshard tag
dcp-reshard pin
dcp-reshard unpin
dcp-reshard gc
dcp-reshard keygen
dcp-reshard sign
dcp-reshard verify
dcp-reshard formats
dcp-train'

@test "every help is as it was reviewed" {
    while read -r words; do
        run -0 $words --help </dev/null
        is_golden "${words// /-}.help"
    done <<<"$verbs"
}

@test "no help is wider than 80 columns" {
    while read -r words; do
        run -0 $words --help </dev/null
        [ "$(wc -L <<<"$output")" -le 80 ]
        run -0 $words -h </dev/null
        [ -n "$output" ]
    done <<<"$verbs"
}

@test "every help has usage, exit statuses, and names what is common" {
    while read -r words; do
        run -0 $words --help </dev/null
        [[ $output == *"Usage: $words"* || $words == dcp-inspect ]]
        [[ $output == *"Exit status:"* ]]
        [[ $output == *"--json"* ]]
    done <<<"$verbs"
}

@test "the help on a terminal is the same text with colours" {
    run -0 dcp-inspect diff --help --color=always
    [[ $output == *$'\033['* ]]
    plain=$(sed 's/\x1b\[[0-9;]*m//g' <<<"$output")
    run -0 dcp-inspect diff --help
    [ "$plain" = "$output" ]
}

@test "--help wins over other mistakes" {
    run -0 dcp-reshard --world x --help
    [[ $output == *Usage:* ]]
}

@test "--version names the program and the libraries behind it" {
    for program in dcp-inspect dcp-reshard; do
        run -0 $program --version
        [[ ${lines[0]} =~ ^$program\ [0-9]+\.[0-9]+\.[0-9]+$ ]]
        [[ $output == *jansson* && $output == *zstd* && $output == *ISA-L* ]]
    done
}

@test "every key of a configuration is explained, in docs/CONFIG.md too" {
    run -0 dcp-train --help-config
    [[ $output == *"checkpoint.keep_every"*"data.eval_batches"* || \
        $output == *"data.eval_batches"*"checkpoint.keep_every"* ]]
    [[ $output != *"(no text)"* ]]
    [ "$(wc -L <<<"$output")" -le 80 ]
    page=$DCP_TESTS_DIR/../docs/CONFIG.md
    if [ -n "${UPDATE_GOLDEN:-}" ]; then
        { sed '/^```/,$d' "$page"; printf '```text\n%s\n```\n' "$output"; } >new.md
        cat new.md >"$page" && rm new.md
    fi
    diff -u <(sed -n '/^```/,/^```/p' "$page" | sed '/^```/d') <(printf '%s\n' "$output")
    run -0 dcp-train --help-man
    [[ $output == *".SH CONFIGURATION"*"timeout_s"* ]]
}

@test "the manual pages are clean roff and name every option" {
    for program in dcp-inspect dcp-reshard dcp-train; do
        run -0 $program --help-man
        [[ ${lines[0]} == ".TH \"$program\" 1"* ]]
        page=$output
        for option in $($program --help | grep -oE -- ' --[a-z-]+' | sort -u); do
            grep -qF -- "${option//-/\\-}" <<<"$page"
        done
        command -v groff >/dev/null || continue
        [ -z "$(groff -man -Tutf8 -ww <<<"$page" 2>&1 >/dev/null)" ]
    done
}

# complete WORD...: what bash offers for the last word.
complete_words() {
    bash -c 'source <("$1" --help-complete bash) || exit 1
        COMP_WORDS=("$@")
        COMP_CWORD=$(($# - 1))
        "_${1//-/_}"
        printf "%s\n" "${COMPREPLY[@]}"' - "$@"
}

@test "bash completes verbs, options and choices" {
    cd "$BATS_TEST_TMPDIR"
    touch stones
    run -0 complete_words dcp-inspect st
    [ "$output" = $'stones\nstats\nsteps' ]
    run -0 complete_words dcp-inspect ls --so
    [ "$output" = --sort ]
    run -0 complete_words dcp-inspect ls --sort s
    [ "$output" = size ]
    run -0 complete_words dcp-inspect diff a --rto
    [ "$output" = --rtol ]
    run -0 complete_words dcp-reshard run out --wor
    [ "$output" = --world ]
    run -0 complete_words dcp-reshard run out --codec z
    [ "$output" = zstd ]
}

# A checkpoint whose names a shell would evaluate.
make_hostile() {
    python3 - <<'PY'
import json, struct
names = ["wte", "w b", "$(touch evil)", "`touch evil`", "a;touch evil", "x\ny", "it's"]
head = {n: {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]} for n in names}
text = json.dumps(head).encode()
open("m.safetensors", "wb").write(struct.pack("<Q", len(text)) + text)
PY
}

@test "bash completes what values mean, and names of tensors, which nothing evaluates" {
    cd "$BATS_TEST_TMPDIR"
    make_hostile
    run -0 complete_words dcp-reshard a b --to saf
    [ "$output" = $'safetensors\nsafetensors-sharded' ]
    run -0 complete_words dcp-reshard a b --layout zero
    [ "$output" = $'zero1\nzero2\nzero3' ]
    run -0 complete_words dcp-reshard a b --dtype bf
    [ "$output" = bf16 ]
    run -0 complete_words dcp-reshard a b --rename dee
    [ "$output" = deepspeed ]
    run -0 complete_words dcp-inspect ls m.safetensors -t w
    [ "$output" = $'wte\nw\\ b' ]
    run -0 complete_words dcp-inspect dump m.safetensors '$'
    [ "$output" = '\$\(touch\ evil\)' ]
    run -0 complete_words dcp-inspect dump m.safetensors ""
    [ "$(wc -l <<<"$output")" = 6 ]
    [ ! -e evil ]
}

@test "fish completes the same" {
    command -v fish >/dev/null || skip "no fish"
    cd "$BATS_TEST_TMPDIR"
    make_hostile
    export HOME=$PWD
    for program in dcp-inspect dcp-reshard dcp-train; do
        $program --help-complete fish >$program.fish
        fish --no-config -n $program.fish
    done
    fish_words() {
        fish --no-config -c 'source $argv[1].fish; complete -C (string join -- " " $argv)' -- "$@" |
            cut -f1
    }
    run -0 fish_words dcp-inspect sta
    [ "$output" = stats ]
    run -0 fish_words dcp-inspect ls --sort ""
    [ "$output" = $'file\nname\nsize' ]
    run -0 fish_words dcp-reshard a b --layout z
    [ "$output" = $'zero1\nzero2\nzero3' ]
    run -0 fish_words dcp-inspect dump m.safetensors wt
    [ "$output" = wte ]
    run -0 fish_words dcp-inspect ls m.safetensors --tensors ""
    [ "$(wc -l <<<"$output")" = 6 ]
    [ ! -e evil ]
}

@test "zsh completes the same" {
    command -v zsh >/dev/null || skip "no zsh"
    cd "$BATS_TEST_TMPDIR"
    make_hostile
    for program in dcp-inspect dcp-reshard dcp-train; do
        $program --help-complete zsh >_$program
        zsh -n _$program
    done
    # What zsh would be given: its own machinery needs a terminal.
    zsh_words() {
        zsh -fc 'compdef() {}; _files() {}
            compadd() { shift; print -rl -- "$@" }
            source ./_$1; words=("$@"); CURRENT=$#
            _${1//-/_} | grep -F -- "${words[CURRENT]}"' - "$@"
    }
    run -0 zsh_words dcp-inspect sta
    [ "$output" = stats ]
    run -0 zsh_words dcp-inspect ls --sort s
    [ "$output" = size ]
    run -0 zsh_words dcp-inspect ls --sor
    [ "$output" = --sort ]
    run -0 zsh_words dcp-reshard a b --layout zero
    [ "$output" = $'zero1\nzero2\nzero3' ]
    run -0 zsh_words dcp-inspect dump m.safetensors wt
    [ "$output" = wte ]
    run -0 zsh_words dcp-inspect ls m.safetensors -t '$'
    [ "$output" = '$(touch evil)' ]
    [ ! -e evil ]
}

@test "there is no completion for other shells" {
    run -8 dcp-inspect --help-complete tcsh
    [[ $output == *"only for bash, zsh and fish"* ]]
}

# What is for a GPU is a module, which only dcp-train loads, and only where a driver is.
@test "no program needs a library of CUDA to start" {
    for program in dcp-train dcp-reshard dcp-inspect; do
        run readelf -d "$DCP_BIN_DIR/$program"
        [[ $output == *NEEDED* && ! $output =~ (cuda|cublas|nccl|cudnn) ]]
    done
}
