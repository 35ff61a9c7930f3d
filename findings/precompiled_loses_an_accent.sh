#!/bin/sh
# Most people guess that `normalizers.Precompiled` of tokenizers, given the rules of a SentencePiece model, normalizes
# as SentencePiece does. On decomposed text (NFD, as some systems type and store it) it drops the second accent of a
# Vietnamese letter and leaves Korean letters apart, where SentencePiece composes both. It hurts whoever uses a
# converted tokenizer: other letters reach the model, and the output is wrong for no visible reason.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet tokenizers==0.23.1 sentencepiece==0.2.2 protobuf==7.36.2

cat > "$work/show.py" <<'END'
import io
import unicodedata

import sentencepiece
import tokenizers
from sentencepiece import sentencepiece_model_pb2

print("tokenizers", tokenizers.__version__, "sentencepiece", sentencepiece.__version__)
model = io.BytesIO()
sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(["a b c"] * 50), model_writer=model, vocab_size=8, hard_vocab_limit=False,
    add_dummy_prefix=False, minloglevel=3,
)
processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
proto = sentencepiece_model_pb2.ModelProto.FromString(model.getvalue())
precompiled = tokenizers.normalizers.Precompiled(proto.normalizer_spec.precompiled_charsmap)
for composed in ("m\u1ed7i", "\ud55c"):
    text = unicodedata.normalize("NFD", composed)
    print(ascii(text), "SentencePiece", ascii(processor.normalize(text)), end=" ")
    print("Precompiled", ascii(precompiled.normalize_str(text)))
END
cat > "$work/expected" <<'END'
tokenizers 0.23.1 sentencepiece 0.2.2
'mo\u0302\u0303i' SentencePiece 'm\u1ed7i' Precompiled 'm\xf4i'
'\u1112\u1161\u11ab' SentencePiece '\ud55c' Precompiled '\u1112\u1161\u11ab'
END
"$work/venv/bin/python" "$work/show.py" > "$work/shown"
cat "$work/shown"
diff "$work/expected" "$work/shown"
