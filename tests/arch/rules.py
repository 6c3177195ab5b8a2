"""The rules of docs/CODING.md that can be read from the sources.

A rule takes a Tree and yields what breaks it as "path:line: why".
"""

import fnmatch
import os
import re

import rooms

TOP = ("libdcp", "formats", "reshard", "inspect", "trainer", "python", "tests", "docs",
       "scripts")
CODE = (".c", ".h", ".cu", ".cuh", ".cpp", ".py", ".sh", ".bats", ".cmake")
TEXT = CODE + (".md", ".txt", ".in", ".json", ".1", ".7")
MAX_LINES = 600
MAX_COLUMNS = 90
MAX_COLUMNS_OF_TESTS = 100  # in bats and Python, which hold output of programs

# Which layer a folder is; the order of the tests matters: longest first.
LIBRARY = ("libdcp/base", "libdcp/core", "libdcp/port", "libdcp/flat", "formats")
# What base may know: errors and the log. version.c defines what dcp.h declares.
BASE_MAY = {
    "": ("dcp/error.h", "dcp/log.h"),
    "libdcp/base/version.c": ("dcp/dcp.h",),
}
PROGRAMS = ("reshard", "inspect", "trainer")


class Tree:
    """The files of a checkout, read once."""

    def __init__(self, root):
        self.root = root
        self.files = {}
        for path in sorted(self._paths()):
            if path.endswith(TEXT):
                with open(os.path.join(root, path), encoding="utf-8") as file:
                    self.files[path] = file.read()

    def _paths(self):
        for name in os.listdir(self.root):
            if os.path.isfile(os.path.join(self.root, name)):
                yield name
        for top in TOP:
            for folder, folders, names in os.walk(os.path.join(self.root, top)):
                folders[:] = [f for f in folders if f not in ("__pycache__", "fixtures")]
                for name in names:
                    yield os.path.relpath(os.path.join(folder, name), self.root)

    def select(self, suffixes, folders=("",)):
        for path, text in self.files.items():
            if path.endswith(suffixes) and path.startswith(tuple(folders)):
                yield path, text

    def lines(self, suffixes, folders=("",)):
        for path, text in self.select(suffixes, folders):
            for number, line in enumerate(text.splitlines(), 1):
                yield path, number, line


def code_only(text):
    """C without comments and without the insides of strings; lines keep their numbers."""
    pattern = re.compile(
        r"""//[^\n]* | /\*.*?\*/ | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*'""",
        re.VERBOSE | re.DOTALL,
    )

    def blank(match):
        if match.group(0).startswith('"'):
            return '""'
        return "\n" * match.group(0).count("\n") or " "

    return pattern.sub(blank, text)


def c_code(tree, folders=("",)):
    """path, line number, line of every C source without comments and strings."""
    for path, text in tree.select((".c", ".h", ".cu", ".cuh"), folders):
        for number, line in enumerate(code_only(text).splitlines(), 1):
            yield path, number, line


def includes(tree):
    """A file may include its own folder and its layer's rooms (which: rooms.floors),
    <dcp/...> and base/; a program cli/ too."""
    pattern = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)')
    layers = LIBRARY + PROGRAMS + ("libdcp/cli", "libdcp/include/dcp")
    for path, number, line in tree.lines((".c", ".h", ".cu", ".cuh"), layers):
        match = pattern.match(line)
        if not match:
            continue
        quoted, angled = match.groups()
        name = quoted or angled
        why = None
        folder = os.path.dirname(path)
        if ".." in name.split("/") or name.startswith("/"):
            why = "a path that climbs"
        elif angled and name.startswith("dcp/"):
            if f"libdcp/include/{name}" not in tree.files:
                why = "no such public header"
            elif folder == "libdcp/base" and name not in BASE_MAY.get(path, BASE_MAY[""]):
                why = "base knows only errors and the log"
        elif angled:
            if name.split("/")[0] in ("base", "core", "port", "cli", "formats"):
                why = "own headers are included in quotes"
        elif path.startswith("libdcp/include"):
            why = "a public header includes only <dcp/...> and system headers"
        elif "/" not in name:
            if f"{folder}/{name}" not in tree.files:
                why = "not in the file's own folder"
        elif name.startswith("base/"):
            if f"libdcp/{name}" not in tree.files:
                why = "no such header"
        elif rooms.room_of(path) and name.startswith(rooms.spelled(path)):
            if not rooms.resolve(tree, path, name):
                why = "no such header"
            elif os.path.dirname(rooms.resolve(tree, path, name)) == folder:
                why = "in the file's own folder: its name alone"
        elif not (name.startswith("cli/") and folder.startswith(PROGRAMS)):
            why = "neither its own folder, <dcp/...> nor base/"
        if why:
            yield f"{path}:{number}: includes {name}: {why}"


