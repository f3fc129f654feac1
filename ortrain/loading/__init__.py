"""Loading: reads models into the IR, checks them, inlines functions, lifts constants and replaces sequences by
tensors."""
