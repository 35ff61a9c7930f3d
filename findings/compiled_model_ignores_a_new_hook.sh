#!/bin/sh
# Most people guess that a forward hook which is added to a layer runs in the next pass. If `torch.compile` has
# already traced the model, no hook that is added inside it runs, until an input of another shape has it traced again;
# the default of `skip_nnmodule_hook_guards` leaves hooks out of what is checked. It hurts whoever records attention
# or activations of a model that is already in use: the list stays empty, or begins in the middle.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6

cat > "$work/show.py" <<'END'
import torch

print("torch", torch.__version__.partition("+")[0])
model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
compiled = torch.compile(model, backend="eager")
compiled(torch.ones(1, 2))
recorded = []
model[0].register_forward_hook(lambda layer, inputs, output: recorded.append(tuple(output.shape)))
compiled(torch.ones(1, 2))
print("same shape again:", recorded)
compiled(torch.ones(3, 2))
print("another shape:", recorded)
model(torch.ones(1, 2))
print("not compiled:", recorded)
END
cat > "$work/expected" <<'END'
torch 2.13.0
same shape again: []
another shape: [(3, 2)]
not compiled: [(3, 2), (1, 2)]
END
"$work/venv/bin/python" "$work/show.py" > "$work/shown"
cat "$work/shown"
diff "$work/expected" "$work/shown"
