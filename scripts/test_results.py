#!/usr/bin/env python3
"""Sums what scripts/test.sh has run.

    scripts/test_results.py DIR

DIR/STEP/PROGRAM.exit holds the exit status of a program of a step. Beside it lies its result:
PROGRAM.xml as GoogleTest writes it, or PROGRAM.log with lines `ok NAME`, `FAIL NAME ...` and
`skip NAME ...`. Names every failure, and ends with `N passed, N failed, N skipped`. A program that
ends badly, or without a result, is a failure whatever it reported. Exits with 1 if a test failed
or none passed.
"""

import pathlib
import re
import sys
import xml.etree.ElementTree

LINE = re.compile(r"(ok|FAIL|skip) (\S+)")


def read_gtest(path):
    """[(name, ok|FAIL|skip)] of a GoogleTest XML file; [] if the program did not finish it."""
    try:
        cases = xml.etree.ElementTree.parse(path).getroot().iter("testcase")
    except (OSError, xml.etree.ElementTree.ParseError):
        return []
    results = []
    for case in cases:
        state = "ok"
        if case.find("failure") is not None or case.find("error") is not None:
            state = "FAIL"
        elif case.find("skipped") is not None or case.get("status") == "notrun":
            state = "skip"
        results.append((f"{case.get('classname')}.{case.get('name')}", state))
    return results


def read_lines(path):
    """[(name, ok|FAIL|skip)] of a log."""
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    return [(match.group(2), match.group(1)) for match in map(LINE.match, lines) if match]


def read_program(exit_file):
    """The results of one program, its end among them where that was bad."""
    status = exit_file.read_text().strip()
    results = read_gtest(exit_file.with_suffix(".xml")) or read_lines(exit_file.with_suffix(".log"))
    failed = any(state == "FAIL" for _, state in results)
    if status in ("124", "137"):
        results.append(("(ran out of time or was killed)", "FAIL"))
    elif status != "0" and not failed:
        results.append((f"(ended with status {status})", "FAIL"))
    elif not results:
        results.append(("(reported no test)", "FAIL"))
    return results


def main(arguments):
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    root = pathlib.Path(arguments[0])
    count = {"ok": 0, "FAIL": 0, "skip": 0}
    for exit_file in sorted(root.glob("*/*.exit")):
        program = exit_file.relative_to(root).with_suffix("").as_posix()
        for name, state in read_program(exit_file):
            count[state] += 1
            if state == "FAIL":
                print(f"FAILED {program}: {name}  (see {exit_file.with_suffix('.log')})")
    print(f"{count['ok']} passed, {count['FAIL']} failed, {count['skip']} skipped")
    return 1 if count["FAIL"] or not count["ok"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
