"""A file of settings."""

from tests.fuzz.oss_fuzz import reading, run

from qkv.settings import read_toml

TestOneInput = reading("run.toml", read_toml)

if __name__ == "__main__":
    run(TestOneInput)
