"""Descriptions of fields in the OpenAPI document: the string literal below a field in the source of its struct.

Sources are installed with the package and read from there, so a field is described once, where it is declared.
"""

from __future__ import annotations

import ast
import functools
import inspect
import sys
from collections.abc import Iterable
from itertools import pairwise

import msgspec


def structs_in(shapes: Iterable[type[msgspec.Struct]]) -> set[type[msgspec.Struct]]:
    """Return these and every struct that they contain."""
    found: set[type[msgspec.Struct]] = set()
    waiting: list[object] = list(msgspec.inspect.multi_type_info(shapes))
    while waiting:
        node = waiting.pop()
        if isinstance(node, msgspec.inspect.StructType):
            if node.cls in found:
                continue
            found.add(node.cls)
        if isinstance(node, tuple):
            waiting += node
        elif isinstance(node, msgspec.inspect.Type | msgspec.inspect.Field):
            waiting += msgspec.structs.astuple(node)
    return found


def field_docs(shape: type[msgspec.Struct]) -> dict[str, str]:
    """Return the descriptions of a struct's fields by their names in JSON; a base's count unless written again."""
    docs: dict[str, str] = {}
    for base in reversed(shape.__mro__):
        if issubclass(base, msgspec.Struct) and base is not msgspec.Struct:
            docs |= _docs_in(base.__module__).get(base.__name__, {})
    names = zip(shape.__struct_fields__, shape.__struct_encode_fields__, strict=True)
    return {sent: docs[name] for name, sent in names if name in docs}


@functools.cache
def _docs_in(module: str) -> dict[str, dict[str, str]]:
    """Return the descriptions in a module by class and field."""
    classes = [
        node for node in ast.parse(inspect.getsource(sys.modules[module])).body if isinstance(node, ast.ClassDef)
    ]
    return {
        each.name: {
            ast.unparse(field.target): below.value.value
            for field, below in pairwise(each.body)
            if isinstance(field, ast.AnnAssign)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
            and isinstance(below.value.value, str)
        }
        for each in classes
    }
