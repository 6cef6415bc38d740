"""Makes small random LoRAs in every spelling that files come in, and what diffusers computes with them fused into the weights.

    python make_lora.py REFERENCE/tiny            # writes beside this script: NAME.safetensors, golden.safetensors, golden.json

Needs torch, diffusers 0.42.1, transformers 5.24.0 and peft 0.21.2. transformers asks for a newer peft than there was; its check of the version is
left out, what it calls is there. Weights and noise come from seeded generators: two runs on one machine write equal files.
"""

import argparse
import contextlib
import inspect
import json
import shutil
import tempfile
from pathlib import Path

import diffusers
import numpy as np
import torch
import transformers.integrations.peft
from diffusers.loaders import lora_conversion_utils, lora_pipeline
from peft import LoraConfig, PeftModel, get_peft_model
from peft.utils import get_peft_model_state_dict
from safetensors import safe_open
from safetensors.torch import load_file, save_file

transformers.integrations.peft.check_peft_version = lambda **_: None
HERE = Path(__file__).parent
PROMPT = "a photo of an astronaut riding a horse on mars, highly detailed"
NEGATIVE = "blurry, low quality, extra fingers"
CALLS = {
    "flux1-dev": dict(height=32, width=48, num_inference_steps=2, guidance_scale=3.5, max_sequence_length=32, prompt=PROMPT),
    "sd15": dict(height=32, width=48, num_inference_steps=3, guidance_scale=7.5, prompt=PROMPT, negative_prompt=NEGATIVE),
    "sdxl": dict(height=32, width=48, num_inference_steps=2, guidance_scale=5.0, prompt=PROMPT, negative_prompt=NEGATIVE),
    "sd3": dict(height=32, width=48, num_inference_steps=2, guidance_scale=5.0, prompt=PROMPT, negative_prompt=NEGATIVE, max_sequence_length=32),
    "z-image": dict(height=32, width=48, num_inference_steps=2, guidance_scale=3.0, prompt=PROMPT, negative_prompt=NEGATIVE, max_sequence_length=64),
}
VARIANTS = {"sdxl": "fp16"}
SEED = 20


def random(shape, *key):
    """Normal numbers that depend on the key alone."""
    seed = int.from_bytes(("/".join(map(str, key))).encode()[-7:].rjust(7, b"-"), "little") ^ hash_of(key)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed % 2**62))


def hash_of(key):
    h = 1469598103934665603
    for b in "/".join(map(str, key)).encode():
        h = (h ^ b) * 1099511628211 % 2**64
    return h


def layer(model, name):
    return model.get_submodule(name)


def factors(model, name, rank, *key):
    """down and up for a layer, in the layer's own layout, large enough to change pictures."""
    w = layer(model, name).weight.detach()
    spread = float(w.std())
    if w.ndim == 4:
        down = random((rank, w.shape[1], *w.shape[2:]), name, "down", *key) / np.sqrt(w[0].numel())
        up = random((w.shape[0], rank, 1, 1), name, "up", *key)
    else:
        down = random((rank, w.shape[1]), name, "down", *key) / np.sqrt(w.shape[1])
        up = random((w.shape[0], rank), name, "up", *key)
    return down, up * spread * 2.0


def run(pipe, model, record, name):
    steps = []
    real = pipe.scheduler.step

    def step(*a, **k):
        out = real(*a, **k)
        steps.append(out[0])
        return out

    step.__signature__ = inspect.signature(real)
    pipe.scheduler.step = step
    pipe.set_progress_bar_config(disable=True)
    with torch.no_grad():
        image = pipe(generator=torch.Generator().manual_seed(SEED), output_type="np", **CALLS[model]).images
    pipe.scheduler.step = real
    record[f"{name}/step_latents"] = torch.stack(steps)
    record[f"{name}/image_u8"] = torch.from_numpy((image * 255).round().astype(np.uint8))


