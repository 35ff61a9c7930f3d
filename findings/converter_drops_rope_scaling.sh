#!/bin/sh
# Most people guess that CTranslate2's converter refuses what it cannot express, since it names unsupported types of
# rope. For rope of the type `llama3` it reads the type and the factor, and converts without a word; on this prompt
# the converted model computes what the model without scaling does. It hurts whoever serves Llama 3.1 and its
# relatives and checks only that the text is fluent.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6 transformers==5.24.0 ctranslate2==4.8.5

cat > "$work/show.py" <<'END'
import sys

import ctranslate2
import numpy as np
import tokenizers
import torch
import transformers

LLAMA_3_1 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def build(rope):
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=20, hidden_size=128, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, initializer_range=0.2, max_position_embeddings=16384,
        rope_parameters={"rope_theta": 5e5, **rope},
    )).eval()


print("ctranslate2", ctranslate2.__version__, "transformers", transformers.__version__)
words = tokenizers.Tokenizer(tokenizers.models.WordLevel({f"w{i}": i for i in range(20)}, unk_token="w0"))
folder = sys.argv[0] + ".model"
build(LLAMA_3_1).save_pretrained(folder)
transformers.PreTrainedTokenizerFast(
    tokenizer_object=words, unk_token="w0", bos_token="w1", eos_token="w2"
).save_pretrained(folder)
ctranslate2.converters.TransformersConverter(folder).convert(folder + "/converted")
ids = [3, 4, 5, 6, 7, 8, 9, 10] * 4
generator = ctranslate2.Generator(folder + "/converted", compute_type="float32")
logits = np.array(generator.forward_batch([[f"w{i}" for i in ids]]))[0]
for name, rope in (("with", LLAMA_3_1), ("without", {"rope_type": "default"})):
    with torch.no_grad():
        difference = np.abs(build(rope)(torch.tensor([ids])).logits[0].numpy() - logits).max()
    print(f"differs from the model {name} scaling by more than 0.01:", bool(difference > 0.01))
END
cat > "$work/expected" <<'END'
ctranslate2 4.8.5 transformers 5.24.0
differs from the model with scaling by more than 0.01: True
differs from the model without scaling by more than 0.01: False
END
"$work/venv/bin/python" "$work/show.py" > "$work/shown"
cat "$work/shown"
diff "$work/expected" "$work/shown"
