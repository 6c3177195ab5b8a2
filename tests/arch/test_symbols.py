"""What the built libraries and programs export, keep in memory, and are linked with."""

import os
import re
import subprocess
import tempfile
import unittest

import rules

ROOT = os.path.normpath(os.path.join(os.path.dirname(__file__), "..", ".."))
BUILD = os.environ.get("DCP_BUILD_DIR", os.path.join(ROOT, "build"))

# Public functions that are in a library of their own.
ELSEWHERE = {"dcp_comm_mpi": "libdcp_mpi.a", "dcp_device_cuda": "libdcp_cuda.a"}


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def exported(shared_library):
    lines = output("nm", "-D", "--defined-only", "-P", shared_library).splitlines()
    return {line.split()[0].split("@")[0] for line in lines}


def archive_symbols(archive):
    """(name, section, is global, is hidden) of every symbol that an archive defines."""
    # value, flags in 7 columns, section, tab, size, [visibility,] name
    pattern = re.compile(r"^[0-9a-f]{8,16} (.{7}) (\S+)\t[0-9a-f]+ (\.hidden )?(\S+)$")
    for line in output("objdump", "-t", archive).splitlines():
        match = pattern.match(line)
        if match and match.group(2) not in ("*UND*", "*ABS*"):
            flags, section, hidden, name = match.groups()
            yield name, section, "g" in flags or "w" in flags, bool(hidden)


def mutable_globals(archive):
    """Objects in writable memory; .data.rel.ro is written by the loader only."""
    for name, section, _, _ in archive_symbols(archive):
        if re.match(r"(\.data(?!\.rel\.ro)|\.bss|\.tdata|\.tbss|\*COM\*)", section):
            if not name.startswith("."):
                yield f"{name} in {section}"


def foreign_names(archive):
    """Global names without the prefix could clash with those of a caller's program."""
    for name, _, is_global, _ in archive_symbols(archive):
        if is_global and not name.startswith("dcp_"):
            yield name


def declared():
    return {name for _, _, name, _ in rules.public_functions(rules.Tree(ROOT))}


class Library(unittest.TestCase):
    archive = os.path.join(BUILD, "lib", "libdcp.a")
    shared = os.path.join(BUILD, "lib", "libdcp.so")

    def test_exports_are_what_the_headers_declare(self):
        found, wanted = exported(self.shared), declared() - set(ELSEWHERE)
        self.assertEqual(sorted(found - wanted), [], "exported, in no public header")
        self.assertEqual(sorted(wanted - found), [], "declared, not in the library")

    def test_side_libraries_export_one_function(self):
        for function, name in ELSEWHERE.items():
            archive = os.path.join(BUILD, "lib", name)
            if not os.path.exists(archive):
                continue
            visible = [
                symbol
                for symbol, _, is_global, is_hidden in archive_symbols(archive)
                if is_global and not is_hidden
            ]
            self.assertEqual(visible, [function])

    def test_no_mutable_globals(self):
        self.assertEqual(list(mutable_globals(self.archive)), [])

    def test_names_carry_the_prefix(self):
        self.assertEqual(list(foreign_names(self.archive)), [])


class Programs(unittest.TestCase):
    def test_tools_run_on_a_login_node(self):
        for name in "dcp-inspect", "dcp-reshard":
            with self.subTest(program=name):
                needed = output("readelf", "-d", os.path.join(BUILD, "bin", name))
                libraries = re.findall(r"\(NEEDED\).*\[(.*?)\]", needed)
                self.assertGreater(len(libraries), 0)
                heavy = [
                    library
                    for library in libraries
                    if re.search(r"mpi|open-rte|cuda|nccl|blas|dnnl|gomp", library)
                ]
                self.assertEqual(heavy, [])


class Catches(unittest.TestCase):
    SOURCE = """
    static int counter;
    int initial = 3;
    static _Thread_local int per_thread;
    static const char *const table[] = {"a", "b"};
    int dcp_bump(void) { return ++counter + ++per_thread + initial; }
    const char *dcp_word(int i) { return table[i]; }
    """

    def test_breaks_are_found(self):
        with tempfile.TemporaryDirectory() as folder:
            source = os.path.join(folder, "a.c")
            unit, archive = os.path.join(folder, "a.o"), os.path.join(folder, "a.a")
            shared = os.path.join(folder, "a.so")
            with open(source, "w", encoding="ascii") as file:
                file.write(self.SOURCE)
            output("cc", "-O0", "-fPIC", "-c", source, "-o", unit)
            output("ar", "rc", archive, unit)
            output("cc", "-shared", unit, "-o", shared)
            found = {line.split()[0] for line in mutable_globals(archive)}
            self.assertEqual(found, {"counter", "initial", "per_thread"})
            self.assertEqual(list(foreign_names(archive)), ["initial"])
            self.assertEqual(exported(shared), {"initial", "dcp_bump", "dcp_word"})


if __name__ == "__main__":
    unittest.main()
