"""What a trace took as given of the model and of globals, read off Dynamo's guards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

# Kinds of Dynamo's guards -> the expression over their source whose value a trace took as given.
_VALUE_GUARDS = dict.fromkeys(("EQUALS_MATCH", "CONSTANT_MATCH", "BOOL_MATCH", "NONE_MATCH"), "{}")
_OTHER_GUARDS = {
    **dict.fromkeys(("ID_MATCH", "FUNCTION_MATCH", "BUILTIN_MATCH", "CLASS_MATCH"), "{}"),
    "CLOSURE_MATCH": "{}.__code__",
    "TYPE_MATCH": "type({})",
    **dict.fromkeys(("SEQUENCE_LENGTH", "LIST_LENGTH"), "len({})"),
    **dict.fromkeys(("DICT_KEYS_MATCH", "DICT_KEYS", "DICT_CONST_KEYS"), "(*{},)"),
    "NOT_PRESENT_IN_GENERIC_DICT": "{attr!r} in {}.__dict__",
}


def python_scope(named: Any) -> dict[str, Any]:
    """What Dynamo's source expressions of a trace of `named` are evaluated in: other modules' globals are reached by
    names that Dynamo puts among those of the outermost frame."""
    return {"L": {"self": named}, "G": getattr(type(named).forward, "__globals__", {})}


def guarded_values() -> set[str]:
    """Sources of the Python values on the model and in globals that the trace in progress took as constants."""
    return _guarded(_VALUE_GUARDS)


def guarded_expressions() -> set[str]:
    """What the trace in progress took as given of the model and of globals: values, and what their objects are: types,
    functions, lengths, keys, methods that no attribute hides."""
    return _guarded(_VALUE_GUARDS | _OTHER_GUARDS)


def _guarded(kinds: Mapping[str, str]) -> set[str]:
    context = torch._guards.TracingContext.try_get()
    found: set[str] = set()
    for guard in context.guards_context.dynamo_guards if context is not None else ():
        name = guard.name if isinstance(guard.name, str) else guard.name()
        if guard.create_fn_name() in kinds and name.startswith(("L['self']", "G[")):
            found.add(kinds[guard.create_fn_name()].format(name, **getattr(guard.create_fn, "keywords", {})))
    return found