def save(name, state, metadata=None):
    save_file({k: v.contiguous() for k, v in state.items()}, HERE / f"{name}.safetensors", metadata=metadata)


# -- the modules that the LoRAs change

FLUX = [
    "x_embedder", "time_text_embed.text_embedder.linear_1",
    "transformer_blocks.0.attn.to_q", "transformer_blocks.0.attn.to_out.0", "transformer_blocks.1.attn.add_k_proj", "transformer_blocks.0.ff.net.0.proj",
    "transformer_blocks.1.norm1_context.linear", "single_transformer_blocks.0.attn.to_v", "single_transformer_blocks.2.proj_mlp",
    "single_transformer_blocks.1.proj_out", "single_transformer_blocks.2.norm.linear", "norm_out.linear",
]
CLIP = ["encoder.layers.0.self_attn.q_proj", "encoder.layers.1.self_attn.out_proj", "encoder.layers.0.mlp.fc1"]


def unet_modules(unet):
    """Linear layers and convolutions of every kind: 3x3, 1x1, down- and upsampling."""
    wanted = ["conv_in", "conv_out", "time_embedding.linear_1"]
    if hasattr(unet, "add_embedding") and unet.add_embedding is not None:
        wanted += ["add_embedding.linear_1", "add_embedding.linear_2"]
    seen = set()
    for name, module in unet.named_modules():
        if not isinstance(module, (torch.nn.Linear, torch.nn.Conv2d)):
            continue
        side = name.split(".")[0]
        kind = name.split(".")[-1] if not name.endswith("to_out.0") else "to_out.0"
        if (side, kind) in seen or side not in ("down_blocks", "mid_block", "up_blocks"):
            continue
        seen.add((side, kind))
        if kind in ("to_q", "to_v", "to_out.0", "proj", "proj_in", "proj_out", "conv1", "conv2", "conv_shortcut", "time_emb_proj", "conv"):
            if side == "mid_block" or kind not in ("to_v", "conv2"):
                wanted.append(name)
    return wanted


def fresh(root, model):
    # The repository holds SDXL's weights in float16.
    variant = VARIANTS.get(model)
    return diffusers.DiffusionPipeline.from_pretrained(root / model / "model", torch_dtype=torch.float32, variant=variant)


def peft_config(**kw):
    return LoraConfig(init_lora_weights=False, **kw)


def fill(model, adapter, *key):
    """Random factors in the adapter's layers."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            if f".{adapter}." not in name and not name.endswith(f".{adapter}"):
                continue
            if "lora_A" in name:
                p.copy_(random(p.shape, name, *key) / np.sqrt(p[0].numel()))
            elif "lora_B" in name and name.endswith("weight"):
                p.copy_(random(p.shape, name, *key) * 0.1)
            elif "lora_B" in name:
                p.copy_(random(p.shape, name, *key) * 0.2)
            elif "magnitude" in name:
                p.mul_(1 + 0.3 * random(p.shape, name, *key))


def save_diffusers(root, model, name, denoiser_config, text_configs):
    """A file as save_lora_weights writes it, with the adapters' configs in its header."""
    pipe = fresh(root, model)
    denoiser = "unet" if hasattr(pipe, "unet") else "transformer"
    layers, metadata, parts = {}, {}, {}
    for component, config in {denoiser: denoiser_config, **text_configs}.items():
        net = getattr(pipe, component)
        net.add_adapter(config, "x")
        fill(net, "x", name)
        layers[component] = get_peft_model_state_dict(net, adapter_name="x")
        parts[component] = net
    for component, net in parts.items():
        config = {**net.peft_config["x"].to_dict(), "base_model_name_or_path": None}
        metadata[f"{component}_lora_adapter_metadata"] = {k: (sorted(v) if isinstance(v, set) else v) for k, v in config.items()}
    with tempfile.TemporaryDirectory() as tmp:
        type(pipe).save_lora_weights(tmp, **{f"{c}_lora_layers": s for c, s in layers.items()}, **metadata)
        path = next(Path(tmp).glob("*.safetensors"))
        # safetensors writes a header's entries in any order: with one the file is always the same.
        with safe_open(path, "pt") as f:
            header = {"lora_adapter_metadata": f.metadata()["lora_adapter_metadata"]}
        save(name, load_file(path), header)


