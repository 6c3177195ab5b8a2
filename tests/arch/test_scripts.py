"""The scripts tell the truth: what is counted and skipped, what the demo measures."""

import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
import zlib

ROOT = os.path.normpath(os.path.join(os.path.dirname(__file__), "..", ".."))
SUMMARY = os.path.join(ROOT, "tests", "lib", "summary.py")
DEMO = os.path.join(ROOT, "scripts", "demo")


def run(*command, **environment):
    return subprocess.run(
        command, capture_output=True, text=True, check=False,
        env={**os.environ, "CI": "", **environment},
    )


class Pictures(unittest.TestCase):
    def test_drawn(self):
        """docs/pictures are those of today's tree."""
        drawn = run(sys.executable, os.path.join(ROOT, "scripts", "draw.py"), "--check")
        self.assertEqual((drawn.returncode, drawn.stdout), (0, ""), drawn.stderr)


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def write(self, name, data):
        path = os.path.join(self.folder, name)
        with open(path, "wb") as file:
            file.write(data if isinstance(data, bytes) else data.encode())
        return path


class Lint(Folder):
    def test_tidy_needs_a_build(self):
        """With nothing to look at, nothing would be found."""
        shutil.copytree(os.path.join(ROOT, "scripts"), f"{self.folder}/scripts")
        for name in "libdcp", "formats", "reshard", "inspect", "trainer", "tests", ".ci", "bin":
            os.makedirs(f"{self.folder}/{name}")
        for tool in "clang-format", "shellcheck", "python3", "clang-tidy", "run-clang-tidy":
            os.chmod(self.write(f"bin/{tool}", "#!/bin/sh\n"), 0o755)
        path = f"{self.folder}/bin:{os.environ['PATH']}"
        lint = f"{self.folder}/scripts/lint.sh"
        self.assertEqual(run(lint, PATH=path).returncode, 0)
        blind = run(lint, "--tidy", PATH=path)
        self.assertEqual(blind.returncode, 1)
        self.assertIn("there is no build/compile_commands.json", blind.stderr)
        os.makedirs(f"{self.folder}/build")
        self.write("build/compile_commands.json", "[]")
        self.assertEqual(run(lint, "--tidy", PATH=path).returncode, 0)
        self.write("bin/run-clang-tidy", "#!/bin/sh\necho 'a.c:1:1: error: it is wrong'\n")
        self.assertEqual(run(lint, "--tidy", PATH=path).returncode, 1)


class Summary(Folder):
    PASSED = '<testcase name="unit.box" status="run"><system-out/></testcase>'
    FAILED = '<testcase name="unit.bad" status="fail"><failure message="x"/></testcase>'
    ABSENT = (
        '<testcase name="unit.gone" status="notrun">'
        '<skipped message="Unable to find executable"/></testcase>'
    )
    SKIPPED = (
        '<testcase name="interop.torch" status="notrun">'
        '<skipped message="SKIP_RETURN_CODE=77"/>'
        "<system-out>skipped: no peers here</system-out></testcase>"
    )
    IN_PART = (
        '<testcase name="cli.show" status="run"><system-out>'
        "ok 1 shows\nok 2 as another user # skip not root</system-out></testcase>"
    )

    def summary(self, *cases, **environment):
        text = f"<testsuite>{''.join(cases)}</testsuite>"
        path = self.write("default.xml", text)
        result = run(sys.executable, SUMMARY, path, **environment)
        return result.returncode, result.stdout.splitlines()

    def test_counts(self):
        status, lines = self.summary(self.PASSED, self.SKIPPED, self.IN_PART)
        self.assertEqual(status, 0)
        self.assertEqual(lines[-1], "2 passed, 0 failed, 1 skipped")
        self.assertIn("skipped  interop.torch: no peers here", lines)
        self.assertIn("in part  cli.show: as another user # skip not root", lines)

    def test_failures_fail(self):
        for case in self.FAILED, self.ABSENT:
            status, lines = self.summary(self.PASSED, case)
            self.assertEqual(status, 1)
            self.assertEqual(lines[-1], "1 passed, 1 failed, 0 skipped")

    def test_nothing_is_no_success(self):
        self.assertEqual(self.summary()[0], 1)
        self.assertEqual(self.summary(self.SKIPPED)[0], 1)

    def test_missing_peers_fail_in_ci(self):
        status, lines = self.summary(self.PASSED, self.SKIPPED, CI="true")
        self.assertEqual(status, 1)
        self.assertEqual(lines[-1], "1 passed, 1 failed, 1 skipped")


class Demo(Folder):
    @staticmethod
    def strings(lines):
        """A vector of strings as R serialises it."""
        head = b"X\n" + struct.pack(">III", 3, 0x40201, 0x30500)
        data = head + struct.pack(">I", 5) + b"UTF-8" + struct.pack(">II", 16, len(lines))
        for line in lines:
            data += struct.pack(">II", 0x40009, len(line)) + line
        return struct.pack(">I", len(data)) + zlib.compress(data)

    def test_text_from_r_data(self):
        source = self.write("a.rdb", self.strings([b"one", b"", b"two"]) +
                            self.strings([b"three"]))
        target = os.path.join(self.folder, "a.txt")
        result = run(sys.executable, os.path.join(DEMO, "austen.py"), source, target)
        self.assertEqual(result.returncode, 0, result.stderr)
        with open(target, "rb") as file:
            self.assertEqual(file.read(), b"one\n\ntwo\n\nthree\n\n")

    def test_summary_wants_a_falling_loss(self):
        text = self.write("a.txt", bytes(range(256)) * 4)  # entropy ln 256 = 5.545
        for last, status in (5.4, 1), (5.0, 0):
            rows = [{"step": i, "loss": last, "step_s": 0.1} for i in range(1, 6)]
            rows.insert(0, {"step": 5, "loss": 9.0, "step_s": 0.1})  # trained again below
            metrics = self.write("m.jsonl", "\n".join(json.dumps(row) for row in rows))
            result = run(sys.executable, os.path.join(DEMO, "summary.py"), text, metrics,
                         "--", text)
            self.assertEqual(result.returncode, status, result.stdout + result.stderr)
            self.assertIn("single bytes: 5.545", result.stdout)


class Shell(unittest.TestCase):
    def test_help_and_bad_options(self):
        for name in "setup.sh", "test.sh", "bench.sh":
            script = os.path.join(ROOT, "scripts", name)
            result = run(script, "--help")
            self.assertEqual(result.returncode, 0, name)
            self.assertIn("usage:", result.stdout)
            self.assertEqual(run(script, "--no-such-option").returncode, 2, name)


if __name__ == "__main__":
    unittest.main()
