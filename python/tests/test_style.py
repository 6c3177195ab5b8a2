"""ruff and mypy --strict have nothing to say, and the wheel is of one file for all."""

from __future__ import annotations

import os
import subprocess
import sys

from conftest import ROOT

import libdcp

PYTHON = ROOT / "python"


def told(*command):
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=PYTHON,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_ruff():
    assert told("ruff", "check", "--quiet", ".") == (0, "")
    assert told("ruff", "format", "--check", "--quiet", ".") == (0, "")


def test_oldest_python():
    """Neither words nor modules that came after 3.9."""
    main = "import vermin; vermin.main()"
    how = ("-t=3.9-", "--no-tips", "--violations", "src/libdcp")
    done = subprocess.run(
        [sys.executable, "-c", main, *how],
        cwd=PYTHON,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_mypy():
    code, output = told("mypy")
    assert code == 0, output


def test_what_is_tested_is_what_was_installed():
    folder = os.path.dirname(libdcp.__file__)
    assert not folder.startswith(str(PYTHON))
    assert os.path.exists(os.path.join(folder, "py.typed"))
    assert os.path.isdir(os.path.join(folder, "..", "libdcp.libs"))
