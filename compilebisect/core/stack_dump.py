"""Reads the stacks that Python's faulthandler writes, and tells which stage of the compiler they stand in."""

from __future__ import annotations

import re
from collections.abc import Sequence

from compilebisect.core.outcome import Frame, Stage

# Source: Python/traceback.c of CPython 3.10 to 3.14
_THREAD = re.compile(r"(?P<current>Current thread|Stack|Thread)(?: 0x[0-9a-f]+.*)? \(most recent call first\):")
_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<function>.*)')
_ESCAPE = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))")


def frames_from_faulthandler(text: str) -> list[Frame]:
    """Parse the frames of the thread that crashed or got the signal, innermost first as they are printed.

    The last dump counts. A crash in a thread that Python does not know, such as one of a C++ library, names no
    current thread; the main thread, which is printed last, then stands for it.
    """
    threads: list[tuple[bool, list[Frame]]] = []
    for line in text.splitlines():
        if line.startswith("Fatal Python error"):
            threads.clear()
        elif thread := _THREAD.match(line):
            threads.append((thread["current"] != "Thread", []))
        elif threads and (frame := _FRAME.match(line)):
            number = int(frame["line"]) if frame["line"].isdigit() else 0
            threads[-1][1].append(Frame(_unescape(frame["file"]), number, _unescape(frame["function"])))
    current = [frames for is_current, frames in threads if is_current]
    if current:
        return current[-1]
    return threads[-1][1] if threads else []


def _unescape(name: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1] or match[2] or match[3], 16)), name)


#: Code that Inductor generates: `<cache>/ab/cab….py`.
#: Source: get_path in torch/_inductor/codecache.py, torch 2.13.
_GENERATED = re.compile(r"/([a-z2-7]{2})/c\1[a-z2-7]{40,}\.py$")
_TRACING = re.compile(r"(?:^|/)torch/(?:_subclasses/|fx/experimental/proxy_tensor\.py)")

#: Files (and functions, where given) that decide the stage; the first rule that matches a frame counts, and None
#: means that the frame decides nothing. Source: stacks and file names of torch 2.13, layout of Triton 3.
_RULES: tuple[tuple[str, str, Stage | None], ...] = (
    # on the stack of every compiled call, or of every stage alike
    (r"torch/_dynamo/(eval_frame|utils|external_utils)\.py", "", None),
    (r"torch/_dynamo/(backends|repro|polyfills)/", "", None),
    (r"torch/_dynamo/", "", Stage.DYNAMO),
    # what AOTAutograd wraps around compiled code
    (r"torch/_functorch/_aot_autograd/subclass_codegen\.py:codegen", "", Stage.RUNTIME),
    (r"torch/_functorch/_aot_autograd/runtime_wrappers\.py", "(pre|post)_compile|_codegen|_create", Stage.AOT_AUTOGRAD),
    (r"torch/_functorch/_aot_autograd/runtime_wrappers\.py", "", Stage.RUNTIME),
    (r"torch/_functorch/aot_autograd\.py", "forward$", Stage.RUNTIME),
    (r"torch/_functorch/(_aot_autograd/|(aot_autograd|partitioners|compile_utils)\.py)", "", Stage.AOT_AUTOGRAD),
    # decompositions run while AOTAutograd traces
    (r"torch/_inductor/decomposition\.py", "", None),
    (r"torch/_inductor/(cpp_builder|cpu_vec_isa)\.py", "", Stage.CPP),
    (r"torch/_inductor/codecache\.py", "load_(by|with)_key", Stage.INDUCTOR),
    (r"torch/_inductor/codecache\.py", "load|_load_library|_worker_compile|_precompile_header", Stage.CPP),
    (r"torch/_inductor/(output_code|cudagraph_trees)\.py", "(?!post_compile)", Stage.RUNTIME),
    (r"torch/_inductor/runtime/.*triton", "_?precompile|_?make_launcher|compile", Stage.TRITON),
    (r"torch/_inductor/runtime/compile_tasks\.py", "_reload", Stage.INDUCTOR),
    (r"torch/_inductor/runtime/compile_tasks\.py", "_worker_compile_triton", Stage.TRITON),
    (r"torch/_inductor/runtime/", "", Stage.RUNTIME),
    (r"torch/_inductor/", "", Stage.INDUCTOR),
    (r"triton/backends/\w+/driver\.py", "__call__|launch", Stage.RUNTIME),
    (r"triton/(compiler|runtime|backends|language|tools)/", "", Stage.TRITON),
)
_COMPILED_RULES = tuple((re.compile(rf"(?:^|/){file}"), re.compile(name), stage) for file, name, stage in _RULES)


def stage_from_stack(frames: Sequence[Frame]) -> Stage | None:
    """Tell where in the compiler stack a process was; None where nothing of it was running.

    The innermost frame that belongs to one stage alone decides: a fake kernel runs below Dynamo, below AOTAutograd
    or below Inductor, and its own frames and those of `torch/_subclasses`, `torch/_library` or `torch/fx` do not tell.

    Args:
        frames: innermost first, as from `frames_from_faulthandler`.
    """
    is_traced = False
    for frame in frames:
        is_traced = is_traced or _TRACING.search(frame.file) is not None
        if frame.file.startswith("<eval_with_key>"):
            if not is_traced:
                return Stage.RUNTIME
        elif _GENERATED.search(frame.file):
            # its top level runs while Inductor loads it
            return Stage.INDUCTOR if frame.function == "<module>" else Stage.RUNTIME
        else:
            stage = _stage_from_frame(frame)
            if stage is not None:
                return stage
    # Python code between the graphs of a compiled call
    return Stage.RUNTIME if any("torch/_dynamo/eval_frame.py" in frame.file for frame in frames) else None


def _stage_from_frame(frame: Frame) -> Stage | None:
    for file, function, stage in _COMPILED_RULES:
        if file.search(frame.file) and function.match(frame.function):
            return stage
    return None
