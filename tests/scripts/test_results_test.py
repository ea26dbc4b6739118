"""scripts/test_results.py counts what ran, and takes no bad end for a success."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts/test_results.py"

XML = """<?xml version="1.0" encoding="UTF-8"?>
<testsuites tests="4" failures="1"><testsuite name="Check" tests="4">
<testcase name="Passes" status="run" result="completed" classname="Check" />
<testcase name="Skips" status="run" result="skipped" classname="Check"><skipped message="x"/>
</testcase>
<testcase name="Disabled" status="notrun" result="suppressed" classname="Check" />
%s</testsuite></testsuites>
"""
FAILURE = """<testcase name="Fails" status="run" result="completed" classname="Check">
<failure message="1 != 2" type=""></failure></testcase>
"""


class Results(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.add("checks", "tree", "0", "ok tree\n")

    def add(self, step, program, status, log="", xml=""):
        folder = self.root / step
        folder.mkdir(exist_ok=True)
        (folder / f"{program}.exit").write_text(status + "\n")
        (folder / f"{program}.log").write_text(log)
        if xml:
            (folder / f"{program}.xml").write_text(xml)

    def expect(self, last, *failures, code):
        done = subprocess.run([sys.executable, str(SCRIPT), str(self.root)], capture_output=True,
                              text=True, check=False)
        lines = done.stdout.splitlines()
        self.assertEqual(lines[-1], last, done.stdout + done.stderr)
        self.assertEqual(len(lines) - 1, len(failures), done.stdout)
        for line, failure in zip(lines, failures):
            self.assertTrue(line.startswith(f"FAILED {failure}"), line)
        self.assertEqual(done.returncode, code)

    def test_xml_is_counted(self):
        self.add("unit", "test_core", "0", xml=XML % "")
        self.expect("2 passed, 0 failed, 2 skipped", code=0)

    def test_failure_is_named(self):
        self.add("unit", "test_core", "1", xml=XML % FAILURE)
        self.expect("2 passed, 1 failed, 2 skipped", "unit/test_core: Check.Fails", code=1)

    def test_crash_without_result_is_a_failure(self):
        self.add("unit", "test_core", "139", log="[       OK ] Check.Passes\n")
        self.expect("1 passed, 1 failed, 0 skipped",
                    "unit/test_core: (ended with status 139)", code=1)

    def test_unfinished_xml_is_a_failure(self):
        self.add("unit", "test_core", "134", xml="<testsuites><testsuite>")
        self.expect("1 passed, 1 failed, 0 skipped",
                    "unit/test_core: (ended with status 134)", code=1)

    def test_bad_end_after_good_tests_is_a_failure(self):
        self.add("tsan", "test_core", "66", xml=XML % "")
        self.expect("2 passed, 1 failed, 2 skipped",
                    "tsan/test_core: (ended with status 66)", code=1)

    def test_program_that_hangs_is_a_failure(self):
        self.add("unit", "test_core", "124")
        self.expect("1 passed, 1 failed, 0 skipped", "unit/test_core: (ran out of time", code=1)

    def test_program_without_any_test_is_a_failure(self):
        self.add("unit", "test_core", "0", log="nothing\n")
        self.expect("1 passed, 1 failed, 0 skipped",
                    "unit/test_core: (reported no test)", code=1)

    def test_lines_are_counted(self):
        self.add("e2e", "resume", "0", log="ok a\nsome text\nskip b no gpu\nFAIL c 1 != 2\n")
        self.expect("2 passed, 1 failed, 1 skipped", "e2e/resume: c", code=1)

    def test_nothing_passed_is_no_success(self):
        self.add("checks", "tree", "0", "skip tree\n")
        self.expect("0 passed, 0 failed, 1 skipped", code=1)


if __name__ == "__main__":
    unittest.main()
