"""The private names of other libraries that the source touches: why, and what notices when one goes away.

A new one belongs here only if nothing public does the same; then add it with both. `pytest tests/test_private_names.py`
compares this list with the source, and `make test TORCH=newest VENV=.venv-newest` tries it with the newest releases.
"""

import ast
from typing import NamedTuple

from tests.private_names import private_names
from tests.source_rules import SOURCE


class Row(NamedTuple):
    """Private names that serve one purpose.

    Attributes:
        names: dotted paths from a module, or `.name` of any object.
        reason: what they are needed for, and why nothing public does it.
        guard: what happens if a release lacks them, or changes what they mean.
    """

    names: str
    reason: str
    guard: str


IMPORT = "read when the module is imported: `import qkv.functional` fails at once"
TABLE = (
    Row(
        "._processes",
        "which processes a pool has started, to end them at once; Python 3.14 has `kill_workers`, without exit codes",
        "an AttributeError at the first preparation in several processes; tests/tasks/test_preparing.py",
    ),
    Row(
        "torch._C._functorch torch._C._get_tracing_state torch._C._len_torch_dispatch_stack "
        "torch._C._get_dispatch_mode torch._C._TorchDispatchModeKey torch.autograd.forward_ad._current_level",
        "whether a call is traced or transformed, so that no kernel reads addresses; torch.compiler tells less",
        f"{IMPORT}; tests/test_tracing.py, tests/test_forward_mode.py",
    ),
    Row(
        "torch._C._dispatch_keys torch._C._vmapmode_increment_nesting torch._C._vmapmode_decrement_nesting "
        "torch._add_batch_dim torch._remove_batch_dim ._add_batch_dim ._unwrap_batched",
        "gradients of kernels under vmap and is_grads_batched, which has no public rule for a backward pass",
        "tests/values and tests/contract map every backward pass",
    ),
    Row(
        "._is_zerotensor ._version ._base",
        "whether the memory of a tensor holds its numbers, and whether they have changed since",
        "tests/engine, tests/linalg and tests/recording change tensors in place",
    ),
    Row(
        "torch._C._current_graph_task_id torch.autograd.Variable._execution_engine",
        "to tell one backward pass from another, and its end; torch.utils.module_tracker does it in this way",
        "tests/engine and tests/recording run passes inside passes",
    ),
    Row(
        "torch._C._current_autograd_node ._saved_query ._saved_key ._saved_value ._saved_attn_mask ._saved_is_causal "
        "._saved_scale",
        "second derivatives of PyTorch's fused kernel, from the tensors that its node has saved",
        "tests/algorithms and tests/contract take second derivatives of it",
    ),
    Row(
        "._forward_hooks ._forward_pre_hooks ._forward_hooks_with_kwargs ._forward_pre_hooks_with_kwargs "
        "._forward_hooks_always_called ._backward_hooks ._backward_pre_hooks ._get_backward_hooks "
        "._get_backward_pre_hooks ._compiled_call_impl torch.nn.modules.module._global_backward_hooks "
        "torch.nn.modules.module._global_backward_pre_hooks torch.nn.modules.module._global_forward_hooks "
        "torch.nn.modules.module._global_forward_hooks_always_called "
        "torch.nn.modules.module._global_forward_hooks_with_kwargs torch.nn.modules.module._global_forward_pre_hooks",
        "whether anyone watches a module, which then is called instead of read; PyTorch registers hooks but lists none",
        "an AttributeError at the first layer that is built or called; tests/values compares with PyTorch's own call",
    ),
    Row(
        "._modules ._parameters",
        "whether a module itself has a part, without parts of its parts and without `__getattr__`",
        "an AttributeError at the first use; tests/nn, tests/hub",
    ),
    Row(
        "._non_persistent_buffers_set",
        "which buffers a checkpoint stores, at each update, where building a whole state dict would cost too much",
        "an AttributeError at the first update; tests/training/test_state.py",
    ),
    Row(
        "torch._dynamo torch._ops torch._C ._dynamo_marked_constant ._torchdynamo_orig_callable",
        "errors that the compiler shows to the user, and what need not be traced: documented nowhere else",
        "imported inside functions that run under the compiler only; tests/test_tracing.py",
    ),
    Row(
        "torch._dynamo._trace_wrapped_higher_order_op",
        "indexing by the tensors of a vmap, as FlexAttention itself does for its functions of masks",
        "an ImportError at the first such mask; tests/hub",
    ),
    Row(
        "torch.Tensor._make_subclass torch.Tensor._make_wrapper_subclass ._schema",
        "tensors that stand for an expression or a mask: PyTorch's documented way to extend it has these names",
        "an AttributeError at the first one; tests/hub",
    ),
    Row(
        "torch.ops.aten._cdist_backward torch.ops.aten._softmax_backward_data torch.ops.aten._unsafe_view "
        "torch.ops.mkldnn._linear_pointwise torch.ops.mkldnn._reorder_linear_weight",
        "operators that PyTorch's own functions call, without the pass or the copy that those add",
        "operators keep their schema between releases; tests/linalg and tests/contract compare their results",
    ),
    Row(
        "torch.utils._pytree",
        "compiled and exported functions accept our values; the public name of this module is not in every release",
        "an ImportError of `import qkv.masks`",
    ),
    Row(
        "numba.core.dispatcher._FunctionCompiler ._codegen ._final_module ._finalize_dynamic_globals ._getvalue "
        "._module_pass_manager ._pass_builder ._nrt ._tm",
        "to write kernels into a shared library, where Numba only compiles into the running process",
        "only when the package is built: the build fails, and without kernels PyTorch's operators compute; ._nrt is "
        "asked for by name first",
    ),
    Row(
        "._attn_implementation_internal ._expand_inputs_for_generation ._prepare_model_inputs ._reorder_cache "
        "._active_collector",
        "transformers: where the rows of a batch come from, and whether a model collects weights",
        "asked for by name first; tests/hub with the oldest and the newest release",
    ),
    Row(
        "torch._foreach_mul_",
        "scales gradients in one pass, and those in bfloat16 by a factor that is not rounded to bfloat16 first",
        "an AttributeError at the first update; tests/training",
    ),
    Row(
        "torch.distributed.ProcessGroupGloo._Options ._devices ._timeout",
        "the address by which the processes of a training reach each other; an environment variable names interfaces",
        "an AttributeError when processes connect; tests/training/test_processes.py",
    ),
    Row("._is_protocol", "Python: typing.is_protocol is new in 3.13", "asked for by name first"),
)