@contextlib.contextmanager
def small_flux(hidden, mlp):
    """diffusers' converter of kohya's FLUX.1 files has the published model's widths in it; here it gets those of the small one."""
    source = inspect.getsource(lora_conversion_utils._convert_kohya_flux_lora_to_diffusers)
    assert "[3072, 3072, 3072, 12288]" in source
    space = dict(vars(lora_conversion_utils))
    exec(source.replace("[3072, 3072, 3072, 12288]", str([hidden] * 3 + [mlp])), space)
    real = lora_pipeline._convert_kohya_flux_lora_to_diffusers
    lora_pipeline._convert_kohya_flux_lora_to_diffusers = space["_convert_kohya_flux_lora_to_diffusers"]
    yield
    lora_pipeline._convert_kohya_flux_lora_to_diffusers = real


def kohya_text(pipe, component, prefix, name, alpha, rank=3):
    state = {}
    net = getattr(pipe, component)
    level = "text_model." if hasattr(net, "text_model") else ""
    for m in CLIP:
        down, up = factors(net, level + m, rank, name)
        key = prefix + "text_model_" + m.replace(".", "_")
        state |= {f"{key}.lora_down.weight": down, f"{key}.lora_up.weight": up, f"{key}.alpha": torch.tensor(alpha)}
    return state


def flux_kohya(root):
    """kohya's FLUX.1: names of the published code, fused projections, an alpha a layer."""
    pipe = fresh(root, "flux1-dev")
    t, name = pipe.transformer, "flux-kohya"
    state = {}

    def put(key, parts, rank, alpha):
        pairs = [factors(t, m, rank, name) for m in parts]
        down, up = pairs[0][0], torch.cat([u for _, u in pairs])
        state.update({f"lora_unet_{key}.lora_down.weight": down, f"lora_unet_{key}.lora_up.weight": up})
        if alpha is not None:
            state[f"lora_unet_{key}.alpha"] = torch.tensor(float(alpha))

    d, s = "transformer_blocks.{}.{}", "single_transformer_blocks.{}.{}"
    put("double_blocks_0_img_attn_qkv", [d.format(0, f"attn.to_{x}") for x in "qkv"], 4, 2)
    put("double_blocks_1_txt_attn_qkv", [d.format(1, f"attn.add_{x}_proj") for x in "qkv"], 3, 6)
    put("double_blocks_0_img_attn_proj", [d.format(0, "attn.to_out.0")], 2, 1)
    put("double_blocks_1_txt_attn_proj", [d.format(1, "attn.to_add_out")], 2, None)
    put("double_blocks_0_img_mlp_0", [d.format(0, "ff.net.0.proj")], 2, 2)
    put("double_blocks_1_txt_mlp_2", [d.format(1, "ff_context.net.2")], 2, 2)
    put("double_blocks_1_img_mod_lin", [d.format(1, "norm1.linear")], 2, 2)
    put("single_blocks_0_linear1", [s.format(0, m) for m in ("attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp")], 5, 4)
    put("single_blocks_2_linear2", [s.format(2, "proj_out")], 4, 4)
    put("single_blocks_1_modulation_lin", [s.format(1, "norm.linear")], 2, 1)
    state |= kohya_text(pipe, "text_encoder", "lora_te1_", name, 1.5)
    # One fused projection as some trainers write it: each third of the rank serves one third of the rows.
    key = "lora_unet_double_blocks_1_img_attn_qkv"
    pairs = [factors(t, d.format(1, f"attn.to_{x}"), 2, name) for x in "qkv"]
    state[f"{key}.lora_down.weight"] = torch.cat([a for a, _ in pairs])
    state[f"{key}.lora_up.weight"] = torch.block_diag(*[b for _, b in pairs])
    state[f"{key}.alpha"] = torch.tensor(6.0)
    save(name, {k: v.half() for k, v in state.items()})


