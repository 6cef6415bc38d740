"""Copies a part of the reference pipelines into this folder: trim.py REFERENCE/tiny [OUT]

The whole reference set is larger than a repository should be. Of each pipeline in CASES this takes the checkpoint and one run: what the tests of
whole runs compare, without the modules on the way. Needs Python only.
"""

import json
import pathlib
import shutil
import struct
import sys

# name: (runs, files of the checkpoint that are left out, whether the modules on the way stay)
CASES = {
    "flux1-dev": (["a", "batch2", "true-cfg"], [], True),
    "flux1-schnell": (["a"], ["tokenizer_2/spiece.model"], True),
    "sd15": (["a", "batch2", "odd-size", "no-guidance", "clip-skip", "euler-a"], [], True),
    "flux2-dev": (["a"], ["vae/*.safetensors"], False),
    "tp-flux2": (["a"], [], False),
    "tp-wan": (["a"], ["tokenizer/tokenizer.json"], False),
    "wan22-t2v": (["a"], ["tokenizer/tokenizer.json", "vae/*.safetensors"], False),
    "tp-sd3": (["a"], ["tokenizer_3/tokenizer.json"], False),
    "tp-qwen": (["a"], [], False),
    "z-image": (["a"], [], False),
}
# Without a decoder's weights a run is compared up to the latents; another case has the same class of decoder.


def read(path):
    data = path.read_bytes()
    n = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8 : 8 + n]), data[8 + n :]


def write(path, tensors):
    header, body = {}, b""
    for name, (dtype, shape, data) in sorted(tensors.items()):
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def shapes(src, dst):
    """Keeps two pictures of each size of the trained model's goldens, which lie in dst already."""
    golden = json.loads((dst / "golden.json").read_text())
    golden["cases"] = [c for c in golden["cases"] if int(c["key"].split(".")[1]) < 2]
    keys = [c["key"] for c in golden["cases"]]
    (dst / "golden.json").write_text(json.dumps(golden, indent=1, ensure_ascii=False) + "\n")
    header, body = read(src / "golden.safetensors")
    kept = {}
    for key, t in header.items():
        if key.rsplit(".", 1)[0] in keys:
            a, b = t["data_offsets"]
            kept[key] = (t["dtype"], t["shape"], body[a:b])
    write(dst / "golden.safetensors", kept)
    for f in dst.glob("golden_*.png"):
        if int(f.stem.rsplit("_", 1)[1]) > 1:
            f.unlink()


def main():
    reference = pathlib.Path(sys.argv[1])
    out = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else pathlib.Path(__file__).parent / "tiny"
    for name, (runs, without, modules) in CASES.items():
        src, dst = reference / name, out / name
        if dst.exists():
            shutil.rmtree(dst)
        shutil.copytree(src / "model", dst / "model", copy_function=shutil.copyfile)
        for d in [dst, *dst.rglob("*")]:
            d.chmod(0o755 if d.is_dir() else 0o644)
        for pattern in without:
            for f in (dst / "model").rglob(pattern):
                f.unlink()
        golden = json.loads((src / "golden.json").read_text())
        header, body = read(src / "golden.safetensors")
        tensors = {}
        for key, t in header.items():
            if key == "__metadata__":
                continue
            run, _, rest = key.partition("/")
            # First calls of networks and modules are for the networks' own tests.
            if modules and run not in golden["runs"]:
                run = "a"
            if run not in runs or not modules and (rest.split("/")[0] in ("unet", "transformer", "transformer_2", "vae_decoder_chunks") or "/out/" in rest):
                continue
            a, b = t["data_offsets"]
            tensors[key] = (t["dtype"], t["shape"], body[a:b])
        write(dst / "golden.safetensors", tensors)
        golden["runs"] = {r: {k: v for k, v in golden["runs"][r].items() if modules or k != "blocks"} for r in runs}
        if modules:
            golden["tensors"] = {k: v for k, v in golden.get("tensors", {}).items() if k in tensors}
        else:
            golden = {k: golden[k] for k in ("name", "runs")}
        # Tests skip what is missing, instead of failing.
        golden["trimmed"] = True
        (dst / "golden.json").write_text(json.dumps(golden, indent=1, ensure_ascii=False) + "\n")
        shutil.copyfile(src / "tokenizers.json", dst / "tokenizers.json")
        for r in runs:
            for f in list(src.glob(r + ".png")) + list(src.glob(r + "-*.png")):
                shutil.copyfile(f, dst / f.name)
        size = sum(f.stat().st_size for f in dst.rglob("*") if f.is_file())
        print(f"{name}: {size / 1e6:.2f} MB, {len(tensors)} tensors")
    if len(sys.argv) < 3:
        shapes(reference.parent / "shapes-flux1", pathlib.Path(__file__).parent / "shapes-flux1")


main()
