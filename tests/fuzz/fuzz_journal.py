"""The journal of a run."""

from tests.fuzz.oss_fuzz import reading, run

from qkv.training.journal import read_journal

TestOneInput = reading("metrics.jsonl", read_journal)

if __name__ == "__main__":
    run(TestOneInput)
