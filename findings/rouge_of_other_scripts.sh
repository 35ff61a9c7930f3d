#!/bin/sh
# Most people guess that two equal texts have ROUGE 1 in any language. The tokenizer of rouge-score keeps a to z and 0
# to 9 alone: Russian, Greek or Chinese against itself scores 0, and two different sentences that share a number score
# 1. It hurts whoever evaluates a multilingual summarizer with the default, and compares languages.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet rouge-score==0.1.2 numpy==2.4.6

cat > "$work/show.py" <<'END'
from importlib.metadata import version

from rouge_score import rouge_scorer

print("rouge-score", version("rouge-score"))
scorer = rouge_scorer.RougeScorer(["rouge1", "rougeL"])
for target, prediction in (
    ("the cat sleeps", "the cat sleeps"),
    ("кошка спит", "кошка спит"),
    ("кошка спит 3 часа", "самолёт летит 3 дня"),
):
    scores = scorer.score(target, prediction)
    print("equal" if target == prediction else "different", *(f"{name} {score.fmeasure:.1f}" for name, score in scores.items()))
END
cat > "$work/expected" <<'END'
rouge-score 0.1.2
equal rouge1 1.0 rougeL 1.0
equal rouge1 0.0 rougeL 0.0
different rouge1 1.0 rougeL 1.0
END
"$work/venv/bin/python" "$work/show.py" > "$work/shown"
cat "$work/shown"
diff "$work/expected" "$work/shown"
