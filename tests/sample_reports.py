"""Reports built by hand that the tests of renderings and of the command line share."""

from __future__ import annotations

import msgspec

from compilebisect.core.outcome import Kind, Stage
from compilebisect.core.report import Environment, Finding, Location, ModuleEntry, Report, Repro, Timing, Uncovered
from compilebisect.core.strategies import Strategies, Strategy, StrategyResult, StrategyRun, compared

ENVIRONMENT = Environment(
    compilebisect="0.1.0", torch="2.13.0+cpu", triton=None, python="3.11.9", device="cpu", cuda=None
)


def module(path: str, cls: str, status: str = "ok", origin: str | None = None, **fields: object) -> ModuleEntry:
    return msgspec.convert(
        {"path": path, "class": cls, "status": status, "origin": origin, "calls": 1, **fields}, ModuleEntry
    )


def healthy_report() -> Report:
    modules = [module("", "Captioner", children=["encoder", "head"], compile_s=4.5, graphs=1)]
    modules.append(module("encoder", "Encoder", implied=True))
    modules.append(module("encoder.layers", "ModuleList", "not_called", calls=0))
    for i in range(12):
        same_as = "encoder.layers.0" if i else None
        modules.append(module(f"encoder.layers.{i}", "Block", same_as=same_as))
        modules.append(module(f"encoder.layers.{i}.attn", "Attention", same_as=same_as and f"{same_as}.attn"))
    modules += [module("head", "Linear"), module("unused", "Linear", "not_called", calls=0)]
    return Report(
        target="captioner.py:Captioner",
        environment=ENVIRONMENT,
        settings={"device": "cpu"},
        modules=tuple(modules),
        timing=Timing(total_s=41.26, compiles=5),
    )


def untested_report() -> Report:
    """Return a report without findings with three untested modules, of which one is covered by that above it."""
    why = "fails in eager mode when called alone: RuntimeError: it needs its parent"
    return Report(
        target="net.py:Net",
        environment=ENVIRONMENT,
        settings={"device": "cpu"},
        modules=(
            module("", "Net", "untested", children=["encoder", "head"], notes=[f"untested: {why}"]),
            module("encoder", "Encoder", children=["encoder.mask", "encoder.mlp"], graphs=1),
            module("encoder.mask", "Mask", "untested", notes=["untested: its arguments cannot be kept"]),
            module("encoder.mlp", "MLP", graphs=1),
            module("head", "Head", "untested", notes=["untested: head was not captured"]),
        ),
        uncovered=(Uncovered(path="", reason=why), Uncovered(path="head", reason="head was not captured")),
        timing=Timing(total_s=12.0, compiles=3),
    )


def large_report() -> Report:
    """Return a report with 12 repeated layers, each kind of finding, lists of instances, a region and odd texts."""
    modules = [
        module("", "VisionLanguageModel", "crash", "inherited", children=["vision", "decoder", "head", "pool"]),
        module("vision", "VisionTower", "graph_break", "inherited"),
        module("vision.patch", "Conv2d"),
        module("vision.layers", "ModuleList", "not_called", calls=0),
    ]
    for i in range(12):
        base = f"vision.layers.{i}"
        same_as = "vision.layers.0" if i else None
        modules += [
            module(base, "EncoderBlock", "graph_break", "inherited", same_as=same_as),
            module(f"{base}.norm", "LayerNorm"),
            module(f"{base}.attn", "Attention"),
            module(f"{base}.attn.qkv", "Linear"),
            module(f"{base}.attn.out", "Linear"),
            module(f"{base}.mlp", "MLP", "graph_break", "introduced", findings=["F3"], graphs=2, compile_s=0.8),
            module(f"{base}.mlp.up", "Linear"),
            module(f"{base}.mlp.down", "Linear"),
        ]
    modules += [
        module("decoder", "Decoder", "crash", "inherited"),
        module("decoder.embed", "Embedding", shared_with=["head.weight_holder"]),
        module("decoder.cross", "CrossAttention", "divergence", "introduced", findings=["F4", "F5"]),
        module("decoder.cross.q", "Linear"),
        module("decoder.cross.k", "Linear"),
        module("decoder.cross.v", "Linear"),
        module("decoder.kernel", "FusedKernel", "crash", "introduced", findings=["F1"]),
        module("decoder.loop", "Router", "timeout", "introduced", findings=["F2"]),
        module("head", "Head", "error", "introduced", findings=["F6", "F7"]),
        module("head.a", "Linear", implied=True),
        module("head.b", "Dropout"),
        module("head.c", "GELU"),
        module("head.d", "LayerNorm", notes=["the output is constant, so a divergence inside cannot show"]),
        module("head.e", "Identity", "skipped", calls=0),
        module("pool", "Pool", "recompile", "introduced", findings=["F8"]),
        module("unused", "Linear", "not_called", calls=0),
    ]
    return Report(
        target="models/vlm.py:VisionLanguageModel",
        environment=ENVIRONMENT,
        settings={"device": "cpu", "check": [kind.value for kind in Kind if kind is not Kind.SLOWDOWN]},
        modules=tuple(modules),
        findings=_findings(),
        timing=Timing(total_s=318.4, compiles=27),
        strategies=strategies(),
        notes=("the model is not deterministic: its own spread was used as tolerance",),
    )


