"""What the facades share and what is written by hand: lifetimes, conversions of arguments, sessions, error forms. Their public text is rendered from the
spec (bindings_spec/) and calls the functions here."""
