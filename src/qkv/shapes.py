"""The legend of sizes, and every check that two shapes fit.

| letter | size of |
|---|---|
| B | batch: any number of leading dimensions |
| H, G | query heads, key/value heads (G divides H in grouped-query attention) |
| Q, K | number of queries, number of keys |
| D, E, V | width of a query, of a key, of a value |
| A | width of the hidden layer of an additive score |
| M | model width |
| T, S | target length, source length |

A tensor's name carries its shape where the mathematics is: `s_BHQK` are scores of shape (B, H, Q, K).
"""
