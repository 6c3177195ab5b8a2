"""The tool that test_roundtrip.c is when it is given arguments, and what the tests that
run it have in common."""

import os
import subprocess

TOOL = os.path.join(os.environ["DCP_BUILD_DIR"], "tests", "test_formats_roundtrip")


def tool(*arguments):
    done = subprocess.run([TOOL, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode:
        raise AssertionError(f"{arguments}: {done.stderr}")
    return done.stdout


def read(path):
    with open(path, "rb") as file:
        return file.read()
