"""How Python becomes machine code, and the threads that run it."""
