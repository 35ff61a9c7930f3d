"""Matrix products with one compiled pass over each row between them."""
