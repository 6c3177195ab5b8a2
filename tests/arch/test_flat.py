"""Callers of <dcp/flat.h> in other languages, and those built long ago, find what they
know: flat_abi.txt lists the functions, and where each member lies."""

import unittest

import flat
from test_symbols import BUILD, exported


class Flat(unittest.TestCase):
    maxDiff = None

    def test_header_is_what_was_promised(self):
        with open(flat.LIST, encoding="ascii") as file:
            self.assertEqual(
                flat.told(), file.read(),
                "functions stay, structs grow at their end alone; if that holds: "
                "python3 tests/arch/flat.py --write")

    def test_library_exports_them_all(self):
        names = {name for name, _ in flat.functions(flat.header())}
        found = {name for name in exported(f"{BUILD}/lib/libdcp.so")
                 if name.startswith("dcp_flat_")}
        self.assertGreater(len(names), 10)
        self.assertEqual(found, names)

    def test_structs_begin_with_their_size(self):
        structs = dict(flat.structs(flat.header()))
        self.assertGreater(len(structs), 10)
        for name, members in structs.items():
            self.assertEqual(members[0], "struct_size", name)


if __name__ == "__main__":
    unittest.main()
