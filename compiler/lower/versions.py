"""What differs between torch versions for lowering, and nothing else."""

from __future__ import annotations

from typing import Any

# Wanted of Inductor, whatever the process has set: capture is ours, results follow eager, outputs keep eager's strides.
_WANTED: dict[str, Any] = {
    "triton.cudagraphs": False,
    "triton.cudagraph_trees": False,
    "fallback_random": True,
    "emulate_precision_casts": True,
    "keep_output_stride": True,
    "freezing": False,
    "cpp_wrapper": False,
    "size_asserts": True,
}


def inductor_patches() -> dict[str, Any]:
    """The Inductor settings for a piece that this torch knows (`emulate_precision_casts` came and may go)."""
    from torch._inductor import config

    known = config.get_config_copy()
    return {name: value for name, value in _WANTED.items() if name in known}


def standalone_compile(gm: Any, inputs: list[Any]) -> Any:
    """`torch._inductor.standalone_compile` under the ambient TracingContext; takes ownership of `gm`.

    2.11 has no `donate_graph_module` and compiles the graph it is given; 2.13 copies it unless told not to.
    """
    import inspect

    from torch._inductor import standalone_compile as compile_graph

    more: dict[str, Any] = (
        {"donate_graph_module": True} if "donate_graph_module" in inspect.signature(compile_graph).parameters else {}
    )
    return compile_graph(
        gm,
        inputs,
        dynamic_shapes="from_tracing_context",
        options={"config_patches": inductor_patches()},
        **more,
    )
