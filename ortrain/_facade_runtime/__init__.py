"""The hand-written part of the facades: lifetimes, conversions of arguments, sessions, error reporting. Their public text is rendered from the
specification (bindings_spec/) and calls the functions here."""
