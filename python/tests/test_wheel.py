"""The wheel: for every CPython from 3.9 on, and enough in an empty environment."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile

import libdcp


def test_name(wheel):
    assert wheel.name == (
        f"libdcp-{libdcp.__version__}-py3-none-manylinux_2_36_{os.uname().machine}.whl"
    )


def test_contents(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (n for n in names if n.endswith(".dist-info/METADATA"))
        told = archive.read(metadata).decode()
    assert "Requires-Python: >=3.9" in told
    assert not re.search(r"^Requires-Dist: (?!.*extra ==)", told, re.MULTILINE)
    libraries = [n for n in names if n.startswith("libdcp.libs/") and ".so" in n]
    assert len(libraries) > 5
    licences = {n.rsplit("/", 1)[1] for n in names if "/licenses/" in n}
    assert "LICENSE" in licences
    if os.path.exists("/etc/debian_version"):
        for name in libraries:
            library = re.match(r"libdcp\.libs/(lib(icu|crypto|[a-z0-9]+))", name)[1]
            package = {"libcrypto": "libssl"}.get(library, library)
            assert any(licence.startswith(package) for licence in licences), name


def test_empty_environment(wheel, run, tmp_path):
    """Without NumPy, without torch, and without the libraries of this machine."""
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    python = venv / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "--python", python, "install", "--quiet", "--no-index", wheel], check=True
    )
    code = f"""
import libdcp
with libdcp.open({str(run)!r}) as ckpt:
    ckpt.verify()
    print(len(ckpt["transformer.wte.weight"][10:20].tobytes()))
print(*sorted(line.split()[-1] for line in open("/proc/self/maps")
              if "lib" in line and ".so" in line))
"""
    told = subprocess.run(
        [python, "-I", "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert told[0] == "320"
    bundled = {os.path.basename(path) for path in told[1:] if str(venv) in path}
    others = {os.path.basename(path) for path in told[1:] if str(venv) not in path}
    assert len(bundled) > 5
    for name in bundled - {"libdcp.so"}:
        ordinary = re.sub(r"-[0-9a-f]{8}", "", name)
        assert ordinary not in others, ordinary
