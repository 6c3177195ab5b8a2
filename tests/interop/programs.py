"""The programs under test, as the tests beside this file run them."""

import os
import subprocess

BIN = os.environ.get("DCP_BIN_DIR", "build/bin")


def program(name, *arguments):
    """What it printed; a failure is the test's, with its sentence."""
    done = subprocess.run([os.path.join(BIN, name), *map(str, arguments)],
                          capture_output=True, text=True, check=False)
    if done.returncode:
        raise AssertionError(f"{name} {arguments}: {done.stderr}")
    return done.stdout


def reshard(source, target, to, *arguments):
    return program("dcp-reshard", source, target, "--to", to, *arguments)


def numbered(value):
    """Optimizers with numbers for weights as they have them: PyTorch's planner makes texts
    of them."""
    if isinstance(value, list):
        return [numbered(item) for item in value]
    if not isinstance(value, dict):
        return value
    value = {key: numbered(item) for key, item in value.items()}
    groups = value.get("param_groups", [])
    if "state" in value and all(isinstance(p, int) for group in groups for p in group["params"]):
        value["state"] = {int(key): item for key, item in value["state"].items()}
    return value
