"""A recorded trace."""

from tests.fuzz.oss_fuzz import reading, run

from qkv.recording.trace_reader import read

TestOneInput = reading("trace.safetensors", read)

if __name__ == "__main__":
    run(TestOneInput)
