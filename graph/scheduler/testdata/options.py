"""Writes options.json: short trajectories of diffusers' schedulers with options that the reference's configs leave at their
defaults. Needs torch, scipy and diffusers 0.42.1:  python options.py > options.json

The options.json here was written without torch: diffusers' own source ran over a numpy stand-in for the torch functions that the
schedulers call, which was first held against all 40 recorded configs of the reference set (trajectories of 4 and 20 steps within
1e-5 of the largest value, zero-terminal-SNR Euler within 2e-4).
"""

import json
import sys

import diffusers
import numpy as np
import torch

SD = dict(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear")
LEADING = dict(SD, timestep_spacing="leading", steps_offset=1)
FLOW = dict(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0)
DDIM, DDPM, LCM, PNDM = "DDIMScheduler", "DDPMScheduler", "LCMScheduler", "PNDMScheduler"
EULER, ANCESTRAL, HEUN = "EulerDiscreteScheduler", "EulerAncestralDiscreteScheduler", "HeunDiscreteScheduler"
DPM, UNIPC, MATCH = "DPMSolverMultistepScheduler", "UniPCMultistepScheduler", "FlowMatchEulerDiscreteScheduler"
TIMES = [950.0, 700.0, 333.0, 40.0]

# (class, config, set_timesteps' arguments, eta)
CASES = [
    (DDIM, dict(SD, clip_sample=False), 5, 0.5),
    (DDIM, dict(SD, clip_sample=True), 5, 1.0),
    (DDIM, dict(SD, clip_sample=True, clip_sample_range=0.3, prediction_type="sample"), 5, 0.7),
    (DDIM, dict(SD, prediction_type="v_prediction", rescale_betas_zero_snr=True, timestep_spacing="trailing", clip_sample=False), 7, 0.3),
    (DDIM, dict(beta_schedule="squaredcos_cap_v2"), 5, 0.0),
    (DDIM, dict(num_train_timesteps=5, trained_betas=[0.1, 0.2, 0.3, 0.4, 0.5], clip_sample=False), 5, 0.0),
    (PNDM, dict(SD, skip_prk_steps=True, timestep_spacing="linspace"), 6, 0.0),
    (PNDM, dict(SD, skip_prk_steps=True, timestep_spacing="trailing", set_alpha_to_one=True), 7, 0.0),
    (PNDM, dict(SD, prediction_type="v_prediction"), 5, 0.0),
    (EULER, dict(SD, use_exponential_sigmas=True), 5, 0.0),
    (EULER, dict(SD, use_karras_sigmas=True, sigma_min=0.1, sigma_max=10.0), 5, 0.0),
    (EULER, dict(SD, interpolation_type="log_linear"), 5, 0.0),
    (EULER, dict(SD, final_sigmas_type="sigma_min", prediction_type="sample"), 5, 0.0),
    (EULER, dict(SD, timestep_type="continuous", prediction_type="v_prediction", use_karras_sigmas=True), 5, 0.0),
    (EULER, dict(SD), dict(timesteps=TIMES), 0.0),
    (EULER, dict(SD), dict(sigmas=[12.0, 5.0, 1.0, 0.1, 0.0]), 0.0),
    (EULER, dict(beta_schedule="squaredcos_cap_v2"), 5, 0.0),
    (ANCESTRAL, dict(SD, prediction_type="v_prediction", timestep_spacing="leading"), 5, 0.0),
    (HEUN, dict(LEADING, use_karras_sigmas=True), 4, 0.0),
    (HEUN, dict(SD, use_exponential_sigmas=True, prediction_type="v_prediction"), 4, 0.0),
    (HEUN, dict(SD, clip_sample=True, clip_sample_range=0.5, prediction_type="sample"), 4, 0.0),
    (HEUN, dict(beta_schedule="exp", timestep_spacing="trailing"), 3, 0.0),
    (HEUN, dict(SD), dict(timesteps=TIMES), 0.0),
    *[(DPM, dict(LEADING, algorithm_type=a, solver_type=t, solver_order=o, final_sigmas_type="sigma_min"), n, 0.0)
      for a in ("dpmsolver", "dpmsolver++", "sde-dpmsolver", "sde-dpmsolver++")
      for t in ("midpoint", "heun") for o, n in ((1, 3), (2, 5), (3, 16)) if (o, a) != (3, "sde-dpmsolver") and (o, t) != (1, "heun")],
    (DPM, dict(SD, algorithm_type="deis", solver_type="logrho", final_sigmas_type="sigma_min"), 5, 0.0),
    (DPM, dict(SD, algorithm_type="dpmsolver", prediction_type="v_prediction", final_sigmas_type="sigma_min"), 5, 0.0),
    (DPM, dict(SD, algorithm_type="dpmsolver", prediction_type="sample", final_sigmas_type="sigma_min"), 5, 0.0),
    (DPM, dict(SD, prediction_type="sample"), 5, 0.0),
    (DPM, dict(SD, use_lu_lambdas=True), 6, 0.0),
    (DPM, dict(SD, use_exponential_sigmas=True), 6, 0.0),
    (DPM, dict(beta_schedule="squaredcos_cap_v2", lambda_min_clipped=-5.1), 6, 0.0),
    (DPM, dict(beta_schedule="squaredcos_cap_v2", lambda_min_clipped=-5.1, timestep_spacing="trailing"), 6, 0.0),
    (DPM, dict(beta_schedule="squaredcos_cap_v2", lambda_min_clipped=-5.1, timestep_spacing="leading"), 6, 0.0),
    (DPM, dict(SD, lower_order_final=False, final_sigmas_type="sigma_min", solver_order=3), 5, 0.0),
    (DPM, dict(SD, euler_at_final=True, solver_order=3), 16, 0.0),
    (DPM, dict(FLOW, algorithm_type="sde-dpmsolver++"), 5, 0.0),
    (DPM, dict(use_flow_sigmas=True, use_dynamic_shifting=True), dict(num_inference_steps=5, mu=0.8), 0.0),
    (DPM, dict(SD), dict(timesteps=[int(t) for t in TIMES]), 0.0),
    (DPM, dict(SD, rescale_betas_zero_snr=True, prediction_type="v_prediction", timestep_spacing="trailing"), 6, 0.0),
    (UNIPC, dict(LEADING, solver_order=1), 5, 0.0),
    (UNIPC, dict(LEADING, solver_order=3), 7, 0.0),
    (UNIPC, dict(LEADING, solver_order=3, predict_x0=False, final_sigmas_type="sigma_min"), 7, 0.0),
    (UNIPC, dict(LEADING, solver_type="bh1", final_sigmas_type="sigma_min", prediction_type="v_prediction"), 5, 0.0),
    (UNIPC, dict(LEADING, solver_order=3, lower_order_final=False, final_sigmas_type="sigma_min"), 5, 0.0),
    (UNIPC, dict(LEADING, predict_x0=False, prediction_type="v_prediction", final_sigmas_type="sigma_min"), 5, 0.0),
    (UNIPC, dict(LEADING, predict_x0=False, prediction_type="sample", final_sigmas_type="sigma_min"), 5, 0.0),
    (UNIPC, dict(LEADING, prediction_type="sample"), 5, 0.0),
    (UNIPC, dict(LEADING, disable_corrector=[0, 2], timestep_spacing="trailing"), 5, 0.0),
    (UNIPC, dict(SD, use_exponential_sigmas=True, sigma_min=0.1, sigma_max=10.0), 5, 0.0),
    (UNIPC, dict(SD, use_karras_sigmas=True, final_sigmas_type="sigma_min"), 5, 0.0),
    (UNIPC, dict(FLOW, use_karras_sigmas=True), 5, 0.0),
    (UNIPC, dict(FLOW, use_dynamic_shifting=True), dict(num_inference_steps=5, mu=0.8), 0.0),
    (UNIPC, dict(FLOW, use_dynamic_shifting=True, time_shift_type="linear", shift_terminal=0.1), dict(num_inference_steps=5, mu=1.3), 0.0),
    (UNIPC, dict(FLOW), dict(sigmas=[0.9, 0.6, 0.4, 0.2]), 0.0),
    (DDPM, dict(SD, clip_sample=True, clip_sample_range=0.5), 5, 0.0),
    (DDPM, dict(SD, clip_sample=False, variance_type="fixed_large"), 5, 0.0),
    (DDPM, dict(SD, clip_sample=False, variance_type="fixed_small_log", prediction_type="v_prediction", timestep_spacing="trailing"), 7, 0.0),
    (DDPM, dict(beta_schedule="laplace", prediction_type="sample", timestep_spacing="linspace"), 5, 0.0),
    (DDPM, dict(beta_schedule="sigmoid", clip_sample=False), dict(timesteps=[int(t) for t in TIMES]), 0.0),
    (LCM, dict(clip_sample=True, clip_sample_range=0.5), 4, 0.0),
    (LCM, dict(prediction_type="v_prediction", original_inference_steps=20, timestep_scaling=3.0), 7, 0.0),
    (LCM, dict(prediction_type="sample"), dict(timesteps=[999, 759, 279]), 0.0),
    (MATCH, dict(shift=3.0, use_exponential_sigmas=True), 5, 0.0),
    (MATCH, dict(shift=2.0, invert_sigmas=True), 5, 0.0),
    (MATCH, dict(shift=2.0), dict(timesteps=TIMES), 0.0),
    (MATCH, dict(shift=2.0), dict(timesteps=TIMES, sigmas=[0.95, 0.5, 0.3, 0.1]), 0.0),
    (MATCH, dict(shift=3.0, shift_terminal=0.05, stochastic_sampling=True), 5, 0.0),
    (MATCH, dict(use_dynamic_shifting=True, time_shift_type="linear", shift_terminal=0.1), dict(num_inference_steps=5, mu=1.3), 0.0),
    (EULER, dict(SD, use_beta_sigmas=True), 7, 0.0),
    (HEUN, dict(SD, use_beta_sigmas=True), 4, 0.0),
    (DPM, dict(SD, use_beta_sigmas=True), 20, 0.0),
    (UNIPC, dict(SD, use_beta_sigmas=True), 7, 0.0),
    (MATCH, dict(shift=3.0, use_beta_sigmas=True), 7, 0.0),
]


def run(name, config, args, eta):
    args = args if isinstance(args, dict) else {"num_inference_steps": args}
    scheduler = getattr(diffusers, name)(**config)
    scheduler.set_timesteps(**{k: np.array(v) if k == "sigmas" else v for k, v in args.items()})
    rng = np.random.default_rng(7)
    draws = []

    def randn(shape, **_):
        draws.append(rng.standard_normal(tuple(shape)).astype(np.float32))
        return torch.from_numpy(draws[-1])

    module = sys.modules[type(scheduler).__module__]
    if hasattr(module, "randn_tensor"):
        module.randn_tensor = randn
    shape = (1, 2, 3)
    sample = torch.from_numpy((rng.standard_normal(shape) * float(getattr(scheduler, "init_noise_sigma", 1.0))).astype(np.float32))
    bias = rng.standard_normal(shape)
    numbers = lambda x: [float(f"{v:.9g}") for v in np.asarray(x, dtype=np.float64).reshape(-1)]  # noqa: E731
    out = {"class": name, "config": config, "options": {**args, "eta": eta}, "initial": numbers(sample)}
    out["timesteps"] = numbers(scheduler.timesteps)
    inputs, outputs, samples = [], [], []
    for t in scheduler.timesteps:
        x = scheduler.scale_model_input(sample, t) if hasattr(scheduler, "scale_model_input") else sample
        inputs.append(numbers(x))
        output = torch.from_numpy((np.tanh(0.8 * np.asarray(x) + 0.3 * bias) + 0.2 * np.cos(float(t) / 300)).astype(np.float32))
        outputs.append(numbers(output))
        sample = scheduler.step(output, t, sample, return_dict=False, **({"eta": eta} if name == DDIM else {}))[0]
        samples.append(numbers(sample))
    out.update(scaled_inputs=inputs, model_outputs=outputs, samples=samples, noise=[numbers(d) for d in draws])
    return out


results = [run(*case) for case in CASES]
for r in results:
    if not np.isfinite(r["samples"]).all():
        raise SystemExit(f"not finite: {r['class']} {r['config']}")
print("[" + ",\n".join(json.dumps(r) for r in results) + "]")
