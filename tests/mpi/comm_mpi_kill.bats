# A rank that dies makes every other rank name it, long before the time-out.

setup() {
    command -v mpirun >/dev/null || skip "no mpirun"
    program=$DCP_BUILD_DIR/tests/test_mpi_comm_mpi
    [ -x "$program" ] || skip "built without MPI"
}

# The time-out of the comm is a minute: who names the rank before has noticed its death.
# lose RANK FANOUT
lose() {
    timeout -k 5 30 mpirun --allow-run-as-root --oversubscribe --enable-recovery -np 4 \
        "$program" kill "$1" "$2" "$BATS_TEST_TMPDIR"
}

@test "a killed rank is named by all others" {
    lose 2 3
    for rank in 0 1 3; do
        [ "$(cat "$BATS_TEST_TMPDIR/$rank")" = "COMM 2 dead: rank 2 is gone" ]
    done
    [ ! -e "$BATS_TEST_TMPDIR/2" ]
}

@test "killed rank 0 is named by all others" {
    lose 0 3
    for rank in 1 2 3; do
        [ "$(cat "$BATS_TEST_TMPDIR/$rank")" = "COMM 0 dead: rank 0 is gone" ]
    done
}

@test "a killed rank between others is named by all of them" {
    lose 1 1
    for rank in 0 2 3; do
        [ "$(cat "$BATS_TEST_TMPDIR/$rank")" = "COMM 1 dead: rank 1 is gone" ]
    done
}
