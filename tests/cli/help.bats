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
dcp-reshard
dcp-reshard export
dcp-reshard repair
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
    touch steps
    run -0 complete_words dcp-inspect st
    [ "$output" = $'steps\nstats' ]
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

@test "there is no completion for other shells" {
    run -8 dcp-inspect --help-complete fish
    [[ $output == *"only for bash"* ]]
}
