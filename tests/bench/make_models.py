#!/usr/bin/env python3
"""Write the checkpoints of the benchmarks: one network with random weights, every other component as its config alone.

    python make_models.py flux-768 OUT     # FLUX.1: 6 double and 12 single blocks, 6 heads x 128, 238.6M parameters, stored as bfloat16
    python make_models.py wan-512 OUT      # Wan: 16 blocks, 4 heads x 128, 82.7M parameters, stored as float32
    python make_models.py sdxl-mid OUT     # SDXL's UNet with 128, 256 and 512 channels, 286.7M parameters, stored as float32
    python make_models.py sd15-real OUT    # the UNet of Stable Diffusion 1.5 at its published size, 859.5M parameters, stored as float32
    python make_models.py sd15-vae OUT     # its autoencoder at its published size, 83.7M parameters, stored as float32

OUT is a folder in diffusers' layout. Weights are reproducible for a name: matrices have variance 1 / fan-in, so that values stay in range.
"""

import json
import math
import os
import sys

import torch
from diffusers import AutoencoderKL, FluxTransformer2DModel, UNet2DConditionModel, WanTransformer3DModel

CLIP = dict(
    architectures=["CLIPTextModel"], model_type="clip_text_model", vocab_size=49408, hidden_size=768, intermediate_size=3072,
    num_hidden_layers=12, num_attention_heads=12, max_position_embeddings=77, hidden_act="quick_gelu", layer_norm_eps=1e-5,
    projection_dim=768, bos_token_id=0, eos_token_id=2, pad_token_id=1,
)  # fmt: skip
T5 = dict(
    architectures=["T5EncoderModel"], model_type="t5", vocab_size=32128, d_model=1024, d_kv=64, d_ff=2816, num_heads=16, num_layers=8,
    relative_attention_num_buckets=32, relative_attention_max_distance=128, feed_forward_proj="gated-gelu", layer_norm_epsilon=1e-6,
)  # fmt: skip
VAE = dict(
    _class_name="AutoencoderKL", in_channels=3, out_channels=3, down_block_types=["DownEncoderBlock2D"] * 4, up_block_types=["UpDecoderBlock2D"] * 4,
    block_out_channels=[128, 256, 512, 512], layers_per_block=2, act_fn="silu", latent_channels=4, norm_num_groups=32, sample_size=512,
    scaling_factor=0.18215,
)  # fmt: skip
FLUX_VAE = dict(
    VAE, block_out_channels=[64, 128, 256, 256], latent_channels=16, sample_size=1024, scaling_factor=0.3611, shift_factor=0.1159,
    use_quant_conv=False, use_post_quant_conv=False, force_upcast=True,
)  # fmt: skip
FLOW = dict(
    _class_name="FlowMatchEulerDiscreteScheduler", num_train_timesteps=1000, shift=3.0, use_dynamic_shifting=True, base_shift=0.5, max_shift=1.15,
    base_image_seq_len=256, max_image_seq_len=4096,
)  # fmt: skip
UMT5 = dict(T5, architectures=["UMT5EncoderModel"], model_type="umt5", d_ff=2560)
SDXL_CLIP = dict(CLIP, hidden_size=512, num_attention_heads=8, intermediate_size=2048, num_hidden_layers=6, projection_dim=512)
WAN_VAE = dict(_class_name="AutoencoderKLWan", base_dim=48, z_dim=16, dim_mult=[1, 2, 4, 4], num_res_blocks=2, attn_scales=[], temperal_downsample=[False, True, True])
EULER = dict(
    _class_name="EulerDiscreteScheduler", num_train_timesteps=1000, beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", steps_offset=1,
    timestep_spacing="leading",
)  # fmt: skip
UNIPC = dict(_class_name="UniPCMultistepScheduler", num_train_timesteps=1000, prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0)
PNDM = dict(
    _class_name="PNDMScheduler", num_train_timesteps=1000, beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", skip_prk_steps=True,
    set_alpha_to_one=False, steps_offset=1,
)  # fmt: skip


def flux_768():
    return FluxTransformer2DModel(
        patch_size=1, in_channels=64, num_layers=6, num_single_layers=12, attention_head_dim=128, num_attention_heads=6, joint_attention_dim=1024,
        pooled_projection_dim=768, guidance_embeds=True, axes_dims_rope=(16, 56, 56),
    )  # fmt: skip


def wan_512():
    return WanTransformer3DModel(
        num_attention_heads=4, attention_head_dim=128, ffn_dim=2816, freq_dim=256, num_layers=16, text_dim=1024, cross_attn_norm=True,
        qk_norm="rms_norm_across_heads",
    )  # fmt: skip


