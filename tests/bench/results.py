"""Results of the measurements in this folder."""

import json
import os


def keep(**result):
    """A JSON line in the file that DCP_BENCH_JSON names, if it does."""
    if os.environ.get("DCP_BENCH_JSON"):
        with open(os.environ["DCP_BENCH_JSON"], "a", encoding="utf-8") as f:
            f.write(json.dumps(result) + "\n")
