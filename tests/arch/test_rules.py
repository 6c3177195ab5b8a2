"""The tree keeps the rules of rules.py, and each rule catches what breaks it."""

import os
import tempfile
import unittest

import rules

ROOT = os.path.normpath(os.path.join(os.path.dirname(__file__), "..", ".."))

FUNCTION = "static int f(int x)\n{\n%s}\n"

# For each rule: a file that breaks it, and the file that shows what is allowed.
BREAKS = {
    "includes": [
        ("formats/numpy/npy.c", '#include "core/box.h"\n'),
        ("libdcp/core/box.c", '#include "../base/mem.h"\n'),
        ("libdcp/base/str.c", "#include <dcp/tensor.h>\n"),
        ("libdcp/core/box.c", '#include "cli/opt.h"\n'),
        ("libdcp/core/box.c", '#include "absent.h"\n'),
        ("libdcp/include/dcp/tensor.h", '#include "base/mem.h"\n'),
        ("inspect/show.c", '#include "reshard/run.h"\n'),
        ("inspect/show.c", "#include <base/mem.h>\n"),
        ("inspect/show.c", "#include <dcp/absent.h>\n"),
        ("formats/numpy/npz.c", '#include "formats/numpy/npy.h"\n'),
        ("formats/numpy/npz.c", '#include "formats/archive/absent.h"\n'),
    ],
    "sizes": [("trainer/model.c", "int x;\n" * 601)],
    "columns": [
        ("trainer/model.c", "/* " + "x" * 90 + " */\n"),
        ("trainer/model.c", "\tint x;\n"),
        ("trainer/model.c", "int x; \n"),
    ],
    "banned": [
        ("inspect/show.c", "strcpy(a, b);\n"),
        ("inspect/show.c", "n = atoi(text);\n"),
        ("libdcp/core/box.c", 'printf("x");\n'),
        ("libdcp/port/store_dir.c", "abort ();\n"),
        ("formats/numpy/npy.c", "assert(n > 0);\n"),
    ],
    "marks": [
        ("docs/FORMAT.md", "TO" + "DO: the rest\n"),
        ("libdcp/core/box.c", "/* FIX" + "ME */\n"),
    ],
    "names": [
        ("trainer/model.h", "typedef struct model model;\n"),
        ("libdcp/include/dcp/tensor.h", "struct tensor;\n"),
        ("libdcp/include/dcp/tensor.h", "#define MAX_NDIM 8\n"),
        ("libdcp/include/dcp/tensor.h", "/* New. */\nDCP_PUBLIC int box_new(void);\n"),
    ],
    "doors": [("inspect/ls.c", "int x = dcp_location_open(p, &place, err);\n")],
    "tags": [
        ("formats/numpy/npy.c", 'json_t *x = json_object_get(y, "$tuple");\n'),
        ("inspect/show.c", "bool x = key[0] == '$';\n"),
    ],
    "tries": [
        ("formats/numpy/npy.c", FUNCTION % "    DCP_TRY(g());\nout:\n    return h();\n"),
        ("libdcp/core/box.c", FUNCTION % "    DCP_TRY(g());\n    return dcp_agree(c, 0, e);\n"),
        ("reshard/run.c", FUNCTION % "    char *p = g();\n    DCP_TRY(h(p));\n    free(p);\n"),
        ("trainer/model.c", FUNCTION % "    int fd;\n    DCP_TRY(g(&fd));\n"
         "    DCP_TRY(h(fd));\n    close(fd);\n"),
    ],
    "documented": [
        ("libdcp/include/dcp/tensor.h", "int x;\n\nDCP_PUBLIC int dcp_a(void);\n"),
    ],
    "links": [("docs/FORMAT.md", "see [this](absent.md)\n")],
    "chapters": [
        ("docs/FORMAT.md", "## 1. One\n## 1. Two\n"),
        ("docs/FORMAT.md", "## 1. One\nsee §2\n"),
        ("formats/numpy/npy.h", "/* FORMAT.md " + "§" + "13 */\n"),
    ],
    "patterns": [("formats/numpy/npy.h", "/* for numpy_n*.c only */\n")],
    "floors": [
        ("formats/pickle/json.c", '#include "formats/numpy/npy.h"\n'),
        ("formats/archive/zip.c", '#include "formats/models/names.h"\n'),
        ("formats/attic/old.c", "int x;\n"),
    ],
    "cycles": [
        ("formats/numpy/npy.h", '#include "npz.h"\n'),
        ("formats/numpy/npy.c", '#include "npz.h"\n'),
    ],
}
ALLOWED = {
    "formats/numpy/npy.c": '#include "npy.h"\n#include "base/mem.h"\n#include <dcp/tensor.h>\n'
    'int printf_count; /* strcpy( is no call here */ char *s = "system(1)";\n'
    "snprintf(a, n, b); static_assert(1, x);\n",
    "formats/numpy/npy.h": "/* npy, for npy*.c */\n",
    "formats/numpy/npz.c": '#include "npz.h"\n#include "own.h"\n'
    '#include "formats/archive/zip.h"\n',
    "formats/numpy/npz.h": '#include "npy.h"\n',
    "formats/numpy/own.h": '#include "npy.h"\n',
    "formats/archive/zip.h": "int x;\n",
    "formats/models/names.h": "int x;\n",
    "libdcp/base/mem.h": "#include <dcp/error.h>\n",
    "libdcp/include/dcp/error.h": "struct dcp_error;\n#define DCP_OK 0\n",
    "libdcp/include/dcp/tensor.h": "#include <dcp/error.h>\n"
    "/* Two of a kind. */\nDCP_PUBLIC const char *dcp_a(\n    int x);\n"
    "DCP_PUBLIC int dcp_b(void);\n",
    "inspect/show.c": '#include "cli/opt.h"\nint main(void)\n{\n    puts("x");\n}\n',
    "inspect/ls.c": FUNCTION % "    DCP_CLEANUP_FREE char *p = g();\n    char *q = NULL;\n"
    "    DCP_TRY(dcp_agree(c, h(), e));\n    DCP_TRY(dcp_agree(c, 0, e));\n"
    "    q = g();\n    free(q);\n    switch (x) {\n    default:\n        return 0;\n    }\n",
    "docs/FORMAT.md": "see [this](../formats/numpy/npy.h) and [that](https://example.org)\n",
}


def broken(files):
    """Runs every rule over a tree of the given files: rule name to what it found."""
    with tempfile.TemporaryDirectory() as root:
        for path, text in files.items():
            path = os.path.join(root, path)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        tree = rules.Tree(root)
        return {rule.__name__: list(rule(tree)) for rule in rules.RULES}


class Catches(unittest.TestCase):
    def test_allowed(self):
        for name, found in broken(ALLOWED).items():
            self.assertEqual(found, [], name)

    def test_each_break(self):
        self.assertEqual(set(BREAKS), {rule.__name__ for rule in rules.RULES})
        for name, cases in BREAKS.items():
            for path, text in cases:
                with self.subTest(rule=name, text=text[:60]):
                    found = broken({**ALLOWED, path: text})[name]
                    self.assertTrue(found, "not caught")
                    self.assertTrue(found[0].startswith(path), found)


class Keeps(unittest.TestCase):
    """One test for each rule, made below."""


def keep(rule):
    def test(self):
        found = list(rule(self.tree))
        if found:
            self.fail(f"{(rule.__doc__ or rule.__name__).strip()}\n" + "\n".join(found))

    return test


Keeps.tree = rules.Tree(ROOT)
for each in rules.RULES:
    setattr(Keeps, f"test_{each.__name__}", keep(each))

if __name__ == "__main__":
    unittest.main()
