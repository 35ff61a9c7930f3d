"""The tokenizer of a published model."""

from tests.fuzz.oss_fuzz import reading, run

from qkv.data.imported_tokenizer import ImportedTokenizer

TestOneInput = reading("tokenizer.json", lambda path: ImportedTokenizer(path.read_bytes().decode("utf-8", "replace")))

if __name__ == "__main__":
    run(TestOneInput)
