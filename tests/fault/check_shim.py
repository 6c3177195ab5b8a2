"""The shim of tests/fault sees every call by which the programs change a file.

First, every function of libc that can change one and that a program or the library
refers to is one that the shim takes the place of. Then, a training and a reshard run
under strace: the kernel and the shim count the same calls.
"""

import collections
import importlib.machinery
import importlib.util
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

from runs import SHIM_CALLS

HERE = os.path.dirname(os.path.abspath(__file__))
BUILD = os.environ["DCP_BUILD_DIR"]
SHIM = os.path.join(BUILD, "tests", "libfault_shim.so")

# Functions that change files. stdio is not here: strace would see what it writes.
CHANGING = """
    open open64 openat openat64 openat2 creat creat64 open_by_handle_at
    write pwrite pwrite64 writev pwritev pwritev64 pwritev2 pwritev64v2
    truncate truncate64 ftruncate ftruncate64 fallocate fallocate64
    posix_fallocate posix_fallocate64 fsync fdatasync sync syncfs
    sync_file_range sync_file_range64 msync
    mkdir mkdirat mknod mknodat rename renameat renameat2 link linkat symlink symlinkat
    unlink unlinkat rmdir remove close close_range
    mkstemp mkstemp64 mkostemp mkostemp64 mkdtemp tmpfile tmpfile64
    copy_file_range sendfile sendfile64 splice tee vmsplice aio_write aio_write64 aio_fsync
    lio_listio io_submit syscall ioctl setxattr lsetxattr fsetxattr fchmod fchmodat
""".split()

KERNEL = {  # system call -> the shim's name of it
    "openat": "open", "open": "open", "creat": "open",
    "write": "write", "pwrite64": "write", "writev": "write", "pwritev": "write",
    "ftruncate": "ftruncate", "truncate": "ftruncate", "fallocate": "fallocate",
    "fsync": "fsync", "fdatasync": "fsync", "mkdir": "mkdir", "mkdirat": "mkdir",
    "rename": "rename", "renameat": "rename", "renameat2": "rename",
    "link": "link", "linkat": "link", "unlink": "unlink", "unlinkat": "unlink",
    "rmdir": "unlink",
}
OF_OPEN_FILES = {"write", "ftruncate", "fallocate", "fsync"}


def load_errno_injection():
    loader = importlib.machinery.SourceFileLoader(
        "errno_injection", os.path.join(HERE, "errno_injection"))
    module = importlib.util.module_from_spec(
        importlib.util.spec_from_loader(loader.name, loader))
    sys.dont_write_bytecode = True
    loader.exec_module(module)
    return module


def symbols(path, *options):
    lines = subprocess.run(["nm", *options, path], capture_output=True, text=True,
                           check=True).stdout.splitlines()
    return {line.split()[-1].split("@")[0] for line in lines if line.strip()}


class Shim(unittest.TestCase):
    def test_takes_the_place_of_every_function(self):
        known = symbols(SHIM, "-D", "--defined-only")
        for program in ("dcp-train", "dcp-reshard"):
            used = symbols(os.path.join(BUILD, "bin", program), "-D", "--undefined-only")
            changing = used & set(CHANGING)
            self.assertIn("renameat2", changing)
            # The mode of the lease is nothing that a step needs.
            self.assertEqual(changing - known - {"syscall", "fchmod"}, set(), program)

    def test_no_other_system_call_is_made_by_number(self):
        top = os.path.join(HERE, "..", "..")
        numbers = set()
        for part in ("libdcp", "formats", "trainer", "reshard", "inspect"):
            for folder, _, names in os.walk(os.path.join(top, part)):
                for name in names:
                    with open(os.path.join(folder, name), encoding="utf-8") as f:
                        numbers |= set(re.findall(r"\bsyscall\((\w+)", f.read()))
        self.assertEqual(numbers, {"SYS_pidfd_open"})

    def test_counts_what_the_kernel_counts(self):
        errno_injection = load_errno_injection()
        if not shutil.which("strace") or subprocess.run(
                ["strace", "-o", "/dev/null", "true"], capture_output=True,
                check=False).returncode:
            self.skipTest("there is no strace, or it may not trace")
        with tempfile.TemporaryDirectory() as work:
            campaign = errno_injection.Campaign(BUILD, work)
            folder = campaign.folder("traced")
            for command in (["dcp-train", "--config", "train.json", "--steps", "4"],
                            ["dcp-reshard", "root/run", "root/out", "--world", "3"]):
                self.compare(errno_injection, campaign, folder, command)

    def compare(self, errno_injection, campaign, folder, command):
        root = os.path.join(folder, "root")
        counts, log = os.path.join(folder, "counts"), os.path.join(folder, "strace")
        if os.path.exists(counts):
            os.unlink(counts)
        env = dict(campaign.env, DCP_SHIM_ROOT=root, DCP_SHIM_COUNTS=counts)
        strace = ["strace", "-f", "-yy", "-o", log, "-e", "trace=" + ",".join(KERNEL),
                  "-E", "LD_PRELOAD=" + SHIM]
        done = subprocess.run(strace + command, cwd=folder, env=env, capture_output=True,
                              text=True, timeout=120, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(counts, "rb") as f:
            n = len(SHIM_CALLS)
            shim = dict(zip(SHIM_CALLS, struct.unpack(f"{n}Q", f.read())))
        shim["fsync"] += shim.pop("syncdir")
        shim["open"] += shim.pop("create")
        kernel = collections.Counter()
        with open(log, encoding="utf-8", errors="replace") as f:
            for line in f:
                call = re.match(r"\d+ +(\w+)\((.*)", line)
                # O_PATH: the shim itself looks where a name lies.
                if not call or "O_PATH" in line:
                    continue
                said = call.group(2).split(") = ")[0]
                if KERNEL[call.group(1)] in OF_OPEN_FILES:
                    said = said.split(">")[0] + ">"
                if root + "/" in said or root + ">" in said or '"root/' in said:
                    kernel[KERNEL[call.group(1)]] += 1
        for name in sorted(set(KERNEL.values())):
            self.assertEqual(kernel[name], shim[name], f"{command[0]}: {name}")
        self.assertGreater(kernel["fsync"], 3)


if __name__ == "__main__":
    unittest.main(verbosity=2)
