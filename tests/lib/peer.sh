#!/bin/sh
# Runs a Python test with the interpreter of the peers (torch, transformers, safetensors),
# named by DCP_PEERS. Without one the test is skipped; scripts/test.sh makes one.
if [ -z "${DCP_PEERS:-}" ]; then
    echo "skipped: no peers (DCP_PEERS is not set; ./scripts/test.sh makes them)"
    exit 77
fi
exec "$DCP_PEERS" "$@"