def flux_mixed(root):
    """lora_transformer_: diffusers' names with underscores."""
    pipe = fresh(root, "flux1-dev")
    state = {}
    for i, m in enumerate(FLUX):
        if m.endswith(("norm.linear", "norm1_context.linear", "ff.net.0.proj", "proj_mlp", "proj_out")) or ".attn.to_v" in m:
            continue  # diffusers' converter of this spelling does not know them
        down, up = factors(pipe.transformer, m, 2 + i % 2, "flux-mixed")
        key = "lora_transformer_" + m.replace(".", "_")
        state |= {f"{key}.lora_down.weight": down, f"{key}.lora_up.weight": up, f"{key}.alpha": torch.tensor(1.0 + i % 3)}
    state |= kohya_text(pipe, "text_encoder", "lora_te1_", "flux-mixed", 2.0)
    save("flux-mixed", state)


def flux_xlabs(root):
    pipe = fresh(root, "flux1-dev")
    state = {}
    for key, parts in {
        "double_blocks.0.processor.qkv_lora1": [f"transformer_blocks.0.attn.to_{x}" for x in "qkv"],
        "double_blocks.1.processor.qkv_lora2": [f"transformer_blocks.1.attn.add_{x}_proj" for x in "qkv"],
        "double_blocks.0.processor.proj_lora1": ["transformer_blocks.0.attn.to_out.0"],
        "double_blocks.1.processor.proj_lora2": ["transformer_blocks.1.attn.to_add_out"],
        "single_blocks.1.processor.qkv_lora": [f"single_transformer_blocks.1.attn.to_{x}" for x in "qkv"],
        "single_blocks.2.processor.proj_lora": ["single_transformer_blocks.2.proj_out"],
    }.items():
        pairs = [factors(pipe.transformer, m, 3, "flux-xlabs") for m in parts]
        state |= {f"{key}.down.weight": pairs[0][0], f"{key}.up.weight": torch.cat([u for _, u in pairs])}
    save("flux-xlabs", state)


def flux_alpha(root):
    """diffusers' names with an alpha a layer as tensors."""
    pipe = fresh(root, "flux1-dev")
    state = {}
    for i, m in enumerate(FLUX[:6]):
        down, up = factors(pipe.transformer, m, 2 + i % 3, "flux-alpha")
        state |= {f"transformer.{m}.lora_A.weight": down, f"transformer.{m}.lora_B.weight": up, f"transformer.{m}.alpha": torch.tensor(1.0 + i)}
    save("flux-alpha", state)


def flux_peft(root):
    """An adapter as PEFT itself saves it, with its config in a file beside it: rank-stabilised, with patterns and biases."""
    pipe = fresh(root, "flux1-dev")
    config = peft_config(
        r=2, lora_alpha=3, use_rslora=True, lora_bias=True, target_modules=[m for m in FLUX if "norm" not in m],
        rank_pattern={"to_q": 4, "transformer_blocks.0.attn.to_out.0": 3}, alpha_pattern={r"single_transformer_blocks\.\d+\.proj_mlp": 5},
    )
    net = get_peft_model(pipe.transformer, config)
    fill(net, "default", "flux-peft")
    (HERE / "flux-peft").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as tmp:
        net.save_pretrained(tmp)
        shutil.copy(Path(tmp) / "adapter_model.safetensors", HERE / "flux-peft")
        text = json.loads((Path(tmp) / "adapter_config.json").read_text())
    text["base_model_name_or_path"] = None
    text["target_modules"] = sorted(text["target_modules"])
    (HERE / "flux-peft" / "adapter_config.json").write_text(json.dumps(text, indent=2, sort_keys=True) + "\n")


