"""Declarations read from source without running it, so that help and a typo answer without
importing torch.

What is read is what `register` would see: the decorator's words, the docstring, the signature of
`__init__`.
"""

from __future__ import annotations
import __future__

import ast
import importlib.metadata
import importlib.util
import inspect
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import annotated_types

from zoo import registry
from zoo.errors import ZooError

ENTRY_POINTS = "zoo.components"
TYPES = ("Literal[", "Annotated[")  # to which a module may give a name
# what the annotation of an option may name
SCOPE = vars(typing) | vars(annotated_types) | {"Component": registry.Component}


def discover(package: Path) -> None:
    """Scan every module of a package that declares, then those that installed distributions name
    as entry points.
    """
    for file in sorted(package.rglob("[!_]*.py")):
        text = file.read_text(encoding="utf-8")
        if "@register(" in text:
            _scan(".".join(file.relative_to(package.parent).with_suffix("").parts), text)
    for point in importlib.metadata.entry_points(group=ENTRY_POINTS):
        scan(point.value)


def scan(module: str) -> None:
    """Read the declarations of a module from its source, without importing it (a package it lies
    in is imported).
    """
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise ZooError(f"component module {module!r} not found")
    _scan(module, Path(spec.origin).read_text(encoding="utf-8"))


def _scan(module: str, text: str) -> None:
    tree = ast.parse(text, module)
    top = {
        node.name: node for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)
    }
    scope = SCOPE | {name: eval(words, SCOPE) for name, words in _aliases(tree)}  # noqa: S307
    for node in top.values():
        for mark in node.decorator_list:
            if isinstance(mark, ast.Call) and ast.unparse(mark.func).split(".")[-1] == "register":
                group, name, *about = (ast.literal_eval(argument) for argument in mark.args)
                text = about[0] if about else ast.get_docstring(node) or ""
                preset = [keyword.arg for keyword in mark.keywords if keyword.arg]
                registry.declare(group, name, module, text, _signature(node, top), scope, preset)


def _aliases(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Names that the module gives to a type, as in `Backend = Literal["sdpa", "eager"]`."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.value).startswith(TYPES):
            yield ast.unparse(node.targets[0]), ast.unparse(node.value)


def _signature(
    node: ast.ClassDef | ast.FunctionDef, top: Mapping[str, ast.ClassDef | ast.FunctionDef]
) -> inspect.Signature:
    """The signature of a function, or of a class through its own or inherited __init__, as the
    source states it.
    """
    while isinstance(node, ast.ClassDef):
        inits = [
            item
            for item in node.body
            if isinstance(item, ast.FunctionDef) and item.name == "__init__"
        ]
        parents = [
            top[base.id] for base in node.bases if isinstance(base, ast.Name) and base.id in top
        ]
        if not (inits or parents):
            return inspect.Signature()
        node = (inits or parents)[0]
    for argument, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True):
        try:
            ast.literal_eval(default or ast.Constant(None))
        except ValueError:
            place = f"line {argument.lineno}: the default of option {argument.arg!r}"
            raise ZooError(f"{place} must be a literal") from None
    options, defaults = node.args.kwonlyargs, node.args.kw_defaults
    args = ast.arguments(
        posonlyargs=[], args=[], kwonlyargs=options, kw_defaults=defaults, defaults=[]
    )
    bare = ast.FunctionDef(name="declared", args=args, body=[ast.Pass()], decorator_list=[])
    tree = ast.fix_missing_locations(ast.Module([bare], type_ignores=[]))
    space: dict[str, Any] = {}
    exec(compile(tree, "<declaration>", "exec", __future__.annotations.compiler_flag), space)  # noqa: S102
    return inspect.signature(space["declared"])
