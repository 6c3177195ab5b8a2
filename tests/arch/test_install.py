"""An installed libdcp is usable: by find_package and by pkg-config, from C and C++."""

import os
import re
import subprocess
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.normpath(os.path.join(HERE, "..", ".."))
BUILD = os.environ.get("DCP_BUILD_DIR", os.path.join(ROOT, "build"))


def read(*path):
    with open(os.path.join(*path), encoding="utf-8") as file:
        return file.read()


HEADER = read(ROOT, "libdcp", "include", "dcp", "dcp.h")
VERSION = ".".join(re.findall(r"#define DCP_VERSION_\w+ (\d+)", HEADER))
GENERATOR = re.search(r"CMAKE_GENERATOR:INTERNAL=(.*)", read(BUILD, "CMakeCache.txt")).group(1)


def run(*command, **options):
    result = subprocess.run(
        command, capture_output=True, text=True, check=False, **options
    )
    if result.returncode:
        raise AssertionError(f"{' '.join(command)}\n{result.stdout}{result.stderr}")
    return result.stdout


class Install(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.prefix = os.path.join(cls.folder.name, "prefix")
        run("cmake", "--install", BUILD, "--prefix", cls.prefix)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def use(self, program):
        store = tempfile.mkdtemp(dir=self.folder.name)
        self.assertEqual(run(program, store).strip(), VERSION)

    def test_layout(self):
        paths = ["include/dcp/dcp.h"]
        for name in "dcp-inspect", "dcp-reshard", "dcp-train":
            paths += [f"bin/{name}", f"share/man/man1/{name}.1"]
            paths += [f"share/bash-completion/completions/{name}"]
        for path in paths:
            path = os.path.join(self.prefix, path)
            self.assertTrue(os.path.exists(path) and os.path.getsize(path) > 0, path)
        for folder, _, names in os.walk(os.path.join(self.prefix, "include")):
            for name in names:
                self.assertTrue(folder.endswith("include/dcp"), f"{folder}/{name}")

    def test_nothing_points_to_the_build(self):
        for folder, _, names in os.walk(self.prefix):
            for name in names:
                if name.endswith((".pc", ".cmake")):
                    self.assertNotIn(ROOT, read(folder, name), name)

    def test_find_package(self):
        build = os.path.join(self.folder.name, "consumer")
        run("cmake", "-S", os.path.join(HERE, "consumer"), "-B", build, "-G", GENERATOR,
            f"-DCMAKE_PREFIX_PATH={self.prefix}")
        run("cmake", "--build", build)
        self.use(os.path.join(build, "save_load_c"))
        self.use(os.path.join(build, "save_load_cxx"))
        if os.path.exists(os.path.join(build, "join_mpi")):
            run("mpirun", "--oversubscribe", "--allow-run-as-root", "-np", "2",
                os.path.join(build, "join_mpi"))

    def test_pkg_config(self):
        pc_files = []
        for folder, _, names in os.walk(self.prefix):
            pc_files += [folder for name in names if name == "dcp.pc"]
        self.assertEqual(len(pc_files), 1)
        own = {**os.environ, "PKG_CONFIG_PATH": pc_files[0]}
        flags = run("pkg-config", "--cflags", "--libs", "dcp", env=own).split()
        source = os.path.join(HERE, "consumer", "save_load.c")
        for command in ["cc", "-std=c11"], ["c++", "-std=c++17", "-x", "c++"]:
            program = os.path.join(self.folder.name, "by_pkg_config")
            run(*command, source, "-x", "none", "-o", program, *flags,
                f"-Wl,-rpath,{os.path.dirname(pc_files[0])}")
            self.use(program)


if __name__ == "__main__":
    unittest.main()
