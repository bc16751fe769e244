"""Small real models of well-known libraries, random weights: no divergence may be found in any of them.

    python -m tests.quality.real_models --jobs 8 --out real-models             # every model, every setting
    python -m tests.quality.real_models --setting float32-eval llama timm-resnet
    python -m tests.quality.real_models --device cuda

Runs the command on each model and prints one line each: findings, modules, compiles, seconds. A model whose library is
missing is said to be so. Exits 1 where a divergence was found, or where the command ended otherwise than with 0 or 1.
Other findings are shown, as they are the libraries' own and differ between their versions.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
SETTINGS = {
    f"{dtype}-{mode}": ("--dtype", dtype, f"--{mode}")
    for dtype in ("float32", "bfloat16")
    for mode in ("eval", "train")
}
TIMEOUT_S = 1500


class Model(NamedTuple):
    """How a model is built and called."""

    build: Callable[[], Any]
    spec: dict[str, Any]


def _transformers(kind: str, auto: str = "AutoModel", **config: Any) -> Callable[[], Any]:
    def build() -> Any:
        import transformers

        made = transformers.AutoConfig.for_model(kind, **config)
        return getattr(transformers, auto).from_config(made)

    return build


def _timm(name: str, **options: Any) -> Callable[[], Any]:
    def build() -> Any:
        import timm

        return timm.create_model(name, pretrained=False, num_classes=7, **options)

    return build


def _torchvision(name: str, **options: Any) -> Callable[[], Any]:
    def build() -> Any:
        import torchvision

        return getattr(torchvision.models, name)(num_classes=7, **options)

    return build


def _diffusers(name: str, **options: Any) -> Callable[[], Any]:
    def build() -> Any:
        import diffusers

        return getattr(diffusers, name)(**options)

    return build


TEXT = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 99}
GROUPED = {**TEXT, "num_key_value_heads": 2, "max_position_embeddings": 64}
IDS = {"input_ids": {"shape": [2, 12], "dtype": "int64", "low": 3, "high": 90}}
SEQ2SEQ = {**IDS, "decoder_input_ids": {"shape": [2, 7], "dtype": "int64", "low": 3, "high": 90}}
PIXELS = {"pixel_values": [2, 3, 32, 32]}
IMAGE: dict[str, Any] = {"args": [[2, 3, 64, 64]]}
VISION = {"image_size": 32, "patch_size": 8, "num_labels": 7}
LATENT = {"block_out_channels": (16, 32), "layers_per_block": 1, "norm_num_groups": 8}

MODELS = {
    "albert": Model(_transformers("albert", embedding_size=16, **TEXT), IDS),
    "bert": Model(_transformers("bert", **TEXT), IDS),
    "distilbert": Model(_transformers("distilbert", dim=32, n_layers=2, n_heads=4, hidden_dim=64, vocab_size=99), IDS),
    "electra": Model(_transformers("electra", embedding_size=16, **TEXT), IDS),
    "roberta": Model(_transformers("roberta", **TEXT), IDS),
    "gpt2": Model(_transformers("gpt2", "AutoModelForCausalLM", n_embd=32, n_layer=2, n_head=4, vocab_size=99), IDS),
    "gpt-neox": Model(_transformers("gpt_neox", "AutoModelForCausalLM", **TEXT), IDS),
    "opt": Model(
        _transformers(
            "opt",
            hidden_size=32,
            word_embed_proj_dim=32,
            ffn_dim=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            vocab_size=99,
            max_position_embeddings=64,
        ),
        IDS,
    ),
    "llama": Model(_transformers("llama", "AutoModelForCausalLM", **GROUPED), IDS),
    "mistral": Model(_transformers("mistral", "AutoModelForCausalLM", sliding_window=4, **GROUPED), IDS),
    "qwen2": Model(_transformers("qwen2", "AutoModelForCausalLM", **GROUPED), IDS),
    "gemma": Model(_transformers("gemma", "AutoModelForCausalLM", head_dim=8, **GROUPED), IDS),
    "phi": Model(_transformers("phi", "AutoModelForCausalLM", **GROUPED), IDS),
    "mixtral": Model(_transformers("mixtral", num_local_experts=4, **GROUPED), IDS),
    "t5": Model(_transformers("t5", d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, vocab_size=99), SEQ2SEQ),
    "bart": Model(
        _transformers(
            "bart",
            d_model=32,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=64,
            decoder_ffn_dim=64,
            vocab_size=99,
        ),
        SEQ2SEQ,
    ),
    "vit": Model(_transformers("vit", "AutoModelForImageClassification", **VISION, **TEXT), PIXELS),
    "deit": Model(_transformers("deit", **VISION, **TEXT), PIXELS),
    "convnext": Model(
        _transformers("convnext", hidden_sizes=[8, 16, 32, 64], depths=[1, 1, 1, 1]), {"pixel_values": [2, 3, 64, 64]}
    ),
    "timm-resnet": Model(_timm("resnet18"), IMAGE),
    "timm-efficientnet": Model(_timm("efficientnet_b0"), IMAGE),
    "timm-mobilenet": Model(_timm("mobilenetv3_small_050"), IMAGE),
    "timm-vit": Model(_timm("vit_tiny_patch16_224", img_size=64, depth=2), IMAGE),
    "timm-swin": Model(
        _timm("swin_tiny_patch4_window7_224", img_size=56, window_size=7, depths=(1, 1, 1, 1)),
        {"args": [[2, 3, 56, 56]]},
    ),
    "timm-mixer": Model(_timm("mixer_s32_224", img_size=64), IMAGE),
    "timm-convnext": Model(_timm("convnext_atto", depths=(1, 1, 2, 1)), IMAGE),
    "vision-resnet": Model(_torchvision("resnet18"), IMAGE),
    "vision-squeezenet": Model(_torchvision("squeezenet1_1"), IMAGE),
    "vision-shufflenet": Model(_torchvision("shufflenet_v2_x0_5"), IMAGE),
    "vision-vit": Model(
        _torchvision(
            "VisionTransformer", image_size=32, patch_size=8, num_layers=2, num_heads=4, hidden_dim=32, mlp_dim=64
        ),
        {"args": [[2, 3, 32, 32]]},
    ),
    "diffusers-unet": Model(
        _diffusers(
            "UNet2DModel",
            sample_size=16,
            in_channels=3,
            out_channels=3,
            attention_head_dim=8,
            down_block_types=("DownBlock2D", "AttnDownBlock2D"),
            up_block_types=("AttnUpBlock2D", "UpBlock2D"),
            **LATENT,
        ),
        {"args": [[2, 3, 16, 16], {"shape": [2], "dtype": "int64", "high": 900}]},
    ),
    "diffusers-vae": Model(
        _diffusers(
            "AutoencoderKL",
            down_block_types=("DownEncoderBlock2D",) * 2,
            up_block_types=("UpDecoderBlock2D",) * 2,
            latent_channels=4,
            sample_size=32,
            **LATENT,
        ),
        {"args": [[2, 3, 32, 32]], "kwargs": {"sample_posterior": {"value": True}}},
    ),
}


def build(name: str) -> Any:
    """Build one of the models with seeded weights; the target of the runs.

    Zero weights, such as those of a fresh head, hide all that is behind them, so they become small random numbers.
    """
    import torch

    torch.manual_seed(0)
    module = MODELS[name].build()
    with torch.no_grad():
        for parameter in module.parameters():
            if not parameter.any():
                parameter.normal_(std=0.02)
    return module


def run(name: str, setting: str, device: str, out: Path) -> tuple[str, bool]:
    """Run the command on one model; returns the line that says what came of it, and whether that is as it should be."""
    folder = out / f"{name}-{setting}"
    folder.mkdir(parents=True, exist_ok=True)
    spec = folder / "spec.json"
    spec.write_text(json.dumps(MODELS[name].spec), encoding="utf-8")
    command = [sys.executable, "-m", "compilebisect", f"{Path(__file__).resolve()}:build", "--input-spec", str(spec)]
    command += ["--init", json.dumps({"name": name}), "--device", device, "--no-repro", "-q", "--out", str(folder)]
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": paths, "HF_HUB_OFFLINE": "1"}
    started = time.perf_counter()
    try:
        ended = subprocess.run(
            [*command, *SETTINGS[setting]], env=environment, capture_output=True, text=True, timeout=TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return f"| {name} | {setting} | no end after {TIMEOUT_S} s | | |", False
    seconds = time.perf_counter() - started
    if ended.returncode not in (0, 1):
        said = [line for line in ended.stderr.splitlines() if line.strip()]
        missing = any("No module named" in line for line in said)
        return f"| {name} | {setting} | {'library is missing' if missing else ' '.join(said)[:300]} | | |", missing
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    found = [f"{f['kind']} in {f['module'] or 'the root'}: {f['summary'][:160]}" for f in report["findings"]]
    compiles = report["timing"]["compiles"]
    is_right = not any(finding["kind"] == "divergence" for finding in report["findings"])
    what = "; ".join(found) or "healthy"
    return f"| {name} | {setting} | {what} | {len(report['modules'])} | {compiles}, {seconds:.0f} s |", is_right


def main(words: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of {', '.join(MODELS)}; all by default")
    parser.add_argument("--setting", action="append", choices=list(SETTINGS), help="all by default")
    parser.add_argument("--device", default="cpu", help="cpu (default), cuda or cuda:N")
    parser.add_argument("--jobs", type=int, default=1, help="models side by side")
    parser.add_argument("--out", type=Path, default=Path("real-models"), help="where reports go")
    options = parser.parse_args(words)
    if unknown := set(options.models) - MODELS.keys():
        parser.error(f"unknown model {', '.join(sorted(unknown))}")
    pairs = [(name, setting) for setting in options.setting or SETTINGS for name in options.models or MODELS]
    print("| model | setting | findings | modules | compiles |\n| --- | --- | --- | --- | --- |", flush=True)
    wrong = 0
    with ThreadPoolExecutor(options.jobs) as pool:
        for line, is_right in pool.map(lambda pair: run(*pair, options.device, options.out), pairs):
            wrong += not is_right
            print(line, flush=True)
    print(f"\n{len(pairs)} runs, {wrong} with a divergence or without a report")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