def sizes(tree):
    """A file near 600 lines is two files."""
    for path, text in tree.select(CODE):
        count = text.count("\n")
        if count > MAX_LINES:
            yield f"{path}:{count}: longer than {MAX_LINES} lines"


def columns(tree):
    for path, number, line in tree.lines(CODE):
        limit = MAX_COLUMNS
        if path.startswith("tests/") and path.endswith((".bats", ".py")):
            limit = MAX_COLUMNS_OF_TESTS
        if len(line) > limit:
            yield f"{path}:{number}: {len(line)} columns; {limit} are allowed"
        if "\t" in line:
            yield f"{path}:{number}: a tab"
        if line != line.rstrip():
            yield f"{path}:{number}: blanks at the end"


def banned(tree):
    """Functions that write without a bound, hide errors, or end the caller's process."""
    never = re.compile(
        r"\b(strcpy|strcat|v?sprintf|gets|strtok|ato[ifl]|atoll|alloca|system|setjmp"
        r"|tmpnam|mktemp)\s*\("
    )
    in_library = re.compile(
        r"\b(abort|exit|_exit|quick_exit|assert|v?f?printf|puts|putchar|fputs|perror"
        r"|signal|sigaction|setenv|unsetenv|setlocale|localtime|gmtime|strerror)\s*\("
    )
    for path, number, line in c_code(tree):
        match = never.search(line)
        if not match and path.startswith(LIBRARY):
            match = in_library.search(line)
        if match:
            yield f"{path}:{number}: {match.group(1)} is banned here"


def marks(tree):
    """Nothing in the tree says that it is unfinished."""
    words = "|".join(("TO" + "DO", "FIX" + "ME", "X" + "XX", "HA" + "CK"))
    pattern = re.compile(rf"\b({words})\b")
    for path, number, line in tree.lines(TEXT):
        match = pattern.search(line)
        if match:
            yield f"{path}:{number}: says {match.group(1)}"


def names(tree):
    """struct dcp_x without a typedef; public names carry dcp_ or DCP_."""
    for path, number, line in c_code(tree):
        if path.startswith("tests/lib/cuda_fake/"):
            continue  # its names are CUDA's
        if re.search(r"\btypedef\s+(struct|union|enum)\b", line):
            yield f"{path}:{number}: a typedef of a struct, union or enum"
    for path, number, line in c_code(tree, ("libdcp/include/dcp",)):
        for match in re.finditer(r"\b(struct|enum|union)\s+(\w+)", line):
            if not match.group(2).startswith("dcp_"):
                yield f"{path}:{number}: {match.group(2)} does not begin with dcp_"
        match = re.match(r"\s*#\s*define\s+(\w+)", line)
        if match and not match.group(1).startswith("DCP_"):
            yield f"{path}:{number}: {match.group(1)} does not begin with DCP_"
    for path, number, name, _ in public_functions(tree):
        if not name.startswith("dcp_"):
            yield f"{path}:{number}: {name} does not begin with dcp_"


def doors(tree):
    """Programs open checkpoints by dcp_source_open, which minds the common options."""
    for path, number, line in c_code(tree, PROGRAMS):
        if re.search(r"\bdcp_location_open\w*\s*\(", line):
            yield f"{path}:{number}: dcp_location_open: say dcp_source_open of cli/source.h"


def tags(tree):
    """pickle/py.h alone spells the tags of Python values in JSON."""
    tag = re.compile(r'"\$[a-z]+|\\"\$[a-z]+|\'\$\'')
    for path, text in tree.select((".c", ".h"), ("formats",) + PROGRAMS):
        text = re.sub(r"/\*.*?\*/", lambda m: re.sub(".", "", m[0]), text, flags=re.DOTALL)
        for number, line in enumerate(text.splitlines(), 1):
            match = tag.search(line)
            if match and not path.startswith("formats/pickle/py."):
                yield f"{path}:{number}: {match[0]}: say DCP_PY_… of pickle/py.h"


# What other ranks wait for; the first two end alike on all of them.
COLLECTIVE = (r"\b(dcp_agree|dcp_await|dcp_all_done|dcp_bcast_buf|dcp_gather_written|"
              r"dcp_comm_(?:allgatherv?|gatherv|bcast))\s*\(")
RELEASE = r"\b(?:free|\w+_(?:free|fini|close|unlock)|fclose|close|closedir)\s*\(\s*&?(\w+)\)"


