#!/bin/sh
# Most people guess that `need_weights` of `torch.nn.MultiheadAttention` changes what is returned beside the output,
# not the output. A query whose keys are all hidden gets NaN with it; without it the same layer gives 0 while
# gradients are recorded, and NaN again in evaluation under `no_grad`. It hurts whoever trains on batches with empty
# rows, sees finite numbers, and then validates or draws the weights.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6

cat > "$work/show.py" <<'END'
import torch

print("torch", torch.__version__.partition("+")[0])
layer = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval()
x = torch.ones(1, 3, 8)
hidden = torch.tensor([[False] * 3, [True] * 3, [False] * 3])
for gradients in (True, False):
    for weights in (True, False):
        with torch.set_grad_enabled(gradients):
            output, _ = layer(x, x, x, attn_mask=hidden, need_weights=weights)
        print(f"gradients {gradients}, need_weights {weights}: {output[0, 1, 0].item()}")
END
cat > "$work/expected" <<'END'
torch 2.13.0
gradients True, need_weights True: nan
gradients True, need_weights False: 0.0
gradients False, need_weights True: nan
gradients False, need_weights False: nan
END
"$work/venv/bin/python" "$work/show.py" > "$work/shown"
cat "$work/shown"
diff "$work/expected" "$work/shown"