def test_the_list_of_private_names_is_complete_and_has_no_other() -> None:
    paths = {path.relative_to(SOURCE).as_posix(): path for path in SOURCE.rglob("*.py")}
    trees = {file: ast.parse(path.read_text(encoding="utf-8")) for file, path in paths.items()}
    listed = [name for row in TABLE for name in row.names.split()]
    files = private_names(trees)
    assert len(listed) == len(set(listed))
    assert {name: files[name] for name in files.keys() - set(listed)} == {}
    assert set(listed) - files.keys() == set()
    assert all(row.reason and row.guard for row in TABLE)


def test_private_names_are_found_by_every_way_to_reach_them() -> None:
    ways = {
        "import torch._inductor as x": "torch._inductor",
        "from torch import _dynamo": "torch._dynamo",
        "from torch.distributed.x import _set_pg_timeout": "torch.distributed.x._set_pg_timeout",
        "import torch\nf(torch._C._x.y)": "torch._C._x",
        "from torch import nn as m\nf(m._y.z)": "torch.nn._y",
        "x.y._version": "._version",
        'getattr(x, "_nrt", None)': "._nrt",
        "class A:\n    def f(self):\n        return self._inherited": "._inherited",
    }
    for code, name in ways.items():
        assert set(private_names({"a.py": ast.parse(code)})) == {name}, code
    own = "class A:\n    _x: int\n    def f(self, y):\n        self._y = 1\n        g(self._x, y._y, y._replace())"
    assert private_names({"a.py": ast.parse(own)}) == {}
