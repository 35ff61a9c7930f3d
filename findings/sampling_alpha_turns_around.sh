#!/bin/sh
# Most people guess that `alpha` of SentencePiece's sampling means the same for each type of model. For unigram it
# sharpens the distribution: a large one gives the best segmentation. For BPE it is the probability to leave out a
# merge: 1 cuts every word into characters, and 0 samples nothing. It hurts whoever changes `model_type` and keeps the
# settings of subword regularization.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet sentencepiece==0.2.2

cat > "$work/show.py" <<'END'
import io

import sentencepiece

print("sentencepiece", sentencepiece.__version__)
words = "low lower lowest new newer newest wide wider widest show shower slow slower".split()
lines = [" ".join(words[i * k % 13] for k in range(1, 6)) for i in range(200)]
for kind in ("unigram", "bpe"):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, vocab_size=30, model_type=kind, minloglevel=3
    )
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    best = processor.encode("newest", out_type=str)
    for alpha in (0.0, 100.0) if kind == "unigram" else (0.0, 1.0):
        drawn = [
            processor.encode("newest", out_type=str, enable_sampling=True, nbest_size=-1, alpha=alpha)
            for _ in range(200)
        ]
        share = sum(pieces == best for pieces in drawn) / 200
        print(f"{kind}, alpha {alpha}: most draws are the best segmentation: {share > 0.5}")
END
cat > "$work/expected" <<'END'
sentencepiece 0.2.2
unigram, alpha 0.0: most draws are the best segmentation: False
unigram, alpha 100.0: most draws are the best segmentation: True
bpe, alpha 0.0: most draws are the best segmentation: True
bpe, alpha 1.0: most draws are the best segmentation: False
END
"$work/venv/bin/python" "$work/show.py" > "$work/shown"
cat "$work/shown"
diff "$work/expected" "$work/shown"