def strategies() -> Strategies:
    def result(strategy: Strategy, seconds: tuple[float, ...], run_s: float, **fields: object) -> StrategyResult:
        runs = tuple(StrategyRun(variant=k, first_s=s, run_s=run_s) for k, s in enumerate(seconds, start=1))
        total, count = sum(seconds), len(seconds)
        return StrategyResult(
            strategy=strategy, compiles=count, graphs=count, guards=40 * count, total_s=total, runs=runs,
            run_s=run_s * count, compile_s=total - run_s * count, lines=(f'take("{strategy.value}")',), **fields,
        )  # fmt: skip

    failed = StrategyResult(
        strategy=Strategy.MARK_DYNAMIC,
        compiles=1,
        error_type="ConstraintViolationError",
        error="variant 2: Constraints violated (L['x'].size()[1])! | your code specialized it to be a constant (16)",
    )
    return compared(
        [{"batch": 4, "seq": 1}, {"batch": 4, "seq": 32}],
        [
            result(Strategy.STATIC, (4.0, 4.2), 0.002, cuda_graphs="yes, one for each of 2 sizes"),
            result(Strategy.AUTOMATIC, (4.0, 6.5), 0.003, cuda_graphs="recorded anew for each size that comes"),
            failed,
            result(Strategy.DYNAMIC, (6.0, 0.004), 0.004, shape_guards=2, notes=("it goes on compiling",)),
        ],
        notes=("no padding to buckets: with two sizes there is nothing to share",),
    )


def _findings() -> tuple[Finding, ...]:
    def finding(number: int, kind: Kind, module_path: str, summary: str, **fields: object) -> Finding:
        defaults = {
            "fingerprint": f"{kind.value}-{number:016x}",
            "repro": Repro(path=f"repro_F{number}.py", verified=True, ops=number, lines=20 + number),
        }
        return Finding(id=f"F{number}", kind=kind, module=module_path, summary=summary, **{**defaults, **fields})

    return (
        finding(
            1,
            Kind.CRASH,
            "decoder.kernel",
            "the worker was killed by SIGSEGV while the compiled module ran",
            stage=Stage.RUNTIME,
            evidence={"signal": "SIGSEGV", "stack": "kernel.cpp:12\nmain.cpp:3"},
            hint="Guard the custom operator against empty inputs.",
            repro=Repro(path="repro_F1.py", imports_user_code=True, note="the crash needs the user's extension"),
        ),
        finding(
            2,
            Kind.TIMEOUT,
            "decoder.loop",
            "compiling took longer than 300 s",
            stage=Stage.INDUCTOR,
            location=Location(file="vlm.py", line=212, function="Router.forward"),
            hint="Raise --timeout, or break the loop up.",
            repro=None,
        ),
        finding(
            3,
            Kind.GRAPH_BREAK,
            "vision.layers.0.mlp",
            "call of a builtin that Dynamo does not trace: print",
            also_in=tuple(f"vision.layers.{i}.mlp" for i in range(1, 12)),
            stage=Stage.DYNAMO,
            location=Location(file="vlm.py", line=31, function="MLP.forward", code="print(x.sum())"),
            hint="Remove the print, or call torch.compiler.disable on a helper that does it.",
        ),
        finding(
            4,
            Kind.DIVERGENCE,
            "decoder.cross",
            "output differs from eager by 0.031 where 2.4e-06 was to be expected",
            stage=Stage.INDUCTOR,
            evidence={"max_error": 0.031, "tolerance": 2.4e-6, "region": ["decoder.cross.q", "decoder.cross.k"]},
            hint="",
        ),
        finding(
            5,
            Kind.GRAPH_BREAK,
            "decoder.cross",
            "data-dependent branch on `scores.max() > self.limit` | <b>50%</b>",
            stage=Stage.DYNAMO,
            location=Location(
                file="deeply/nested/package/with/long/names/attention_implementation_details.py",
                line=1048,
                function="CrossAttention._scaled_dot_product_attention_with_limits",
                code="if scores.max() > self.limit:  # 50%",
            ),
            hint="Use torch.where or torch.cond in place of the branch.",
        ),
        finding(
            6,
            Kind.ERROR,
            "head",
            "NotImplementedError: sample::odd_one has no meta kernel",
            stage=Stage.AOT_AUTOGRAD,
            location=Location(file="vlm.py", line=88, function="Head.forward", code="y = odd_one(x)"),
            hint="Register one with torch.library.register_fake.",
            repro=Repro(path="repro_F6.py", verified=False, ops=1, lines=33, note="showed another fault"),
        ),
        finding(
            7,
            Kind.ERROR,
            "head",
            "CppCompileError: C++ compile error \x1b[31mred\x1b[0m",
            stage=Stage.CPP,
            location=Location(file="vlm.py", line=93, function="Head.forward", code="z = y.half().erfinv()"),
        ),
        finding(
            8,
            Kind.RECOMPILE,
            "pool",
            "recompiled for every new image size: guard `x.size()[2] == 32` failed",
            stage=Stage.DYNAMO,
            location=Location(file="vlm.py", line=140, function="Pool.forward", code="return x.view(n // 2, -1)"),
            hint="Mark the size as dynamic with torch._dynamo.mark_dynamic.",
        ),
    )


def interrupted_report() -> Report:
    report = large_report()
    return msgspec.structs.replace(report, complete=False, findings=report.findings[:1], modules=report.modules[:8])
