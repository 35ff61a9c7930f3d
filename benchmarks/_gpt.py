"""Reference GPTs: nanoGPT's, and one built from PyTorch's Transformer layers."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class _Attention(nn.Module):
    """nanoGPT's CausalSelfAttention: one matrix for q, k and v, PyTorch's fused kernel."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.c_attn = nn.Linear(width, 3 * width, bias=False)
        self.c_proj = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        q, k, v = self.c_attn(x).split(width, dim=2)
        q, k, v = (y.view(rows, length, self.heads, width // self.heads).transpose(1, 2) for y in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.c_proj(y.transpose(1, 2).contiguous().view(rows, length, width))
        return out


class _Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = (nn.LayerNorm(width, bias=False) for _ in range(2))
        self.attn = _Attention(width, heads)
        self.c_fc, self.c_proj = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        out: Tensor = x + self.c_proj(F.gelu(self.c_fc(self.ln_2(x))))
        return out


class NanoGPT(nn.Module):
    """karpathy/nanoGPT, model.py, without dropout and biases, as in its CPU settings."""

    def __init__(self, size: int, *, context: int, layers: int, heads: int, width: int) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(size, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(_Block(width, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width, bias=False)
        self.lm_head = nn.Linear(width, size, bias=False)
        self.wte.weight = self.lm_head.weight
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                std = 0.02 / math.sqrt(2 * layers) if name.endswith("c_proj.weight") else 0.02
                nn.init.normal_(parameter, std=std)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.lm_head(self.ln_f(x))
        return out


class LayersGPT(nn.Module):
    """The same sizes with `torch.nn.TransformerEncoderLayer` under a causal mask."""

    def __init__(self, size: int, *, context: int, layers: int, heads: int, width: int) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(size, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, heads, 4 * width, 0.0, activation="gelu", batch_first=True, norm_first=True, bias=False
            )
            for _ in range(layers)
        )
        self.ln_f = nn.LayerNorm(width, bias=False)
        self.lm_head = nn.Linear(width, size, bias=False)
        self.wte.weight = self.lm_head.weight

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        x = self.wte(tokens) + self.wpe(torch.arange(length, device=tokens.device))
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=tokens.device)
        for block in self.blocks:
            x = block(x, src_mask=mask, is_causal=True)
        out: Tensor = self.lm_head(self.ln_f(x))
        return out
