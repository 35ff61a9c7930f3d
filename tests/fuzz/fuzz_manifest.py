"""The list of a checkpoint's files."""

from tests.fuzz.oss_fuzz import reading, run

from qkv.checkpoint.manifest import parse

TestOneInput = reading("MANIFEST.json", lambda path: parse(path.read_bytes(), path.name))

if __name__ == "__main__":
    run(TestOneInput)
