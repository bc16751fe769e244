from __future__ import annotations

import pytest

from compilebisect.core.outcome import Frame, Stage
from compilebisect.core.stack_dump import frames_from_faulthandler, stage_from_stack

CRASH = """\
Fatal Python error: Segmentation fault

Thread 0x00007fcc2e6106c0 (most recent call first):
  File "/python/threading.py", line 982 in run

Current thread 0x00007fcc2f0aeb80 [python] (most recent call first):
  File "/python/ctypes/__init__.py", line 519 in string_at
  File "/home/J\\xf6rg/\\u4e2d.py", line 4 in <lambda>
  File "<eval_with_key>.1 from torch/fx/experimental/proxy_tensor.py:1738 in wrapped", line ??? in forward

Current thread's C stack trace (most recent call first):
  Binary file "/usr/bin/python3", at _Py_DumpStack+0x48 [0x5f]

Extension modules: numpy._core (total: 1)
"""
CRASH_OF_A_NATIVE_THREAD = """\
Current thread 0x00007fcc2f0aeb80 (most recent call first):
  File "old.py", line 1 in dumped_before
Fatal Python error: Aborted

Thread 0x00007fcc2e6106c0 (most recent call first):
  File "threading.py", line 982 in run

Thread 0x00007fcc2f0aeb80 (most recent call first):
  File "main.py", line 4 in main
"""


def test_frames_are_those_of_the_current_thread_innermost_first() -> None:
    assert frames_from_faulthandler(CRASH) == [
        Frame("/python/ctypes/__init__.py", 519, "string_at"),
        Frame("/home/Jörg/中.py", 4, "<lambda>"),
        Frame("<eval_with_key>.1 from torch/fx/experimental/proxy_tensor.py:1738 in wrapped", 0, "forward"),
    ]


def test_main_thread_stands_for_a_thread_without_python() -> None:
    assert frames_from_faulthandler(CRASH_OF_A_NATIVE_THREAD) == [Frame("main.py", 4, "main")]


def test_current_thread_of_a_later_dump_counts() -> None:
    text = CRASH + 'Current thread 0x1 (most recent call first):\n  File "b.py", line 2 in later\n'
    assert frames_from_faulthandler(text) == [Frame("b.py", 2, "later")]


@pytest.mark.parametrize("text", ["", "Segmentation fault\n", '  File "a.py", line 1 in f\n'])
def test_text_without_a_dump_gives_no_frames(text: str) -> None:
    assert frames_from_faulthandler(text) == []


DYNAMO = ["torch/_dynamo/utils.py:run_node", "torch/_dynamo/symbolic_convert.py:step"]
AOT = ["torch/_functorch/_aot_autograd/graph_capture.py:_create_graph", "torch/_functorch/aot_autograd.py:aot_module"]
INDUCTOR = ["torch/_inductor/scheduler.py:codegen", "torch/_inductor/compile_fx.py:compile_fx_inner"]
CALL = ["torch/_dynamo/eval_frame.py:compile_wrapper", "torch/nn/modules/module.py:_call_impl"]
FAKE = ["model.py:op_fake", "torch/_library/custom_ops.py:fake_impl", "torch/_subclasses/fake_tensor.py:dispatch"]
RUN = ["model.py:op", "torch/_ops.py:__call__"]
WRAPPERS = [
    "torch/_inductor/output_code.py:__call__",
    "torch/_functorch/_aot_autograd/subclass_codegen.py:codegen(runtime_wrapper_orchestration):_runtime_wrapper",
    "torch/_functorch/_aot_autograd/runtime_wrappers.py:runtime_wrapper",
    "torch/_functorch/aot_autograd.py:forward",
]
GENERATED = "/cache/oj/cojd52dpxi2ozufw7ugjpmpbsorpb4owrjgniwac3h6qzmceyyjv.py"


@pytest.mark.parametrize(
    ("stage", "stack"),
    [
        (Stage.DYNAMO, [*FAKE, *DYNAMO, *CALL]),
        (Stage.AOT_AUTOGRAD, [*FAKE, *AOT, *INDUCTOR[1:], *DYNAMO, *CALL]),
        (Stage.AOT_AUTOGRAD, [*FAKE, "<eval_with_key>.3:forward", *AOT, *DYNAMO, *CALL]),
        (Stage.AOT_AUTOGRAD, ["torch/_inductor/decomposition.py:bmm", *AOT, *DYNAMO, *CALL]),
        (Stage.AOT_AUTOGRAD, ["torch/_functorch/_aot_autograd/runtime_wrappers.py:post_compile", *AOT, *DYNAMO]),
        (Stage.INDUCTOR, [*FAKE, *INDUCTOR, *AOT, *DYNAMO, *CALL]),
        (Stage.INDUCTOR, ["torch/_inductor/codegen/triton.py:codegen_kernel", *INDUCTOR, *AOT, *DYNAMO]),
        (Stage.INDUCTOR, [f"{GENERATED}:<module>", "torch/_inductor/codecache.py:load_by_key_path", *INDUCTOR]),
        (Stage.INDUCTOR, ["torch/_inductor/codecache.py:load_with_key", *INDUCTOR, *AOT]),
        (Stage.CPP, ["/python/subprocess.py:run", "torch/_inductor/cpp_builder.py:build", *INDUCTOR, *AOT]),
        (Stage.CPP, ["torch/_inductor/codecache.py:_load_library_inner", f"{GENERATED}:<module>", *INDUCTOR]),
        (Stage.TRITON, ["/lib/triton/backends/nvidia/compiler.py:make_llir", f"{GENERATED}:<module>", *INDUCTOR]),
        (Stage.TRITON, ["torch/_inductor/runtime/triton_heuristics.py:_precompile_config", *INDUCTOR, *AOT]),
        (Stage.TRITON, ["/lib/triton/runtime/build.py:_build", "/lib/triton/backends/nvidia/driver.py:__init__"]),
        (Stage.RUNTIME, ["/lib/triton/backends/nvidia/driver.py:__call__", f"{GENERATED}:call", *WRAPPERS, *CALL]),
        (Stage.RUNTIME, ["torch/_inductor/runtime/triton_heuristics.py:run", f"{GENERATED}:call", *WRAPPERS, *CALL]),
        (Stage.RUNTIME, [*RUN, f"{GENERATED}:call", *WRAPPERS, *CALL]),
        (
            Stage.RUNTIME,
            [*RUN, "torch/_functorch/_aot_autograd/runtime_wrappers.py:__torch_dispatch__", f"{GENERATED}:call"],
        ),
        (Stage.RUNTIME, [*RUN, "<eval_with_key>.1:forward", "torch/_dynamo/backends/debugging.py:run", *CALL]),
        (Stage.RUNTIME, [*WRAPPERS, *CALL]),
        (Stage.RUNTIME, ["model.py:torch_dynamo_resume_in_forward_at_34", "model.py:forward", *CALL]),
        (None, ["model.py:forward", "torch/nn/modules/module.py:_call_impl"]),
        (None, ["/home/me/triton/model.py:forward", "torch/_functorch/apis.py:wrapped"]),
        (None, []),
    ],
)
@pytest.mark.parametrize("root", ["", "/venv/lib/python3.11/site-packages/"])
def test_stage_is_that_of_the_innermost_decisive_frame(stage: Stage | None, stack: list[str], root: str) -> None:
    frames = []
    for number, text in enumerate(stack):
        file, _, function = text.rpartition(":")
        frames.append(Frame(root + file if file.startswith("torch/") else file, number, function))
    assert stage_from_stack(frames) == stage