def sd_old(root):
    """As diffusers wrote files before it used PEFT."""
    pipe = fresh(root, "sd15")
    state = {}
    for m in ["down_blocks.0.attentions.0.transformer_blocks.0.attn1", "mid_block.attentions.0.transformer_blocks.0.attn2", "up_blocks.1.attentions.1.transformer_blocks.0.attn2"]:
        for x, real in (("to_q", "to_q"), ("to_k", "to_k"), ("to_v", "to_v"), ("to_out", "to_out.0")):
            down, up = factors(pipe.unet, f"{m}.{real}", 3, "sd-old")
            state |= {f"unet.{m}.processor.{x}_lora.down.weight": down, f"unet.{m}.processor.{x}_lora.up.weight": up}
    for m, x in (("q_proj", "to_q"), ("k_proj", "to_k"), ("v_proj", "to_v"), ("out_proj", "to_out")):
        down, up = factors(pipe.text_encoder, f"encoder.layers.1.self_attn.{m}", 3, "sd-old")
        key = f"text_encoder.text_model.encoder.layers.1.self_attn.{x}_lora"
        state |= {f"{key}.down.weight": down, f"{key}.up.weight": up}
    save("sd-old", state)


def sd_lora_down(root):
    """unet.MODULE.lora.down.weight, text_encoder.MODULE.lora_linear_layer.down.weight."""
    pipe = fresh(root, "sd15")
    state = {}
    for m in [m for m in unet_modules(pipe.unet) if m.startswith(("down_blocks", "conv_in"))]:
        down, up = factors(pipe.unet, m, 2, "sd-linear-layer")
        state |= {f"unet.{m}.lora.down.weight": down, f"unet.{m}.lora.up.weight": up}
    for m in CLIP:
        down, up = factors(pipe.text_encoder, m, 3, "sd-linear-layer")
        key = f"text_encoder.text_model.{m}.lora_linear_layer"
        state |= {f"{key}.down.weight": down, f"{key}.up.weight": up}
    save("sd-linear-layer", state)


def sd_kohya(root):
    pipe = fresh(root, "sd15")
    state = {}
    for m in unet_modules(pipe.unet):
        down, up = factors(pipe.unet, m, 2, "sd-kohya")
        key = "lora_unet_" + m.replace(".", "_")
        state |= {f"{key}.lora_down.weight": down, f"{key}.lora_up.weight": up, f"{key}.alpha": torch.tensor(1.0)}
    state |= kohya_text(pipe, "text_encoder", "lora_te_", "sd-kohya", 1.0, rank=2)
    save("sd-kohya", {k: v.bfloat16() for k, v in state.items()})


def sdxl_kohya(root):
    """kohya's SDXL: the UNet has the names of the published code."""
    pipe = fresh(root, "sdxl")
    state = {}
    per = pipe.unet.config.layers_per_block + 1
    resnet = {"conv1": "in_layers_2", "conv2": "out_layers_3", "time_emb_proj": "emb_layers_1", "conv_shortcut": "skip_connection"}
    single = {"conv_in": "input_blocks_0_0", "conv_out": "out_2", "time_embedding.linear_1": "time_embed_0",
              "add_embedding.linear_1": "label_emb_0_0", "add_embedding.linear_2": "label_emb_0_2"}  # fmt: skip

    def original(m):
        if m in single:
            return single[m]
        p = m.split(".")
        if p[0] == "mid_block":
            where = f"middle_block_{2 * int(p[2]) if p[1] == 'resnets' else 1}"
            rest = p[3:]
            kind = p[1]
        else:
            block, kind, i, rest = int(p[1]), p[2], int(p[3]), p[4:]
            if kind == "downsamplers":
                return f"input_blocks_{per * block + per}_0_op"
            if kind == "upsamplers":
                attentions = hasattr(pipe.unet.up_blocks[block], "attentions")
                return f"output_blocks_{per * block + per - 1}_{2 if attentions else 1}_conv"
            n = per * block + i + (1 if p[0] == "down_blocks" else 0)
            where = f"{'input' if p[0] == 'down_blocks' else 'output'}_blocks_{n}_{0 if kind == 'resnets' else 1}"
        if kind == "resnets":
            return f"{where}_{resnet[rest[0]]}"
        return f"{where}_{'_'.join(rest)}"

    for m in unet_modules(pipe.unet):
        down, up = factors(pipe.unet, m, 2, "sdxl-kohya")
        key = "lora_unet_" + original(m)
        state |= {f"{key}.lora_down.weight": down, f"{key}.lora_up.weight": up, f"{key}.alpha": torch.tensor(1.0)}
    state |= kohya_text(pipe, "text_encoder", "lora_te1_", "sdxl-kohya", 1.0, rank=2)
    state |= kohya_text(pipe, "text_encoder_2", "lora_te2_", "sdxl-kohya2", 1.0, rank=2)
    save("sdxl-kohya", {k: v.half() for k, v in state.items()})


