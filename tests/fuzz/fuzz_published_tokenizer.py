"""The tokenizer of a published model."""

from tests.fuzz.oss_fuzz import reading, run

from qkv.data.published import Published

TestOneInput = reading("tokenizer.json", lambda path: Published(path.read_bytes().decode("utf-8", "replace")))

if __name__ == "__main__":
    run(TestOneInput)
