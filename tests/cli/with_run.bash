# shellcheck shell=bash
# Loaded by tests of one run folder, which each of them finds as `run`, by a link.

load helper

setup_file() {
    make_run "$BATS_FILE_TMPDIR/run"
}

setup() {
    cd "$BATS_TEST_TMPDIR"
    ln -s "$BATS_FILE_TMPDIR/run" run
}

# For a setup of tests that change it: a copy.
own_run() {
    cd "$BATS_TEST_TMPDIR"
    cp -r "$BATS_FILE_TMPDIR/run" .
}
