"""Runs modules of pyverbs' own tests and prints a line for each test: its name, its outcome, and why.

    run_pyverbs.py FROM INTO MODULE…    FROM: the tests as the distribution ships them, some gzipped
                                        INTO: a folder to unpack them into
"""

import gzip
import pathlib
import shutil
import sys
import traceback
import unittest


def unpack(source, destination):
    destination.mkdir(parents=True, exist_ok=True)
    for file in source.iterdir():
        if file.suffix == ".gz":
            (destination / file.stem).write_bytes(gzip.decompress(file.read_bytes()))
        elif file.suffix == ".py":
            shutil.copy(file, destination)


class OneLineEach(unittest.TestResult):
    """Prints what becomes of each test, as fields between tabs."""

    def say(self, test, outcome, why=""):
        why = why.replace("\\", "\\\\").replace("\n", "\\n").replace("\t", " ")
        print(test.id(), outcome, why, sep="\t", file=report, flush=True)

    def startTest(self, test):
        super().startTest(test)
        self.subtest_failures = []

    def addSuccess(self, test):
        if self.subtest_failures:
            self.say(test, "failed", "".join(self.subtest_failures))
        else:
            self.say(test, "passed")

    def addSubTest(self, test, subtest, error):
        if error is not None:
            self.subtest_failures.append("".join(traceback.format_exception(*error)))

    def addSkip(self, test, reason):
        self.say(test, "skipped", reason)

    def addError(self, test, error):
        self.say(test, "failed", "".join(traceback.format_exception(*error)))

    addFailure = addError

    def addExpectedFailure(self, test, error):
        self.say(test, "passed")

    def addUnexpectedSuccess(self, test):
        self.say(test, "failed", "it expects to fail, and passed")


source, destination, *modules = sys.argv[1:]
unpack(pathlib.Path(source), pathlib.Path(destination) / "tests")
sys.path[:0] = [destination, str(pathlib.Path(destination) / "tests")]
# What the tests themselves print goes to standard error.
report, sys.stdout = sys.stdout, sys.stderr

# The tests take the device, its port and its GID from the command line.
sys.argv[1:] = ["--dev", "uroce0", "--port", "1", "--gid", "0"]
from args_parser import parser  # noqa: E402

parser.parse_args()
suite = unittest.defaultTestLoader.loadTestsFromNames(f"tests.{module}" for module in modules)
# Whoever reads the lines judges them. A module that cannot be loaded is a test of its own that fails.
suite.run(OneLineEach())