def functions(text):
    """Number of the first line and lines of each function, of C without comments."""
    pattern = re.compile(r"^\w[^;{}=]*\)\n\{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
    for match in pattern.finditer(text):
        yield text.count("\n", 0, match.start(1)) + 1, match.group(1).split("\n")


def is_held(name, lines):
    """Whether a local variable has got something in these lines that nobody releases."""
    declared = re.compile(rf"^\s+(?!DCP_CLEANUP)[a-z][\w ]*[ *]{name}\b\s*([=;,\[])")
    for i, line in enumerate(lines):
        match = declared.match(line)
        if match:
            rest = line[match.end(1) :] if match.group(1) == "=" else ""
            later = "\n".join(lines[i + 1 :])
            return "(" in rest or bool(re.search(rf"\b{name}\b", later))
    return False


def tries(tree):
    """DCP_TRY leaves a function at once: nothing may wait for its end."""
    for path, text in tree.select((".c",), LIBRARY + PROGRAMS + ("libdcp/cli",)):
        if "DCP_TRY" not in text:
            continue
        for first, lines in functions(code_only(text)):
            label = any(re.match(r"(?!\s*default\b)\s*\w+:\s*$", line) for line in lines)
            for i, line in enumerate(lines):
                match = re.search(r"\bDCP_TRY\((.*)", line)
                if not match:
                    continue
                after, why = "\n".join(lines[i + 1 :]), None
                agreed = re.match(r"dcp_(agree|await)\(", match.group(1))
                held = [x for x in re.findall(RELEASE, after) if is_held(x, lines[:i])]
                if label:
                    why = "the function has a label that releases"
                elif re.search(COLLECTIVE, after) and not agreed:
                    why = "other ranks wait for the collective below"
                elif held:
                    why = f"{held[0]} is released below: use DCP_CLEANUP_..."
                if why:
                    yield f"{path}:{first + i}: DCP_TRY: {why}"


def public_functions(tree):
    """path, line number, name and the text above, of every DCP_PUBLIC function."""
    for path, text in tree.select((".h",), ("libdcp/include/dcp",)):
        for match in re.finditer(r"^DCP_PUBLIC\s+[^;(]*?(\w+)\s*\(", text, re.MULTILINE):
            number = text.count("\n", 0, match.start()) + 1
            yield path, number, match.group(1), text[: match.start()]


def documented(tree):
    """A comment stands above every public function, or above the group it is part of."""
    for path, number, name, above in public_functions(tree):
        above = above.rstrip(" ")
        if above.endswith("*/\n"):
            continue
        if above.endswith(";\n"):  # part of a group without a blank line
            group = above[above.rfind("\n\n") + 2 :]
            if "/*" in group:
                continue
        yield f"{path}:{number}: {name} has no comment"


def links(tree):
    """A link in the documents leads to a file that exists."""
    pattern = re.compile(r"\]\((?![a-z]+:)([^)#\s]+)(?:#[^)]*)?\)")
    for path, number, line in tree.lines((".md",)):
        for match in pattern.finditer(line):
            target = os.path.normpath(
                os.path.join(tree.root, os.path.dirname(path), match.group(1))
            )
            if not os.path.exists(target):
                yield f"{path}:{number}: leads to {match.group(1)}, which is not there"


def patterns(tree):
    """Files that a comment calls X*.c lie beside it."""
    for path, number, line in tree.lines((".c", ".h", ".cu", ".cuh"), LIBRARY + PROGRAMS):
        for name in re.findall(r"(?<![\w'])[\w/]*\w\*\.c\b", line):
            if not fnmatch.filter(tree.files, f"{os.path.dirname(path)}/{name}"):
                yield f"{path}:{number}: {name} is no file beside it"


def chapters(tree):
    """Numbered chapters of a document count from 1, and what names one of FORMAT.md is right."""
    last = {}
    for path, number, line in tree.lines((".md",)):
        match = re.match(r"## (\d+)\. ", line)
        if match and int(match.group(1)) != last.get(path, 0) + 1:
            yield f"{path}:{number}: chapter {match.group(1)} behind {last.get(path, 0)}"
        if match:
            last[path] = int(match.group(1))
    spec = "docs/FORMAT.md"
    for path, number, line in tree.lines((".md", ".c", ".h", ".py")):
        pattern = r"§(\d+)" if path == spec else r"FORMAT\.md,? §(\d+)"
        for match in re.finditer(pattern, line):
            if not 1 <= int(match.group(1)) <= last.get(spec, 0):
                yield f"{path}:{number}: {spec} has no chapter {match.group(1)}"


RULES = (
    includes,
    sizes,
    columns,
    banned,
    marks,
    names,
    doors,
    tags,
    tries,
    documented,
    links,
    patterns,
    chapters,
    rooms.floors,
    rooms.cycles,
)
