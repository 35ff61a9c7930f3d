"""From the arguments of a call to a problem and its tensors."""
