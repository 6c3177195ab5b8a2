"""What CMake takes for the sources of a program, wherever the checkout lies."""

import os
import shutil
import subprocess
import tempfile
import unittest

from test_install import GENERATOR

ROOT = os.path.normpath(os.path.join(os.path.dirname(__file__), "..", ".."))
PROJECT = f"""cmake_minimum_required(VERSION 3.20)
project(sources NONE)
include("{ROOT}/scripts/cmake/DcpTargets.cmake")
function(add_library name)
    message(NOTICE "archive ${{ARGN}}")
endfunction()
function(add_executable name)
    message(NOTICE "program ${{ARGN}}")
endfunction()
foreach(unused target_link_libraries install dcp_add_manual)
    cmake_language(EVAL CODE "function(${{unused}})\\nendfunction()")
endforeach()
dcp_cuda_sources(module)
message(NOTICE "module ${{module}}")
dcp_add_program(program)
"""


class Sources(unittest.TestCase):
    def told(self, folder, **features):
        """What each part is made of."""
        given = [f"-DDCP_HAS_{name}={value}" for name, value in features.items()]
        made = subprocess.run(["cmake", "-G", GENERATOR, "-S", folder, "-B", f"{folder}/build",
                               *given], capture_output=True, text=True, check=True)
        shutil.rmtree(f"{folder}/build")
        words = [line.split(" ", 1) for line in made.stderr.splitlines() if " " in line]
        return {part: sorted(os.path.relpath(os.path.join(folder, name), folder)
                             for name in names.replace("STATIC", "").split(";") if name)
                for part, names in words if part in ("archive", "program", "module")}

    def test_program(self):
        for place in ("checkout", "cuda", "my_cuda", "mpi/nccl/x+y"):
            with self.subTest(place=place), tempfile.TemporaryDirectory() as top:
                folder = os.path.join(top, place, "program")
                for name in ("main.c", "cudart.c", "coll/mpi.c", "coll/nccl.c",
                             "run/compute.c", "run/compute_cuda.c", "ops/cuda/table.c",
                             "ops/cuda/norm.cu", "ops/cuda/graph_cudnn.c"):
                    path = os.path.join(folder, name)
                    os.makedirs(os.path.dirname(path), exist_ok=True)
                    open(path, "w", encoding="ascii").close()
                with open(os.path.join(folder, "CMakeLists.txt"), "w", encoding="ascii") as file:
                    file.write(PROJECT)
                self.assertEqual(self.told(folder, MPI=1, NCCL=1, CUDNN=1), {
                    "program": ["main.c"],
                    "archive": ["coll/mpi.c", "cudart.c", "run/compute.c"],
                    "module": ["coll/nccl.c", "ops/cuda/graph_cudnn.c", "ops/cuda/norm.cu",
                               "ops/cuda/table.c", "run/compute_cuda.c"]})
                self.assertEqual(self.told(folder, MPI=0, NCCL=0, CUDNN=0), {
                    "program": ["main.c"],
                    "archive": ["cudart.c", "run/compute.c"],
                    "module": ["ops/cuda/norm.cu", "ops/cuda/table.c",
                               "run/compute_cuda.c"]})


if __name__ == "__main__":
    unittest.main()
