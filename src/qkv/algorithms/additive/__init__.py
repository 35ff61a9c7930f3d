"""Additive attention without the (Q, K, A) tensor."""
