"""Every header compiles alone: the public ones as C11 and as C++17, the others as C11."""

import glob
import os
import subprocess
import tempfile
import unittest

ROOT = os.path.normpath(os.path.join(os.path.dirname(__file__), "..", ".."))
PUBLIC = os.path.join(ROOT, "libdcp", "include")
WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only"]
C11 = [os.environ.get("CC", "cc"), "-x", "c", "-std=c11", "-D_GNU_SOURCE", *WARNINGS]
CXX17 = [os.environ.get("CXX", "c++"), "-x", "c++", "-std=c++17", *WARNINGS]


def complaint(command, include_line, include_paths):
    """Compiles one include in a file of its own; what the compiler says, or ""."""
    with tempfile.NamedTemporaryFile("w", suffix=".c") as file:
        # twice, because a header must also stand being included again
        file.write(f"{include_line}\n{include_line}\nint nothing_else;\n")
        file.flush()
        paths = [f"-I{path}" for path in include_paths]
        result = subprocess.run(
            [*command, *paths, file.name], capture_output=True, text=True, check=False
        )
    return result.stderr if result.returncode else ""


class Headers(unittest.TestCase):
    def test_public(self):
        headers = glob.glob("dcp/*.h", root_dir=PUBLIC)
        self.assertGreater(len(headers), 5)
        for header in sorted(headers):
            for command in C11, CXX17:
                with self.subTest(header=header, language=command[2]):
                    line = f"#include <{header}>"
                    self.assertEqual(complaint(command, line, [PUBLIC]), "")

    def test_internal(self):
        headers = []
        for folder in ("libdcp/base", "libdcp/core", "libdcp/port", "libdcp/cli", "libdcp/flat",
                       "formats", "reshard", "inspect", "trainer"):
            found = glob.glob(os.path.join(ROOT, folder, "**", "*.h"), recursive=True)
            self.assertGreater(len(found), 2, folder)
            headers += found
        for header in sorted(headers):
            with self.subTest(header=os.path.relpath(header, ROOT)):
                paths = [PUBLIC, os.path.join(ROOT, "libdcp"), ROOT,
                         os.path.join(ROOT, "tests", "lib", "cuda_fake")]
                self.assertEqual(complaint(C11, f'#include "{header}"', paths), "")

    def test_catches(self):
        with tempfile.TemporaryDirectory() as folder:
            for text, command in (
                ("#ifndef A\n#define A\nint f(size_t n);\n#endif\n", C11),
                ("enum e { first };\n", C11),  # no guard
                ("#ifndef A\n#define A\nint f(char *new_, int class);\n#endif\n", CXX17),
            ):
                with open(os.path.join(folder, "a.h"), "w", encoding="ascii") as file:
                    file.write(text)
                self.assertNotEqual(complaint(command, '#include "a.h"', [folder]), "")


if __name__ == "__main__":
    unittest.main()
