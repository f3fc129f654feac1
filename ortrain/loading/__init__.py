"""Reading models into the IR: checks, inlined functions, constants, and sequences in terms of tensors."""
