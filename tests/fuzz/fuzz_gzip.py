"""A compressed text file."""

from tests.fuzz.oss_fuzz import reading, run

from qkv.data.corpus import read_lines

TestOneInput = reading("lines.txt.gz", read_lines)

if __name__ == "__main__":
    run(TestOneInput)
