"""The version, which stands in the header of the library and nowhere else."""

import os
import re

_HEADER = os.path.join(
    os.path.dirname(os.path.abspath(__file__)), "..", "libdcp", "include", "dcp", "dcp.h"
)
with open(_HEADER, encoding="utf-8") as _file:
    __version__ = ".".join(re.findall(r"#define DCP_VERSION_\w+ (\d+)", _file.read()))
