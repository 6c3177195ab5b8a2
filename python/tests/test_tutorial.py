"""docs/PYTHON-TUTORIAL.md runs, block after block, and prints what it says."""

from __future__ import annotations

import contextlib
import io
import os
import pathlib
import re
import subprocess
import sys

from conftest import ROOT, peer

TEXT = (ROOT / "docs" / "PYTHON-TUTORIAL.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
# Of this machine, and not of the tutorial.
HERE = {
    "PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}",
    "GLOO_SOCKET_IFNAME": "lo",
    "OMP_NUM_THREADS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "HF_HUB_OFFLINE": "1",
}


def said_by(kind, code, place):
    """Run a block, and give what it prints."""
    if kind == "sh":
        done = subprocess.run(
            ["bash", "-e", "-c", code],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout
    file = re.match(r"# (\w+\.py)\n", code)
    if file:
        pathlib.Path(file[1]).write_text(code, encoding="utf-8")
        return ""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, "docs/PYTHON-TUTORIAL.md", "exec"), place)
    return out.getvalue()


def test_blocks_print_what_is_written(tmp_path, monkeypatch):
    peer("transformers")
    monkeypatch.chdir(tmp_path)
    for name, value in HERE.items():
        monkeypatch.setenv(name, value)
    place: dict[str, object] = {}
    said, compared = "", 0
    for kind, block in BLOCKS:
        if kind == "text":
            assert said == block
            compared += 1
        else:
            said = said_by(kind, block, place)
    assert compared >= 8