def sdxl_mid():
    return UNet2DConditionModel(
        sample_size=128, in_channels=4, out_channels=4, block_out_channels=(128, 256, 512), layers_per_block=2, norm_num_groups=32,
        cross_attention_dim=1024, attention_head_dim=(2, 4, 8), transformer_layers_per_block=(1, 2, 6), use_linear_projection=True,
        addition_embed_type="text_time", addition_time_embed_dim=256, projection_class_embeddings_input_dim=6 * 256 + 512,
        down_block_types=("DownBlock2D",) + ("CrossAttnDownBlock2D",) * 2, up_block_types=("CrossAttnUpBlock2D",) * 2 + ("UpBlock2D",),
    )  # fmt: skip


SD15_UNET = dict(
    sample_size=64, in_channels=4, out_channels=4, block_out_channels=(320, 640, 1280, 1280), layers_per_block=2, norm_num_groups=32,
    cross_attention_dim=768, attention_head_dim=8, down_block_types=("CrossAttnDownBlock2D",) * 3 + ("DownBlock2D",),
    up_block_types=("UpBlock2D",) + ("CrossAttnUpBlock2D",) * 3,
)  # fmt: skip


def sd15_real():
    return UNet2DConditionModel(**SD15_UNET)


def sd15_vae():
    return AutoencoderKL(**{k: v for k, v in VAE.items() if k != "_class_name"})


# name -> (network, its component, stored dtype, pipeline class, other components: name -> (library, class, file, config))
TEXT = ("transformers", "CLIPTextModel", "config.json", CLIP)
MODELS = {
    "flux-768": (flux_768, "transformer", torch.bfloat16, "FluxPipeline", {
        "scheduler": ("diffusers", "FlowMatchEulerDiscreteScheduler", "scheduler_config.json", FLOW), "text_encoder": TEXT,
        "text_encoder_2": ("transformers", "T5EncoderModel", "config.json", T5), "vae": ("diffusers", "AutoencoderKL", "config.json", FLUX_VAE),
    }),
    "sd15-real": (sd15_real, "unet", torch.float32, "StableDiffusionPipeline", {
        "scheduler": ("diffusers", "PNDMScheduler", "scheduler_config.json", PNDM), "text_encoder": TEXT,
        "vae": ("diffusers", "AutoencoderKL", "config.json", VAE),
    }),
    "sd15-vae": (sd15_vae, "vae", torch.float32, "StableDiffusionPipeline", {
        "scheduler": ("diffusers", "PNDMScheduler", "scheduler_config.json", PNDM), "text_encoder": TEXT,
        "unet": ("diffusers", "UNet2DConditionModel", "config.json", dict(SD15_UNET, _class_name="UNet2DConditionModel")),
    }),
    "sdxl-mid": (sdxl_mid, "unet", torch.float32, "StableDiffusionXLPipeline", {
        "scheduler": ("diffusers", "EulerDiscreteScheduler", "scheduler_config.json", EULER),
        "text_encoder": ("transformers", "CLIPTextModel", "config.json", SDXL_CLIP),
        "text_encoder_2": ("transformers", "CLIPTextModelWithProjection", "config.json", dict(SDXL_CLIP, architectures=["CLIPTextModelWithProjection"])),
        "vae": ("diffusers", "AutoencoderKL", "config.json", dict(VAE, scaling_factor=0.13025)),
    }),
    "wan-512": (wan_512, "transformer", torch.float32, "WanPipeline", {
        "scheduler": ("diffusers", "UniPCMultistepScheduler", "scheduler_config.json", UNIPC),
        "text_encoder": ("transformers", "UMT5EncoderModel", "config.json", UMT5), "vae": ("diffusers", "AutoencoderKLWan", "config.json", WAN_VAE),
    }),
}  # fmt: skip


@torch.no_grad()
def fill(net):
    """Random weights: norm scales near 1, biases near 0, matrices of variance 1 / fan-in; modulations a little less."""
    g = torch.Generator().manual_seed(7)
    for name, p in net.named_parameters():
        x = torch.randn(p.shape, generator=g)
        if p.ndim == 1:
            x = 1 + 0.2 * x if name.endswith("weight") else 0.1 * x
        else:
            x *= (0.6 if ".norm" in name or name.startswith("norm") else 1) / math.sqrt(p[0].numel())
        p.copy_(x)
    return net


def write(path, value):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as f:
        json.dump(value, f, indent=2)


def main(name, out):
    build, component, dtype, pipeline, parts = MODELS[name]
    net = fill(build())
    index = {"_class_name": pipeline, "_diffusers_version": "0.42.1", component: ["diffusers", type(net).__name__]}
    for part, (library, cls, file, config) in parts.items():
        index[part] = [library, cls]
        write(os.path.join(out, part, file), config)
    net.to(dtype).save_pretrained(os.path.join(out, component))
    # The index last: a folder that has it is complete.
    write(os.path.join(out, "model_index.json"), index)
    print(f"{name}: {sum(p.numel() for p in net.parameters()) / 1e6:.1f}M parameters as {str(dtype)[6:]} in {out}")


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in MODELS:
        sys.exit(__doc__)
    main(*sys.argv[1:])
