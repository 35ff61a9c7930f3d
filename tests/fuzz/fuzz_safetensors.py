"""The weights of a checkpoint."""

from tests.fuzz.oss_fuzz import reading, run

from qkv.checkpoint.tensors import unpack

TestOneInput = reading("model.safetensors", lambda path: unpack(path.read_bytes(), {}, path.name))

if __name__ == "__main__":
    run(TestOneInput)
