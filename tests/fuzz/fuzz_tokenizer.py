"""A tokenizer."""

from tests.fuzz.oss_fuzz import reading, run

from qkv.data.tokenizer import Tokenizer

TestOneInput = reading("tokenizer.json", lambda path: Tokenizer.from_json(path.read_bytes().decode("utf-8", "replace")))

if __name__ == "__main__":
    run(TestOneInput)
