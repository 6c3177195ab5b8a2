"""Puts the library into the wheel, which is for one platform and for every Python 3."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


def licences(library: str) -> dict[str, str]:
    """What Debian says of the libraries that auditwheel will put beside the library."""
    told = subprocess.run(["ldd", library], capture_output=True, text=True, check=True)
    found = {}
    for path in re.findall(r"=> (/\S+)", told.stdout) if shutil.which("dpkg") else ():
        owner = subprocess.run(
            ["dpkg", "-S", "*/" + os.path.basename(os.path.realpath(path))],
            capture_output=True,
            text=True,
        ).stdout
        package = owner.split(":")[0]
        text = f"/usr/share/doc/{package}/copyright"
        if package and os.path.exists(text):
            found[os.path.realpath(text)] = f"libdcp/licenses/{package}.txt"
    return found


class Library(BuildHookInterface):  # type: ignore[type-arg]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        library = os.environ.get(
            "LIBDCP_LIBRARY", os.path.join(self.root, "..", "build", "lib", "libdcp.so")
        )
        if not os.path.exists(library):
            raise FileNotFoundError(
                f"there is no {library}: ./scripts/wheel.sh builds it"
            )
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"
        build_data["force_include"] |= {
            library: "libdcp/libdcp.so",
            os.path.join(self.root, "..", "LICENSE"): "libdcp/licenses/LICENSE",
            **licences(library),
        }
