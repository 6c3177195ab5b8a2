"""What <dcp/flat.h> promises to callers that were built apart: the functions, and where
the members of its structs lie. Read from the header and measured with a compiler.

    python3 tests/arch/flat.py --write    puts it into flat_abi.txt
"""

import os
import re
import subprocess
import sys
import tempfile

import rules

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
HEADER = "libdcp/include/dcp/flat.h"
LIST = os.path.join(ROOT, "tests", "arch", "flat_abi.txt")


def header():
    with open(os.path.join(ROOT, HEADER), encoding="utf-8") as file:
        return rules.code_only(file.read())


def functions(text):
    """Each declaration on one line, by name."""
    pattern = re.compile(r"^DCP_PUBLIC\s+([^;]*?\b(dcp_flat_\w+)\s*\([^;]*\))\s*;", re.MULTILINE)
    for match in pattern.finditer(text):
        line = re.sub(r"\s+", " ", match.group(1))
        yield match.group(2), re.sub(r"([(*]) ", r"\1", line)


def structs(text):
    """Each struct with the names of its members."""
    for match in re.finditer(r"^struct (dcp_flat_\w+) \{(.*?)^\};", text, re.MULTILINE | re.DOTALL):
        members = []
        for declaration in match.group(2).split(";"):
            pointer = re.search(r"\(\*(\w+)\)", declaration)
            if pointer:
                members.append(pointer.group(1))
            elif declaration.strip():
                members += [re.search(r"(\w+)\s*(\[\w+\]\s*)?$", one).group(1)
                            for one in declaration.split(",")]
        yield match.group(1), members


def enumerators(text):
    for match in re.finditer(r"^enum dcp_flat_\w+ \{(.*?)\}", text, re.MULTILINE | re.DOTALL):
        yield from re.findall(r"\b(DCP_FLAT_\w+)\b", match.group(1))
    yield from re.findall(r"^#define (DCP_FLAT_(?!H\b)\w+)", text, re.MULTILINE)


def measured(lines):
    """What a program that has the header prints."""
    with tempfile.TemporaryDirectory() as folder:
        source, program = os.path.join(folder, "a.c"), os.path.join(folder, "a")
        with open(source, "w", encoding="ascii") as file:
            file.write("#include <dcp/flat.h>\n#include <stdio.h>\nint main(void)\n{\n")
            file.writelines(f"    {line}\n" for line in lines)
            file.write("    return 0;\n}\n")
        subprocess.run(["cc", f"-I{ROOT}/libdcp/include", source, "-o", program], check=True)
        return subprocess.run([program], capture_output=True, text=True, check=True).stdout


def told():
    """The list, as flat_abi.txt has it."""
    text, lines = header(), []
    for name, members in structs(text):
        lines.append(f'printf("struct {name} %zu\\n", sizeof(struct {name}));')
        lines += [f'printf("    %zu %zu {member}\\n", offsetof(struct {name}, {member}),'
                  f" sizeof ((struct {name} *)0)->{member});" for member in members]
    lines += [f'printf("{name} %d\\n", {name});' for name in enumerators(text)]
    return "".join(f"{line}\n" for _, line in sorted(functions(text))) + measured(lines)


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(__doc__)
    with open(LIST, "w", encoding="ascii") as file:
        file.write(told())
