"""How facts flow through one op: a module a family of ops, one function a family."""
