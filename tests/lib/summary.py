"""Adds up JUnit files of ctest and pytest: names the failures, and the skips with their reasons.

The last line is "N passed, N failed, N skipped"; the exit status is 1 when a test failed,
when none ran, or, with CI=true, when a test was skipped because a peer is missing.
"""

import os
import re
import sys
import xml.etree.ElementTree as ElementTree

SKIP_LINES = (
    re.compile(r"^skipped: (.*)$"),  # a whole test, see docs/TESTING.md
    re.compile(r"^ok \d+ (.* # skip.*)$"),  # one case of a bats file
    re.compile(r"^\[  SKIPPED \] (?!\d)(.*)$"),  # one case of a cmocka program
    re.compile(r"^.* \.\.\. (skipped .*)$"),  # one case of unittest -v
    re.compile(r"^OK \((skipped=\d+)\)$"),  # some cases of unittest
)


def skips_in(output):
    for line in output.splitlines():
        for pattern in SKIP_LINES:
            match = pattern.match(line)
            if match:
                yield match.group(1)
                break


def of_pytest(case):
    """Gives a case the marks that ctest makes."""
    if case.get("status") is None:
        mark = case.find("skipped")
        failed = case.find("failure") is not None or case.find("error") is not None
        case.set("status", "fail" if failed else "run" if mark is None else "notrun")
        case.set("name", f"{case.get('classname')}.{case.get('name')}")
        if mark is not None:
            note = ElementTree.SubElement(case, "system-out")
            note.text = f"skipped: {mark.get('message')}"
            mark.set("message", "SKIP_")


def is_skip(case):
    """Exit status 77, or disabled; a program that is missing is no skip."""
    mark = case.find("skipped")
    message = mark.get("message", "") if mark is not None else ""
    return message.startswith("SKIP_") or case.get("status") == "disabled"


def main(paths):
    passed, failures, skipped, partial = 0, [], [], []
    for path in paths:
        suite = os.path.splitext(os.path.basename(path))[0]
        prefix = "" if suite == "default" else suite + ": "
        for case in ElementTree.parse(path).getroot().iter("testcase"):
            of_pytest(case)
            name = prefix + case.get("name")
            notes = list(dict.fromkeys(skips_in(case.findtext("system-out") or "")))
            if case.get("status") == "run":
                passed += 1
                partial += [(name, note) for note in notes]
            elif is_skip(case):
                reason = "; ".join(notes) or "no reason given"
                skipped.append((name, reason))
            else:
                failures.append(name)

    if os.environ.get("CI") == "true":
        failures += [
            f"{name}: a missing peer is a failure in CI"
            for name, reason in skipped + partial
            if "peers" in reason
        ]

    print()
    for name, reason in skipped:
        print(f"skipped  {name}: {reason}")
    for name, reason in partial:
        print(f"in part  {name}: {reason}")
    for name in failures:
        print(f"FAILED   {name}")
    if passed == 0:
        print("no test ran")
    print(f"{passed} passed, {len(failures)} failed, {len(skipped)} skipped")
    return 1 if failures or passed == 0 else 0


sys.exit(main(sys.argv[1:]))
