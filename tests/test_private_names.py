"""Private names of other packages that the sources use: each is watched, and is still there.

Names are found in the sources themselves, so one that is used anew fails here until it is listed.
"""

from __future__ import annotations

import ast
import importlib
import inspect
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from import_graph import SOURCE
from torch import nn
from torch.autograd import forward_ad
from torch.nn.attention import flex_attention

#: Private by their look, public by their documentation: those of named tuples, and of Python.
DOCUMENTED = {"_asdict", "_fields", "_make", "_replace", "_getframe", "_repr_mimebundle_"}

#: Private attributes of others, and who has each.
ATTRIBUTES: dict[str, Callable[[], Any]] = {
    "_C": lambda: torch,
    "_are_functorch_transforms_active": lambda: torch._C,
    "_base": lambda: torch.Tensor,
    "_cdist_backward": lambda: torch.ops.aten,
    "_codegen": lambda: _numba_library(),
    "_current_graph_task_id": lambda: torch._C,
    "_current_level": lambda: forward_ad,
    "_data_layout": lambda: _numba_library()._codegen,
    "_disabled_torch_function_impl": lambda: torch._C,
    "_getvalue": lambda: _numba_struct(),
    "_is_any_autocast_enabled": lambda: torch._C,
    "_is_torch_function_mode_enabled": lambda: torch._C,
    "_is_view": lambda: torch.Tensor,
    "_len_torch_dispatch_stack": lambda: torch._C,
    "_linear_pointwise": lambda: torch.ops.mkldnn,
    "_make_subclass": lambda: torch.Tensor,
    "_make_wrapper_subclass": lambda: torch.Tensor,
    "_meta": lambda: _dask_frame(),
    "_modules": lambda: nn.Module(),
    "_ragged_idx": lambda: torch.nested.nested_tensor([torch.ones(2)], layout=torch.jagged),
    "_scaled_dot_product_flash_attention_for_cpu": lambda: torch.ops.aten,
    "_scaled_dot_product_flash_attention_for_cpu_backward": lambda: torch.ops.aten,
    "_softmax_backward_data": lambda: torch,
    "_version": lambda: torch.Tensor,
}

#: Private modules and names of theirs that are imported, and names of modules looked for.
IMPORTS = {
    "sklearn.utils.validation._check_sample_weight",
    "torch._C._functorch.TransformType",
    "torch._dynamo",
    "torch._functorch.pyfunctorch.retrieve_all_functorch_interpreters",
    "torch.utils._pytree.tree_map",
    "transformers.utils.output_capturing._active_collector",
}


def _numba_library() -> Any:
    from numba.core.codegen import JITCPUCodegen

    return JITCPUCodegen("test").create_library("test")


def _numba_struct() -> Any:
    from numba.core.cgutils import _StructProxy

    return _StructProxy


def _dask_frame() -> Any:
    import pandas as pd
    from dask import dataframe

    return dataframe.from_pandas(pd.DataFrame({"a": [1]}), npartitions=1)


def _is_private(name: str) -> bool:
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__"))


def _members(tree: ast.Module) -> Iterator[str]:
    """The names that classes of a file define, and those that it gives to objects."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.ClassDef):
            for member in node.body:
                if isinstance(member, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    yield member.name
                elif isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name):
                    yield member.target.id
                elif isinstance(member, ast.Assign):
                    yield from (each.id for each in member.targets if isinstance(each, ast.Name))


def _is_self(node: ast.expr) -> bool:
    return ast.unparse(node) in ("self", "cls", "super()", "type(self)")


def _used() -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """Attributes and imports that look private and are none of ours, with the files."""
    trees = {
        str(path.relative_to(SOURCE)): ast.parse(path.read_text(encoding="utf-8"))
        for path in SOURCE.rglob("*.py")
    }
    members: dict[Path, set[str]] = defaultdict(set)  # of each folder
    for file, tree in trees.items():
        members[Path(file).parent].update(_members(tree))
    everywhere = set().union(*members.values())
    attributes: dict[str, set[str]] = defaultdict(set)
    imports: dict[str, set[str]] = defaultdict(set)
    for file, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and _is_private(node.attr):
                ours = everywhere if _is_self(node.value) else members[Path(file).parent]
                if node.attr not in ours | DOCUMENTED:
                    attributes[node.attr].add(file)
            elif isinstance(node, ast.Call) and ast.unparse(node.func) == "getattr":
                place, name = ast.unparse(node.args[0]), node.args[1]
                if isinstance(name, ast.Constant) and place.startswith("torch"):
                    attributes[name.value].add(file)
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    imports[alias.name].add(file)
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    imports[f"{node.module}.{alias.name}"].add(file)
            elif isinstance(node, ast.Constant) and str(node.value).startswith("torch._"):
                imports[node.value].add(file)
    return attributes, {
        name: files
        for name, files in imports.items()
        if any(map(_is_private, name.split("."))) and not name.startswith(("qkv.", "__future__"))
    }


def test_every_private_name_that_is_used_is_listed() -> None:
    attributes, imports = _used()
    assert attributes.keys() == ATTRIBUTES.keys(), attributes
    assert imports.keys() == IMPORTS, imports


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_a_private_attribute_is_there(name: str) -> None:
    assert hasattr(ATTRIBUTES[name](), name)


@pytest.mark.parametrize("name", sorted(IMPORTS))
def test_a_private_import_is_there(name: str) -> None:
    pytest.importorskip(name.partition(".")[0])
    module, _, member = name.rpartition(".")
    if name == "torch._dynamo":  # a module itself
        importlib.import_module(name)
    assert hasattr(importlib.import_module(module), member)


def test_private_questions_are_answered_as_expected() -> None:
    """What they say where nobody transforms, dispatches or casts."""
    assert torch._C._are_functorch_transforms_active() is False
    assert torch._C._len_torch_dispatch_stack() == 0
    assert torch._C._is_any_autocast_enabled() is False
    assert torch._C._current_graph_task_id() == -1
    assert forward_ad._current_level == -1
    assert torch._functorch.pyfunctorch.retrieve_all_functorch_interpreters() == []
    tensor = torch.ones(2, 3)
    assert (tensor._is_view(), tensor[0]._is_view(), tensor[0]._base is tensor) == (
        False,
        True,
        True,
    )
    before = tensor._version
    assert tensor.add_(1)._version == before + 1


def test_recordings_know_flex_attention_by_names_that_are_there() -> None:
    assert callable(flex_attention._identity)
    assert callable(flex_attention.noop_mask)
    hop: Any = importlib.import_module("torch._higher_order_ops.flex_attention")
    assert type(hop.flex_attention).__name__ == "FlexAttentionHOP"


def test_torch_layers_ask_for_the_names_that_ours_have() -> None:
    """An encoder layer of torch's bypasses the layer that it holds where these say that it may."""
    asked = inspect.getsource(nn.TransformerEncoderLayer.forward)
    assert "self_attn._qkv_same_embed_dim" in asked
    assert "self_attn.merge_masks" in asked