def make_files(root):
    clip = dict(target_modules=CLIP)
    flux_modules = FLUX[:-1]  # with PEFT "norm_out.linear" would also match nothing else, "proj_out" two layers
    save_diffusers(
        root, "flux1-dev", "flux-diffusers",
        peft_config(r=2, lora_alpha=4, target_modules=flux_modules, rank_pattern={"x_embedder": 3, "proj_mlp": 4}, alpha_pattern={"to_q": 1, "proj_mlp": 2}),
        {"text_encoder": peft_config(r=3, lora_alpha=3, **clip)},
    )
    sd = fresh(root, "sd15").unet
    save_diffusers(root, "sd15", "sd-diffusers", peft_config(r=2, lora_alpha=1, target_modules=unet_modules(sd)), {"text_encoder": peft_config(r=3, lora_alpha=6, **clip)})
    # DoRA, of linear layers and convolutions
    some = [m for m in unet_modules(sd) if not m.startswith("up_blocks")]
    save_diffusers(root, "sd15", "sd-dora", peft_config(r=2, lora_alpha=2, use_dora=True, target_modules=some), {})
    xl = fresh(root, "sdxl").unet
    save_diffusers(
        root, "sdxl", "sdxl-diffusers", peft_config(r=2, lora_alpha=2, target_modules=unet_modules(xl)),
        {"text_encoder": peft_config(r=2, lora_alpha=3, **clip), "text_encoder_2": peft_config(r=3, lora_alpha=3, **clip)},
    )
    # Pipelines whose LoRAs are read in the spelling of diffusers alone
    some = ["pos_embed.proj", "context_embedder", "transformer_blocks.0.attn.to_q", "transformer_blocks.1.attn.to_out.0", "transformer_blocks.0.ff_context.net.2",
            "transformer_blocks.0.attn2.to_v", "transformer_blocks.1.attn.add_k_proj"]  # fmt: skip
    save_diffusers(
        root, "sd3", "sd3-diffusers", peft_config(r=2, lora_alpha=4, target_modules=some),
        {"text_encoder": peft_config(r=2, lora_alpha=3, **clip), "text_encoder_2": peft_config(r=2, lora_alpha=2, **clip)},
    )
    some = ["layers.0.attention.to_q", "layers.1.attention.to_out.0", "layers.2.adaLN_modulation.0", "noise_refiner.0.feed_forward.w1", "context_refiner.0.attention.to_v",
            "t_embedder.mlp.0"]  # fmt: skip
    save_diffusers(root, "z-image", "zimage-diffusers", peft_config(r=2, lora_alpha=4, target_modules=some), {})
    flux_kohya(root)
    flux_mixed(root)
    flux_xlabs(root)
    flux_alpha(root)
    flux_peft(root)
    sd_old(root)
    sd_lora_down(root)
    sd_kohya(root)
    sdxl_kohya(root)


