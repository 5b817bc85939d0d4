"""Whether a model is still the one that its recordings were made for. Direct calls leave out Dynamo's own guards.

What a trace rests on has a source: an expression such as `self.layers[0].weight`. Sources share their beginnings, so
what they pass through is walked once, and compared by identity in one generated function. Where all of it is the same,
every source leads where it led. Where something is not, each source is followed anew and judged by its value: an
object may be replaced by another one that holds the same.
"""

from __future__ import annotations

import ast
import copy
import functools
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch

from capwise import compat

_MUTABLE = (list, set, dict)
_DICT = ".__dict__"


def constants_of(named: Any, leave_out: Collection[str] = ()) -> dict[str, Any]:
    """Source -> value of what the trace in progress took as given of the model and of globals.

    Args:
        named: the traced wrapper around the model, whose own values never change.
        leave_out: sources that nobody looks at.
    """
    scope, found = compat.python_scope(named), {}
    left_out = [re.compile(re.escape(source) + r"(?!\w)") for source in leave_out]
    for source in sorted(compat.guarded_expressions()):
        if any(one.search(source) for one in left_out):
            continue
        walk = _Walk(scope)
        try:
            value = walk.value(source)
        except Exception:  # noqa: BLE001 - an expression of Dynamo's that is no Python says nothing
            continue
        if "L['self']" not in source or any(passed is named.model for passed in walk.values.values()):
            found[source] = copy.deepcopy(value) if isinstance(value, _MUTABLE) else value
    return found


class Guards:
    """Whether the model still holds the tensors that recordings read, each where it was, and the Python values that
    the trace took as constants.

    Args:
        named: the traced wrapper around the model.
        constants: source -> Python value.
        tensors: source -> the tensor that was bound.
    """

    def __init__(self, named: Any, constants: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> None:
        self.named, self.constants, self.tensors = named, dict(constants), dict(tensors)
        # A container may change and stay the same object.
        self._mutable = any(isinstance(v, _MUTABLE) for v in constants.values())
        self._list = list(tensors.values())
        self._addresses = [t.data_ptr() for t in self._list]
        self._all = list(range(len(self._list)))

    def hold(self) -> bool:
        try:
            same = self._walk is not None and (
                self._walk.is_same() and not self._mutable or self._lead_there(self._walk)
            )
        except Exception:  # noqa: BLE001 - a source leads nowhere, or to what cannot be compared
            return False
        return same and compat.addresses_hold(self._list, self._addresses, self._all)

    def constants_hold(self) -> bool:
        """Whether the Python values are the same, whatever became of the tensors."""
        return Guards(self.named, self.constants, {}).hold()

    @functools.cached_property
    def _walk(self) -> _Walk | None:
        """Made when first asked for: nobody asks where the model's Python changes it at every step. None where a source
        is an expression that only Dynamo's own code can follow."""
        walk = _Walk(compat.python_scope(self.named))
        try:
            for source in (*self.constants, *self.tensors):
                walk.value(source)
        except Exception:  # noqa: BLE001
            return None
        walk.compile()
        return walk

    def _lead_there(self, walk: _Walk) -> bool:
        """Follows every source; where all lead to the values that they led to, what they pass through now is kept."""
        now = walk.again()
        if not all(now[source] is tensor for source, tensor in self.tensors.items()):
            return False
        if not all(_is_equal(now[source], value) for source, value in self.constants.items()):
            return False
        walk.keep()
        return True


def _is_equal(now: Any, then: Any) -> bool:
    return now is then or type(now) is type(then) and bool(now == then)


def _is_own(value: Any, attribute: str) -> bool:
    """Whether reading this attribute gives what the object's own dictionary holds."""
    held = type(getattr(value, "__dict__", None)) is dict and attribute in value.__dict__
    return held and not hasattr(getattr(type(value), attribute, None), "__set__")


class _Walk:
    """Source expressions taken apart into single steps; each is made once, from names of earlier ones. An attribute
    that an object holds itself is looked up in its dictionary, which is several times faster than the attribute of a
    class that has `__getattr__`, as modules have.

    Attributes:
        values: name -> what stood there, in order. is_same: whether all of it is what was kept last.
    """

    def __init__(self, scope: Mapping[str, Any]) -> None:
        self.values: dict[str, Any] = dict(scope)
        self._steps: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._terms: list[str] = []
        self.is_same: Callable[[], bool] = lambda: False

    def value(self, source: str) -> Any:
        """What a source leads to, and takes it into the walk.

        Raises:
            Exception: whatever following it raises.
        """
        self._names[source] = name = self._name(ast.parse(source, mode="eval").body)
        return self.values[name]

    def _name(self, node: ast.expr) -> str:
        if isinstance(node, ast.Attribute):
            owner = self._name(node.value)
            if _is_own(self.values[owner], node.attr):
                return self._step(f"{self._step(owner + _DICT, None)}[{node.attr!r}]")
            return self._step(f"{owner}.{node.attr}", None if node.attr == "__dict__" else "is")
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            return self._step(f"{self._name(node.value)}[{node.slice.value!r}]")
        if isinstance(node, ast.Name):
            return self._step(node.id)
        text = ast.unparse(_Renamed(self._name).generic_visit(node))
        return self._step(text, None if text.startswith("type(") else "==")

    def _step(self, text: str, compared: str | None = "is") -> str:
        """The name of a step, made if it is new, and how it is compared: not at all where it follows from others, an
        object's type and dictionary from the object."""
        if text in self.values:
            return text
        if text not in self._steps:
            value = eval(text, {}, self.values)  # noqa: S307 - of Dynamo's own source expression
            name = f"v{len(self.values)}"
            self._steps[text], self.values[name] = name, value
            if compared is not None:
                self._terms.append(f"({text}) {compared} {name}")
        return self._steps[text]

    def compile(self) -> None:
        """Generates what walks all of it at once: one function compares, one follows."""
        roots = [n for n in self.values if n not in self._steps.values()]
        taken = ", ".join(self.values)
        same = " and ".join(self._terms) or "True"
        lines = [f"    {name} = {text}" for text, name in self._steps.items()]
        code = "\n".join(
            [
                f"def same({taken}):",
                f"    return {same}",
                f"def again({', '.join(roots)}):",
                *lines,
                f"    return {taken},",
            ]
        )
        made: dict[str, Any] = {}
        exec(compile(code, "<guards>", "exec"), made)  # noqa: S102
        self._same, self._again = made["same"], made["again"]
        self._roots = [self.values[n] for n in roots]

    def again(self) -> dict[str, Any]:
        """Source -> what it leads to now."""
        self.values = dict(zip(self.values, self._again(*self._roots)))
        return {source: self.values[name] for source, name in self._names.items()}

    def keep(self) -> None:
        """Compares with what is there now from now on."""
        self._same.__defaults__ = tuple(self.values.values())
        self.is_same = self._same


class _Renamed(ast.NodeTransformer):
    """What is computed from sources, with a name for each."""

    def __init__(self, name: Callable[[ast.expr], str]) -> None:
        self._name = name

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        return ast.Name(self._name(node))

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        return ast.Name(self._name(node))