# name of the run: model, [(file, scale)]
RUNS = {
    "flux-none": ("flux1-dev", []),
    "flux-diffusers": ("flux1-dev", [("flux-diffusers", 1.0)]),
    "flux-scaled": ("flux1-dev", [("flux-diffusers", 0.6)]),
    "flux-kohya": ("flux1-dev", [("flux-kohya", 1.0)]),
    "flux-mixed": ("flux1-dev", [("flux-mixed", 1.0)]),
    "flux-xlabs": ("flux1-dev", [("flux-xlabs", 0.8)]),
    "flux-alpha": ("flux1-dev", [("flux-alpha", 1.0)]),
    "flux-peft": ("flux1-dev", [("flux-peft", 1.0)]),
    "flux-two": ("flux1-dev", [("flux-kohya", 0.5), ("flux-diffusers", -0.7)]),
    "sd-none": ("sd15", []),
    "sd-diffusers": ("sd15", [("sd-diffusers", 1.0)]),
    "sd-dora": ("sd15", [("sd-dora", 1.0)]),
    "sd-old": ("sd15", [("sd-old", 1.0)]),
    "sd-linear-layer": ("sd15", [("sd-linear-layer", 1.0)]),
    "sd-kohya": ("sd15", [("sd-kohya", 0.9)]),
    "sd-two": ("sd15", [("sd-kohya", 0.4), ("sd-old", 1.2)]),
    "sdxl-none": ("sdxl", []),
    "sdxl-diffusers": ("sdxl", [("sdxl-diffusers", 1.0)]),
    "sdxl-kohya": ("sdxl", [("sdxl-kohya", 1.0)]),
    "sd3-none": ("sd3", []),
    "sd3-diffusers": ("sd3", [("sd3-diffusers", 1.0)]),
    "zimage-none": ("z-image", []),
    "zimage-diffusers": ("z-image", [("zimage-diffusers", 1.0)]),
}


def make_goldens(root):
    record, index = {}, {}
    for name, (model, loras) in RUNS.items():
        pipe = fresh(root, model)
        for file, scale in loras:
            if file == "flux-peft":
                pipe.transformer = PeftModel.from_pretrained(pipe.transformer, HERE / file).merge_and_unload()
                continue
            path = HERE / f"{file}.safetensors"
            state = load_file(path)
            with small_flux(48, 192):
                if any(v.dtype != torch.float32 for v in state.values()):
                    # Given as a file, diffusers would compute the product in the factors' type.
                    pipe.load_lora_weights({k: v.float() for k, v in state.items()}, adapter_name="a")
                else:
                    pipe.load_lora_weights(HERE, weight_name=path.name, adapter_name="a")
            pipe.set_adapters(["a"], [scale])
            # One after the other: transformers fills the first adapter of a text encoder with new numbers when it loads a second.
            pipe.fuse_lora(components=[c for c in pipe._lora_loadable_modules if getattr(pipe, c, None) is not None])
            pipe.unload_lora_weights()
        run(pipe, model, record, name)
        index[name] = {
            "model": model, "variant": VARIANTS.get(model, ""), "call": CALLS[model], "seed": SEED,
            "loras": [{"file": f if f != "flux-peft" else "flux-peft/adapter_model", "scale": s} for f, s in loras],
        }
        base = record[name.split("-")[0] + "-none/step_latents"]
        moved = float((record[f"{name}/step_latents"] - base).abs().max() / base.abs().max())
        print(f"{name}: latents moved by {moved:.3f} of their maximum")
        assert not loras or moved > 0.02
    save_file({k: v.contiguous() for k, v in record.items()}, HERE / "golden.safetensors")
    (HERE / "golden.json").write_text(json.dumps(index, indent=2) + "\n")


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("tiny", type=Path)
    args = ap.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    make_files(args.tiny)
    make_goldens(args.tiny)
    for path in HERE.rglob("*.safetensors"):
        path.chmod(0o644)
